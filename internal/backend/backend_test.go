package backend

import (
	"strings"
	"testing"
)

func TestURLsThatNameNoEngine(t *testing.T) {
	for _, raw := range []string{
		"127.0.0.1:8001", "localhost:8001", "[::1]:8001", "host", "", "ftp://host:1", "http://", "http://host:1/v1",
		"http://host:1?a", "http://u@host:1", "http://host:port", "\x00",
	} {
		if b, err := New(raw, Prefill, DefaultLimits()); err == nil || !strings.Contains(err.Error(), "want http://HOST:PORT") {
			t.Errorf("%q: %v, %v", raw, b, err)
		}
	}
	for _, raw := range []string{"http://127.0.0.1:8001", "https://engine", "http://[::1]:8001/"} {
		if _, err := New(raw, Decode, DefaultLimits()); err != nil {
			t.Errorf("%q: %v", raw, err)
		}
	}
}

func TestMisfitNamesBothEngines(t *testing.T) {
	a := Member{Fingerprint: "1", Factors: []Factor{{"layers", "2"}, {"kv_type", "f16"}}}
	b := Member{Fingerprint: "2", Factors: []Factor{{"layers", "2"}, {"kv_type", "f32"}}}
	for _, c := range []struct {
		m, o Member
		want string
	}{
		{a, a, ""},
		{a, Member{}, ""},
		{Member{}, b, ""},
		{a, b, "kv_type is f16 on p:1 and f32 on d:2"},
		{a, Member{Fingerprint: "3"}, "layers is 2 on p:1 and (absent) on d:2"},
		{Member{Fingerprint: "3"}, a, "fingerprint is 3 on p:1 and 1 on d:2"},
	} {
		if got := c.m.Misfit("p:1", c.o, "d:2"); got != c.want {
			t.Errorf("%+v and %+v: %q, want %q", c.m, c.o, got, c.want)
		}
	}
}

package backend

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
)

// An asked is a transport that answers one probe after the other.
type asked func(*http.Request) (*http.Response, error)

func (a asked) RoundTrip(q *http.Request) (*http.Response, error) { return a(q) }

// One late answer of an engine that was ready is followed by another probe before
// anybody is turned away; two late ones, or a refusal, are believed.
func TestOneLateProbeIsNotBelieved(t *testing.T) {
	const ok, late, refused = "ok", "late", "refused"
	for name, c := range map[string]struct {
		answers []string // to the probes; the last one to all that follow
		want    []State
	}{
		"late once":           {[]string{ok, late, ok}, []State{Ready}},
		"late now and then":   {[]string{ok, late, ok, ok, late, ok}, []State{Ready}},
		"late twice":          {[]string{ok, late, late, ok}, []State{Ready, Down, Ready}},
		"refused":             {[]string{ok, refused, ok}, []State{Ready, Down, Ready}},
		"late, refused":       {[]string{ok, late, refused, ok}, []State{Ready, Down, Ready}},
		"late from the start": {[]string{late, ok}, []State{Down, Ready}},
	} {
		synctest.Test(t, func(t *testing.T) {
			limits := DefaultLimits()
			b, err := New("http://engine:1", Prefill, limits, nil)
			if err != nil {
				t.Fatal(err)
			}
			probes, over := 0, make(chan struct{})
			b.client.Transport = asked(func(q *http.Request) (*http.Response, error) {
				w := httptest.NewRecorder()
				if q.URL.Path != "/health/ready" {
					w.WriteHeader(http.StatusNotFound)
					return w.Result(), nil
				}
				answer := c.answers[min(probes, len(c.answers)-1)]
				if probes++; probes == len(c.answers)+3 {
					close(over)
				}
				switch answer {
				case late:
					<-q.Context().Done()
					return nil, q.Context().Err()
				case refused:
					return nil, errors.New("connection refused")
				}
				return w.Result(), nil
			})
			var got []State
			reasons := map[string]bool{
				"no answer to /health/ready within " + limits.Probe.String(): true, "connection refused": true, "": true,
			}
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan struct{})
			go func() {
				defer close(done)
				b.Run(ctx, func(_, to *View) {
					got = append(got, to.State)
					if !reasons[to.Reason] || (to.Reason == "") != (to.State == Ready) {
						t.Errorf("%s: %v for %q", name, to.State, to.Reason)
					}
				})
			}()
			<-over
			cancel()
			<-done
			if !slices.Equal(got, c.want) {
				t.Errorf("%s: %v, want %v", name, got, c.want)
			}
		})
	}
}

func TestURLsThatNameNoEngine(t *testing.T) {
	for _, raw := range []string{
		"127.0.0.1:8001", "localhost:8001", "[::1]:8001", "host", "", "ftp://host:1", "http://", "http://host:1/v1",
		"http://host:1?a", "http://u@host:1", "http://host:port", "\x00",
	} {
		if b, err := New(raw, Prefill, DefaultLimits(), nil); err == nil || !strings.Contains(err.Error(), "want http://HOST:PORT") {
			t.Errorf("%q: %v, %v", raw, b, err)
		}
	}
	for _, raw := range []string{"http://127.0.0.1:8001", "https://engine", "http://[::1]:8001/"} {
		if _, err := New(raw, Decode, DefaultLimits(), nil); err != nil {
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
		{Member{Incarnation: "i"}, Member{Incarnation: "j"}, ""},
		{Member{Incarnation: "i"}, Member{Incarnation: "i"}, "they are one engine, which cannot read its own KV: give another one, or use this one without a router"},
		{Member{Fingerprint: "3"}, a, "fingerprint is 3 on p:1 and 1 on d:2"},
	} {
		if got := c.m.Misfit("p:1", c.o, "d:2"); got != c.want {
			t.Errorf("%+v and %+v: %q, want %q", c.m, c.o, got, c.want)
		}
	}
}

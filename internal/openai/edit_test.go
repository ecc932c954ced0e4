package openai

import (
	"bytes"
	"encoding/json"
	"errors"
	"reflect"
	"testing"
)

func TestEditKeepsEveryOtherByte(t *testing.T) {
	set := func(k, v string) Edit { return Edit{k, json.RawMessage(v)} }
	drop := func(k string) Edit { return Edit{Key: k} }
	for _, c := range []struct {
		name, in, want string
		edits          []Edit
	}{
		{"nothing", ` { "a" : 1 } `, ` { "a" : 1 } `, nil},
		{"replace keeps spacing", `{ "seed" : 9007199254740993 , "n":1}`, `{ "seed" : 9007199254740993 , "n":2}`, []Edit{set("n", "2")}},
		{"add to empty", `{ }`, `{"a":1}`, []Edit{set("a", "1")}},
		{"add to full", "{\"a\":1\n}", "{\"a\":1,\"b\":[2]\n}", []Edit{set("b", "[2]")}},
		{"drop first", `{"a":1, "b":2}`, `{"b":2}`, []Edit{drop("a")}},
		{"drop middle", `{"a":1, "b":2,  "c":3}`, `{"a":1,  "c":3}`, []Edit{drop("b")}},
		{"drop last", `{"a":1, "b":2 }`, `{"a":1 }`, []Edit{drop("b")}},
		{"drop all and add", `{"a":1,"b":2}`, `{"c":3}`, []Edit{drop("a"), drop("b"), set("c", "3")}},
		{"drop absent", `{"a":1}`, `{"a":1}`, []Edit{drop("x")}},
		{"escaped key", `{"\u0061":1}`, `{"\u0061":7}`, []Edit{set("a", "7")}},
		{"duplicates become one", `{"n":1,"x":0,"n":2}`, `{"x":0,"n":5}`, []Edit{set("n", "5")}},
		{"nested keys stay", `{"x":{"n":1},"s":"\"}{"}`, `{"x":{"n":1},"s":"\"}{","n":3}`, []Edit{set("n", "3")}},
	} {
		t.Run(c.name, func(t *testing.T) {
			b, err := ParseBody([]byte(c.in))
			if err != nil {
				t.Fatal(err)
			}
			if got := string(b.Edit(c.edits...)); got != c.want {
				t.Errorf("got  %q\nwant %q", got, c.want)
			}
		})
	}
}

func TestParseBodyRefuses(t *testing.T) {
	for _, in := range []string{"", " ", "{", `{"a":}`, `{"a":1}x`, `{"a" 1}`, "\x00", `{"a":01}`} {
		if _, err := ParseBody([]byte(in)); err == nil || errors.Is(err, errNotObject) {
			t.Errorf("%q: %v, want a syntax error", in, err)
		}
	}
	for _, in := range []string{"[]", "1", "null", `"x"`} {
		if _, err := ParseBody([]byte(in)); !errors.Is(err, errNotObject) {
			t.Errorf("%q: %v, want errNotObject", in, err)
		}
	}
}

func TestElements(t *testing.T) {
	got := Elements(json.RawMessage(` [ 1, "a,]" ,[2,{"x":3}] , null] `))
	want := []json.RawMessage{[]byte("1"), []byte(`"a,]"`), []byte(`[2,{"x":3}]`), []byte("null")}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %s", got)
	}
	if Elements(json.RawMessage(`"x"`)) != nil || Elements(json.RawMessage(`[1,`)) != nil {
		t.Error("elements of what is no array")
	}
}

// An edited body means what a map with the same edits means, and editing a key
// to its own value changes nothing.
func FuzzEdit(f *testing.F) {
	for _, s := range []string{`{}`, ` {"a":1, "b":[1,{"c":"\\\""}] , "a":null}`, `{"seed":18446744073709551615}`, `{"\u0061\n":"\ud83d\ude00"}`, `[1]`, `{"a":{}`} {
		f.Add([]byte(s), "a", []byte(`{"x":1}`))
	}
	f.Fuzz(func(t *testing.T, raw []byte, key string, value []byte) {
		before := bytes.Clone(raw)
		b, err := ParseBody(raw)
		if err != nil {
			return
		}
		var want map[string]json.RawMessage
		if err := json.Unmarshal(raw, &want); err != nil {
			t.Fatalf("parsed %q, which is no object: %v", raw, err)
		}
		check := func(out []byte, want map[string]json.RawMessage) {
			t.Helper()
			var got map[string]json.RawMessage
			if err := json.Unmarshal(out, &got); err != nil {
				t.Fatalf("%q became %q: %v", raw, out, err)
			}
			if len(got) != len(want) {
				t.Fatalf("%q became %q, want %d keys", raw, out, len(want))
			}
			for k, v := range want {
				if !bytes.Equal(got[k], v) {
					t.Fatalf("%q became %q: key %q is %q, want %q", raw, out, k, got[k], v)
				}
			}
		}
		check(b.Edit(), want)
		if !bytes.Equal(b.Edit(), raw) {
			t.Fatalf("no edit changed %q to %q", raw, b.Edit())
		}
		// A key that is no valid UTF-8 cannot be written in JSON.
		var k2 string
		if q, err := json.Marshal(key); err != nil || json.Unmarshal(q, &k2) != nil || k2 != key {
			return
		}
		if json.Valid(value) {
			v := json.RawMessage(bytes.TrimSpace(value))
			set := map[string]json.RawMessage{key: v}
			for k, old := range want {
				if k != key {
					set[k] = old
				}
			}
			check(b.Edit(Edit{key, v}), set)
		}
		delete(want, key)
		check(b.Edit(Edit{Key: key}), want)
		if !bytes.Equal(raw, before) {
			t.Fatal("an edit wrote into its input")
		}
	})
}

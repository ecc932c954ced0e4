package flow

import (
	"encoding/json"
	"errors"
	"reflect"
	"testing"

	"tandem/internal/backend"
)

// Only what another engine may do better is tried there: its own faults and a
// full queue, but not what no engine does, nor what the client did wrong.
func TestRetryable(t *testing.T) {
	const blamed = "kv_transfer_params.remote_mac"
	for _, c := range []struct {
		name            string
		o               Outcome
		retries, refuse bool
	}{
		{"no answer", silent, true, false},
		{"a fault of the engine", broken, true, false},
		{"a full queue", Outcome{Status: 429}, true, false},
		{"an engine that is not ready", Outcome{Status: 503}, true, false},
		{"what no engine does", Outcome{Status: 501}, false, false},
		{"a fault of the client", wrong, false, false},
		{"a refused hand-off", Outcome{Status: 400, Param: blamed, Refusal: "no"}, true, true},
		{"a fault of the engine that names the hand-off", Outcome{Status: 500, Param: blamed}, true, false},
	} {
		if got := c.o.Retryable(); got != c.retries {
			t.Errorf("%s: retryable %t, want %t", c.name, got, c.retries)
		}
		if got := c.o.Refuses(); got != c.refuse {
			t.Errorf("%s: refuses %t, want %t", c.name, got, c.refuse)
		}
	}
}

// The client gets an engine's own answer where it is JSON, and is told when to
// come again where that may help.
func TestFailures(t *testing.T) {
	body, header := []byte(`{"error":{}}`), map[string][]string{"X": {"1"}}
	for _, c := range []struct {
		name string
		got  *Failure
		want Failure
	}{
		{"an answer", Outcome{Status: 500, Body: body, Header: header}.Failure(1),
			Failure{Status: 500, Kind: "engine_error", Body: body, Header: header}},
		{"not ready", Outcome{Status: 503, Body: body}.Failure(1),
			Failure{Status: 503, Kind: "engine_error", Body: body, Retry: 1}},
		{"a full queue", Outcome{Status: 429, Body: body}.Failure(1),
			Failure{Status: 429, Kind: "engine_error", Body: body, Retry: 1}},
		{"not JSON", Outcome{Status: 500, Body: []byte("<html>")}.Failure(1),
			Failure{Status: 500, Kind: "engine_error", Message: "the engine answered status 500 without a JSON body"}},
		{"no answer", Outcome{Err: errors.New("cut")}.Failure(2),
			Failure{Status: 502, Kind: "backend_unavailable", Retry: 1, Message: "an engine ended the exchange without an answer (attempt 2)"}},
		{"a refused hand-off", Outcome{Status: 400, Body: body, Refusal: "no"}.Failure(1),
			Failure{Status: 502, Kind: "bad_hand_off", Message: "no"}},
		{"nobody", NoBackend(backend.Prefill),
			Failure{Status: 503, Kind: "backend_unavailable", Retry: 1, Message: "no prefill engine is ready; see /status for the reason of each"}},
	} {
		if !reflect.DeepEqual(*c.got, c.want) {
			t.Errorf("%s: %+v, want %+v", c.name, *c.got, c.want)
		}
	}
}

// A P that refuses what the router put into its leg is no fault of the client:
// another may take it, and the last refusal is a bad gateway. A call wholly on
// D carries nothing of the router, so there it is an engine's answer.
func TestRefusals(t *testing.T) {
	o := Outcome{Status: 400, Param: "kv_transfer_params.do_remote_decode", Message: "no", Body: json.RawMessage("{}")}
	f := New[engine](false, 1)
	f.Start()
	f.Picked(backend.Prefill, "p1")
	if got, want := show(f.Prefilled(o)), "pick prefill not [p1]"; got != want {
		t.Errorf("after the first refusal: %s, want %s", got, want)
	}
	f.Picked(backend.Prefill, "p2")
	es := f.Prefilled(o)
	if got, want := show(es), "answer 502 bad_hand_off"; got != want {
		t.Fatalf("after the second refusal: %s, want %s", got, want)
	}
	if got, want := es[0].Fail.Message, "prefill engine p2 makes no hand-off: no"; got != want {
		t.Errorf("the client reads %q, want %q", got, want)
	}

	f = New[engine](true, 1)
	f.Start()
	f.Picked(backend.Decode, "d1")
	if got, want := show(f.Decoded(o)), "answer 400 engine_error"; got != want {
		t.Errorf("wholly on D: %s, want %s", got, want)
	}
}

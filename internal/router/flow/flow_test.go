package flow

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"

	"tandem/internal/backend"
	"tandem/internal/moves/movestest"
)

type engine string

func (e engine) Name() string { return string(e) }

// show writes effects down.
func show(es []Effect[engine]) string {
	var out []string
	for _, e := range es {
		switch e.Act {
		case Pick:
			out = append(out, fmt.Sprintf("pick %s not %v", e.Role, e.Not))
		case RunPrefill:
			out = append(out, "prefill")
		case RunDecode:
			out = append(out, "decode")
		case Release:
			out = append(out, fmt.Sprintf("release %s at %s", e.Handoff, e.From))
		case Stream:
			out = append(out, "stream")
		case Answer:
			out = append(out, fmt.Sprintf("answer %d %s", e.Fail.Status, e.Fail.Kind))
		}
	}
	return strings.Join(out, ", ")
}

var (
	made   = Outcome{Status: 200, Handoff: json.RawMessage(`{"a":1}`)}
	fine   = Outcome{Status: 200}
	silent = Outcome{Err: errors.New("cut")}
	broken = Outcome{Status: 500}
	wrong  = Outcome{Status: 400}
)

func TestFlows(t *testing.T) {
	const p, d = backend.Prefill, backend.Decode
	type f = *Flow[engine]
	steps := func(fs ...func(f) []Effect[engine]) []func(f) []Effect[engine] { return fs }
	picked := func(r backend.Role, e engine) func(f) []Effect[engine] {
		return func(x f) []Effect[engine] { return x.Picked(r, e) }
	}
	prefilled := func(o Outcome) func(f) []Effect[engine] {
		return func(x f) []Effect[engine] { return x.Prefilled(o) }
	}
	decoded := func(o Outcome) func(f) []Effect[engine] {
		return func(x f) []Effect[engine] { return x.Decoded(o) }
	}
	gone := func(x f) []Effect[engine] { return x.Gone() }
	for _, c := range []struct {
		name    string
		whole   bool
		retries int
		steps   []func(f) []Effect[engine]
		last    string
		state   State
	}{
		{"the ordinary path", false, 1, steps(picked(p, "p1"), prefilled(made), picked(d, "d1"), decoded(fine)), "stream", Streaming},
		{"wholly on D", true, 1, steps(picked(d, "d1"), decoded(fine)), "stream", Streaming},
		{"wholly on another D", true, 1, steps(picked(d, "d1"), decoded(silent)), "pick decode not [d1]", PickingDecode},
		{"another P", false, 1, steps(picked(p, "p1"), prefilled(broken)), "pick prefill not [p1]", PickingPrefill},
		{"no retry is left", false, 0, steps(picked(p, "p1"), prefilled(broken)), "answer 500 engine_error", Failed},
		{"what the client did wrong stays wrong", false, 1, steps(picked(p, "p1"), prefilled(wrong)), "answer 400 engine_error", Failed},
		{"one retry is one", false, 1, steps(picked(p, "p1"), prefilled(broken), picked(p, "p2"), prefilled(broken)), "answer 500 engine_error", Failed},
		{"no hand-off", false, 1, steps(picked(p, "p1"), prefilled(fine)), "answer 502 bad_hand_off", Failed},
		{"another D after a new prefill", false, 1, steps(picked(p, "p1"), prefilled(made), picked(d, "d1"), decoded(silent)),
			`release {"a":1} at p1, pick prefill not [d1]`, PickingPrefill},
		{"D gives up", false, 0, steps(picked(p, "p1"), prefilled(made), picked(d, "d1"), decoded(broken)),
			`release {"a":1} at p1, answer 500 engine_error`, Failed},
		{"nobody decodes", false, 0, steps(picked(p, "p1"), prefilled(made), picked(d, "")),
			`release {"a":1} at p1, answer 503 backend_unavailable`, Failed},
		{"nobody decodes any more", false, 1, steps(picked(p, "p1"), prefilled(silent), picked(p, "")), "answer 502 backend_unavailable", Failed},
		{"the client leaves before the decode leg", false, 0, steps(picked(p, "p1"), prefilled(made), picked(d, "d1"), gone), `release {"a":1} at p1`, Left},
		{"the client leaves before the prefill leg", false, 0, steps(picked(p, "p1"), gone), "", Left},
		{"the client leaves with the answer", false, 0, steps(picked(p, "p1"), prefilled(made), picked(d, "d1"), decoded(fine), gone), "", Left},
		{"the client leaves before its failure", false, 0, steps(picked(p, ""), gone), "", Left},
	} {
		t.Run(c.name, func(t *testing.T) {
			x := New[engine](c.whole, c.retries)
			es := x.Start()
			for _, s := range c.steps {
				es = s(x)
			}
			if got := show(es); got != c.last || x.State() != c.state {
				t.Errorf("effects %q in state %v, want %q in %v", got, x.State(), c.last, c.state)
			}
			if x.State() == Streaming && x.Handoff() != nil {
				t.Error("an admitted hand-off is still open")
			}
		})
	}
}

// The drawing in the package comment shows the edges of the table and no other.
func TestDrawingShowsTheTable(t *testing.T) { movestest.Drawn(t, "flow.go", Moves.Edges()) }

// Where nobody answered, the client reads whether the engine was reached, and why
// it was not tried again.
func TestUnansweredSaysWhatHappened(t *testing.T) {
	refused := Outcome{Err: &backend.TransportError{Backend: "d:1", Err: &net.OpError{Op: "dial", Err: errors.New("refused")}}}
	cut := Outcome{Err: &backend.TransportError{Backend: "d:1", Err: io.ErrUnexpectedEOF}}
	begun := func() *Flow[engine] {
		f := New[engine](false, 1)
		f.Start()
		f.Picked(backend.Prefill, "p")
		f.Prefilled(made)
		f.Picked(backend.Decode, "d")
		return f
	}
	says := func(want string, es []Effect[engine]) {
		t.Helper()
		if len(es) == 0 || es[len(es)-1].Fail == nil || es[len(es)-1].Fail.Message != want {
			t.Errorf("%s; want %s", show(es), want)
		}
	}
	for o, what := range map[*Outcome]string{&refused: "was not reached", &cut: "ended the exchange without an answer"} {
		f := begun()
		f.Decoded(*o)
		says("engine d:1 "+what+"; no prefill engine is ready", f.Picked(backend.Prefill, ""))

		f = begun()
		f.Decoded(*o)
		f.Picked(backend.Prefill, "p")
		f.Prefilled(made)
		says("engine d:1 "+what+"; no other decode engine is ready", f.Picked(backend.Decode, ""))

		f = begun()
		f.Decoded(*o)
		f.Picked(backend.Prefill, "p")
		f.Prefilled(made)
		f.Picked(backend.Decode, "d2")
		says("engine d:1 "+what+" (attempt 2)", f.Decoded(*o))
	}
	f := New[engine](false, 1)
	f.Start()
	f.Picked(backend.Prefill, "p")
	f.Prefilled(cut)
	says("engine d:1 ended the exchange without an answer; no other prefill engine is ready", f.Picked(backend.Prefill, ""))

	f = New[engine](false, 1)
	f.Start()
	f.Picked(backend.Prefill, "p")
	f.Prefilled(cut)
	f.Picked(backend.Prefill, "p2")
	f.Prefilled(made)
	says("engine d:1 ended the exchange without an answer; no decode engine is ready", f.Picked(backend.Decode, ""))
}

// Package flow is the core of one client call in the router: which leg runs
// next, what a leg's outcome means, and what must be released.
//
// A Flow does no I/O, reads no clock and starts nothing. Its caller carries the
// effects out one after the other and tells how each ended. It hides when a
// retry helps, and whose fault a failure is.
//
//	begun ──▶ picking P ──▶ prefill ──▶ picking D ──▶ decode ──▶ streaming    P and D
//	begun ──▶ picking D ──▶ decode ──▶ streaming                              wholly on D
//	prefill ──▶ picking P                                                     another P
//	decode ──▶ picking P                                                      another D, after a new prefill
//	decode ──▶ picking D                                                      another D, wholly on D
//	picking P ──▶ failed                                                      nobody can serve
//	picking D ──▶ failed
//	prefill ──▶ failed                                                        no retry helps, or none is left
//	decode ──▶ failed
//	picking P ──▶ left                                                        the client has left
//	picking D ──▶ left
//	prefill ──▶ left                                                          before the leg has begun
//	decode ──▶ left
//	streaming ──▶ left
//	failed ──▶ left
//
// Once the client has a byte, nothing is tried again.
package flow

import (
	"encoding/json"
	"fmt"
	"slices"

	"tandem/internal/backend"
	"tandem/internal/moves"
)

// A Backend is what runs a leg, compared by ==. Its zero value is none.
type Backend interface {
	comparable
	Name() string // for messages
}

// A State is how far a flow is.
type State uint8

// The states of a flow.
const (
	Begun          State = iota
	PickingPrefill       // a prefill engine is wanted
	Prefilling           // the prefill leg runs
	PickingDecode        // a decode engine is wanted
	Decoding             // the decode leg has not answered
	Streaming            // the decode leg began well
	Failed               // the client is told so
	Left                 // the client has left
)

// String returns the name in the drawing.
func (s State) String() string {
	return [...]string{"begun", "picking P", "prefill", "picking D", "decode", "streaming", "failed", "left"}[s]
}

// Moves is the drawing of a flow.
var Moves = moves.Draw("flow",
	[]State{PickingPrefill, PickingDecode},
	[]State{Prefilling, Failed, Left},
	[]State{PickingDecode, PickingPrefill, Failed, Left},
	[]State{Decoding, Failed, Left},
	[]State{Streaming, PickingPrefill, PickingDecode, Failed, Left},
	[]State{Left},
	[]State{Left},
	nil,
)

// A Flow decides about one client call. Make it with New.
type Flow[B Backend] struct {
	state   State
	moves   moves.Count
	whole   bool
	retries int // left

	prefill, decode B
	failed          []B             // not to be tried again
	handoff         json.RawMessage // open: made by prefill, not yet admitted by a D
	attempts        int
	last            Outcome // of the latest leg that failed
}

// New returns a flow that tries so many times more after a failed leg. A whole
// one runs on D alone.
func New[B Backend](whole bool, retries int) *Flow[B] {
	return &Flow[B]{whole: whole, retries: retries}
}

// State returns how far the flow is.
func (f *Flow[B]) State() State { return f.state }

// Moves returns how often the flow has moved along each edge.
func (f *Flow[B]) Moves() *moves.Count { return &f.moves }

// Prefill returns the prefill engine that was chosen last.
func (f *Flow[B]) Prefill() B { return f.prefill }

// Decode returns the decode engine that was chosen last.
func (f *Flow[B]) Decode() B { return f.decode }

// Handoff returns the open hand-off: what the decode leg carries. It is nil
// before the prefill leg, and as soon as a D has admitted it.
func (f *Flow[B]) Handoff() json.RawMessage { return f.handoff }

// Attempts returns how often the call was tried.
func (f *Flow[B]) Attempts() int { return f.attempts }

// An Act is what an effect asks for.
type Act uint8

// The acts.
const (
	Pick       Act = iota // choose a backend of Role, not in Not; then Picked
	RunPrefill            // run the prefill leg on Prefill; then Prefilled
	RunDecode             // run the decode leg on Decode, with Handoff; then Decoded
	Release               // tell From that Handoff will not be read
	Stream                // the decode leg began well: pass it on
	Answer                // answer Fail
)

// An Effect is what the caller must do next.
type Effect[B Backend] struct {
	Act     Act
	Role    backend.Role
	Not     []B
	From    B
	Handoff json.RawMessage
	Fail    *Failure
}

func (f *Flow[B]) move(to State) { f.state = Moves.Move(f.state, to, &f.moves, "") }

// Start returns the first effects.
func (f *Flow[B]) Start() []Effect[B] {
	if f.whole {
		return f.pick(backend.Decode)
	}
	return f.pick(backend.Prefill)
}

func (f *Flow[B]) pick(role backend.Role) []Effect[B] {
	if role == backend.Prefill {
		f.move(PickingPrefill)
	} else {
		f.move(PickingDecode)
	}
	return []Effect[B]{{Act: Pick, Role: role, Not: f.failed}}
}

// Picked takes the chosen backend, or none where none can serve.
func (f *Flow[B]) Picked(role backend.Role, b B) []Effect[B] {
	var none B
	if b == none {
		if f.last.Status != 0 || f.last.Err != nil {
			f.last.then = fmt.Sprintf("no %s engine is ready", role)
			if role == backend.Prefill && slices.Contains(f.failed, f.prefill) || role == backend.Decode && slices.Contains(f.failed, f.decode) {
				f.last.then = fmt.Sprintf("no other %s engine is ready", role)
			}
			return f.give(f.last)
		}
		f.move(Failed)
		return append(f.drop(), Effect[B]{Act: Answer, Fail: NoBackend(role)})
	}
	if role == backend.Prefill {
		f.attempts++
		f.prefill = b
		f.move(Prefilling)
		return []Effect[B]{{Act: RunPrefill}}
	}
	if f.whole {
		f.attempts++
	}
	f.decode = b
	f.move(Decoding)
	return []Effect[B]{{Act: RunDecode}}
}

// Prefilled takes the outcome of the prefill leg.
func (f *Flow[B]) Prefilled(o Outcome) []Effect[B] {
	if !o.OK() {
		if o.Refuses() {
			o.Refusal = fmt.Sprintf("prefill engine %s makes no hand-off: %s", f.prefill.Name(), o.Message)
		}
		return f.again(f.prefill, o)
	}
	if len(o.Handoff) == 0 {
		f.move(Failed)
		return []Effect[B]{{Act: Answer, Fail: badHandoff(fmt.Sprintf(
			"prefill engine %s answered without kv_transfer_params: is it started with --kv-transfer-config?", f.prefill.Name()))}}
	}
	f.handoff = o.Handoff
	return f.pick(backend.Decode)
}

// Decoded takes how the decode leg began.
func (f *Flow[B]) Decoded(o Outcome) []Effect[B] {
	if o.OK() {
		f.handoff = nil
		f.move(Streaming)
		return []Effect[B]{{Act: Stream}}
	}
	if f.handoff != nil && o.Refuses() {
		o.Refusal = fmt.Sprintf("decode engine %s refused the hand-off of prefill engine %s: %s; they hold different cluster tokens, are one engine, or one was restarted",
			f.decode.Name(), f.prefill.Name(), o.Message)
	}
	return f.again(f.decode, o)
}

// again tries once more elsewhere, or gives up with o. The hand-off of the
// attempt is released: a retry on another D begins with a new prefill.
func (f *Flow[B]) again(b B, o Outcome) []Effect[B] {
	f.last = o
	if !o.Retryable() || f.retries == 0 {
		return f.give(o)
	}
	f.retries--
	f.failed = append(f.failed, b)
	return append(f.drop(), f.Start()...)
}

// give ends the flow with a leg's failure, as it came from the engine.
func (f *Flow[B]) give(o Outcome) []Effect[B] {
	f.move(Failed)
	return append(f.drop(), Effect[B]{Act: Answer, Fail: o.Failure(f.attempts)})
}

// Gone ends the flow because its client did.
func (f *Flow[B]) Gone() []Effect[B] {
	f.move(Left)
	return f.drop()
}

// drop releases the open hand-off, if there is one.
func (f *Flow[B]) drop() []Effect[B] {
	if f.handoff == nil {
		return nil
	}
	e := Effect[B]{Act: Release, From: f.prefill, Handoff: f.handoff}
	f.handoff = nil
	return []Effect[B]{e}
}

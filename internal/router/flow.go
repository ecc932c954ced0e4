package router

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"

	"tandem/internal/backend"
)

// A flow is the core of one client call: which leg runs next, what a leg's
// outcome means, and what must be released. It does no I/O; the handler's
// goroutine carries its effects out one after the other.
//
//	start ──▶ prefill ──▶ decode ──▶ done       P and D
//	start ──▶ decode ──▶ done                   wholly on D
//	prefill ──▶ prefill, decode ──▶ prefill     one retry, on another backend
//
// Once the client has a byte, nothing is tried again.
type flow struct {
	whole   bool // the request runs on D alone
	retries int  // left

	prefill, decode *backend.Backend
	failed          []*backend.Backend // not to be tried again
	handoff         json.RawMessage    // open: made by prefill, not yet admitted by a D
	attempts        int
	last            outcome // of the latest leg that failed
}

// An outcome is how a leg ended.
type outcome struct {
	status  int             // of the engine's answer; 0: there was none
	body    []byte          // of an answer that is no success
	handoff json.RawMessage // of a prefill leg, "" where P gave none
	err     error           // where there was no answer
	message string          // what the engine says of its failure
	param   string          // which field it blames
	refusal string          // a refused hand-off, which is no fault of the client
}

// answered is the outcome of a leg that was answered, but not with success.
func answered(status int, body []byte) outcome {
	var e struct {
		Error struct {
			Message string `json:"message"`
			Param   string `json:"param"`
		} `json:"error"`
	}
	_ = json.Unmarshal(body, &e) // what has another form says nothing
	return outcome{status: status, body: body, message: e.Error.Message, param: e.Error.Param}
}

// refuses reports whether the engine refuses what the router put into the leg.
// Clients cannot send kv_transfer_params, so P and D do not go together.
func (o outcome) refuses() bool {
	return o.status/100 == 4 && strings.HasPrefix(o.param, "kv_transfer_params")
}

// ok reports whether the leg did what it was for.
func (o outcome) ok() bool { return o.status/100 == 2 }

// retryable reports whether another backend may do better: there was no
// answer, or the engine says that the fault is its own. What a client did wrong
// stays wrong elsewhere.
func (o outcome) retryable() bool {
	return o.status == 0 || o.refusal != "" || o.status >= 500 && o.status != http.StatusNotImplemented || o.status == http.StatusTooManyRequests
}

// An effect is what the shell must do next.
type effect struct {
	act     act
	role    backend.Role
	not     []*backend.Backend // for pick
	release *backend.Backend   // for release, with handoff
	handoff json.RawMessage
	fail    *failure // for answer
}

type act uint8

const (
	actPick    act = iota // choose a backend of role, not in not
	actPrefill            // run the prefill leg on flow.prefill
	actDecode             // run the decode leg on flow.decode, with flow.handoff
	actRelease            // tell release that handoff will not be read
	actStream             // the decode leg began well: pass it on
	actFail               // answer fail
)

// start returns the first effects.
func (f *flow) start() []effect {
	if f.whole {
		return f.pick(backend.Decode)
	}
	return f.pick(backend.Prefill)
}

func (f *flow) pick(role backend.Role) []effect {
	return []effect{{act: actPick, role: role, not: f.failed}}
}

// picked takes the chosen backend, or nil where none can serve.
func (f *flow) picked(role backend.Role, b *backend.Backend) []effect {
	if b == nil {
		if f.last.status != 0 || f.last.err != nil {
			return f.give(f.last)
		}
		return append(f.drop(), effect{act: actFail, fail: noBackend(role)})
	}
	if role == backend.Prefill {
		f.attempts++
		f.prefill = b
		return []effect{{act: actPrefill}}
	}
	if f.whole {
		f.attempts++
	}
	f.decode = b
	return []effect{{act: actDecode}}
}

// prefilled takes the outcome of the prefill leg.
func (f *flow) prefilled(o outcome) []effect {
	if !o.ok() {
		if o.refuses() {
			o.refusal = fmt.Sprintf("prefill engine %s makes no hand-off: %s", f.prefill.Name(), o.message)
		}
		return f.again(f.prefill, o)
	}
	if len(o.handoff) == 0 {
		return []effect{{act: actFail, fail: &failure{
			status: http.StatusBadGateway, kind: "bad_hand_off",
			message: fmt.Sprintf("prefill engine %s answered without kv_transfer_params: is it started with --kv-transfer-config?", f.prefill.Name()),
		}}}
	}
	f.handoff = o.handoff
	return f.pick(backend.Decode)
}

// decoded takes how the decode leg began.
func (f *flow) decoded(o outcome) []effect {
	if o.ok() {
		f.handoff = nil
		return []effect{{act: actStream}}
	}
	if f.handoff != nil && o.refuses() {
		o.refusal = fmt.Sprintf("decode engine %s refused the hand-off of prefill engine %s: %s; they hold different cluster tokens, or one was restarted",
			f.decode.Name(), f.prefill.Name(), o.message)
	}
	return f.again(f.decode, o)
}

// again tries once more elsewhere, or gives up with o. The hand-off of the
// attempt is released: a retry on another D begins with a new prefill.
func (f *flow) again(b *backend.Backend, o outcome) []effect {
	f.last = o
	if !o.retryable() || f.retries == 0 {
		return f.give(o)
	}
	f.retries--
	f.failed = append(f.failed, b)
	return append(f.drop(), f.start()...)
}

// give ends the flow with a leg's failure, as it came from the engine.
func (f *flow) give(o outcome) []effect {
	return append(f.drop(), effect{act: actFail, fail: o.failure(f)})
}

// gone ends the flow because its client did.
func (f *flow) gone() []effect { return f.drop() }

// drop releases the open hand-off, if there is one.
func (f *flow) drop() []effect {
	if f.handoff == nil {
		return nil
	}
	e := effect{act: actRelease, release: f.prefill, handoff: f.handoff}
	f.handoff = nil
	return []effect{e}
}

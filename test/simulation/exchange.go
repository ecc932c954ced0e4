package simulation

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"tandem/internal/connector"
	"tandem/internal/engine"
)

// An exchange is one request as the engine's server sees it.
type exchange struct {
	n      *node
	l      *leg
	stream *engine.Stream
	deaf   bool // its answer goes nowhere
	hung   bool // its client has gone
	made   int  // tokens of choice 0 that were read
	slow   bool // nothing is read now
}

// submit gives the request to the engine.
func (x *exchange) submit() {
	n, q, w := x.n, x.l.c.q, x.n.w
	r := engine.Request{ClientID: fmt.Sprint(x.l.c.id), Prompt: q.prompt, Params: q.params, Salt: q.salt, PromptLogprobs: -1}
	if x.l.prefill {
		r.RemoteDecode = true
	} else {
		r.Policy, r.N, r.Priority = engine.FailPolicy(q.policy), len(q.want), q.rank
		if q.probe {
			r.PromptLogprobs = 0
		}
		if raw := x.l.c.flow.Handoff(); raw != nil {
			if q.stolen && len(w.seen) > 1 {
				raw = w.seen[w.net.IntN(len(w.seen))]
				w.logf(n, "request %d comes with a hand-off that is not its own", x.l.c.id)
			}
			h, err := connector.ParseHandoff(raw)
			if err != nil {
				w.fail("%s cannot read a hand-off: %v", n.name, err)
				return
			}
			if q.forged {
				h.MAC[0] ^= 1
			}
			r.Handoff = h
		}
	}
	s, err := n.eng.Submit(context.Background(), r)
	if err != nil {
		status, param := 503, ""
		if errors.Is(err, engine.ErrOverloaded) {
			status = 429
		}
		if _, ok := errors.AsType[*connector.HandoffError](err); ok {
			status, param = 400, "kv_transfer_params"
		}
		if _, ok := errors.AsType[*engine.InvalidError](err); ok {
			w.fail("%s refuses request %d: %v", n.name, x.l.c.id, err)
		}
		x.reply(func(l *leg) { l.answered(status, err.Error(), param) })
		return
	}
	x.stream = s
	if q.slow > 0 && !x.l.prefill {
		x.slow = true
		w.after(n, q.slow, "", func() {
			x.slow = false
			n.pump()
		})
	}
	n.legs = append(n.legs, x)
	n.kick()
}

// reply brings something to the router, in order.
func (x *exchange) reply(f func(*leg)) {
	if x.deaf {
		return
	}
	l, w := x.l, x.n.w
	l.last = max(l.last, w.clock+int64(w.latency())) + 1
	w.after(nil, time.Duration(l.last-w.clock), "", func() {
		if l.over {
			if x.stream != nil && x.n.alive {
				x.hangUp() // the answer could not be delivered
			}
			return
		}
		f(l)
	})
}

// output takes an output of the engine.
func (x *exchange) output(out engine.Output) {
	if out.Err != nil {
		x.judge(out)
		x.reply(func(l *leg) { l.answered(500, out.Err.Error(), "") })
		return
	}
	if !x.l.prefill {
		if out.Choice == 0 {
			before, at := x.made, x.l.c.q.stopAt
			if x.made += len(out.Tokens); before < at && at <= x.made {
				x.n.w.after(x.n, 20*time.Microsecond, "", func() {
					x.stream.Stop(0)
					x.n.kick()
				})
			}
		}
		x.reply(func(l *leg) { l.piece(out, nil) })
		return
	}
	if out.Finish == "" {
		return
	}
	var raw []byte
	if out.Handoff != nil {
		var err error
		if raw, err = json.Marshal(out.Handoff); err != nil {
			panic(err)
		}
		x.n.w.seen = append(x.n.w.seen, raw)
	}
	x.reply(func(l *leg) { l.piece(out, raw) })
}

// judge says whether an error may be: a failed load ends only requests whose
// policy says so, and what nobody disturbs does not fail.
func (x *exchange) judge(out engine.Output) {
	w, q := x.n.w, x.l.c.q
	policy := engine.FailPolicy(q.policy)
	if policy == "" {
		policy = x.n.config.Policy
	}
	_, load := errors.AsType[*connector.LoadError](out.Err)
	switch {
	case load && policy != engine.PolicyFail:
		w.fail("request %d fails with its load under policy %q: %v", x.l.c.id, policy, out.Err)
	case !load && !errors.Is(out.Err, engine.ErrAborted) && !errors.Is(out.Err, engine.ErrSlowReader):
		w.fail("request %d fails: %v", x.l.c.id, out.Err)
	case load:
		x.l.c.excused = true
	case errors.Is(out.Err, engine.ErrSlowReader) && (q.slow == 0 || x.n.config.MaxOutputs > 1000):
		w.fail("request %d counts as slow", x.l.c.id)
	}
}

// hangUp tells the engine's server that its client has gone.
func (x *exchange) hangUp() {
	if x.hung {
		return
	}
	x.hung = true
	n := x.n
	n.w.after(n, n.w.latency(), "", func() {
		if x.stream != nil {
			x.stream.Abort("client gone")
			n.kick()
		}
	})
}

// broken is the end of the process that serves the exchange.
func (x *exchange) broken() {
	if !x.deaf {
		x.n.w.after(nil, x.n.w.latency(), "", x.l.cut)
	}
}

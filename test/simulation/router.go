package simulation

import (
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"tandem/internal/backend"
	"tandem/internal/engine"
	"tandem/internal/fault"
	"tandem/internal/kv"
	"tandem/internal/router/flow"
)

// retries is how often a flow tries again.
const retries = 2

// A call is one client with its flow: the shell of a flow.Flow.
type call struct {
	w       *world
	id      int
	q       *request
	flow    *flow.Flow[*node]
	due     []flow.Effect[*node]
	leg     *leg
	limit   *event
	left    bool         // the client has gone
	over    bool         // it has its answer, or will have none
	excused bool         // its load failed, which its policy lets end it
	got     [][]kv.Token // by choice
	ended   int          // choices
}

// client lets a request come in at its time.
func (w *world) client(id int, q *request) {
	c := &call{w: w, id: id, q: q, flow: flow.New[*node](q.whole, retries), got: make([][]kv.Token, len(q.want))}
	w.calls = append(w.calls, c)
	w.after(nil, q.at, "", func() {
		w.logf(nil, "request %d: prompt %s of %d tokens, at most %d more, whole %t", id, q.key, len(q.prompt), q.params.MaxTokens, q.whole)
		c.limit = w.after(nil, patience, "", func() {
			w.fail("request %d has no answer after %v: %v", c.id, patience, c.flow.State())
		})
		if q.leaves > 0 {
			w.after(nil, q.leaves, "", c.leave)
		}
		c.due = c.flow.Start()
		if w.ready(w.dec) == 0 {
			c.end("no decode engine")
			w.cover.Failed++
			return
		}
		c.advance()
	})
}

func (w *world) ready(list []*node) (n int) {
	for _, x := range list {
		if x.alive {
			n++
		}
	}
	return n
}

// end closes the call.
func (c *call) end(how string) {
	c.over = true
	c.limit.cancel()
	c.w.logf(nil, "request %d ends: %s, %d tokens", c.id, how, len(c.got[0]))
}

// leave is the client's going away.
func (c *call) leave() {
	if c.over || c.left {
		return
	}
	c.left = true
	c.w.logf(nil, "client of request %d leaves", c.id)
	if c.leg != nil {
		c.leg.leave()
	} else {
		c.advance()
	}
}

// advance carries effects out until one takes time.
func (c *call) advance() {
	w := c.w
	for len(c.due) > 0 && !c.over {
		e := c.due[0]
		c.due = c.due[1:]
		if c.left && e.Act != flow.Release {
			c.due = c.flow.Gone()
			w.cover.Left++
			c.finish("left")
			continue
		}
		switch e.Act {
		case flow.Pick:
			c.due = append(c.due, c.flow.Picked(e.Role, w.pick(e.Role, e.Not, c.flow.Prefill()))...)
			if w.chance(0.3) { // others get their turn between choice and use
				w.after(nil, w.between(time.Microsecond, 20*time.Millisecond), "", c.advance)
				return
			}
		case flow.RunPrefill:
			c.run(true, c.flow.Prefill())
			return
		case flow.RunDecode:
			c.run(false, c.flow.Decode())
			return
		case flow.Release:
			c.release(e)
		case flow.Stream: // the leg goes on
		case flow.Answer:
			w.cover.Failed++
			if e.Fail.Status < 400 || w.calm && !c.excused {
				w.fail("request %d fails with status %d: %s", c.id, e.Fail.Status, e.Fail.Body)
			}
			c.finish(fmt.Sprintf("failed with %d %s", e.Fail.Status, e.Fail.Kind))
		}
	}
}

// finish ends the call but lets releases that are due be sent.
func (c *call) finish(how string) {
	for _, e := range c.due {
		if e.Act == flow.Release {
			c.release(e)
		}
	}
	c.due = nil
	c.end(how)
}

// pick chooses a backend that the router takes for ready.
func (w *world) pick(role backend.Role, not []*node, prefill *node) *node {
	list := w.dec
	if role == backend.Prefill {
		list = w.pre
	}
	var fit []*node
	for _, n := range list {
		// Probes notice a death late, so that dead engines are asked now and then.
		// In a world where all do both, most pairs are two engines.
		if role == backend.Decode && n == prefill && (w.calm || w.chance(0.9)) {
			continue
		}
		if !slices.Contains(not, n) && (n.alive || w.chance(0.3)) {
			fit = append(fit, n)
		}
	}
	if len(fit) == 0 {
		return nil
	}
	return fit[w.net.IntN(len(fit))]
}

// release tells P that nobody reads a hand-off. It may be lost.
func (c *call) release(e flow.Effect[*node]) {
	w := c.w
	f, hit := w.http.Decide(fault.HTTP, fault.Subject{Peer: e.From.addr})
	if hit && (f.Action == fault.Error || f.Action == fault.Blackhole) {
		w.struck(f.Cell())
		return
	}
	late := w.latency()
	if hit && f.Action == fault.Delay {
		late += time.Duration(f.Delay)
	}
	w.logf(nil, "request %d releases its hand-off at %s", c.id, e.From.name)
	for range 1 + btoi(hit && f.Action == fault.Duplicate) {
		w.after(nil, late, "", func() {
			if n := e.From; n.alive {
				w.after(n, 0, "", func() { n.shell.release(e.Handoff) })
			}
		})
	}
}

func btoi(b bool) int {
	if b {
		return 1
	}
	return 0
}

// A leg is one exchange with an engine as the router sees it.
type leg struct {
	c       *call
	n       *node
	prefill bool
	x       *exchange // at the engine, once it has arrived
	limit   *event    // to the first byte of an answer
	until   *event    // of an exchange that its client left
	last    int64     // when the latest output arrives: they keep their order
	over    bool
	leaving bool
	begun   bool
	fault   fault.Fault
	hit     bool
	counted bool
	pieces  int // outputs that may still arrive before the fault
}

// run starts a leg.
func (c *call) run(prefill bool, n *node) {
	w := c.w
	l := &leg{c: c, n: n, prefill: prefill, pieces: -1}
	c.leg = l
	l.limit = w.after(nil, legLimit, "", func() { l.failed(errTime) })
	late := w.latency()
	l.fault, l.hit = w.http.Decide(fault.HTTP, fault.Subject{Peer: n.addr})
	w.logf(nil, "request %d: leg to %s", c.id, n.name)
	if l.hit {
		w.logf(nil, "fault in the leg of request %d: %s", c.id, l.fault.Action)
		if a := l.fault.Action; a == fault.Error || a == fault.Blackhole || a == fault.Delay {
			w.struck(l.fault.Cell())
		}
		switch l.fault.Action {
		case fault.Error:
			w.after(nil, late, "", func() { l.answered(l.fault.Status, "chaos", "") })
			return
		case fault.Blackhole:
			return
		case fault.Delay:
			late += time.Duration(l.fault.Delay)
		case fault.Stall, fault.Cut:
			l.pieces = int(l.fault.Bytes) / 200
			if prefill {
				l.pieces = 0
			}
		default:
		}
	}
	w.after(nil, late, "", l.arrive)
}

// arrive brings the request to the process that listens.
func (l *leg) arrive() {
	w, n := l.c.w, l.n
	if l.over {
		return
	}
	if !n.alive {
		w.after(nil, w.latency(), "", func() { l.failed(errRefused) })
		return
	}
	w.after(n, 0, "", func() {
		if l.over || l.leaving {
			l.left()
			return
		}
		if l.hit && l.fault.Action == fault.Duplicate {
			w.struck(l.fault.Cell())
			(&exchange{n: n, l: l, deaf: true}).submit()
		}
		x := &exchange{n: n, l: l}
		l.x = x
		x.submit()
	})
}

// cut ends the leg without an answer.
func (l *leg) cut() { l.failed(errGone) }

func (l *leg) failed(err error) {
	if l.over {
		return
	}
	streaming := l.begun && !l.prefill
	l.close()
	if l.x != nil {
		l.x.hangUp()
	}
	if streaming {
		l.c.w.cover.Interrupted++
		l.c.finish("interrupted")
		return
	}
	l.outcome(flow.Outcome{Err: &backend.TransportError{Backend: l.n.name, Err: err}})
}

// close ends the router's side.
func (l *leg) close() {
	l.over = true
	l.limit.cancel()
	l.until.cancel()
	l.c.leg = nil
}

func (l *leg) answered(status int, message, param string) {
	if l.over {
		return
	}
	if l.begun && !l.prefill {
		l.close()
		l.c.w.cover.Interrupted++
		l.c.finish("interrupted by an error event")
		return
	}
	l.close()
	body, err := json.Marshal(map[string]any{"error": map[string]any{"message": message, "param": param}})
	if err != nil {
		panic(err)
	}
	l.outcome(flow.Answered(status, body))
}

// outcome tells the flow.
func (l *leg) outcome(o flow.Outcome) {
	c := l.c
	if l.prefill {
		c.due = append(c.due, c.flow.Prefilled(o)...)
	} else {
		c.due = append(c.due, c.flow.Decoded(o)...)
	}
	c.advance()
}

// leave is the client's going away while the leg runs. A prefill leg is half
// closed: an answer that is under way still arrives.
func (l *leg) leave() {
	if l.leaving || l.over {
		return
	}
	l.leaving = true
	w := l.c.w
	if l.x != nil {
		l.x.hangUp()
	}
	if l.prefill {
		l.until = w.after(nil, releaseLimit, "", func() { l.failed(errCancel) })
		return
	}
	if l.begun {
		l.close()
		w.cover.Left++
		l.c.due = l.c.flow.Gone()
		l.c.finish("left")
		return
	}
	l.failed(errCancel)
}

// left ends a leg whose client went before its request had arrived.
func (l *leg) left() {
	if !l.over {
		l.failed(errCancel)
	}
}

// struck counts the leg's fault, once.
func (l *leg) struck() {
	if !l.counted {
		l.counted = true
		l.c.w.struck(l.fault.Cell())
	}
}

// piece is one output that arrives at the router.
func (l *leg) piece(out engine.Output, handoff json.RawMessage) {
	w, c := l.c.w, l.c
	if l.over {
		return
	}
	if l.hit {
		switch l.fault.Action {
		case fault.Drop: // the engine has answered, and nobody hears of it
			l.struck()
			return
		case fault.Stall, fault.Cut:
			if l.pieces == 0 || out.Finish != "" {
				l.struck()
				if l.fault.Action == fault.Cut {
					l.cut()
				}
				l.pieces = 0
				return
			}
			l.pieces--
		default:
		}
	}
	l.limit.cancel()
	l.limit = w.after(nil, silence, "", func() { l.failed(errTime) })
	if l.prefill {
		l.close()
		l.outcome(flow.Outcome{Status: 200, Handoff: handoff})
		return
	}
	if !l.begun {
		l.begun = true
		c.due = append(c.due, c.flow.Decoded(flow.Outcome{Status: 200})...)
		c.advance()
		if c.over {
			return
		}
	}
	if !c.compare(out) || c.ended < len(c.got) {
		return
	}
	l.close()
	w.cover.Answered++
	c.end("ok")
}

// compare checks an output against what a lone engine makes. It reports whether
// the choice has ended.
func (c *call) compare(out engine.Output) bool {
	w, want := c.w, c.q.want[out.Choice]
	if c.q.forged && !c.q.whole {
		w.fail("request %d is answered, with a hand-off that nobody signed", c.id)
		return false
	}
	got := append(c.got[out.Choice], out.Tokens...)
	c.got[out.Choice] = got
	if len(got) > len(want.tokens) || !slices.Equal(got, want.tokens[:len(got)]) {
		w.fail("choice %d of request %d got tokens %v, a lone engine makes %v", out.Choice, c.id, got, want.tokens)
		return false
	}
	if out.Finish == "" {
		return false
	}
	stopped := out.Choice == 0 && c.q.stopAt > 0 && len(got) >= c.q.stopAt && out.Finish == engine.FinishStop
	if !stopped && (string(out.Finish) != want.finish || len(got) != len(want.tokens)) {
		w.fail("choice %d of request %d ends with %q after %d tokens, a lone engine with %q after %d",
			out.Choice, c.id, out.Finish, len(got), want.finish, len(want.tokens))
		return false
	}
	u := out.Usage
	if u.Prompt != len(c.q.prompt) || u.LocalHit+u.Loaded+u.Recomputed+u.Computed != u.Prompt {
		w.fail("request %d: usage %+v does not add up", c.id, u)
		return false
	}
	// All but the last token of a prompt with a hand-off were promised.
	if !c.q.whole && !c.q.probe && !c.q.stolen && u.Computed != 1 || c.q.whole && u.Loaded+u.Recomputed > 0 {
		w.fail("request %d: usage %+v", c.id, u)
	}
	c.ended++
	return true
}

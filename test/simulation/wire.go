package simulation

import (
	"errors"
	"slices"
	"time"

	"tandem/internal/connector"
	"tandem/internal/connector/core"
	"tandem/internal/fault"
	"tandem/internal/kv"
)

var (
	errGone    = errors.New("the connection has ended")
	errTime    = errors.New("no answer in time")
	errRefused = errors.New("the peer refuses the message")
	errLease   = errors.New("the peer does not know the claim")
	errStalled = errors.New("nothing arrives")
	errCancel  = errors.New("cancelled")
)

// A conn is a connection between two processes. Its ends learn of its end one
// after the other.
type conn struct {
	w        *world
	id       core.CallerID
	from, to *node
	fromGen  int
	ended    bool
	calls    []*message
	reads    []*read
	lost     func() // at from, once
}

// connect makes a connection to the process that runs at to.
func (w *world) connect(from, to *node) *conn {
	from.shell.dialed++
	c := &conn{
		w: w, from: from, to: to, fromGen: from.gen,
		id: core.CallerID{Incarnation: from.inc, Conn: from.shell.dialed<<8 | uint64(to.index)},
	}
	w.conns = append(w.conns, c)
	return c
}

// end ends the connection. Messages under way are lost.
func (c *conn) end(why string) {
	if c.ended {
		return
	}
	c.ended = true
	c.w.logf(c.from, "connection %d to %s ends: %s", c.id.Conn, c.to.name, why)
	c.w.conns = slices.DeleteFunc(c.w.conns, func(o *conn) bool { return o == c })
	if c.from.alive && c.from.gen == c.fromGen {
		c.w.after(c.from, c.w.latency(), "", func() {
			for _, m := range slices.Clone(c.calls) {
				m.done(nil, errGone)
			}
			for _, r := range slices.Clone(c.reads) {
				r.end(errGone)
			}
			if c.lost != nil {
				c.lost()
			}
		})
	}
	if c.to.alive {
		c.w.after(c.to, c.w.latency(), "", func() { c.to.shell.lease(core.LostEvent{From: c.id}) })
	}
}

// A message is one call over a connection.
type message struct {
	c     *conn
	kind  connector.Kind
	limit *event
	reply func(answer any, err error)
	over  bool
}

// How a call goes wrong, besides what the other side does.
type trouble struct {
	late       time.Duration
	lost       bool // the message never arrives
	unanswered bool // its answer never arrives
	twice      bool
	cut        bool // the connection ends instead of the answer
	cell       fault.Cell
}

// send makes a call. Reply runs once, at the caller's process.
func (c *conn) send(k connector.Kind, body any, until time.Time, t trouble, reply func(any, error)) *message {
	m := &message{c: c, kind: k, reply: reply}
	m.limit = c.w.at(c.from, until, "", func() { m.done(nil, errTime) })
	if c.ended {
		c.w.after(c.from, 20*time.Microsecond, "", func() { m.done(nil, errGone) })
		return m
	}
	c.calls = append(c.calls, m)
	if t.lost || t.late > 0 || t.twice {
		c.w.struck(t.cell)
	}
	if t.lost {
		return m
	}
	arrive := func(first bool) func() {
		return func() {
			if c.ended {
				return
			}
			c.to.shell.serve(c.id, k, body, func(answer any, err error, late time.Duration) {
				switch {
				case !first:
				case t.unanswered:
					c.w.struck(t.cell)
				case t.cut:
					c.w.struck(t.cell)
					c.end("cut")
				default:
					c.w.after(c.from, late+c.w.latency(), "", func() {
						if !c.ended {
							m.done(answer, err)
						}
					})
				}
			})
		}
	}
	c.w.after(c.to, t.late+c.w.latency(), "", arrive(true))
	if t.twice {
		c.w.after(c.to, t.late+c.w.latency(), "", arrive(false))
	}
	return m
}

// done ends the call, once.
func (m *message) done(answer any, err error) {
	if m.over {
		return
	}
	m.over = true
	m.limit.cancel()
	m.c.calls = slices.DeleteFunc(m.c.calls, func(o *message) bool { return o == m })
	m.reply(answer, err)
}

// drop forgets the call: nobody waits for its answer any more.
func (m *message) drop() {
	if m != nil && !m.over {
		m.over = true
		m.limit.cancel()
		m.c.calls = slices.DeleteFunc(m.c.calls, func(o *message) bool { return o == m })
	}
}

// Bodies and answers of messages.
type (
	helloAnswer struct {
		inc         core.Incarnation
		epoch       kv.Epoch
		blockTokens int
		tp, heads   int
	}
	claimAnswer struct {
		verdict core.Verdict
		limit   time.Duration
		sums    []uint64
	}
	leaseList struct {
		inc core.Incarnation
		ids []core.LeaseID
	}
)

// serve answers one message at P.
func (s *shell) serve(from core.CallerID, k connector.Kind, body any, answer func(any, error, time.Duration)) {
	n := s.n
	if s.hit() || n.silent || !n.alive {
		return
	}
	switch k {
	case connector.KindHello:
		answer(helloAnswer{n.inc, n.epoch, n.model.BlockTokens, n.model.TP, heads / n.model.TP}, nil, 0)
	case connector.KindClaim:
		s.serveClaim(from, body.(core.Claim), answer)
	default:
		list := body.(leaseList)
		act := func() []core.Verdict {
			var out []core.Verdict
			for _, id := range list.ids {
				if list.inc != n.inc {
					out = append(out, core.VerdictIncarnation)
					continue
				}
				var ev any = core.RenewEvent{ID: id}
				if k == connector.KindReturn {
					ev = core.ReturnEvent{ID: id, From: from}
				}
				out = append(out, s.lease(ev).Verdict)
			}
			return out
		}
		verdicts := act()
		f, hit := n.faults.Decide(fault.Notice, fault.Subject{})
		if hit {
			n.w.struck(f.Cell())
		}
		switch {
		case !hit:
			answer(verdicts, nil, 0)
		case f.Action == fault.Error:
			answer(nil, errRefused, 0)
		case f.Action == fault.Duplicate:
			act()
			answer(verdicts, nil, 0)
		case f.Action == fault.Delay:
			answer(verdicts, nil, time.Duration(f.Delay))
		default: // drop
		}
	}
}

// hit lets the process's own faults strike. It reports that this call gets no
// answer.
func (s *shell) hit() bool {
	n := s.n
	f, ok := n.faults.Decide(fault.Process, fault.Subject{})
	if !ok {
		return false
	}
	n.w.logf(n, "process fault %s", f.Action)
	n.w.struck(f.Cell())
	switch f.Action {
	case fault.Kill:
		n.kill(n.w.between(time.Millisecond, 5*time.Second))
		return true
	case fault.Blackhole:
		n.silent = true
		n.w.after(n, n.w.between(100*time.Millisecond, 50*time.Second), "", func() { n.silent = false })
		return true
	default: // delay
		n.freeze(time.Duration(f.Delay))
		return false
	}
}

func (s *shell) serveClaim(from core.CallerID, c core.Claim, answer func(any, error, time.Duration)) {
	e := s.lease(core.ClaimEvent{Claim: c, From: from})
	a := claimAnswer{verdict: e.Verdict, limit: e.Limit}
	if e.Claimed != nil {
		a.sums = core.SumsOf(s.n.mem.Arenas(), e.Claimed.Blocks, c.From, c.To)
		s.n.sealed(e.Claimed.Blocks, c.To)
	}
	s.n.w.logf(s.n, "claim of lease %s from %s, tiles [%d, %d): %v", short(c.Lease), from.Incarnation.String()[15:16], c.From, c.To, e.Verdict)
	f, hit := s.n.faults.Decide(fault.Seal, fault.Subject{})
	if !hit {
		answer(a, nil, 0)
		return
	}
	s.n.w.logf(s.n, "fault at the seal: %s", f.Action)
	if e.Claimed != nil { // a refusal has no sums
		s.n.w.struck(f.Cell())
	}
	tp := s.n.model.TP
	per, tiles := heads/tp, c.To-c.From
	each := func(g func(tile int)) {
		if len(a.sums) == 0 {
			return
		}
		if f.Every == 0 {
			g(int(f.Draw % uint64(tiles)))
			return
		}
		for i := min(f.Every, tiles) - 1; i < tiles; i += f.Every {
			g(i)
		}
	}
	switch f.Action {
	case fault.Error:
		answer(nil, errRefused, 0)
	case fault.Flip:
		each(func(i int) { a.sums[i*per] ^= 1 << (f.Draw >> 8 & 63) })
		answer(a, nil, 0)
	case fault.OtherTile:
		if tiles > 1 {
			old := slices.Clone(a.sums)
			each(func(i int) {
				j := (i + 1) % tiles
				for r := range tp {
					copy(a.sums[(r*tiles+i)*per:(r*tiles+i+1)*per], old[(r*tiles+j)*per:])
				}
			})
		} else if len(a.sums) > 0 {
			a.sums[0]++
		}
		answer(a, nil, 0)
	case fault.Duplicate:
		a.sums = append(a.sums, a.sums[:min(per, len(a.sums))]...)
		answer(a, nil, 0)
	case fault.Delay:
		answer(a, nil, time.Duration(f.Delay))
	case fault.Drop:
		a.sums = a.sums[:max(0, len(a.sums)-per)]
		answer(a, nil, 0)
	default: // blackhole
	}
}

func short(id core.LeaseID) string { return id.String()[12:16] }

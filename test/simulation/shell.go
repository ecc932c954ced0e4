package simulation

import (
	"encoding/binary"
	"errors"
	"slices"
	"time"

	"tandem/internal/connector"
	"tandem/internal/connector/core"
	"tandem/internal/engine"
	"tandem/internal/fault"
	"tandem/internal/kv"
)

// A shell is the connector of one process: the product's cores, and around them
// the world's clock and network in place of goroutines and sockets.
type shell struct {
	n      *node
	w      *world
	leases *core.LeaseTable
	claims map[core.LeaseID]core.Running // what may be read over connections
	peers  *core.PeerTable[*view]
	limits core.LeaseLimits

	reports  chan connector.LoadReport
	freed    chan []kv.BlockID
	returned [][]kv.BlockID // in freed

	loads   []*load
	tracked []*connector.Handoff
	waiters map[uint64]*waiter
	shakes  []*shake
	returns []*giving
	last    uint64 // waiter
	dialed  uint64

	leaseTimer, peerTimer, beat *event
}

var _ engine.Connector = (*shell)(nil)

// factors stands for the condensed fingerprint of all engines.
var factors = [32]byte{1}

func newShell(n *node) *shell {
	s := &shell{
		n: n, w: n.w, claims: map[core.LeaseID]core.Running{}, peers: core.NewPeerTable[*view](peerIdle),
		reports: make(chan connector.LoadReport, 1024), freed: make(chan []kv.BlockID, 4096),
		waiters: map[uint64]*waiter{},
		limits:  core.LeaseLimits{Lease: n.lease, MaxClaim: n.w.maxClaim},
	}
	s.leases = core.NewLeaseTable(n.inc, n.epoch, factors, s.limits)
	return s
}

// lease gives an event to the lease table and carries out what it decides.
func (s *shell) lease(ev any) core.LeaseEffects {
	e := s.leases.Handle(ev, s.w.now())
	if c := e.Claimed; c != nil {
		s.claims[c.ID] = *c
	}
	for _, id := range e.Unclaim {
		// Its own process may return it: of a hand-off that came twice, one request
		// ends first.
		if !slices.ContainsFunc(e.Ended, func(l core.EndedLease) bool { return l.ID == id && l.Why == core.EndReturned }) {
			s.unpinned(s.claims[id])
		}
		delete(s.claims, id)
	}
	if lost, ok := ev.(core.LostEvent); ok {
		for id, c := range s.claims {
			if c.From == lost.From {
				s.w.fail("%s: the claim of lease %s outlives its connection", s.n.name, short(id))
			}
		}
	}
	for _, end := range e.Ended {
		s.w.logf(s.n, "lease %s ends: %s", short(end.ID), [...]string{"", "returned", "revoked", "expired"}[end.Why])
		s.freed <- end.Blocks
		s.returned = append(s.returned, end.Blocks)
		s.n.kick()
	}
	if at, ok := s.leases.Next(); ok && (!s.leaseTimer.pending() || s.leaseTimer.at > at.UnixNano()) {
		s.leaseTimer.cancel()
		s.leaseTimer = s.w.at(s.n, at, "", func() { s.lease(core.TickEvent{}) })
	}
	return e
}

// Verify implements engine.Connector.
func (s *shell) Verify(h *connector.Handoff, _ []kv.Token) error {
	switch {
	case !s.n.role.Consumes():
		return &connector.HandoffError{Field: "do_remote_prefill", Reason: "role", Err: connector.ErrRole}
	case !h.Vouched(token):
		return &connector.HandoffError{Field: "remote_mac", Reason: "forged", Err: connector.ErrMAC}
	case h.Incarnation == s.n.inc:
		return &connector.HandoffError{Field: "remote_incarnation", Reason: "made here", Err: connector.ErrStale}
	}
	return nil
}

// Grant implements engine.Connector.
func (s *shell) Grant(spec connector.LeaseSpec) *connector.Handoff {
	if !s.n.role.Produces() || len(spec.Blocks) == 0 {
		return nil
	}
	s.w.leases++
	h := &connector.Handoff{
		EngineID: kv.EngineID(s.n.name), RequestID: "r", Incarnation: s.n.inc, Epoch: s.n.epoch, TP: s.n.model.TP,
		BlockTokens: s.n.model.BlockTokens, Tokens: len(spec.Tokens), Digest: connector.TokenDigest(spec.Tokens),
		Blocks: slices.Clone(spec.Blocks), Addr: s.n.addr, Version: connector.HandoffVersion, Host: "10.0.0.9", Port: 7000,
	}
	binary.BigEndian.PutUint64(h.Lease[:], s.w.leases)
	h.Sign(token)
	s.lease(core.GrantEvent{
		ID: h.Lease, Blocks: h.Blocks, Tokens: h.Tokens, Digest: h.Digest, Epoch: h.Epoch,
	})
	s.w.logf(s.n, "grants lease %s, blocks %v, %d tokens", short(h.Lease), h.Blocks, h.Tokens)
	return h
}

// Freed and Reports implement engine.Connector.
func (s *shell) Freed() <-chan []kv.BlockID           { return s.freed }
func (s *shell) Reports() <-chan connector.LoadReport { return s.reports }

// Revoke implements engine.Connector.
func (s *shell) Revoke(h *connector.Handoff) {
	if h.Incarnation == s.n.inc {
		s.lease(core.RevokeEvent{ID: h.Lease})
	}
}

// release ends the lease of a hand-off for the router.
func (s *shell) release(raw []byte) {
	h, err := connector.ParseHandoff(raw)
	if err != nil || h == nil || !h.Vouched(token) {
		s.w.fail("%s gets a hand-off back that it cannot read: %v", s.n.name, err)
		return
	}
	s.Revoke(h)
}

func keyOf(h *connector.Handoff) core.PeerKey {
	return core.PeerKey{Incarnation: h.Incarnation, Addr: h.Addr}
}

// Track implements engine.Connector.
func (s *shell) Track(h *connector.Handoff) {
	s.tracked = append(s.tracked, h)
	s.peer(core.WantEvent{Key: keyOf(h), Epoch: uint64(h.Epoch)})
	if !s.beat.pending() {
		s.beat = s.w.after(s.n, s.limits.Lease/6, "", s.renew)
	}
}

// Untrack implements engine.Connector.
func (s *shell) Untrack(h *connector.Handoff) {
	s.tracked = slices.DeleteFunc(s.tracked, func(o *connector.Handoff) bool { return o.Lease == h.Lease })
}

// renew sends one heartbeat to each peer.
func (s *shell) renew() {
	if len(s.tracked) == 0 {
		return
	}
	every := s.limits.Lease / 6
	s.beat = s.w.after(s.n, every, "", s.renew)
	until := s.w.now().Add(every)
	var keys []core.PeerKey
	ids := map[core.PeerKey][]core.LeaseID{}
	for _, h := range s.tracked {
		k := keyOf(h)
		if ids[k] == nil {
			keys = append(keys, k)
		}
		ids[k] = append(ids[k], h.Lease)
	}
	for _, k := range keys {
		s.get(k, 0, until, func(v *view, err error) {
			if err != nil {
				return
			}
			f, hit := s.n.faults.Decide(fault.Heartbeat, fault.Subject{Peer: k.Addr})
			if hit && f.Action == fault.Error {
				s.w.struck(f.Cell())
				v.release()
				return
			}
			v.conn.send(connector.KindRenew, leaseList{k.Incarnation, ids[k]}, until, troubleOf(f, hit), func(any, error) { v.release() })
		})
	}
}

// troubleOf is what a fault does to a message.
func troubleOf(f fault.Fault, hit bool) (t trouble) {
	if !hit {
		return t
	}
	t.cell = f.Cell()
	switch f.Action {
	case fault.Blackhole:
		t.lost = true
	case fault.Cut:
		t.cut = true
	case fault.Duplicate:
		t.twice = true
	case fault.Delay:
		t.late = time.Duration(f.Delay)
	case fault.Drop:
		t.unanswered = true
	default:
	}
	return t
}

// A giving is the attempts to give a lease back.
type giving struct {
	h     *connector.Handoff
	until time.Time
	pause time.Duration
	limit *event
	over  bool
}

// ReturnUnread implements engine.Connector.
func (s *shell) ReturnUnread(h *connector.Handoff) {
	s.Untrack(h)
	s.giveBack(h)
}

func (s *shell) giveBack(h *connector.Handoff) {
	if h.Incarnation == s.n.inc {
		return
	}
	g := &giving{h: h, until: s.w.now().Add(returnLimit), pause: 50 * time.Millisecond}
	g.limit = s.w.at(s.n, g.until, "", func() { s.given(g) })
	s.returns = append(s.returns, g)
	s.try(g)
}

func (s *shell) given(g *giving) {
	g.over = true
	g.limit.cancel()
	s.returns = slices.DeleteFunc(s.returns, func(o *giving) bool { return o == g })
}

func (s *shell) try(g *giving) {
	again := func() {
		if g.over || !s.w.now().Add(g.pause).Before(g.until) {
			return
		}
		s.w.after(s.n, g.pause, "", func() {
			if !g.over {
				s.try(g)
			}
		})
		g.pause *= 2
	}
	s.get(keyOf(g.h), 0, g.until, func(v *view, err error) {
		if err != nil {
			again()
			return
		}
		f, hit := s.n.faults.Decide(fault.Return, fault.Subject{Peer: g.h.Addr})
		if hit && f.Action == fault.Error {
			s.w.struck(f.Cell())
			v.release()
			again()
			return
		}
		v.conn.send(connector.KindReturn, leaseList{g.h.Incarnation, []core.LeaseID{g.h.Lease}}, g.until, troubleOf(f, hit),
			func(answer any, err error) {
				v.release()
				if err != nil || answer.([]core.Verdict)[0] == core.VerdictBusy {
					again()
					return
				}
				s.given(g)
			})
	})
}

// A view is D's snapshot of a peer.
type view struct {
	key   core.PeerKey
	conn  *conn
	hello helloAnswer
	spans []core.Span
	mem   []*kv.Arena // of the peer, as it was registered at the handshake
	s     *shell
	refs  int
}

// PeerEpoch implements core.View.
func (v *view) PeerEpoch() uint64 { return uint64(v.hello.epoch) }

func (v *view) release() {
	if v.refs--; v.refs == 0 {
		v.conn.lost = nil
		v.conn.end("unused")
	} else if v.refs < 0 {
		v.s.w.fail("%s: a snapshot of %s is released twice", v.s.n.name, v.key.Addr)
	}
}

// A waiter waits for a snapshot.
type waiter struct {
	key   core.PeerKey
	limit *event
	cb    func(*view, error)
	over  bool
	id    uint64
}

// peer gives an event to the peer table and carries out what it decides.
func (s *shell) peer(ev any) {
	e := s.peers.Handle(ev, s.w.now())
	for _, a := range e.Answers {
		if a.View != nil {
			a.View.refs++
		}
		s.w.after(s.n, time.Microsecond, "", func() {
			wt := s.waiters[a.Waiter]
			switch {
			case wt != nil:
				wt.end()
				delete(s.waiters, a.Waiter)
				wt.cb(a.View, a.Err)
			case a.View != nil: // it has left meanwhile
				a.View.release()
			}
		})
	}
	for _, v := range e.Close {
		v.release()
	}
	for _, k := range e.Shake {
		s.shake(k)
	}
	if at, ok := s.peers.Next(); ok && (!s.peerTimer.pending() || s.peerTimer.at > at.UnixNano()) {
		s.peerTimer.cancel()
		s.peerTimer = s.w.at(s.n, at, "", func() { s.peer(core.PeerTickEvent{}) })
	}
}

func (wt *waiter) end() {
	wt.over = true
	wt.limit.cancel()
}

// get asks for a snapshot of a peer. Cb runs once, later, unless leave was called
// before; it owns a reference.
func (s *shell) get(k core.PeerKey, epoch uint64, until time.Time, cb func(*view, error)) *waiter {
	s.last++
	wt := &waiter{key: k, cb: cb, id: s.last}
	wt.limit = s.w.at(s.n, until, "", func() {
		s.leave(wt)
		cb(nil, errTime)
	})
	s.waiters[wt.id] = wt
	s.peer(core.WantEvent{Key: k, Epoch: epoch, Waiter: wt.id})
	return wt
}

// leave takes a wait back.
func (s *shell) leave(wt *waiter) {
	if wt == nil || wt.over {
		return
	}
	wt.end()
	delete(s.waiters, wt.id)
	s.peer(core.LeaveEvent{Key: wt.key, Waiter: wt.id})
}

// A shakeError has the class of a failed handshake.
type shakeError struct {
	class core.LoadClass
	err   error
}

func (e *shakeError) Error() string { return string(e.class) + ": " + e.err.Error() }

// A shake is one handshake under way.
type shake struct {
	s     *shell
	key   core.PeerKey
	until time.Time
	limit *event
	over  bool
}

// shake begins a handshake.
func (s *shell) shake(k core.PeerKey) {
	h := &shake{s: s, key: k, until: s.w.now().Add(handshakeLimit)}
	h.limit = s.w.at(s.n, h.until, "", func() { h.end(nil, &shakeError{core.ClassHandshake, errTime}) })
	s.shakes = append(s.shakes, h)
	h.dial(0)
}

func (h *shake) end(v *view, err error) {
	s := h.s
	if h.over {
		return
	}
	h.over = true
	h.limit.cancel()
	s.shakes = slices.DeleteFunc(s.shakes, func(o *shake) bool { return o == h })
	s.w.logf(s.n, "handshake with %s: %v", h.key.Addr, err)
	if v != nil {
		v.conn.lost = func() { s.peer(core.PeerLostEvent[*view]{Key: h.key, View: v}) }
	}
	s.peer(core.ShookEvent[*view]{Key: h.key, View: v, Err: err})
}

// redials is how often a handshake replaces a connection that had ended.
const redials = 5

// dial tries to reach the process that listens at the address now.
func (h *shake) dial(attempt int) {
	s := h.s
	if h.over {
		return
	}
	f, hit := s.n.faults.Decide(fault.Handshake, fault.Subject{Peer: h.key.Addr})
	late := s.w.latency()
	if hit {
		s.w.logf(s.n, "fault at the handshake with %s: %s", h.key.Addr, f.Action)
		switch f.Action {
		case fault.Error:
			s.w.struck(f.Cell())
			s.w.after(s.n, late, "", func() { h.end(nil, &shakeError{f.Class, errRefused}) })
			return
		case fault.Blackhole:
			s.w.struck(f.Cell())
			return
		case fault.Delay:
			s.w.struck(f.Cell())
			late += time.Duration(f.Delay)
		default:
		}
	}
	s.w.after(s.n, late, "", func() {
		if h.over {
			return
		}
		var to *node
		for _, n := range s.w.nodes {
			if n.addr == h.key.Addr && n.alive {
				to = n
			}
		}
		if to == nil {
			h.end(nil, &shakeError{core.ClassHandshake, errRefused})
			return
		}
		c := s.w.connect(s.n, to)
		t := trouble{lost: hit && f.Action == fault.Stall, cut: hit && f.Action == fault.Cut, cell: f.Cell()}
		c.send(connector.KindHello, nil, h.until, t, func(answer any, err error) { h.greeted(c, attempt, answer, err) })
	})
}

// greeted judges the answer to our hello.
func (h *shake) greeted(c *conn, attempt int, answer any, err error) {
	s := h.s
	if h.over {
		c.end("handshake given up")
		return
	}
	if err != nil {
		again := attempt < redials && errors.Is(err, errGone)
		c.end("handshake failed")
		if again {
			s.w.after(s.n, time.Millisecond<<attempt, "", func() { h.dial(attempt + 1) })
			return
		}
		h.end(nil, &shakeError{core.ClassHandshake, err})
		return
	}
	hello := answer.(helloAnswer)
	if hello.inc != h.key.Incarnation {
		c.end("another process")
		h.end(nil, &shakeError{core.ClassHandshake, connector.ErrStale})
		return
	}
	spans, err := core.Spans(heads, s.n.model.TP, hello.tp)
	if err != nil {
		c.end("no match")
		h.end(nil, &shakeError{core.ClassIncompatible, err})
		return
	}
	h.end(&view{key: h.key, conn: c, hello: hello, spans: spans, mem: c.to.mem.Arenas(), s: s, refs: 1}, nil)
}

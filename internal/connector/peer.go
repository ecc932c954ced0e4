package connector

import (
	"fmt"
	"time"
)

// A peerKey is the identity of a peer: a process, and where it listens.
type peerKey struct {
	Incarnation Incarnation
	Addr        string
}

// A peerState is what D has of a peer.
type peerState uint8

// The states of a peer.
const (
	peerIdle    peerState = iota // nothing
	peerShaking                  // a handshake runs, shared by all who want it
	peerWaiting                  // wanted, but the last handshakes failed: back-off
	peerReady                    // a snapshot is there
)

var peerStateNames = [...]string{"idle", "handshake", "reconnecting", "ready"}

// String returns the name that status shows.
func (s peerState) String() string { return peerStateNames[s] }

var peerMoves = [...][]peerState{
	peerIdle:    {peerShaking, peerWaiting},
	peerShaking: {peerReady, peerIdle},
	peerWaiting: {peerShaking, peerIdle},
	peerReady:   {peerIdle, peerShaking},
}

type peerEntry struct {
	key     peerKey
	state   peerState
	view    *view // ready: the table's own reference
	epoch   uint64
	waiters []uint64
	fails   int
	retry   time.Time
	used    time.Time
	err     error // of the last handshake
}

func (p *peerEntry) move(to peerState) {
	for _, s := range peerMoves[p.state] {
		if s == to {
			p.state = to
			return
		}
	}
	panic(fmt.Sprintf("connector: peer %v: %v to %v", p.key, p.state, to))
}

// The events of a peer table.
type (
	// wantEvent asks for a snapshot of at least an epoch. Waiter 0 only wants the
	// handshake to happen.
	wantEvent struct {
		Key    peerKey
		Epoch  uint64
		Waiter uint64
	}
	// leaveEvent takes a waiter back.
	leaveEvent struct {
		Key    peerKey
		Waiter uint64
	}
	shookEvent struct {
		Key  peerKey
		View *view // nil when Err is set
		Err  error
	}
	peerLostEvent struct {
		Key  peerKey
		View *view
	}
	peerTickEvent struct{}
)

// A peerAnswer goes to one waiter, with either a snapshot or an error.
type peerAnswer struct {
	Waiter uint64
	View   *view
	Err    error
}

type peerEffects struct {
	Shake   []peerKey
	Answers []peerAnswer // the shell retains each View before it sends it
	Close   []*view      // the table's reference is given up
}

// A peerTable decides about handshakes: one at a time for each peer, all peers
// in parallel, each shared by everybody who waits for it.
type peerTable struct {
	peers map[peerKey]*peerEntry
	idle  time.Duration // a peer unused for so long is closed
}

func newPeerTable(idle time.Duration) *peerTable {
	return &peerTable{peers: map[peerKey]*peerEntry{}, idle: idle}
}

// Back-off after the second failed handshake in a row, doubling up to the last.
const (
	firstBackoff = 50 * time.Millisecond
	lastBackoff  = time.Second
)

// forget is how long a peer that nobody wants is remembered for its back-off.
const forget = time.Minute

// Handle applies an event at time now.
func (t *peerTable) Handle(event any, now time.Time) (e peerEffects) {
	switch ev := event.(type) {
	case wantEvent:
		t.want(ev, now, &e)
	case leaveEvent:
		t.leave(ev)
	case shookEvent:
		t.shook(ev, now, &e)
	case peerLostEvent:
		if p := t.peers[ev.Key]; p != nil && p.state == peerReady && p.view == ev.View {
			p.view = nil
			p.move(peerIdle)
			e.Close = append(e.Close, ev.View)
		}
	case peerTickEvent:
		t.tick(now, &e)
	}
	return e
}

// Next returns when the next back-off or idle limit passes.
func (t *peerTable) Next() (at time.Time, ok bool) {
	for _, p := range t.peers {
		due, has := p.due(t.idle)
		if has && (!ok || due.Before(at)) {
			at, ok = due, true
		}
	}
	return at, ok
}

func (p *peerEntry) due(idle time.Duration) (time.Time, bool) {
	switch p.state {
	case peerWaiting:
		return p.retry, true
	case peerReady:
		return p.used.Add(idle), idle > 0
	case peerIdle:
		return p.used.Add(forget), true
	default: // a handshake has its own bound
		return time.Time{}, false
	}
}

func (t *peerTable) want(ev wantEvent, now time.Time, e *peerEffects) {
	p := t.peers[ev.Key]
	if p == nil {
		p = &peerEntry{key: ev.Key}
		t.peers[ev.Key] = p
	}
	p.used = now
	p.epoch = max(p.epoch, ev.Epoch)
	if p.state == peerReady && p.epoch <= p.view.epoch() {
		if ev.Waiter != 0 {
			e.Answers = append(e.Answers, peerAnswer{Waiter: ev.Waiter, View: p.view})
		}
		return
	}
	if ev.Waiter != 0 {
		p.waiters = append(p.waiters, ev.Waiter)
	}
	switch p.state {
	case peerReady: // registered again since: the old snapshot lives as long as its readers
		e.Close = append(e.Close, p.view)
		p.view = nil
		t.shake(p, e)
	case peerIdle:
		if p.retry.After(now) {
			p.move(peerWaiting)
			return
		}
		t.shake(p, e)
	default: // what runs or waits takes the waiter along
	}
}

func (t *peerTable) shake(p *peerEntry, e *peerEffects) {
	p.move(peerShaking)
	e.Shake = append(e.Shake, p.key)
}

func (t *peerTable) leave(ev leaveEvent) {
	p := t.peers[ev.Key]
	if p == nil {
		return
	}
	for i, w := range p.waiters {
		if w == ev.Waiter {
			p.waiters = append(p.waiters[:i], p.waiters[i+1:]...)
			return
		}
	}
}

func (t *peerTable) shook(ev shookEvent, now time.Time, e *peerEffects) {
	p := t.peers[ev.Key]
	if p == nil || p.state != peerShaking {
		if ev.View != nil {
			e.Close = append(e.Close, ev.View)
		}
		return
	}
	for _, w := range p.waiters {
		e.Answers = append(e.Answers, peerAnswer{Waiter: w, View: ev.View, Err: ev.Err})
	}
	p.waiters, p.err, p.used = nil, ev.Err, now
	if ev.Err == nil {
		p.fails, p.retry, p.view = 0, time.Time{}, ev.View
		// What P's own answer says is its newest epoch, whatever was asked for.
		p.epoch = ev.View.epoch()
		p.move(peerReady)
		return
	}
	p.fails++
	p.epoch = 0
	if p.fails > 1 {
		p.retry = now.Add(min(firstBackoff<<min(p.fails-2, 10), lastBackoff))
	}
	p.move(peerIdle)
}

func (t *peerTable) tick(now time.Time, e *peerEffects) {
	for key, p := range t.peers {
		due, has := p.due(t.idle)
		if !has || due.After(now) {
			continue
		}
		switch {
		case p.state == peerWaiting && len(p.waiters) > 0:
			t.shake(p, e)
		case p.state == peerWaiting:
			p.move(peerIdle)
		case p.state == peerReady:
			e.Close = append(e.Close, p.view)
			delete(t.peers, key)
		default:
			delete(t.peers, key)
		}
	}
}

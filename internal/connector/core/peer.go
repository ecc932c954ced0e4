package core

import (
	"slices"
	"time"

	"tandem/internal/moves"
)

// A PeerKey is the identity of a peer: a process, and where it listens.
type PeerKey struct {
	Incarnation Incarnation
	Addr        string
}

// A PeerState is what D has of a peer.
type PeerState uint8

// The states of a peer.
const (
	PeerIdle    PeerState = iota // nothing
	PeerShaking                  // a handshake runs, shared by all who want it
	PeerWaiting                  // wanted, but the last handshakes failed: back-off
	PeerReady                    // a snapshot is there
)

var peerStateNames = [...]string{"idle", "handshake", "reconnecting", "ready"}

// String returns the name that status shows.
func (s PeerState) String() string { return peerStateNames[s] }

// PeerMoves is the drawing of a peer.
var PeerMoves = moves.Draw("connector: peer",
	[]PeerState{PeerShaking, PeerWaiting},
	[]PeerState{PeerReady, PeerIdle},
	[]PeerState{PeerShaking, PeerIdle},
	[]PeerState{PeerIdle, PeerShaking},
)

// A View is a snapshot of a peer, compared by ==. Its zero value is none.
type View interface {
	comparable
	PeerEpoch() uint64 // of the registration it shows
}

type peerEntry[V View] struct {
	key     PeerKey
	state   PeerState
	view    V // ready: the table's own reference
	epoch   uint64
	waiters []uint64
	fails   int
	retry   time.Time
	used    time.Time
	err     error // of the last handshake
}

// The events of a peer table.
type (
	// WantEvent asks for a snapshot of at least an epoch. Waiter 0 only wants the
	// handshake to happen.
	WantEvent struct {
		Key    PeerKey
		Epoch  uint64
		Waiter uint64
	}
	// LeaveEvent takes a waiter back.
	LeaveEvent struct {
		Key    PeerKey
		Waiter uint64
	}
	// ShookEvent ends a handshake. The table takes the reference to View over.
	ShookEvent[V View] struct {
		Key  PeerKey
		View V // none when Err is set
		Err  error
	}
	// PeerLostEvent says that a snapshot's connection has ended.
	PeerLostEvent[V View] struct {
		Key  PeerKey
		View V
	}
	// PeerTickEvent only tells the time; due at Next.
	PeerTickEvent struct{}
)

// A PeerAnswer goes to one waiter, with either a snapshot or an error.
type PeerAnswer[V View] struct {
	Waiter uint64
	View   V
	Err    error
}

// PeerEffects are what the shell does after an event.
type PeerEffects[V View] struct {
	Shake   []PeerKey
	Answers []PeerAnswer[V] // the shell retains each View before it sends it
	Close   []V             // the table's reference is given up
}

// A PeerTable decides about handshakes: one at a time for each peer, all peers
// in parallel, each shared by everybody who waits for it.
type PeerTable[V View] struct {
	peers map[PeerKey]*peerEntry[V]
	order []*peerEntry[V] // in which they were first wanted
	idle  time.Duration   // a peer unused for so long is closed
	moves moves.Count
}

// NewPeerTable returns an empty table that closes a peer which nobody used for
// idle; 0: never.
func NewPeerTable[V View](idle time.Duration) *PeerTable[V] {
	return &PeerTable[V]{peers: map[PeerKey]*peerEntry[V]{}, idle: idle}
}

// A PeerInfo is what a table knows of one peer.
type PeerInfo[V View] struct {
	Key     PeerKey
	State   PeerState
	View    V     // none unless ready
	Waiters int   // that wait for a handshake
	Err     error // of the last handshake, or nil
}

// Peers lists the peers, in the order in which they were first wanted.
func (t *PeerTable[V]) Peers() []PeerInfo[V] {
	out := make([]PeerInfo[V], 0, len(t.order))
	for _, p := range t.order {
		out = append(out, PeerInfo[V]{p.key, p.state, p.view, len(p.waiters), p.err})
	}
	return out
}

// Moves returns how often peers have moved along each edge of PeerMoves.
func (t *PeerTable[V]) Moves() *moves.Count { return &t.moves }

func (t *PeerTable[V]) move(p *peerEntry[V], to PeerState) {
	p.state = PeerMoves.Move(p.state, to, &t.moves, p.key)
}

// Back-off after the second failed handshake in a row, doubling up to the last.
const (
	firstBackoff = 50 * time.Millisecond
	lastBackoff  = time.Second
)

// forget is how long a peer that nobody wants is remembered for its back-off.
const forget = time.Minute

// Handle applies an event at time now.
func (t *PeerTable[V]) Handle(event any, now time.Time) (e PeerEffects[V]) {
	var none V
	switch ev := event.(type) {
	case WantEvent:
		t.want(ev, now, &e)
	case LeaveEvent:
		t.leave(ev)
	case ShookEvent[V]:
		t.shook(ev, now, &e)
	case PeerLostEvent[V]:
		if p := t.peers[ev.Key]; p != nil && p.state == PeerReady && p.view == ev.View {
			p.view = none
			t.move(p, PeerIdle)
			e.Close = append(e.Close, ev.View)
		}
	case PeerTickEvent:
		t.tick(now, &e)
	}
	return e
}

// Next returns when the next back-off or idle limit passes.
func (t *PeerTable[V]) Next() (at time.Time, ok bool) {
	for _, p := range t.order {
		due, has := p.due(t.idle)
		if has && (!ok || due.Before(at)) {
			at, ok = due, true
		}
	}
	return at, ok
}

func (p *peerEntry[V]) due(idle time.Duration) (time.Time, bool) {
	switch p.state {
	case PeerWaiting:
		return p.retry, true
	case PeerReady:
		return p.used.Add(idle), idle > 0
	case PeerIdle:
		return p.used.Add(forget), true
	default: // a handshake has its own bound
		return time.Time{}, false
	}
}

func (t *PeerTable[V]) want(ev WantEvent, now time.Time, e *PeerEffects[V]) {
	p := t.peers[ev.Key]
	if p == nil {
		p = &peerEntry[V]{key: ev.Key}
		t.peers[ev.Key] = p
		t.order = append(t.order, p)
	}
	p.used = now
	p.epoch = max(p.epoch, ev.Epoch)
	if p.state == PeerReady && p.epoch <= p.view.PeerEpoch() {
		if ev.Waiter != 0 {
			e.Answers = append(e.Answers, PeerAnswer[V]{Waiter: ev.Waiter, View: p.view})
		}
		return
	}
	if ev.Waiter != 0 {
		p.waiters = append(p.waiters, ev.Waiter)
	}
	switch p.state {
	case PeerReady: // registered again since: the old snapshot lives as long as its readers
		e.Close = append(e.Close, p.view)
		var none V
		p.view = none
		t.shake(p, e)
	case PeerIdle:
		if p.retry.After(now) {
			t.move(p, PeerWaiting)
			return
		}
		t.shake(p, e)
	default: // what runs or waits takes the waiter along
	}
}

func (t *PeerTable[V]) shake(p *peerEntry[V], e *PeerEffects[V]) {
	t.move(p, PeerShaking)
	e.Shake = append(e.Shake, p.key)
}

func (t *PeerTable[V]) leave(ev LeaveEvent) {
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

func (t *PeerTable[V]) shook(ev ShookEvent[V], now time.Time, e *PeerEffects[V]) {
	p := t.peers[ev.Key]
	if p == nil || p.state != PeerShaking {
		var none V
		if ev.View != none {
			e.Close = append(e.Close, ev.View)
		}
		return
	}
	for _, w := range p.waiters {
		e.Answers = append(e.Answers, PeerAnswer[V]{Waiter: w, View: ev.View, Err: ev.Err})
	}
	p.waiters, p.err, p.used = nil, ev.Err, now
	if ev.Err == nil {
		p.fails, p.retry, p.view = 0, time.Time{}, ev.View
		// What P's own answer says is its newest epoch, whatever was asked for.
		p.epoch = ev.View.PeerEpoch()
		t.move(p, PeerReady)
		return
	}
	p.fails++
	p.epoch = 0
	if p.fails > 1 {
		p.retry = now.Add(min(firstBackoff<<min(p.fails-2, 10), lastBackoff))
	}
	t.move(p, PeerIdle)
}

func (t *PeerTable[V]) tick(now time.Time, e *PeerEffects[V]) {
	for _, p := range slices.Clone(t.order) {
		due, has := p.due(t.idle)
		if !has || due.After(now) {
			continue
		}
		switch {
		case p.state == PeerWaiting && len(p.waiters) > 0:
			t.shake(p, e)
		case p.state == PeerWaiting:
			t.move(p, PeerIdle)
		case p.state == PeerReady:
			e.Close = append(e.Close, p.view)
			t.remove(p)
		default:
			t.remove(p)
		}
	}
}

func (t *PeerTable[V]) remove(p *peerEntry[V]) {
	delete(t.peers, p.key)
	t.order = slices.DeleteFunc(t.order, func(o *peerEntry[V]) bool { return o == p })
}

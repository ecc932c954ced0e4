package core

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// slowPeer is what the rules say of one peer.
type slowPeer struct {
	view     *view // or nil
	shaking  bool
	waiting  []uint64
	kept     bool // wanted within its back-off
	epoch    uint64
	failed   int // handshakes in a row
	lastTry  time.Time
	lastUse  time.Time
	err      error // of the last handshake
	wantedAt int   // order
}

// pause is how long a peer is left alone after so many failed handshakes.
func pause(failed int) time.Duration {
	if failed < 2 {
		return 0
	}
	d := 50 * time.Millisecond
	for range failed - 2 {
		d = min(2*d, time.Second)
	}
	return d
}

func (p *slowPeer) due(idle time.Duration) (time.Time, bool) {
	switch {
	case p.shaking:
		return time.Time{}, false
	case p.kept:
		return p.lastTry.Add(pause(p.failed)), true
	case p.view != nil:
		return p.lastUse.Add(idle), idle > 0
	}
	return p.lastUse.Add(time.Minute), true
}

type slowPeers struct {
	peers map[PeerKey]*slowPeer
	idle  time.Duration
	n     int
}

func (t *slowPeers) shake(key PeerKey, e *PeerEffects[*view]) {
	t.peers[key].shaking, t.peers[key].kept = true, false
	e.Shake = append(e.Shake, key)
}

func (t *slowPeers) handle(event any, now time.Time) (e PeerEffects[*view]) {
	switch ev := event.(type) {
	case WantEvent:
		p := t.peers[ev.Key]
		if p == nil {
			t.n++
			p = &slowPeer{wantedAt: t.n}
			t.peers[ev.Key] = p
		}
		p.lastUse, p.epoch = now, max(p.epoch, ev.Epoch)
		if p.view != nil && p.view.epoch >= p.epoch {
			if ev.Waiter != 0 {
				e.Answers = append(e.Answers, PeerAnswer[*view]{Waiter: ev.Waiter, View: p.view})
			}
			return e
		}
		if ev.Waiter != 0 {
			p.waiting = append(p.waiting, ev.Waiter)
		}
		switch {
		case p.view != nil: // an older registration
			e.Close = append(e.Close, p.view)
			p.view = nil
			t.shake(ev.Key, &e)
		case p.shaking || p.kept:
		case now.Before(p.lastTry.Add(pause(p.failed))):
			p.kept = true
		default:
			t.shake(ev.Key, &e)
		}
	case LeaveEvent:
		if p := t.peers[ev.Key]; p != nil {
			p.waiting = slices.DeleteFunc(p.waiting, func(w uint64) bool { return w == ev.Waiter })
		}
	case ShookEvent[*view]:
		p := t.peers[ev.Key]
		if p == nil || !p.shaking {
			if ev.View != nil {
				e.Close = append(e.Close, ev.View)
			}
			return e
		}
		for _, w := range p.waiting {
			e.Answers = append(e.Answers, PeerAnswer[*view]{Waiter: w, View: ev.View, Err: ev.Err})
		}
		p.waiting, p.shaking, p.lastUse, p.lastTry = nil, false, now, now
		p.err = ev.Err
		if p.epoch = 0; ev.Err != nil {
			p.failed++
			return e
		}
		p.view, p.epoch, p.failed = ev.View, ev.View.epoch, 0
	case PeerLostEvent[*view]:
		if p := t.peers[ev.Key]; p != nil && p.view == ev.View {
			e.Close = append(e.Close, p.view)
			p.view = nil
		}
	case PeerTickEvent:
		var keys []PeerKey
		for k := range t.peers {
			keys = append(keys, k)
		}
		slices.SortFunc(keys, func(a, b PeerKey) int { return t.peers[a].wantedAt - t.peers[b].wantedAt })
		for _, k := range keys {
			p := t.peers[k]
			at, ok := p.due(t.idle)
			switch {
			case !ok || now.Before(at):
			case p.kept && len(p.waiting) > 0:
				t.shake(k, &e)
			case p.kept:
				p.kept = false
			default:
				if p.view != nil {
					e.Close = append(e.Close, p.view)
				}
				delete(t.peers, k)
			}
		}
	}
	return e
}

// Any history of a peer table is that of the slow one, effect for effect:
// handshakes shared, failing and succeeding late, back-off to the millisecond,
// registrations that change, connections that end, waiters that leave, idle
// peers that are closed and forgotten.
func TestPeerTableEqualsTheSlowOne(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		idle := time.Duration(rapid.SampledFrom([]int{0, 5, 90}).Draw(t, "idle")) * time.Second
		table, now := NewPeerTable[*view](idle), time.Unix(100, 0)
		slow := &slowPeers{peers: map[PeerKey]*slowPeer{}, idle: idle}
		keys := []PeerKey{{Addr: "a:1"}, {Addr: "b:1"}, {Incarnation: Incarnation{1}, Addr: "a:1"}}
		views := []*view{testView(1), testView(2), testView(3)}
		var waiter uint64
		handle := func(ev any) {
			t.Helper()
			got, want := table.Handle(ev, now), slow.handle(ev, now)
			if a, b := fmt.Sprint(got), fmt.Sprint(want); a != b {
				t.Fatalf("%T %+v:\n got %s\nwant %s", ev, ev, a, b)
			}
			var next time.Time
			has := false
			for _, p := range slow.peers {
				if at, ok := p.due(idle); ok && (!has || at.Before(next)) {
					next, has = at, true
				}
			}
			if at, ok := table.Next(); ok != has || !at.Equal(next) {
				t.Fatalf("after %T: next at %v %t, want %v %t", ev, at, ok, next, has)
			}
			if len(table.Peers()) != len(slow.peers) {
				t.Fatalf("%d peers, want %d", len(table.Peers()), len(slow.peers))
			}
			for _, p := range table.Peers() {
				if s := slow.peers[p.Key]; s == nil || s.view != p.View || len(s.waiting) != p.Waiters || !errors.Is(p.Err, s.err) {
					t.Fatalf("%+v, want %+v", p, s)
				}
			}
		}
		for range rapid.IntRange(1, 60).Draw(t, "events") {
			step := time.Duration(rapid.SampledFrom([]int{0, 0, 10, 60, 700, 20_000}).Draw(t, "ms")) * time.Millisecond
			if at, ok := table.Next(); ok && rapid.IntRange(0, 2).Draw(t, "due") == 0 {
				step = at.Sub(now) - time.Duration(rapid.IntRange(0, 1).Draw(t, "early"))
			}
			now = now.Add(max(step, 0))
			key := rapid.SampledFrom(keys).Draw(t, "peer")
			switch rapid.IntRange(0, 8).Draw(t, "event") {
			case 0, 1:
				waiter++
				handle(WantEvent{key, uint64(rapid.IntRange(0, 3).Draw(t, "epoch")), waiter})
			case 2:
				handle(WantEvent{key, uint64(rapid.IntRange(0, 3).Draw(t, "epoch")), 0})
			case 3:
				handle(ShookEvent[*view]{Key: key, View: rapid.SampledFrom(views).Draw(t, "view")})
			case 4, 5:
				handle(ShookEvent[*view]{Key: key, Err: errors.New("no")})
			case 6:
				handle(PeerLostEvent[*view]{key, rapid.SampledFrom(views).Draw(t, "lost")})
			case 7:
				handle(LeaveEvent{key, uint64(rapid.IntRange(1, int(waiter)+1).Draw(t, "waiter"))})
			default:
				handle(PeerTickEvent{})
			}
		}
	})
}

package core

import (
	"errors"
	"testing"
	"time"

	"pgregory.net/rapid"

	"tandem/internal/kv"
)

// A view is a snapshot of nothing.
type view struct{ epoch uint64 }

func (v *view) PeerEpoch() uint64 { return v.epoch }

func testView(epoch kv.Epoch) *view { return &view{uint64(epoch)} }

func TestHandshakeIsSharedAndRetriedWithBackoff(t *testing.T) {
	table, now := NewPeerTable[*view](time.Hour), time.Unix(0, 0)
	key := PeerKey{Addr: "p:1"}
	want := func(w uint64) PeerEffects[*view] { return table.Handle(WantEvent{key, 1, w}, now) }
	fail := func() PeerEffects[*view] {
		return table.Handle(ShookEvent[*view]{Key: key, Err: errors.New("refused")}, now)
	}
	if e := want(1); len(e.Shake) != 1 {
		t.Fatalf("%+v", e)
	}
	for w := uint64(2); w <= 20; w++ {
		if e := want(w); len(e.Shake) != 0 || len(e.Answers) != 0 {
			t.Fatalf("%+v", e)
		}
	}
	table.Handle(LeaveEvent{key, 7}, now)
	if e := fail(); len(e.Answers) != 19 || e.Answers[0].Err == nil {
		t.Fatalf("%d answers", len(e.Answers))
	}
	if e := want(21); len(e.Shake) != 1 {
		t.Fatal("the first request after a failure waits")
	}
	pause := firstBackoff
	for range 8 {
		fail()
		if e := want(22); len(e.Shake) != 0 {
			t.Fatal("no back-off")
		}
		at, ok := table.Next()
		if !ok || at.Sub(now) != pause {
			t.Fatalf("waits %v, want %v", at.Sub(now), pause)
		}
		now = at
		if e := table.Handle(PeerTickEvent{}, now); len(e.Shake) != 1 {
			t.Fatalf("%+v", e)
		}
		pause = min(2*pause, lastBackoff)
	}
	v := testView(1)
	if e := table.Handle(ShookEvent[*view]{Key: key, View: v}, now); len(e.Answers) != 1 || e.Answers[0].View != v {
		t.Fatalf("%+v", e)
	}
	if e := want(23); len(e.Answers) != 1 || len(e.Shake) != 0 {
		t.Fatalf("%+v", e)
	}
	// A newer epoch replaces the snapshot for new requests at once.
	if e := table.Handle(WantEvent{key, 2, 24}, now); len(e.Shake) != 1 || len(e.Close) != 1 || len(e.Answers) != 0 {
		t.Fatalf("%+v", e)
	}
	v2 := testView(2)
	table.Handle(ShookEvent[*view]{Key: key, View: v2}, now)
	if e := table.Handle(PeerLostEvent[*view]{key, v}, now); len(e.Close) != 0 {
		t.Fatal("the end of the old connection took the new snapshot away")
	}
	if e := table.Handle(PeerLostEvent[*view]{key, v2}, now); len(e.Close) != 1 {
		t.Fatalf("%+v", e)
	}
	if e := want(25); len(e.Shake) != 1 {
		t.Fatal("a lost peer is not tried again at once")
	}
}

func TestIdlePeerIsClosed(t *testing.T) {
	table, now := NewPeerTable[*view](time.Hour), time.Unix(0, 0)
	key := PeerKey{Addr: "p:1"}
	table.Handle(WantEvent{key, 1, 1}, now)
	table.Handle(ShookEvent[*view]{Key: key, View: testView(1)}, now)
	if e := table.Handle(PeerTickEvent{}, now.Add(time.Hour-1)); len(e.Close) != 0 {
		t.Fatal("early")
	}
	if e := table.Handle(PeerTickEvent{}, now.Add(time.Hour)); len(e.Close) != 1 || len(table.peers) != 0 {
		t.Fatalf("%+v", e)
	}
	// One that never answered is forgotten too.
	table.Handle(WantEvent{key, 1, 0}, now)
	table.Handle(ShookEvent[*view]{Key: key, Err: errors.New("x")}, now)
	if table.Handle(PeerTickEvent{}, now.Add(forget)); len(table.peers) != 0 {
		t.Fatal("remembered")
	}
}

// TestEveryWaiterIsAnsweredOnceAndEveryViewClosedOnce feeds random events.
func TestEveryWaiterIsAnsweredOnceAndEveryViewClosedOnce(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		table, now := NewPeerTable[*view](10*time.Second), time.Unix(0, 0)
		keys := []PeerKey{{Addr: "a:1"}, {Addr: "b:1"}}
		waiting := map[uint64]PeerKey{}
		shaking := map[PeerKey]bool{}
		open := map[*view]bool{}
		var last uint64
		handle := func(ev any) {
			e := table.Handle(ev, now)
			for _, a := range e.Answers {
				if _, ok := waiting[a.Waiter]; !ok || (a.View == nil) == (a.Err == nil) {
					t.Fatalf("answer %+v", a)
				}
				if a.View != nil && !open[a.View] {
					t.Fatal("answered with a closed snapshot")
				}
				delete(waiting, a.Waiter)
			}
			for _, k := range e.Shake {
				if shaking[k] {
					t.Fatal("two handshakes with one peer")
				}
				shaking[k] = true
			}
			for _, v := range e.Close {
				if !open[v] {
					t.Fatal("closed twice")
				}
				delete(open, v)
			}
		}
		var lost []PeerLostEvent[*view]
		for range 60 {
			now = now.Add(time.Duration(rapid.IntRange(0, 3000).Draw(t, "ms")) * time.Millisecond)
			key := rapid.SampledFrom(keys).Draw(t, "peer")
			switch rapid.IntRange(0, 5).Draw(t, "event") {
			case 0, 1:
				last++
				waiting[last] = key
				handle(WantEvent{key, uint64(rapid.IntRange(1, 2).Draw(t, "epoch")), last})
			case 2:
				if shaking[key] {
					delete(shaking, key)
					if rapid.Bool().Draw(t, "ok") {
						v := testView(2)
						open[v] = true
						lost = append(lost, PeerLostEvent[*view]{key, v})
						handle(ShookEvent[*view]{Key: key, View: v})
					} else {
						handle(ShookEvent[*view]{Key: key, Err: errors.New("x")})
					}
				}
			case 3:
				if len(lost) > 0 {
					handle(rapid.SampledFrom(lost).Draw(t, "lost"))
				}
			case 4:
				for w, k := range waiting {
					handle(LeaveEvent{k, w})
					delete(waiting, w)
					break
				}
			default:
				handle(PeerTickEvent{})
			}
		}
		for range 20 { // whatever happened, those who wait are answered in the end
			now = now.Add(lastBackoff)
			handle(PeerTickEvent{})
			for k := range shaking {
				delete(shaking, k)
				handle(ShookEvent[*view]{Key: k, Err: errors.New("x")})
			}
		}
		if len(waiting) != 0 {
			t.Fatalf("%d wait for ever", len(waiting))
		}
	})
}

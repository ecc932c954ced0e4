package sched

import (
	"slices"
	"testing"

	"tandem/internal/kv"
)

// The place of one that ends goes by rank to those whose load has ended and to
// those that wait for their first blocks.
func TestParkedAndQueuedGoByRank(t *testing.T) {
	cfg := pool(40)
	cfg.MaxSeqs = 1
	w := newWorld(t, cfg)
	w.must(Request{ID: "A", Prompt: prompt(1, 20), MaxTokens: 8, Arrival: 1})
	w.tick()
	w.must(Request{ID: "C", Prompt: prompt(3, 40), MaxTokens: 2, Arrival: 3, External: 40})
	for w.s.Stats().Parked == 0 {
		w.tick()
	}
	w.must(Request{ID: "B", Prompt: prompt(2, 20), MaxTokens: 2, Arrival: 2})
	w.must(Request{ID: "D", Prompt: prompt(4, 20), MaxTokens: 2, Arrival: 4})
	var order []kv.RequestID
	for range 20 {
		w.tick()
		for _, id := range []kv.RequestID{"D", "C", "B", "A"} {
			if len(w.all[id].out) > 0 && !slices.Contains(order, id) {
				order = append(order, id)
			}
		}
	}
	if want := []kv.RequestID{"A", "B", "C", "D"}; !slices.Equal(order, want) {
		t.Errorf("they run in the order %v, want %v", order, want)
	}
	w.finish(20)
}

// A request that waits for a place in the batch does not keep those behind it
// from loading.
func TestLoadsStartBehindAParkedRequest(t *testing.T) {
	cfg := pool(80)
	cfg.MaxSeqs = 3
	w := newWorld(t, cfg)
	for i := range 3 {
		w.must(Request{ID: id(i), Prompt: prompt(uint64(i), 20), MaxTokens: 20, Arrival: 1})
	}
	w.tick()
	w.must(Request{ID: "B", Prompt: prompt(11, 40), MaxTokens: 2, Arrival: 2, External: 40})
	for w.s.Stats().Parked == 0 {
		w.tick()
	}
	w.must(Request{ID: "C", Prompt: prompt(12, 40), MaxTokens: 2, Arrival: 3, External: 40})
	w.must(Request{ID: "D", Prompt: prompt(13, 40), MaxTokens: 2, Arrival: 4, External: 40})
	if p := w.tick(); len(p.Loads) != 2 {
		t.Errorf("%d loads start, want 2", len(p.Loads))
	}
	w.finish(60)
}

// What can start in a step starts in it: all loads, then all whose load has ended.
func TestNobodyWaitsForAStepWithoutNeed(t *testing.T) {
	w := newWorld(t, pool(80))
	for i := range 3 {
		w.must(Request{ID: id(i), Prompt: prompt(uint64(i), 40), MaxTokens: 9, External: 40})
	}
	if p := w.tick(); len(p.Loads) != 3 {
		t.Errorf("%d of 3 loads start", len(p.Loads))
	}
	for w.s.Stats().Running == 0 {
		w.tick()
	}
	if n := w.s.Stats().Running; n != 3 {
		t.Errorf("%d of 3 run", n)
	}
	w.finish(60)
}

// A hand-off of one token is a hand-off: it is read once, or given back once.
func TestHandoffOfOneToken(t *testing.T) {
	w := newWorld(t, pool(8))
	r := Request{ID: "A", Prompt: prompt(1, 20), MaxTokens: 5, External: 1}
	c := w.must(r)
	w.abort("A")
	if c.unread != 1 {
		t.Error("it is not given back by one that waits")
	}
	c = w.must(r)
	for len(c.out) == 0 {
		w.tick()
	}
	w.preempt("A")
	w.finish(20)
	if c.loaded != 1 || c.counts.Loaded != 1 {
		t.Errorf("loaded %d times: %+v", c.loaded, c.counts)
	}
}

// A hand-off that was of no use is not missed when the hits that took its place
// are gone: nobody lost anything.
func TestHandoffOfNoUseIsNotMissed(t *testing.T) {
	cfg := pool(12)
	cfg.MaxBatchedTokens = 16
	w := newWorld(t, cfg)
	w.must(Request{ID: "before", Prompt: prompt(1, 65), MaxTokens: 1})
	w.finish(9)
	c := w.must(Request{ID: "A", Prompt: append(prompt(1, 64), prompt(2, 100)...), MaxTokens: 2, External: 64, Arrival: 2})
	w.tick()
	if w.tick(); c.unread != 1 || c.computed == 0 {
		t.Fatalf("given back %d times, %d computed", c.unread, c.computed)
	}
	w.preempt("A")
	w.must(Request{ID: "B", Prompt: prompt(3, 12*16-1), MaxTokens: 1, Arrival: 1})
	w.finish(40)
	if k := c.counts; k.Local != 0 || k.Recomputed != 0 || k.Computed != 164 {
		t.Errorf("%+v", k)
	}
}

// What follows a hit enters the index behind it, so that the next one hits more.
func TestHitsGrow(t *testing.T) {
	w := newWorld(t, pool(16))
	for i, want := range []int{0, 32, 64, 96} {
		n := min(100, 40+32*i)
		c := w.must(Request{ID: id(i), Prompt: prompt(1, n), MaxTokens: 1})
		w.finish(9)
		if c.counts.Local != want {
			t.Errorf("%d tokens: %+v", n, c.counts)
		}
	}
}

// A request has room for what it may become from the start, up to a bound.
func TestRoomOfARequest(t *testing.T) {
	for _, c := range []struct{ tokens, want int }{{1, 11}, {500, 510}, {1 << 20, 10 + maxAhead}} {
		w := newWorld(t, pool(1000))
		w.must(Request{ID: "A", Prompt: prompt(1, 10), MaxTokens: c.tokens, Lease: true})
		w.s.Plan()
		r := w.s.requests["A"]
		if got := cap(r.tokens); got != c.want || cap(r.blocks) != (c.want+15)/16 {
			t.Errorf("%d tokens to make: room for %d and %d blocks, want %d", c.tokens, got, cap(r.blocks), c.want)
		}
	}
}

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

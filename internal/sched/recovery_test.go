package sched

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"tandem/internal/kv"
)

// Patterns of lost tiles: which of n.
var patterns = map[string]func(i, n int) bool{
	"all":             func(int, int) bool { return true },
	"every second":    func(i, _ int) bool { return i%2 == 1 },
	"every other":     func(i, _ int) bool { return i%2 == 0 },
	"the second half": func(i, n int) bool { return i >= n/2 },
	"the first half":  func(i, n int) bool { return i < n/2 },
	"the last":        func(i, n int) bool { return i == n-1 },
	"the first":       func(i, _ int) bool { return i == 0 },
	"two thirds":      func(i, _ int) bool { return i%3 != 1 },
}

// damaged returns what a pattern loses of a load.
func damaged(lost func(i, n int) bool) func(Load) []int {
	return func(l Load) (bad []int) {
		for t := l.FromTile; t < l.ToTile; t++ {
			if lost(t-l.FromTile, l.ToTile-l.FromTile) {
				bad = append(bad, t)
			}
		}
		return bad
	}
}

// Exactly the lost tokens are computed, and the last one for its logits, wherever
// the verified tiles lie, however small the steps are.
func TestExactlyWhatIsLostIsComputed(t *testing.T) {
	for name, lost := range patterns {
		for _, bs := range []int{16, 32, 64} {
			for _, n := range []int{17, 33, 187, 192, 193} {
				for _, budget := range []int{5, 16, 64, 512} {
					cfg := pool(1)
					cfg.Pool, cfg.MaxBatchedTokens = kv.NewPool(32, bs), budget
					w := newWorld(t, cfg)
					w.damage = damaged(lost)
					const most = 3
					c := w.must(Request{ID: "A", Prompt: prompt(1, n), MaxTokens: most, External: n})
					w.finish(200)
					missing, tiles := 0, tilesFor(n-1)
					for i := range tiles {
						if lost(i, tiles) {
							missing += min(16*(i+1), n-1) - 16*i
						}
					}
					if c.computed != missing+1+most-1 || c.counts.Recomputed != missing || c.counts.Loaded != n-1-missing {
						t.Fatalf("%s of %d tokens in blocks of %d, steps of %d: %d computed, want %d: %+v",
							name, n, bs, budget, c.computed, missing+most, c.counts)
					}
				}
			}
		}
	}
}

// A report may come before the step that was planned with its load has ended.
func TestReportWithinTheStepOfItsAdmission(t *testing.T) {
	for name, lost := range patterns {
		for _, fail := range []bool{false, true} {
			w := newWorld(t, pool(32))
			w.fail, w.damage = fail, damaged(lost)
			w.must(Request{ID: "other", Prompt: prompt(9, 20), MaxTokens: 9})
			w.tick()
			w.must(Request{ID: "A", Prompt: prompt(1, 100), MaxTokens: 3, External: 100})
			w.step++
			p := w.s.Plan()
			if len(p.Loads) != 1 || len(p.Items) != 1 {
				t.Fatalf("%+v", p)
			}
			l := p.Loads[0]
			l.Blocks = slices.Clone(l.Blocks)
			w.all["A"].loaded++
			w.loads["A"] = &flight{load: l}
			w.land("A")
			for _, f := range w.s.Apply(w.compute(p)) {
				w.ended(f)
			}
			w.check()
			w.finish(30)
			if c := w.all["A"]; (c.why == LoadFailed) != fail || w.all["other"].why != Length {
				t.Fatalf("%s, fail %t: %v", name, fail, c.why)
			}
		}
	}
}

// life drives A from its load through its recovery; at step `at` what is to be
// done is done. It returns the state that A had then, "" when it had ended.
func (w *world) life(at int, do func()) (was string) {
	w.t.Helper()
	for i := range 40 {
		if i == at {
			switch r := w.s.requests["A"]; {
			case r == nil:
				return ""
			case r.status == queued && len(r.blocks) > 0:
				was = "parked"
			case r.status == queued:
				was = "queued"
			case r.status == loading:
				was = "loading"
			case r.counts.Output > 0:
				was = "decoding"
			default:
				was = fmt.Sprintf("recomputing at %d", r.done)
			}
			do()
		}
		w.step++
		w.arrive()
		if i == at-1 {
			continue // between the report and the next plan
		}
		w.tick()
	}
	return was
}

// Preemption of every state around a load and its failure: the tokens are right,
// nothing is loaded twice, and the sources add up.
func TestPreemptionInEveryStateAroundAFailure(t *testing.T) {
	states := map[string]int{}
	for name, lost := range patterns {
		for at := range 30 {
			cfg := pool(32)
			cfg.MaxBatchedTokens = 12 // so that recomputation has many states
			w := newWorld(t, cfg)
			w.loadSteps = func() int { return 3 }
			w.damage = damaged(lost)
			c := w.must(Request{ID: "A", Prompt: prompt(1, 100), MaxTokens: 5, External: 100})
			was := w.life(at, func() {
				if r := w.s.requests["A"]; r.status == running || r.status == queued && len(r.blocks) > 0 {
					w.preempt(r.ID)
				}
			})
			states[was]++
			w.finish(60)
			if len(c.out) != 5 || c.loaded != 1 {
				t.Fatalf("%s, preempted %s: %d tokens, loaded %d times", name, was, len(c.out), c.loaded)
			}
			if (was == "parked" || was[:min(3, len(was))] == "rec") && c.counts.Preempted != 1 {
				t.Fatalf("%s: %s was not preempted: %+v", name, was, c.counts)
			}
		}
	}
	for _, want := range []string{"loading", "parked", "decoding", "recomputing at 12", "recomputing at 48"} {
		if states[want] == 0 {
			t.Errorf("nobody was met %s: %v", want, states)
		}
	}
}

// Abort of every state around a load and its failure gives everything back.
func TestAbortInEveryStateAroundAFailure(t *testing.T) {
	states := map[string]int{}
	for _, fail := range []bool{false, true} {
		for name, lost := range patterns {
			for n := 94; n <= 100; n++ {
				for at, was := 0, "queued"; was != ""; at++ {
					cfg := pool(32)
					cfg.MaxBatchedTokens = 12
					w := newWorld(t, cfg)
					w.loadSteps, w.fail = func() int { return 3 }, fail
					w.damage = damaged(lost)
					c := w.must(Request{ID: "A", Prompt: prompt(1, n), MaxTokens: 5, External: n})
					w.must(Request{ID: "beside", Prompt: prompt(1, 90), MaxTokens: 5, External: 90})
					was = w.life(at, func() { w.abort("A") })
					states[was]++
					if kind, _, ok := strings.Cut(was, " at "); ok {
						states[kind]++
					}
					w.finish(60)
					if was != "" && c.why != Aborted {
						t.Fatalf("%s, aborted %s: %v", name, was, c.why)
					}
				}
			}
		}
	}
	for _, want := range []string{"queued", "loading", "parked", "decoding", "recomputing"} {
		if states[want] < 50 {
			t.Errorf("%d were met %s: %v", states[want], want, states)
		}
	}
	for _, want := range []string{"recomputing at 12", "recomputing at 48", ""} {
		if states[want] == 0 {
			t.Errorf("nobody was met %q: %v", want, states)
		}
	}
}

// Requests of one prefix whose loads lose different tiles, beside others that
// compute it: each gets its own, and nobody hits what was not verified.
func TestSharersLoseDifferentTiles(t *testing.T) {
	hits, recomputed := uint64(0), uint64(0)
	for seed := range uint64(200) {
		rng := rand.New(rand.NewPCG(seed, 2020))
		w := newWorld(t, pool(60+rng.IntN(60)))
		w.policy = func() bool { return seed%3 == 0 && rng.IntN(2) == 0 }
		w.loadSteps = func() int { return rng.IntN(5) }
		w.damage = func(l Load) (bad []int) {
			for t := l.FromTile; t < l.ToTile; t++ {
				if rng.IntN(3) == 0 {
					bad = append(bad, t)
				}
			}
			return bad
		}
		for i := range []int{3, 10}[seed%2] {
			r := Request{ID: id(i), Prompt: append(prompt(5, 80), prompt(uint64(i%3), 25)...), MaxTokens: 4, External: 105}
			if rng.IntN(4) == 0 {
				r.External = 0
			}
			w.must(r)
			for rng.IntN(2) == 0 {
				w.tick()
			}
			if q := w.s.requests[id(rng.IntN(i+1))]; q != nil && q.status == running && rng.IntN(3) == 0 {
				w.preempt(q.ID)
			}
		}
		w.finish(600)
		hits, recomputed = hits+w.s.Stats().Local, recomputed+w.s.Stats().Recomputed
	}
	if hits == 0 || recomputed == 0 {
		t.Errorf("%d tokens hit, %d recomputed", hits, recomputed)
	}
}

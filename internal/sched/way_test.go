package sched

import (
	"testing"

	"tandem/internal/kv"
)

// least returns the smallest pool in which r starts in the step after those
// beside it. A number as Tag says how often a request was preempted before.
func least(t *testing.T, beside []Request, r Request) int {
	t.Helper()
	r.ID = "r"
	for blocks := 1; blocks < 60; blocks++ {
		cfg := pool(blocks)
		cfg.MaxBatchedTokens = 1 << 10
		w := newWorld(t, cfg)
		w.loadSteps = func() int { return 9 }
		add := func(r Request) bool {
			if w.add(r) != nil {
				return false
			}
			w.s.requests[r.ID].counts.Preempted, _ = r.Tag.(int)
			return true
		}
		fit := true
		for i, b := range beside {
			b.ID = id(i)
			fit = fit && add(b)
		}
		w.tick()
		if !fit || w.s.Stats().Waiting > 0 || !add(r) {
			continue
		}
		if w.tick(); w.s.Stats().Waiting == 0 {
			return blocks
		}
	}
	t.Fatal("it never starts")
	return 0
}

// A request starts when its blocks are free, and besides a block for each of
// those beside it that may still grow, twice as many with every time that the
// request was preempted, but no more than they can use. Where it was preempted
// often, or one above it, it starts when all that they and it can use is free.
func TestWhatMustBeFreeForAStart(t *testing.T) {
	beside := func(tokens ...int) (rs []Request) {
		for i, n := range tokens {
			rs = append(rs, Request{Prompt: prompt(uint64(i), 10), MaxTokens: n, Arrival: uint64(1 + i)})
		}
		return rs
	}
	tagged := func(preempted int, rs []Request) []Request {
		rs[0].Tag = preempted
		return rs
	}
	loading := beside(60)
	loading[0].External = 10
	own := prompt(5, 100) // 7 blocks
	shared := append(prompt(6, 32), own[32:]...)
	sharer := []Request{{Prompt: shared[:33], MaxTokens: 15}}
	for _, c := range []struct {
		name      string
		beside    []Request
		prompt    []kv.Token
		tokens    int
		preempted int
		arrival   uint64
		want      int
	}{
		{"alone", nil, own, 30, 0, 9, 7},
		{"one that can take 4 more", beside(60), own, 30, 0, 9, 1 + 7 + 1},
		{"the same, preempted once", beside(60), own, 30, 1, 9, 1 + 7 + 2},
		{"twice", beside(60), own, 30, 2, 9, 1 + 7 + 4},
		{"often, and it can take 2 more", beside(60), own, 30, 3, 9, 1 + 7 + 4 + 2},
		{"often, and it can take 1 more", beside(60), own, 29, 3, 9, 1 + 7 + 4 + 1},
		{"one that can take 1 more", beside(20), own, 30, 0, 9, 1 + 7 + 1},
		{"the same, preempted twice", beside(20), own, 30, 2, 9, 1 + 7 + 1},
		{"its last token needs no block", beside(55), own, 30, 2, 9, 1 + 7 + 3},
		{"the one before needs a block", beside(56), own, 30, 2, 9, 1 + 7 + 4},
		{"one that can take none", beside(6), own, 30, 0, 9, 1 + 7},
		{"one that can take none beside one that can", beside(6, 60), own, 30, 0, 9, 2 + 7 + 1},
		{"two", beside(60, 60), own, 30, 0, 9, 2 + 7 + 2},
		{"two, preempted once", beside(60, 60), own, 30, 1, 9, 2 + 7 + 4},
		{"two, preempted twice", beside(60, 60), own, 30, 2, 9, 2 + 7 + 8},
		{"one that loads", loading, own, 30, 0, 9, 1 + 7 + 1},
		{"one above was preempted often", tagged(3, beside(60, 60)), own, 30, 0, 9, 2 + 7 + 8 + 2},
		{"one above was preempted twice", tagged(2, beside(60, 60)), own, 30, 0, 9, 2 + 7 + 2},
		{"one below was preempted often", tagged(3, beside(60)), own, 30, 0, 0, 1 + 7 + 1},
		{"2 of its blocks are in use as they are", sharer, shared, 30, 0, 9, 3 + 5},
	} {
		r := Request{Prompt: c.prompt, MaxTokens: c.tokens, Arrival: c.arrival, Tag: c.preempted}
		if got := least(t, c.beside, r); got != c.want {
			t.Errorf("%s: it starts in a pool of %d blocks, want %d", c.name, got, c.want)
		}
	}
}

// Blocks that the index keeps and nobody holds count as free: a start takes those
// that it can use as they are out of what is free.
func TestHitsThatNobodyHoldsTakeOfWhatIsFree(t *testing.T) {
	w := newWorld(t, pool(8))
	w.must(Request{ID: "before", Prompt: prompt(1, 49), MaxTokens: 1})
	w.finish(9)
	beside := w.must(Request{ID: "beside", Prompt: prompt(2, 30), MaxTokens: 3})
	w.tick()
	w.must(Request{ID: "A", Prompt: append(prompt(1, 48), prompt(3, 60)...), MaxTokens: 2}) // 7 blocks, 3 are hits
	for !beside.over {
		if w.tick(); w.s.Stats().Waiting == 0 {
			t.Fatalf("it starts with 3 blocks that are hits and 3 that are not: %+v", w.s.Stats())
		}
	}
	w.finish(9)
	if k := w.all["A"].counts; k.Local != 48 {
		t.Errorf("%+v", k)
	}
}

// As many as blocks are about to come back wait for them; the next one has the
// lowest ranked give way.
func TestOnlyAsManyWaitAsBlocksComeBack(t *testing.T) {
	w := newWorld(t, pool(7))
	w.loadSteps = func() int { return 1000 }
	for i, n := range []int{60, 60, 60} {
		w.must(Request{ID: id(i), Prompt: prompt(uint64(i), 14), MaxTokens: n, Arrival: uint64(i)})
	}
	w.must(Request{ID: "L", Prompt: prompt(9, 10), MaxTokens: 2, External: 10, Arrival: 9})
	if w.tick(); len(w.loads) != 1 || w.s.Stats().Running != 3 {
		t.Fatalf("%+v", w.s.Stats())
	}
	w.abort("L")
	a, b, c := w.all[id(0)], w.all[id(1)], w.all[id(2)]
	for i := 0; i < 30 && c.gaveWay == 0; i++ {
		w.tick()
	}
	if st := w.s.Stats(); st.Held != 1 || a.gaveWay+b.gaveWay != 0 || c.gaveWay != 1 {
		t.Fatalf("they gave way %d, %d and %d times: %+v", a.gaveWay, b.gaveWay, c.gaveWay, st)
	}
	if a.lastStep == w.step || b.lastStep != w.step {
		t.Fatalf("the first computed in step %d, the second in %d of %d", a.lastStep, b.lastStep, w.step)
	}
	w.land("L")
	w.finish(300)
}

// Who lacks a block and ranks lowest keeps what it has and sits out, also when
// the batch is full.
func TestWhoRanksLowestSitsOut(t *testing.T) {
	for _, seqs := range []int{2, 8} {
		cfg := pool(4)
		cfg.MaxSeqs = seqs
		w := newWorld(t, cfg)
		a := w.must(Request{ID: "A", Prompt: prompt(1, 2), MaxTokens: 25, Arrival: 1})
		b := w.must(Request{ID: "B", Prompt: prompt(2, 14), MaxTokens: 40, Arrival: 2})
		out := 0
		for !b.over {
			w.tick()
			if !a.over && b.lastStep < w.step {
				out++
			}
		}
		if out == 0 || b.gaveWay != 0 {
			t.Errorf("%d seqs: it sat out %d steps and gave way %d times", seqs, out, b.gaveWay)
		}
		w.finish(9)
	}
}

// The same while one waits whose load has ended, as long as there is a place in
// the batch for that.
func TestWhoLacksABlockGivesNoPlaceThatIsFree(t *testing.T) {
	cfg := pool(4)
	cfg.MaxBatchedTokens = 16
	w := newWorld(t, cfg)
	w.must(Request{ID: "P", Prompt: prompt(1, 32), MaxTokens: 1, External: 32, Arrival: 1})
	r := w.must(Request{ID: "R", Prompt: prompt(2, 32), MaxTokens: 4, Arrival: 2})
	w.tick()
	if w.tick(); w.s.Stats().Parked != 1 || len(r.out) != 1 {
		t.Fatalf("%+v", w.s.Stats())
	}
	if w.tick(); r.lastStep == w.step || !w.all["P"].over {
		t.Fatalf("there is a block for R: %+v", w.s.Stats())
	}
	w.finish(9)
	if r.gaveWay != 0 {
		t.Errorf("it gave way %d times", r.gaveWay)
	}
}

// The lowest ranked of those that run and of those whose load has ended gives its
// blocks up first.
func TestTheLowestRankedGivesWay(t *testing.T) {
	for _, c := range []struct {
		parked int
		rank   uint64 // of B, which runs
		want   kv.RequestID
	}{{1, 2, id(0)}, {2, 2, id(1)}, {1, 20, "B"}, {2, 20, "B"}} {
		cfg := pool(4 + 2*c.parked)
		cfg.MaxSeqs = 2
		w := newWorld(t, cfg)
		w.must(Request{ID: "A", Prompt: prompt(1, 14), MaxTokens: 60, Arrival: 1})
		w.tick()
		w.must(Request{ID: "B", Prompt: prompt(2, 1), MaxTokens: 30, Arrival: c.rank})
		w.tick()
		for i := range c.parked {
			w.must(Request{ID: id(i), Prompt: prompt(uint64(10+i), 30), MaxTokens: 2, External: 30, Arrival: uint64(10 + i)})
		}
		for i := 0; i < 40 && w.s.Stats().Preemptions == 0; i++ {
			w.tick()
		}
		for id, cl := range w.all {
			if n := cl.gaveWay; n > 1 || (n == 1) != (id == c.want) {
				t.Errorf("%d parked, B ranks %d: %s gave way %d times", c.parked, c.rank, id, n)
			}
		}
		w.finish(200)
	}
}

// As many run as there are tokens in a step, also when one of them sat out
// meanwhile: whoever can go on gets its token.
func TestWhoeverRunsGetsAToken(t *testing.T) {
	cfg := pool(4)
	cfg.MaxBatchedTokens = 1
	w := newWorld(t, cfg)
	w.loadSteps = func() int { return 1000 }
	w.must(Request{ID: "L", Prompt: prompt(1, 10), MaxTokens: 2, External: 10, Arrival: 1})
	w.must(Request{ID: "P", Prompt: prompt(2, 30), MaxTokens: 2, External: 30, Arrival: 2})
	r := w.must(Request{ID: "R", Prompt: prompt(3, 16), MaxTokens: 9, Arrival: 3})
	w.tick()
	w.abort("L")
	for len(r.out) == 0 && w.step < 60 {
		if w.tick(); w.loads["P"] != nil {
			w.land("P")
		}
	}
	w.tick() // R waits for the block of L
	w.land("L")
	w.loadSteps = func() int { return 1 }
	w.finish(60)
}

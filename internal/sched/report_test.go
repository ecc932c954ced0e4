package sched

import (
	"errors"
	"testing"

	"tandem/internal/kv"
)

// A load is reported once. What comes late, twice or for somebody else finds
// nothing and changes nothing, and an id is in use until its load has ended.
func TestLateAndDoubleReportsChangeNothing(t *testing.T) {
	w := newWorld(t, pool(32))
	w.loadSteps = func() int { return 3 }
	all := LoadReport{Invalid: []int{0, 1, 2, 3, 4, 5, 6}, Fail: true}
	nothing := func(when string) {
		t.Helper()
		before := w.s.Stats()
		if res := w.s.LoadDone("A", all); res.Found || w.s.Stats() != before {
			t.Fatalf("%s: %+v", when, res)
		}
		w.check()
	}
	nothing("unknown")
	c := w.must(Request{ID: "A", Prompt: prompt(1, 100), MaxTokens: 5, External: 100})
	nothing("queued")
	for !c.over {
		if w.loads["A"] == nil {
			nothing("after its load")
		}
		w.tick()
	}
	if c.counts.Loaded != 99 || c.why != Length {
		t.Fatalf("%v, %+v", c.why, c.counts)
	}
	nothing("finished")

	again := Request{ID: "A", Prompt: prompt(2, 100), MaxTokens: 5, External: 100}
	w.must(again)
	w.tick()
	w.abort("A")
	if st := w.s.Stats(); st.Held != 7 || st.Loading != 0 {
		t.Fatalf("%+v", st)
	}
	if err := w.s.Add(again); !errors.Is(err, ErrDuplicate) {
		t.Fatalf("the id of a load under way is taken again: %v", err)
	}
	w.land("A")
	if st := w.s.Stats(); st.Held != 0 || st.Free != st.Blocks || st.Finished[Aborted] != 1 || st.FailedLoads != 0 {
		t.Fatalf("%+v", st)
	}
	w.must(again)
	w.finish(50)
}

// Blocks that a request of a shared prefix only reads are not quarantined with
// it: only those of its own load are.
func TestOnlyTheLoadsBlocksAreQuarantined(t *testing.T) {
	w := newWorld(t, pool(32))
	w.must(Request{ID: "before", Prompt: prompt(1, 65), MaxTokens: 1})
	w.finish(9)
	w.loadSteps = func() int { return 9 }
	p := append(prompt(1, 64), prompt(2, 36)...)
	w.must(Request{ID: "A", Prompt: p, MaxTokens: 1, External: 100})
	w.tick()
	w.abort("A")
	if st := w.s.Stats(); st.Held != 3 || st.Free != 25 {
		t.Fatalf("%d held, %d free: the load fills 3 of 7 blocks", st.Held, st.Free)
	}
	w.must(Request{ID: "B", Prompt: p[:65], MaxTokens: 2})
	for range 3 {
		w.tick()
	}
	if c := w.all["B"]; !c.over || c.counts.Local != 64 {
		t.Fatalf("shared blocks are out of use: %+v", c.counts)
	}
	w.finish(20)
}

// A load behind hits fails at every tile: the tiles are counted from the start
// of the sequence, whatever is here already.
func TestLoadBehindAHitFailsAtEveryTile(t *testing.T) {
	for _, bs := range []int{16, 32, 64} {
		for bad := 4; bad < 12; bad++ {
			cfg := pool(1)
			cfg.Pool = kv.NewPool(32, bs)
			w := newWorld(t, cfg)
			w.must(Request{ID: "before", Prompt: prompt(1, 65), MaxTokens: 1})
			w.finish(9)
			w.damage = func(Load) []int { return []int{bad} }
			c := w.must(Request{ID: "A", Prompt: append(prompt(1, 64), prompt(2, 123)...), MaxTokens: 3, External: 187})
			w.finish(40)
			lost := min(16*(bad+1), 186) - 16*bad
			if k := c.counts; k.Local != 64 || k.Recomputed != lost || k.Loaded != 122-lost || k.Computed != 1 {
				t.Fatalf("block size %d, tile %d: %+v", bs, bad, k)
			}
		}
	}
}

// A request whose load failed under the policy fail gives its blocks back at
// once and never samples.
func TestFailedLoadEndsItsRequestAtOnce(t *testing.T) {
	w := newWorld(t, pool(16))
	w.fail = true
	w.damage = func(l Load) []int { return []int{l.ToTile - 1} }
	c := w.must(Request{ID: "A", Prompt: prompt(1, 100), MaxTokens: 5, External: 100, Tag: "tag"})
	w.tick()
	w.step++
	w.arrive()
	st := w.s.Stats()
	if !c.over || c.why != LoadFailed || len(c.out) != 0 || st.Free != st.Blocks || st.Finished[LoadFailed] != 1 ||
		st.FailedLoads != 1 || st.Loading != 0 || st.Indexed != 0 {
		t.Fatalf("%v, %+v", c.why, st)
	}
	// The tokens of a prompt that never sampled are in no sum.
	if st.Prompt != 0 || st.Loaded != 0 || c.counts.Recomputed != 3 || c.counts.Loaded != 96 {
		t.Fatalf("%+v, %+v", c.counts, st.Totals)
	}
}

// The end of an aborted load says whose it was, and how far it was counted.
func TestEndOfAnAbortedLoadSaysWhoseItWas(t *testing.T) {
	w := newWorld(t, pool(16))
	w.loadSteps = func() int { return 9 }
	w.must(Request{ID: "A", Prompt: prompt(1, 100), MaxTokens: 5, External: 90, Tag: "tag"})
	w.tick()
	a := w.s.Abort("A")
	res := w.s.LoadDone("A", LoadReport{Fail: true, Invalid: []int{0}})
	if !a.Loading || a.Unread || !res.Found || !res.Finished || res.Why != Aborted || res.Tag != "tag" || res.Missing != 0 ||
		res.Counts != a.Counts || res.Counts.Prompt != 100 || res.Counts.Recomputed != 89+1 {
		t.Fatalf("%+v after %+v", res, a)
	}
}

// One lost token is a failed load like any other.
func TestOneLostTokenIsAFailure(t *testing.T) {
	for _, fail := range []bool{true, false} {
		w := newWorld(t, pool(16))
		w.fail = fail
		w.damage = func(Load) []int { return []int{1} }
		c := w.must(Request{ID: "A", Prompt: prompt(1, 18), MaxTokens: 2, External: 18}) // tokens 0 to 16 are promised
		w.finish(20)
		if st := w.s.Stats(); st.FailedLoads != 1 || c.counts.Recomputed != 1 || c.counts.Loaded != 16 || (c.why == LoadFailed) != fail {
			t.Fatalf("fail %t: %v, %+v, %+v", fail, c.why, c.counts, st.Totals)
		}
	}
}

// Verified blocks are hits as soon as the load has ended, before their request
// gets a place in the batch; a block with a lost tile is none.
func TestVerifiedBlocksAreHitsAtOnce(t *testing.T) {
	for lost, want := range map[int]int{0: 0, 2: 2, 9: 4} { // lost tile, indexed blocks
		w := newWorld(t, pool(16))
		w.damage = func(Load) []int { return []int{lost} }
		w.must(Request{ID: "A", Prompt: prompt(1, 65), MaxTokens: 2, External: 65})
		w.tick()
		w.step++
		w.arrive()
		if st := w.s.Stats(); st.Indexed != want || st.Parked != 1 {
			t.Fatalf("tile %d lost: %d blocks indexed, want %d (%+v)", lost, st.Indexed, want, st)
		}
		w.finish(20)
	}
}

// A tile that is full is sealed in the step that fills it and in no other.
func TestEachFullTileIsSealedOnce(t *testing.T) {
	for _, lease := range []bool{false, true} {
		w := newWorld(t, pool(16))
		w.s.cfg.MaxBatchedTokens = 24
		c := w.must(Request{ID: "A", Prompt: prompt(1, 100), MaxTokens: 30, Lease: lease})
		next := 0
		for !c.over {
			p := w.s.Plan()
			q := p.Batch.Seqs[0]
			for _, f := range w.s.Apply(w.compute(p)) {
				w.ended(f)
			}
			if q.SealTo == 0 {
				continue
			}
			if q.SealFrom != next {
				t.Fatalf("lease %t: seals tiles %d to %d, %d are sealed", lease, q.SealFrom, q.SealTo, next)
			}
			if next = q.SealTo; q.SealFilled < kv.TileTokens {
				next--
			}
		}
		if next != 8 { // 129 tokens have KV
			t.Fatalf("lease %t: %d tiles are sealed", lease, next)
		}
		w.finish(20)
	}
}

// Results that are not those of the plan are a bug of the engine: tokens would
// go to the wrong requests.
func TestApplyWantsAResultForEachItem(t *testing.T) {
	for _, n := range []int{0, 2} {
		w := newWorld(t, pool(8))
		w.must(Request{ID: "A", Prompt: prompt(1, 10), MaxTokens: 2})
		w.s.Plan()
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%d results for one item, and no panic", n)
				}
			}()
			w.s.Apply(make([]Result, n))
		}()
	}
}

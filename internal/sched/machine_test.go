package sched

import (
	"math/rand/v2"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"tandem/internal/kv"
)

// op is one thing that happens to a scheduler.
type op struct {
	kind  int // 0, 1 and 2: steps; 3: add; 4: abort; 5: a load ends; 6: step under way, abort, end
	req   Request
	which int
}

// drawWorld draws a configuration and a history.
func drawWorld(t *rapid.T) (Config, int, []op) {
	bs := rapid.SampledFrom([]int{16, 32, 64}).Draw(t, "block size")
	blocks := rapid.IntRange(3, 14).Draw(t, "blocks")
	cfg := Config{
		MaxBatchedTokens: rapid.IntRange(1, 150).Draw(t, "budget"),
		MaxSeqs:          rapid.IntRange(1, 6).Draw(t, "seqs"),
		MaxModelLen:      rapid.IntRange(20, 300).Draw(t, "context"),
		Priority:         rapid.Bool().Draw(t, "priority"),
		PrefixCache:      rapid.Bool().Draw(t, "cache"),
		Seal:             rapid.Bool().Draw(t, "seal"),
		ProbeChunk:       rapid.IntRange(0, 40).Draw(t, "probe chunk"),
	}
	limit := min(cfg.MaxModelLen, blocks*bs)
	ops := make([]op, rapid.IntRange(1, 40).Draw(t, "ops"))
	adds := 0
	for i := range ops {
		o := op{kind: rapid.IntRange(0, 6).Draw(t, "op"), which: rapid.IntRange(0, 99).Draw(t, "which")}
		if o.kind == 3 || i == 0 {
			o.kind = 3
			n := rapid.IntRange(1, min(limit-1, 160)).Draw(t, "prompt")
			p := prompt(uint64(rapid.IntRange(0, 2).Draw(t, "family")), 400)[:n]
			if rapid.Bool().Draw(t, "own tail") {
				p[n-1] += 1000
			}
			o.req = Request{
				ID: id(adds), Prompt: p, Arrival: uint64(adds),
				MaxTokens: rapid.IntRange(1, 80).Draw(t, "tokens"),
				Priority:  rapid.IntRange(0, 2).Draw(t, "rank"),
				Salt:      rapid.SampledFrom([]string{"", "", "s"}).Draw(t, "salt"),
				External:  rapid.SampledFrom([]int{0, 0, n, n - 1, n / 2, n + 9}).Draw(t, "external"),
				NoCache:   rapid.IntRange(0, 7).Draw(t, "no cache") == 0,
				Lease:     rapid.IntRange(0, 3).Draw(t, "lease") == 0,
			}
			adds++
		}
		ops[i] = o
	}
	return cfg, bs*1000 + blocks, ops
}

// drawDamage draws the tiles of a load that are invalid, in no order and some of
// them twice: none, all, every second, the first or last ones, or any.
func drawDamage(rng *rand.Rand, l Load) (bad []int) {
	kind, cut := rng.IntN(7), l.FromTile+rng.IntN(l.ToTile-l.FromTile+1)
	for tile := l.FromTile; tile < l.ToTile; tile++ {
		if lost := [...]bool{false, false, true, tile%2 == 0, tile < cut, tile >= cut, rng.IntN(3) == 0}[kind]; lost {
			bad = append(bad, tile)
		}
	}
	if len(bad) > 0 {
		bad = append(bad, bad[rng.IntN(len(bad))])
	}
	rng.Shuffle(len(bad), func(i, j int) { bad[i], bad[j] = bad[j], bad[i] })
	return bad
}

// play runs a history to its end and returns the plans.
func play(t tester, cfg Config, shape int, ops []op, seed uint64, weak bool) *world {
	hash := func(kv.Chain, string, []kv.Token) uint64 { return 0 }
	cfg.Pool = kv.NewPool(shape%1000, shape/1000)
	if weak {
		cfg.Pool = kv.NewPool(shape%1000, shape/1000, kv.WithHash(hash))
	}
	w := newWorld(t, cfg)
	w.traceOn = true
	rng := rand.New(rand.NewPCG(seed, 1))
	w.loadSteps = func() int { return rng.IntN(5) }
	w.leaseSteps = 3
	w.damage = func(l Load) []int { return drawDamage(rng, l) }
	w.noise = func(l Load) []int {
		return []int{-1, l.FromTile - 1 - rng.IntN(3), l.ToTile + rng.IntN(3), 1 << 40}
	}
	w.policy = func() bool { return rng.IntN(4) == 0 }
	w.part = func(n int) int { return min(n, 1+rng.IntN(4)) }
	w.stopAt = func(tok kv.Token) bool { return tok%50 == 0 }
	ids := []kv.RequestID{}
	for _, o := range ops {
		switch o.kind {
		case 3:
			w.must(o.req)
			ids = append(ids, o.req.ID)
		case 4:
			w.abort(ids[o.which%len(ids)])
		case 5:
			for _, id := range ids {
				if w.loads[id] != nil {
					w.land(id)
					break
				}
			}
		case 6:
			w.step++
			w.arrive()
			p := w.s.Plan()
			for _, l := range p.Loads {
				w.all[l.ID].loaded++
				l.Blocks = slices.Clone(l.Blocks)
				w.loads[l.ID] = &flight{load: l, due: w.step + 2}
			}
			w.noted(p)
			results := w.compute(p)
			w.abort(ids[o.which%len(ids)])
			if len(p.Items) > 0 {
				for _, f := range w.s.Apply(results) {
					w.ended(f)
				}
			}
			w.check()
		default:
			w.tick()
		}
	}
	w.finish(20_000)
	return w
}

// Any history ends: every reference has one owner after every call, the budget
// holds, a step without work is a step that waits for an event, outputs are
// those of a clean run, all blocks come back, and the same history gives the
// same plans. H018 H024 H036 H039 H041 H043 H045 H047 H048 H049 H093
func TestAnyHistory(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		cfg, shape, ops := drawWorld(rt)
		seed := rapid.Uint64().Draw(rt, "seed of loads")
		a := play(rt, cfg, shape, ops, seed, false)
		b := play(rt, cfg, shape, ops, seed, false)
		if !slices.Equal(a.trace, b.trace) {
			rt.Fatalf("two runs differ:\n%q\n%q", a.trace, b.trace)
		}
		play(rt, cfg, shape, ops, seed, true)
	})
}

// Nobody starves: whatever floods in behind, the first of those that are left
// gets on. It waits at most for its load and for one request that took its place
// in the batch meanwhile.
func TestFirstComeGetsOn(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		cfg := pool(rapid.IntRange(6, 20).Draw(rt, "blocks"))
		cfg.MaxSeqs = rapid.IntRange(1, 6).Draw(rt, "seqs")
		cfg.MaxBatchedTokens = rapid.IntRange(8, 100).Draw(rt, "budget")
		w := newWorld(t, cfg)
		w.loadSteps = func() int { return 2 }
		var order []*client
		for step := range 300 {
			if step < 60 {
				n := 1 + (step*37)%80
				order = append(order, w.must(Request{ID: id(step), Prompt: prompt(uint64(step), n),
					MaxTokens: 1 + step%30, External: step % 2 * n}))
			}
			w.tick()
			for _, c := range order {
				if c.over {
					continue
				}
				if gap := w.step - c.lastStep; gap > 60 {
					rt.Fatalf("%s, the first, got nothing for %d steps: %+v", c.req.ID, gap, w.s.Stats())
				}
				break
			}
			// Those behind the first are not due.
			first := true
			for _, c := range order {
				if !c.over && !first {
					c.lastStep = w.step
				}
				first = first && c.over
			}
		}
		w.finish(5000)
	})
}

// H024: half of 200 loads fail; every request's counters and their sums add up.
func TestCountersAddUp(t *testing.T) {
	cfg := pool(60)
	w := newWorld(t, cfg)
	n := 0
	w.damage = func(l Load) []int {
		if n++; n%2 == 0 {
			return []int{l.FromTile, l.ToTile - 1}
		}
		return nil
	}
	var want Totals
	for i := range 200 {
		p := append(prompt(uint64(i%7), 32), prompt(uint64(i), 1+i%60)...)
		w.must(Request{ID: kv.RequestID(rune('A' + i)), Prompt: p, MaxTokens: 3, External: len(p) * (i % 4) / 3})
		w.tick()
	}
	w.finish(2000)
	for _, c := range w.all {
		want.Prompt += uint64(c.counts.Prompt)
		want.Local += uint64(c.counts.Local)
		want.Loaded += uint64(c.counts.Loaded)
		want.Recomputed += uint64(c.counts.Recomputed)
		want.Computed += uint64(c.counts.Computed)
		want.Output += uint64(c.counts.Output)
	}
	got := w.s.Stats().Totals
	if got.Prompt != want.Prompt || got.Local != want.Local || got.Loaded != want.Loaded ||
		got.Recomputed != want.Recomputed || got.Computed != want.Computed || got.Output != want.Output ||
		got.Prompt != got.Local+got.Loaded+got.Recomputed+got.Computed {
		t.Errorf("totals %+v, want %+v", got, want)
	}
	if got.FailedLoads == 0 || got.Recomputed == 0 || got.Loaded == 0 || got.Local == 0 {
		t.Errorf("not all happened: %+v", got)
	}
}

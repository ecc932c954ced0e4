package sched

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"tandem/internal/kv"
)

// H036: a pool of 7 blocks, A loads 4 and needs 1 more, B loads 3 and needs 1
// more.
func TestSevenBlocks(t *testing.T) {
	w := newWorld(t, pool(7))
	w.must(Request{ID: "A", Prompt: prompt(1, 65), MaxTokens: 5, External: 65})
	w.must(Request{ID: "B", Prompt: prompt(2, 49), MaxTokens: 5, External: 49})
	p := w.tick()
	if len(p.Loads) != 1 || p.Loads[0].ID != "A" || w.s.Stats().Waiting != 1 {
		t.Fatalf("both loads are admitted: %+v", w.s.Stats())
	}
	w.finish(40)
	if w.all["A"].counts.Loaded != 64 || w.all["B"].counts.Loaded != 48 {
		t.Errorf("counts %+v %+v", w.all["A"].counts, w.all["B"].counts)
	}
}

// H036: variants of sizes, orders, delays and places.
func TestSmallPoolsNeverStall(t *testing.T) {
	waited, preempted := 0, 0
	for seed := range uint64(1500) {
		rng := rand.New(rand.NewPCG(seed, 36))
		cfg := pool(4 + rng.IntN(8))
		cfg.MaxSeqs = 1 + rng.IntN(4)
		cfg.MaxBatchedTokens = 1 + rng.IntN(70)
		cfg.Priority = rng.IntN(3) == 0
		w := newWorld(t, cfg)
		w.loadSteps = func() int { return rng.IntN(6) }
		for i := range 2 + rng.IntN(5) {
			n := 1 + rng.IntN(min(90, w.s.Limit()-2))
			w.must(Request{ID: id(i), Prompt: prompt(seed*10+uint64(i%3), n), MaxTokens: 1 + rng.IntN(60),
				External: rng.IntN(2) * n, Priority: rng.IntN(3), Arrival: uint64(i)})
		}
		w.tick()
		waited += w.s.Stats().Waiting
		w.finish(6000)
		preempted += int(w.s.Stats().Preemptions)
	}
	if waited == 0 || preempted == 0 {
		t.Errorf("no pressure: %d waited, %d preempted", waited, preempted)
	}
}

// H036: MaxSeqs 1: a parked request holds the blocks, the running one the place.
func TestParkedRequestGetsThePlaceOfOneWithoutBlocks(t *testing.T) {
	cfg := pool(5)
	cfg.MaxSeqs = 1
	w := newWorld(t, cfg)
	w.loadSteps = func() int { return 3 }
	w.must(Request{ID: "A", Prompt: prompt(1, 50), MaxTokens: 3, External: 50})
	w.must(Request{ID: "B", Prompt: prompt(2, 10), MaxTokens: 60})
	for range 12 {
		w.tick()
	}
	w.finish(200)
	if w.all["B"].counts.Preempted != 1 {
		t.Errorf("B was preempted %d times: the trigger is missing", w.all["B"].counts.Preempted)
	}
}

// H037
func TestPromptThatCannotFitIsRefused(t *testing.T) {
	w := newWorld(t, pool(32))
	err := w.add(Request{ID: "big", Prompt: prompt(1, 40*16), MaxTokens: 1})
	e := tooLong(err)
	if e == nil || e.Prompt != 640 || e.Limit != 512 || !e.Pool || w.s.Limit() != 512 {
		t.Fatalf("error %v, limit %d", err, w.s.Limit())
	}
	if e := tooLong(w.add(Request{ID: "edge", Prompt: prompt(1, 512), MaxTokens: 1})); e == nil {
		t.Error("a prompt of the whole pool is not refused")
	}
	w.must(Request{ID: "fits", Prompt: prompt(1, 511), MaxTokens: 9})
	for i := range 20 {
		w.must(Request{ID: id(i), Prompt: prompt(uint64(i), 20), MaxTokens: 4})
	}
	w.finish(500)
	if c := w.all["fits"]; len(c.out) != 1 || c.why != Length {
		t.Errorf("%d tokens, %v", len(c.out), c.why)
	}
	cfg := pool(32)
	cfg.MaxModelLen = 100
	if e := tooLong(New(cfg).Add(Request{ID: "x", Prompt: prompt(1, 100), MaxTokens: 1})); e == nil || e.Pool || e.Limit != 100 {
		t.Errorf("context limit: %v", e)
	}
}

// H038: whatever is preempted, a lease has blocks with the prompt's KV, sealed.
func TestLeaseAfterPreemption(t *testing.T) {
	preempted := 0
	for at := range 14 {
		w := newWorld(t, pool(12))
		w.leaseSteps = 2
		w.s.cfg.MaxBatchedTokens = 16
		c := w.must(Request{ID: "P", Prompt: prompt(1, 100), MaxTokens: 1, Lease: true, Arrival: 9})
		for i := range 14 {
			if i == at && w.s.requests["P"] != nil && w.s.requests["P"].status == running {
				w.preempt("P")
				preempted++
			}
			w.tick()
			if len(w.leases) == 1 && len(w.leases[0].blocks) > 0 {
				l := w.leases[0].blocks
				want := content(c.req.Prompt, "")
				for pos := range want {
					if w.slots[w.slot(l, pos)] != want[pos] {
						t.Fatalf("preempted at %d: lease slot %d", at, pos)
					}
				}
				for tile := range 7 {
					filled := 16
					if tile == 6 {
						filled = 4
					}
					if got := w.sums[l[tile]]; got != filled {
						t.Fatalf("preempted at %d: tile %d sealed with %d slots", at, tile, got)
					}
				}
			}
		}
		w.finish(50)
		if len(c.out) != 1 {
			t.Fatalf("%d tokens", len(c.out))
		}
	}
	if preempted < 5 {
		t.Errorf("preempted %d times", preempted)
	}
}

// H039: 110 % demand, all that is handed over comes back three steps later.
func TestPreemptionsAreBounded(t *testing.T) {
	most := 0
	for seed := range uint64(40) {
		rng := rand.New(rand.NewPCG(seed, 39))
		cfg := pool(40)
		cfg.MaxSeqs = 50
		w := newWorld(t, cfg)
		w.leaseSteps = 3
		w.loadSteps = func() int { return 3 }
		for i := range 50 {
			n := 8 + rng.IntN(40)
			w.must(Request{ID: id(i), Prompt: prompt(seed*100+uint64(i), n), MaxTokens: 20 + rng.IntN(80),
				Lease: i%2 == 0, External: rng.IntN(2) * n})
			if i%10 == 9 {
				w.tick()
				w.abort(id(i))
			}
		}
		w.finish(20000)
		for _, c := range w.all {
			most = max(most, c.counts.Preempted)
		}
	}
	if most == 0 || most > 4 {
		t.Errorf("a request was preempted %d times", most)
	}
}

// H039: blocks of an aborted load are about to come back: nobody gives way.
func TestQuarantinedBlocksCountAsPending(t *testing.T) {
	w := newWorld(t, pool(5))
	w.loadSteps = func() int { return 1000 }
	w.must(Request{ID: "A", Prompt: prompt(1, 14), MaxTokens: 60})
	w.must(Request{ID: "C", Prompt: prompt(2, 14), MaxTokens: 60})
	w.must(Request{ID: "L", Prompt: prompt(3, 10), MaxTokens: 2, External: 10})
	if w.tick(); len(w.loads) != 1 || w.s.Stats().Running != 2 {
		t.Fatalf("%+v", w.s.Stats())
	}
	w.abort("L")
	for range 30 {
		w.tick()
	}
	if st := w.s.Stats(); st.Held != 1 || st.Free != 0 || st.Preemptions != 0 {
		t.Fatalf("%+v", st)
	}
	w.land("L")
	w.finish(200)
	if w.s.Stats().Preemptions == 0 {
		t.Error("no pressure")
	}
}

// H039: a request that was preempted often starts when all can end beside it,
// and those behind it leave it what it needs.
func TestOftenPreemptedRequestIsSure(t *testing.T) {
	w := newWorld(t, pool(8))
	a := w.must(Request{ID: "A", Prompt: prompt(1, 14), MaxTokens: 60})
	w.tick()
	b := w.must(Request{ID: "B", Prompt: prompt(2, 14), MaxTokens: 60})
	w.s.requests["B"].counts.Preempted, w.s.total.Preemptions, b.gaveWay = sure, sure, sure
	for !a.over {
		if w.tick(); w.s.requests["B"].status != queued && !a.over {
			t.Fatal("B runs beside A, which may need its blocks")
		}
	}
	for i := range 6 {
		w.must(Request{ID: id(i), Prompt: prompt(uint64(9+i), 30), MaxTokens: 60, External: i % 2 * 30})
	}
	for !b.over {
		if w.tick(); w.s.Stats().Running > 1 && !b.over {
			t.Fatal("another runs beside B and may need its blocks")
		}
	}
	w.finish(500)
	if b.counts.Preempted != sure {
		t.Errorf("B was preempted %d times", b.counts.Preempted)
	}
}

// H041
func TestLoneRequestEndsAtThePoolsLimit(t *testing.T) {
	w := newWorld(t, pool(8))
	c := w.must(Request{ID: "A", Prompt: prompt(1, 20), MaxTokens: 100_000})
	w.finish(200)
	if c.why != Length || len(c.out) != 108 {
		t.Fatalf("%d tokens, %v", len(c.out), c.why)
	}
	w.must(Request{ID: "live", Prompt: prompt(2, 20), MaxTokens: 3})
	w.finish(10)
}

// H043: a request preempted after its load goes on from its own tokens.
func TestPreemptedAfterLoad(t *testing.T) {
	for _, after := range []int{0, 1, 5} {
		w := newWorld(t, pool(16))
		c := w.must(Request{ID: "A", Prompt: prompt(1, 70), MaxTokens: 12, External: 70})
		for len(c.out) < after || w.s.requests["A"].status == loading || len(w.s.requests["A"].blocks) == 0 {
			w.tick()
			if w.step > 50 {
				t.Fatal("never there")
			}
			if len(w.loads) > 0 {
				w.step += 2
				w.arrive()
			}
		}
		w.preempt("A")
		w.finish(60)
		if c.counts.Preempted != 1 || c.loaded != 1 {
			t.Errorf("after %d: %+v", after, c.counts)
		}
		// Its blocks are hits, but the last, which is not full.
		k := c.counts
		if after == 0 && (k.Loaded != 0 || k.Local != 64 || k.Recomputed != 5) || after > 0 && k.Loaded != 69 {
			t.Errorf("after %d tokens: %+v", after, k)
		}
	}
}

// H044: only what is missing is loaded; with nothing missing the hand-off is
// given back unread.
func TestLoadsCoverWhatIsMissing(t *testing.T) {
	w := newWorld(t, pool(64))
	full := prompt(1, 129)
	half := append(slices.Clone(full[:64]), prompt(2, 65)...)
	for i, c := range []struct {
		prompt                 []kv.Token
		from, to               int
		local, loaded, compute int
	}{{full, 0, 8, 0, 128, 1}, {full, 0, 0, 128, 0, 1}, {half, 4, 8, 64, 64, 1}} {
		cl := w.must(Request{ID: id(i), Prompt: c.prompt, MaxTokens: 4, External: len(c.prompt)})
		p := w.tick()
		if c.to == 0 {
			if len(p.Loads) != 0 || cl.unread != 1 {
				t.Fatalf("run %d: loads %v, unread %d", i, p.Loads, cl.unread)
			}
		} else if len(p.Loads) != 1 || p.Loads[0].FromTile != c.from || p.Loads[0].ToTile != c.to {
			t.Fatalf("run %d: loads %+v", i, p.Loads)
		}
		w.finish(30)
		if k := cl.counts; k.Local != c.local || k.Loaded != c.loaded || k.Computed != c.compute {
			t.Errorf("run %d: %+v", i, k)
		}
	}
}

// H045: blocks of a load under way are no hits.
func TestLoadingBlocksAreNoHits(t *testing.T) {
	w := newWorld(t, pool(32))
	w.loadSteps = func() int { return 1000 }
	a := w.must(Request{ID: "A", Prompt: prompt(1, 65), MaxTokens: 4, External: 65})
	w.tick()
	b := w.must(Request{ID: "B", Prompt: prompt(1, 65), MaxTokens: 4})
	for range 10 {
		w.tick()
	}
	if !b.over || b.counts.Local != 0 || a.over {
		t.Fatalf("B over %t with %+v", b.over, b.counts)
	}
	w.land("A")
	w.finish(20)
	if a.counts.Loaded != 64 {
		t.Errorf("A: %+v", a.counts)
	}
}

// H047: whole prompts of k blocks are present, from a peer and here.
func TestLastPromptTokenIsAlwaysComputed(t *testing.T) {
	for k := 1; k <= 8; k++ {
		w := newWorld(t, pool(32))
		p := prompt(uint64(k), 16*k)
		a := w.must(Request{ID: "remote", Prompt: p, MaxTokens: 20, External: len(p)})
		w.finish(60)
		b := w.must(Request{ID: "local", Prompt: p, MaxTokens: 20})
		w.finish(60)
		if a.counts.Computed != 1 || a.counts.Loaded != 16*k-1 {
			t.Errorf("k=%d remote: %+v", k, a.counts)
		}
		if b.counts.Computed != 16 || b.counts.Local != 16*(k-1) {
			t.Errorf("k=%d local: %+v", k, b.counts)
		}
	}
}

// H048: hashes of 0 and 8 bits.
func TestWeakHashNeverMixesPrompts(t *testing.T) {
	for _, bits := range []int{0, 8} {
		collisions := 0
		seen := map[uint64]string{}
		hash := func(parent kv.Chain, salt string, tokens []kv.Token) uint64 {
			h := mix(uint64(parent), uint64(len(salt)))
			for _, t := range tokens {
				h = mix(h, uint64(t))
			}
			h &= 1<<bits - 1
			if key := fmt.Sprint(parent, salt, tokens); seen[h] != key {
				seen[h] = key
				collisions++
			}
			return h
		}
		cfg := pool(64)
		cfg.Pool = kv.NewPool(64, 16, kv.WithHash(hash))
		w := newWorld(t, cfg)
		rng := rand.New(rand.NewPCG(1, 48))
		for i := range 1000 {
			p := append(prompt(uint64(rng.IntN(6)), 16*rng.IntN(3)), prompt(uint64(i%50), 1+rng.IntN(40))...)
			w.must(Request{ID: kv.RequestID(fmt.Sprint(i)), Prompt: p, MaxTokens: 2,
				Salt: []string{"", "a", "b"}[rng.IntN(3)]})
			if i%8 == 7 {
				w.finish(200)
				clear(w.all)
			}
		}
		if st := w.s.Stats(); collisions < 500 || st.Local == 0 {
			t.Errorf("%d bits: %d collisions, %d tokens hit", bits, collisions, st.Local)
		}
	}
}

// H018, H019: the load fails at every tile, with few tokens to make.
func TestLoadFailsAtEveryTile(t *testing.T) {
	for _, bs := range []int{16, 32, 64} {
		for _, n := range []int{192, 187} {
			for bad := range 12 {
				for _, most := range []int{1, 2, 5} {
					cfg := pool(32)
					cfg.Pool = kv.NewPool(32, bs)
					w := newWorld(t, cfg)
					w.damage = func(Load) []int { return []int{bad} }
					c := w.must(Request{ID: "A", Prompt: prompt(1, n), MaxTokens: most, External: n})
					w.finish(40)
					lost := min(16*(bad+1), n-1) - 16*bad
					if k := c.counts; len(c.out) != most || k.Recomputed != lost || k.Loaded != n-1-lost || k.Computed != 1 {
						t.Fatalf("block size %d, tile %d of %d tokens: %+v", bs, bad, n, k)
					}
				}
			}
		}
	}
}

// H020: requests that share a prefix load it privately, whoever fails.
func TestSharersOfAFailedLoad(t *testing.T) {
	for seed := range uint64(200) {
		rng := rand.New(rand.NewPCG(seed, 20))
		w := newWorld(t, pool(100))
		w.fail = seed%2 == 0
		w.loadSteps = func() int { return rng.IntN(4) }
		w.damage = func(l Load) []int {
			if rng.IntN(2) == 0 {
				return []int{l.FromTile + rng.IntN(l.ToTile-l.FromTile)}
			}
			return nil
		}
		for i := range 3 + 7*int(seed%2) {
			w.must(Request{ID: id(i), Prompt: prompt(5, 100+i%2), MaxTokens: 5, External: 100})
			if rng.IntN(2) == 0 {
				w.tick()
			}
		}
		w.finish(300)
	}
}

// H021: references for any number of tokens.
func TestAmountToLoadIsClamped(t *testing.T) {
	for _, n := range []int{1, 2, 16, 17, 33, 64, 65} {
		for _, ext := range []int{0, 1, n / 2, n - 1, n, n + 1, 10 * n} {
			for _, cached := range []bool{false, true} {
				w := newWorld(t, pool(32))
				if cached {
					w.must(Request{ID: "before", Prompt: prompt(1, n), MaxTokens: 1})
					w.finish(20)
				}
				c := w.must(Request{ID: "A", Prompt: prompt(1, n), MaxTokens: 3, External: ext})
				w.finish(20)
				want := max(0, min(ext, n-1)-c.counts.Local)
				if c.counts.Loaded != want || c.counts.Recomputed != 0 || cached && n > 16 && c.counts.Local == 0 {
					t.Errorf("n=%d external=%d: %+v", n, ext, c.counts)
				}
			}
		}
	}
}

// H093: abort in every state.
func TestAbortInEveryState(t *testing.T) {
	for _, state := range []string{"queued", "loading", "parked", "prefill", "decode", "preempted", "step", "gone"} {
		w := newWorld(t, pool(32))
		for i := range 50 {
			r := Request{ID: id(i), Prompt: prompt(uint64(i), 100), MaxTokens: 50, External: 100}
			if state == "prefill" || state == "decode" {
				r.External = 0
			}
			w.must(r)
			// reached checks that the request is in its state, before the abort.
			reached := func(is status, blocks, output bool) {
				t.Helper()
				if q := w.s.requests[r.ID]; q.status != is || len(q.blocks) > 0 != blocks || q.counts.Output > 0 != output {
					t.Fatalf("%s: %v with %d blocks and %d tokens", state, q.status, len(q.blocks), q.counts.Output)
				}
			}
			switch state {
			case "queued":
				reached(queued, false, false)
			case "loading":
				w.loadSteps = func() int { return 5 }
				w.tick()
				reached(loading, true, false)
			case "parked":
				w.tick()
				w.step += 5
				w.arrive()
				reached(queued, true, false)
			case "prefill":
				w.tick()
				reached(running, true, false)
			case "decode", "preempted":
				for range 6 {
					w.tick()
				}
				reached(running, true, true)
				if state == "preempted" {
					w.preempt(r.ID)
					reached(queued, false, true)
				}
			case "step":
				w.tick()
				w.step += 5
				w.arrive()
				p := w.s.Plan()
				reached(running, true, false)
				results := w.compute(p)
				w.abort(r.ID)
				if got := w.s.Apply(results); len(got) != 0 {
					t.Fatalf("finished %v", got)
				}
				if st := w.s.Stats(); st.Output != 0 || st.Prompt != 0 {
					t.Fatalf("the result of an aborted request counts: %+v", st.Totals)
				}
			case "gone":
				w.finish(100)
				if a := w.s.Abort(r.ID); a.Found {
					t.Fatal("found")
				}
			}
			if state != "step" && state != "gone" {
				w.abort(r.ID)
			}
			w.finish(20)
		}
	}
}

func TestAddRefuses(t *testing.T) {
	s := New(pool(8))
	ok := Request{ID: "a", Prompt: prompt(1, 3), MaxTokens: 1}
	for _, c := range []struct {
		name string
		edit func(*Request)
		want error
	}{
		{"no prompt", func(r *Request) { r.Prompt = nil }, ErrInvalid},
		{"no tokens to make", func(r *Request) { r.MaxTokens = 0 }, ErrInvalid},
		{"negative hand-off", func(r *Request) { r.External = -1 }, ErrInvalid},
		{"too long", func(r *Request) { r.Prompt = prompt(1, 128) }, ErrTooLong},
		{"nothing wrong", func(*Request) {}, nil},
		{"same id", func(*Request) {}, ErrDuplicate},
	} {
		r := ok
		c.edit(&r)
		if err := s.Add(r); !errors.Is(err, c.want) {
			t.Errorf("%s: %v", c.name, err)
		}
	}
}

// prompt_logprobs: every position once, in chunks, also after preemption, and no
// hits or loads.
func TestNoCacheGivesEveryPositionOnce(t *testing.T) {
	for _, budget := range []int{200, 50} {
		w := newWorld(t, pool(32))
		w.s.cfg.MaxBatchedTokens = budget
		w.must(Request{ID: "before", Prompt: prompt(1, 150), MaxTokens: 1})
		w.finish(9)
		c := w.must(Request{ID: "A", Prompt: prompt(1, 150), MaxTokens: 4, NoCache: true, External: 150})
		for i := range 7 {
			w.tick()
			if i == 1 || i == 5 {
				w.preempt("A")
			}
		}
		w.finish(20)
		for i, pos := range c.rows {
			if pos != i {
				t.Fatalf("rows %v", c.rows)
			}
		}
		if k := c.counts; k.Local != 0 || k.Preempted != 2 || k.Redone < 150 || c.unread != 1 {
			t.Errorf("%+v, unread %d", c.counts, c.unread)
		}
	}
}

// Priority: lower values run first, and the highest value gives way.
func TestPriority(t *testing.T) {
	cfg := pool(32)
	cfg.Priority, cfg.MaxSeqs = true, 1
	w := newWorld(t, cfg)
	var order []kv.RequestID
	for i, prio := range []int{3, 1, 2, 1} {
		w.must(Request{ID: id(i), Prompt: prompt(uint64(i), 20), MaxTokens: 3, Priority: prio, Arrival: uint64(i)})
	}
	for range 12 {
		w.tick()
		for i := range 4 {
			if c := w.all[id(i)]; c.over && !slices.Contains(order, c.req.ID) {
				order = append(order, c.req.ID)
			}
		}
	}
	if want := []kv.RequestID{id(1), id(3), id(2), id(0)}; !slices.Equal(order, want) {
		t.Errorf("order %v, want %v", order, want)
	}
}

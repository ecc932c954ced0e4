package engine

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"tandem/internal/connector"
	"tandem/internal/kv"
	"tandem/internal/sim"
)

// lossOf are the patterns of lost tiles: which of n.
func lossOf() map[string]func(i, n int) bool {
	loss := map[string]func(i, n int) bool{
		"every second": func(i, _ int) bool { return i%2 == 1 },
		"every other":  func(i, _ int) bool { return i%2 == 0 },
		"second half":  func(i, n int) bool { return i >= n/2 },
		"all":          func(int, int) bool { return true },
	}
	for at := range 13 {
		loss[fmt.Sprintf("tile %d", at)] = func(i, _ int) bool { return i == at }
	}
	return loss
}

// H018, H019: whatever tiles are lost, for every number of ranks and block size:
// the tokens are those of one engine, and exactly the lost prompt tokens are
// computed, with the last one.
func TestExactlyWhatIsLostIsComputed(t *testing.T) {
	one := start(t, sim.Config{}, Config{})
	type job struct {
		r    Request
		want answer
	}
	jobs := map[string]job{}
	for _, n := range []int{187, 192, 193} {
		for _, most := range []int{1, 2, 5} {
			r := seeded(prompt(n, n), most, int64(most))
			jobs[fmt.Sprintf("%d tokens, %d to make", n, most)] = job{r, one.run(t, r)}
		}
	}
	for _, tp := range []int{1, 2, 4} {
		for _, bt := range []int{16, 32, 64} {
			t.Run(fmt.Sprintf("TP %d, blocks of %d", tp, bt), func(t *testing.T) {
				var computed atomic.Int64
				x := startPair(t, sim.Config{TP: 4 / tp}, sim.Config{TP: tp, BlockTokens: bt}, Config{}, Config{
					Policy: PolicyRecompute, NoPrefixCache: true, MaxBatchedTokens: 100,
					Metrics: Metrics{Step: func(tokens, _ int, _ time.Duration) { computed.Add(int64(tokens)) }},
				})
				fired := 0
				for name, lost := range lossOf() {
					for what, j := range jobs {
						n := len(j.r.Prompt)
						tiles, missing := (n-1+15)/16, 0
						for i := range tiles {
							if lost(i, tiles) {
								missing += min(16*(i+1), n-1) - 16*i
							}
						}
						x.dl.bad = func(i int) bool { return lost(i, tiles) }
						computed.Store(0)
						got := x.both(t, j.r)
						equal(t, name+", "+what, got.tokens, j.want.tokens)
						u := got.last.Usage
						if u.Recomputed != missing || u.Loaded != n-1-missing || u.Computed != 1 || got.last.Finish != FinishLength ||
							(u.Failure == connector.ClassSum) != (missing > 0) {
							t.Fatalf("%s, %s: %+v, want %d recomputed", name, what, got.last, missing)
						}
						if want := missing + 1 + j.r.Params.MaxTokens - 1; int(computed.Load()) != want {
							t.Fatalf("%s, %s: %d tokens computed, want %d", name, what, computed.Load(), want)
						}
						if missing > 0 {
							fired++
						}
					}
				}
				if fired < 100 {
					t.Errorf("only %d loads lost something", fired)
				}
				x.settled(t)
			})
		}
	}
}

// A report may come before Load has returned, within the turn that admitted its
// request: that is what a synchronous load is here.
func TestReportsOfTheAdmittingTurn(t *testing.T) {
	one := start(t, sim.Config{}, Config{})
	for _, policy := range []FailPolicy{PolicyFail, PolicyRecompute} {
		x := startPair(t, sim.Config{}, sim.Config{}, Config{}, Config{Policy: policy, NoPrefixCache: true})
		x.dl.inline = true
		beside := x.submit(t, greedy(prompt(20, 99), 3000))
		next(t, beside, 1)
		for i := range 40 {
			x.dl.bad = func(tile int) bool { return i%4 != 0 && tile%4 == i%4 }
			r := seeded(prompt(90, i), 4, int64(i))
			want := one.run(t, r)
			r.Handoff = x.prefill(t, r)
			if s := x.submit(t, r); policy == PolicyFail && i%4 != 0 {
				var le *connector.LoadError
				if err := drain(t, s); !errors.As(err, &le) {
					t.Errorf("request %d: %v", i, err)
				}
			} else {
				got, _ := read(t, s, 1)
				equal(t, fmt.Sprintf("%s, request %d", policy, i), got[0].tokens, want.tokens)
			}
			if i == 20 { // and on an engine that rests
				beside.Abort("enough")
			}
		}
		x.settled(t)
	}
}

// H020: requests of one prefix load at once and lose different tiles, with their
// own policies, beside one that computes the prefix: each gets its tokens or its
// error, and nobody uses what was not verified.
func TestSharersOfAPrefixLoseDifferentTiles(t *testing.T) {
	one := start(t, sim.Config{}, Config{NoPrefixCache: true})
	prefix := prompt(160, 5)
	failed, recomputed, hit := 0, 0, 0
	for seed := range uint64(40) {
		rng := rand.New(rand.NewPCG(seed, 20))
		x := startPair(t, sim.Config{}, sim.Config{Blocks: 400}, Config{}, Config{Policy: PolicyRecompute, MaxBatchedTokens: 64})
		lost := map[kv.RequestID]int{}
		var mu sync.Mutex
		x.dl.badOf = func(id kv.RequestID, tile int) bool {
			mu.Lock()
			defer mu.Unlock()
			return lost[id] == tile
		}
		x.dl.hold, x.dl.posted = make(chan struct{}), make(chan kv.RequestID, 16)
		n := []int{3, 10}[seed%2]
		var streams []*Stream
		var wants []answer
		for i := range n {
			r := seeded(append(slices.Clone(prefix), prompt(20, i)...), 4, int64(i))
			wants = append(wants, one.run(t, r))
			r.Handoff = x.prefill(t, r)
			if rng.IntN(3) == 0 {
				r.Policy = PolicyFail
			}
			s := x.submit(t, r)
			id := <-x.dl.posted
			mu.Lock()
			lost[id] = rng.IntN(14) - 2 // a tile, or none
			mu.Unlock()
			streams = append(streams, s)
		}
		// All of them load now. One that has no hand-off takes no block of theirs.
		plain := greedy(append(slices.Clone(prefix), 'z'), 2)
		got := x.d.run(t, plain)
		equal(t, "computed beside the loads", got.tokens, one.run(t, plain).tokens)
		if got.last.Usage.LocalHit != 0 {
			t.Fatalf("seed %d: blocks that load are hits: %+v", seed, got.last.Usage)
		}
		close(x.dl.hold)
		for i, s := range streams {
			var tokens []kv.Token
			var last Output
			for last.Finish == "" {
				o, err := s.Next(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				tokens, last = append(tokens, o.Tokens...), o
			}
			if last.Err != nil {
				var le *connector.LoadError
				if !errors.As(last.Err, &le) || len(tokens) != 0 {
					t.Errorf("seed %d, request %d: %v after %v", seed, i, last.Err, tokens)
				}
				failed++
				continue
			}
			recomputed += last.Usage.Recomputed
			equal(t, fmt.Sprintf("seed %d, request %d", seed, i), tokens, wants[i].tokens)
		}
		again := x.d.run(t, plain)
		equal(t, "the next of the prefix", again.tokens, got.tokens)
		hit += again.last.Usage.LocalHit
		x.settled(t)
	}
	if failed == 0 || recomputed == 0 || hit == 0 {
		t.Errorf("%d failed, %d tokens recomputed, %d hit: the situation did not come about", failed, recomputed, hit)
	}
}

// startGated is startPair with a D whose loads and steps wait for meet.
func startGated(t *testing.T, mc sim.Config, cfg Config) (pair, *gate) {
	t.Helper()
	x := startPair(t, sim.Config{Blocks: 400}, sim.Config{}, Config{}, Config{}) // for P alone
	m, err := sim.New(mc)
	if err != nil {
		t.Fatal(err)
	}
	g := &gate{Model: m, steps: make(chan struct{})}
	x.dl = x.pl.f.link(m)
	x.dl.hold = make(chan struct{})
	cfg.Model, cfg.Connector = g, x.dl
	x.d = startModel(t, m, cfg)
	return x, g
}

// meet lets requests go on together: those that load when all of them were
// submitted have ended their loads before the first step ends.
func (x pair) meet(g *gate, requests int) {
	for st := x.d.Status(); st.Stats.Loading+st.Stats.Waiting != requests; st = x.d.Status() {
		runtime.Gosched()
	}
	first := x.d.Status().Stats.Loading
	close(x.dl.hold)
	for x.dl.reported.Load() != int64(first) {
		runtime.Gosched()
	}
	close(g.steps)
}

// H043, H018: requests whose loads lost tiles are preempted while they recompute
// and while they decode, and choices fork from them: every choice has the tokens
// of a quiet engine, and nothing is loaded twice.
func TestPreemptionAroundFailedLoads(t *testing.T) {
	one := start(t, sim.Config{}, Config{})
	for name, lost := range map[string]func(i int) bool{
		"every second": func(i int) bool { return i%2 == 1 }, "all": func(int) bool { return true }, "the last": func(i int) bool { return i == 3 },
	} {
		for _, n := range []int{1, 3} {
			var preempted, loads atomic.Int64
			x, g := startGated(t, sim.Config{Blocks: 12 + 4*n}, Config{
				Policy: PolicyRecompute, MaxBatchedTokens: 24,
				Metrics: Metrics{Preempted: func(k int) { preempted.Add(int64(k)) }},
			})
			x.dl.bad = lost
			x.dl.onLoad = func(connector.LoadSpec) { loads.Add(1) }
			const requests = 5
			var all []Request
			var wants [][]answer
			for i := range requests {
				r := seeded(prompt(60, i), 60, int64(i))
				r.N = n
				s, err := one.Submit(t.Context(), r)
				if err != nil {
					t.Fatal(err)
				}
				want, _ := read(t, s, n)
				r.Handoff = x.prefill(t, r)
				all, wants = append(all, r), append(wants, want)
			}
			var streams []*Stream
			for _, r := range all {
				streams = append(streams, x.submit(t, r))
			}
			x.meet(g, requests)
			var wg sync.WaitGroup
			for i, s := range streams {
				wg.Go(func() {
					as, _ := read(t, s, n)
					for k := range as {
						equal(t, fmt.Sprintf("%s, request %d, choice %d", name, i, k), as[k].tokens, wants[i][k].tokens)
					}
					if u := as[0].last.Usage; u.LocalHit+u.Loaded+u.Recomputed+u.Computed != 60 || u.Recomputed == 0 || u.Failure != connector.ClassSum {
						t.Errorf("%s, request %d: %+v", name, i, u)
					}
				})
			}
			wg.Wait()
			if preempted.Load() == 0 || loads.Load() != requests {
				t.Errorf("%s, %d choices: %d preemptions, %d loads of %d requests", name, n, preempted.Load(), loads.Load(), requests)
			}
			x.settled(t)
		}
	}
}

package engine

import (
	"fmt"
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

// settles waits, without an event for the engine, until its blocks are free.
func settles(t *testing.T, b bench) {
	t.Helper()
	begun, s := time.Now(), b.Status().Stats
	for ; s.Leased != 0 || s.Free != s.Blocks; s = b.Status().Stats {
		if time.Since(begun) > guard {
			t.Fatalf("after %v: %+v", guard, s)
		}
		runtime.Gosched()
	}
}

// H040: P rests after its only request; the blocks come back with D's return,
// not with P's next step or the lease's deadline.
func TestIdleEngineTakesItsBlocksBack(t *testing.T) {
	p := startLinked(t, sim.Config{}, connector.Producer, Config{})
	d := startLinked(t, sim.Config{}, connector.Consumer, Config{})
	x := pair{p: p, d: d}
	for i := range 5 {
		r := greedy(prompt(100, i), 3)
		r.Handoff = x.prefill(t, r)
		for p.Status().Stalled != 0 {
			runtime.Gosched()
		}
		if s := p.Status().Stats; s.Leased != 7 || s.Running+s.Waiting != 0 {
			t.Fatalf("P does not rest with a lease: %+v", s)
		}
		steps := p.Status().Stats.Prompt
		if u := d.run(t, r).last.Usage; u.Loaded == 0 {
			t.Fatalf("nothing was read: %+v", u)
		}
		settles(t, p) // the lease has an hour
		if n := p.Status().Stats.Prompt; n != steps {
			t.Errorf("P computed %d tokens meanwhile", n-steps)
		}
	}
}

// H043: requests that loaded their prompt from P lose their blocks on D and go
// on by themselves; what was sent already is neither lost nor sent twice.
func TestPreemptedAfterTheLoadGoesOnAlone(t *testing.T) {
	one := start(t, sim.Config{}, Config{})
	preempted := 0
	x, g := startHeldPair(t, sim.Config{}, sim.Config{Blocks: 10}, Config{}, Config{
		NoPrefixCache: true, Metrics: Metrics{Preempted: func(n int) { preempted += n }},
	})
	x.dl.posted, x.dl.hold = make(chan kv.RequestID, 10), make(chan struct{})
	const n, fit = 4, 2 // two have room for their prompts, and not for their outputs
	var want []answer
	var all []*Stream
	for i := range n {
		r := seeded(prompt(33, i), 60, int64(i))
		want = append(want, one.run(t, r))
		r.Handoff = x.prefill(t, r)
		all = append(all, x.submit(t, r))
	}
	for range fit {
		<-x.dl.posted
	}
	close(x.dl.hold)
	x.dl.ended(t, fit) // before the first step is computed: they run side by side
	g.over()
	var wg sync.WaitGroup
	for i, s := range all {
		wg.Go(func() {
			as, _ := read(t, s, 1)
			equal(t, fmt.Sprintf("request %d", i), as[0].tokens, want[i].tokens)
			if u := as[0].last.Usage; u.Loaded != 32 || u.Completion != 60 {
				t.Errorf("request %d: usage %+v", i, u)
			}
		})
	}
	wg.Wait()
	x.settled(t)
	if preempted == 0 {
		t.Error("nothing was preempted")
	}
	if _, _, tiles, _, _ := x.dl.counts(); tiles != 2*n {
		t.Errorf("%d tiles were read, want those of the first %d loads", tiles, n)
	}
}

// H046: the tokens of a prompt are the same cold, warm, from a peer, and partly
// from each.
func TestTokensDoNotDependOnWhereThePrefixCameFrom(t *testing.T) {
	cold := start(t, sim.Config{}, Config{NoPrefixCache: true})
	warm := start(t, sim.Config{Blocks: 1000}, Config{})
	x := startPair(t, sim.Config{Blocks: 1000}, sim.Config{Blocks: 1000}, Config{}, Config{})
	for i := range 50 {
		p := prompt(33+3*i, i)
		want := cold.run(t, greedy(p, 8))
		if u := want.last.Usage; u.LocalHit+u.Loaded != 0 {
			t.Fatalf("not cold: %+v", u)
		}
		warm.run(t, greedy(append(slices.Clone(p[:len(p)-1]), 'A', 'B'), 2)) // another tail
		hot := warm.run(t, greedy(p, 8))
		remote := x.both(t, greedy(p, 8))
		longer := append(slices.Clone(p), prompt(40, i+1)...)
		mixed := x.both(t, greedy(longer, 8))
		wantLonger := cold.run(t, greedy(longer, 8))
		if hot.last.Usage.LocalHit == 0 || remote.last.Usage.Loaded != len(p)-1-remote.last.Usage.LocalHit || remote.last.Usage.Loaded == 0 ||
			mixed.last.Usage.LocalHit == 0 || mixed.last.Usage.Loaded == 0 {
			t.Fatalf("prompt %d came from elsewhere: %+v, %+v, %+v", i, hot.last.Usage, remote.last.Usage, mixed.last.Usage)
		}
		equal(t, fmt.Sprintf("prompt %d, warm", i), hot.tokens, want.tokens)
		equal(t, fmt.Sprintf("prompt %d, remote", i), remote.tokens, want.tokens)
		equal(t, fmt.Sprintf("prompt %d, remote and local", i), mixed.tokens, wantLonger.tokens)
	}
	x.settled(t)
}

// H049: many conversations in a cache that holds few of them: every answer is
// its own, and what is reported as reused adds up.
func TestConversationsInASmallCache(t *testing.T) {
	const clients, turns = 8, 100
	alone := start(t, sim.Config{}, Config{NoPrefixCache: true})
	b := start(t, sim.Config{Blocks: 16}, Config{MaxBatchedTokens: 64})
	var hits, computed, prompts atomic.Int64
	var wg sync.WaitGroup
	for c := range clients {
		wg.Go(func() {
			talk := prompt(20, c)
			for turn := range turns {
				if len(talk) > 120 {
					talk = prompt(20, c+turn)
				}
				want := alone.run(t, seeded(talk, 6, int64(turn)))
				got := b.run(t, seeded(talk, 6, int64(turn)))
				if !slices.Equal(got.tokens, want.tokens) {
					t.Errorf("client %d turn %d: %v, want %v", c, turn, got.tokens, want.tokens)
					return
				}
				u := got.last.Usage
				if u.LocalHit%16 != 0 || u.LocalHit >= len(talk) || u.LocalHit+u.Computed != len(talk) {
					t.Errorf("client %d turn %d: usage %+v of %d tokens", c, turn, u, len(talk))
				}
				hits.Add(int64(u.LocalHit))
				computed.Add(int64(u.Computed))
				prompts.Add(int64(len(talk)))
				talk = append(append(slices.Clone(talk), got.tokens...), prompt(5, turn)...)
			}
		})
	}
	wg.Wait()
	if hits.Load() == 0 || hits.Load()+computed.Load() != prompts.Load() {
		t.Errorf("%d tokens reused, %d computed, of %d", hits.Load(), computed.Load(), prompts.Load())
	}
	if s := b.Status().Stats; s.Indexed > 16 {
		t.Errorf("%d blocks in the index of 16", s.Indexed)
	}
	b.settled(t)
}

// H047: prompts of whole blocks that are all there, here or at a peer, compute
// one token.
func TestWholeBlocksThatAreAllThere(t *testing.T) {
	one := start(t, sim.Config{}, Config{NoPrefixCache: true})
	for k := 1; k <= 8; k++ {
		x := startPair(t, sim.Config{}, sim.Config{}, Config{}, Config{})
		p := prompt(16*k, k)
		want := one.run(t, greedy(p, 5))
		remote := x.both(t, greedy(p, 5))
		equal(t, fmt.Sprintf("%d blocks, remote", k), remote.tokens, want.tokens)
		if u := remote.last.Usage; u.Loaded != 16*k-1 || u.Computed != 1 {
			t.Errorf("%d blocks, remote: %+v", k, u)
		}
		// The next prompt ends where a block does, and all of it is in the cache.
		longer := append(slices.Clone(p), 'x')
		x.d.run(t, greedy(longer, 2))
		local := x.d.run(t, greedy(longer, 5))
		equal(t, fmt.Sprintf("%d blocks, local", k), local.tokens, one.run(t, greedy(longer, 5)).tokens)
		if u := local.last.Usage; u.LocalHit != 16*k || u.Computed != 1 {
			t.Errorf("%d blocks, local: %+v", k, u)
		}
		x.settled(t)
	}
}

// H099: a salt keeps tenants apart, on P and on D.
func TestSaltsShareNothing(t *testing.T) {
	x := startPair(t, sim.Config{}, sim.Config{}, Config{}, Config{})
	hit := func(b bench, salt string) int {
		r := greedy(prompt(100, 1), 2)
		r.Salt = salt
		return b.run(t, r).last.Usage.LocalHit
	}
	for _, b := range []bench{x.p, x.d} {
		for i, c := range []struct {
			salt string
			want int
		}{{"", 0}, {"a", 0}, {"b", 0}, {"a", 96}, {"", 96}, {"b", 96}, {"A", 0}, {"a\x00", 0}} {
			if n := hit(b, c.salt); n != c.want {
				t.Errorf("request %d with salt %q hits %d tokens, want %d", i, c.salt, n, c.want)
			}
		}
	}
	// What one tenant loaded from P is no hit for another.
	for _, c := range []struct {
		salt        string
		hit, loaded int
	}{{"c", 0, 99}, {"d", 0, 99}, {"c", 96, 3}} {
		r := greedy(prompt(100, 1), 2)
		r.Salt = c.salt
		if u := x.both(t, r).last.Usage; u.LocalHit != c.hit || u.Loaded != c.loaded {
			t.Errorf("salt %q: %+v", c.salt, u)
		}
	}
	x.settled(t)
}

// H092: what requests leave behind does not grow with their number, on P or D.
func TestManyRequestsLeaveNothing(t *testing.T) {
	many := 50_000
	if testing.Short() {
		many = 10_000
	}
	for _, uncached := range []bool{false, true} {
		x := startPair(t, sim.Config{}, sim.Config{}, Config{NoPrefixCache: uncached}, Config{NoPrefixCache: uncached})
		heap := func() uint64 {
			runtime.GC()
			runtime.GC() // what finalizers kept
			var m runtime.MemStats
			runtime.ReadMemStats(&m)
			return m.HeapAlloc
		}
		ask := func(from, to int) {
			var wg sync.WaitGroup
			for w := range 8 {
				wg.Go(func() {
					for i := from + w; i < to; i += 8 {
						x.both(t, greedy(prompt(17+i%20, i), 2))
					}
				})
			}
			wg.Wait()
		}
		ask(0, 5000)
		early := heap()
		ask(5000, many)
		if late := heap(); late > early+(2<<20) {
			t.Errorf("uncached %v: the heap grew from %d to %d bytes", uncached, early, late)
		}
		if u := x.both(t, greedy(prompt(60, -1), 2)).last.Usage; u.Loaded+u.LocalHit != 59 || u.Loaded == 0 {
			t.Errorf("uncached %v: usage %+v", uncached, u)
		}
		if s := x.d.Status().Stats; s.Local > 0 == uncached {
			t.Errorf("uncached %v: %d tokens hit", uncached, s.Local)
		}
		x.settled(t)
	}
}

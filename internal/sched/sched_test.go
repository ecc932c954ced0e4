package sched

import (
	"slices"
	"testing"

	"tandem/internal/kv"
)

// A configuration under which nothing could run is refused, one that barely
// works is not.
func TestConfigs(t *testing.T) {
	for _, c := range []struct {
		name string
		edit func(*Config)
		ok   bool
	}{
		{"as it is", func(*Config) {}, true},
		{"no pool", func(c *Config) { c.Pool = nil }, false},
		{"blocks of 24 tokens", func(c *Config) { c.Pool = kv.NewPool(8, 24) }, false},
		{"blocks of 17 tokens", func(c *Config) { c.Pool = kv.NewPool(8, 17) }, false},
		{"blocks of 32 tokens", func(c *Config) { c.Pool = kv.NewPool(8, 32) }, true},
		{"no tokens in a step", func(c *Config) { c.MaxBatchedTokens = 0 }, false},
		{"one token in a step", func(c *Config) { c.MaxBatchedTokens = 1 }, true},
		{"nobody runs", func(c *Config) { c.MaxSeqs = 0 }, false},
		{"one runs", func(c *Config) { c.MaxSeqs = 1 }, true},
		{"a context without room for an answer", func(c *Config) { c.MaxModelLen = 1 }, false},
		{"a context of a token and its answer", func(c *Config) { c.MaxModelLen = 2 }, true},
		{"chunks of less than nothing", func(c *Config) { c.ProbeChunk = -1 }, false},
		{"chunks of one token", func(c *Config) { c.ProbeChunk = 1 }, true},
	} {
		cfg := pool(8)
		c.edit(&cfg)
		if err := cfg.Validate(); (err == nil) != c.ok {
			t.Errorf("%s: %v", c.name, err)
		}
		func() {
			defer func() {
				if (recover() == nil) != c.ok {
					t.Errorf("%s: whether New panics is %t", c.name, c.ok)
				}
			}()
			w := newWorld(t, cfg)
			w.must(Request{ID: "A", Prompt: prompt(1, 1), MaxTokens: 9, NoCache: true})
			w.finish(20)
		}()
	}
}

// The scheduler is stuck while requests wait and only returned leases can move
// them.
func TestStuck(t *testing.T) {
	never := func() int { return 1 << 30 }
	for _, c := range []struct {
		name  string
		pool  int
		setup func(w *world)
		want  bool
	}{
		{"nothing", 2, func(*world) {}, false},
		{"a lease, and nobody waits", 2, func(w *world) { w.lease() }, false},
		{"somebody who was not looked at yet", 2, func(w *world) { w.wait() }, false},
		{"a lease, and one waits for it", 2, func(w *world) { w.lease(); w.wait(); w.tick() }, true},
		{"the same, and one runs", 3, func(w *world) { w.lease(); w.begin(0); w.wait(); w.tick() }, false},
		{"the same, and one loads", 3, func(w *world) { w.lease(); w.loadSteps = never; w.begin(9); w.wait(); w.tick() }, false},
		{"the same, and one is aborted while it loads", 3, func(w *world) {
			w.lease()
			w.loadSteps = never
			w.begin(9)
			w.abort("begun")
			w.wait()
			w.tick()
		}, false},
		{"the same, and the load of one has ended", 3, func(w *world) {
			w.lease()
			w.begin(9)
			w.wait()
			w.step++
			w.arrive()
		}, false},
		{"a lease, and the one that runs has no block for its next token", 2, func(w *world) { w.lease(); w.grow("long", 1); w.ticks(9) }, true},
		{"the same, and another waits", 2, func(w *world) { w.lease(); w.grow("long", 1); w.ticks(9); w.wait(); w.tick() }, true},
		{"the same, and it has a block", 3, func(w *world) { w.lease(); w.grow("long", 1); w.ticks(9); w.wait(); w.tick() }, false},
		{"the same, and another gives way to it", 3, func(w *world) {
			w.lease()
			w.grow("long", 1)
			w.grow("other", 2)
			w.ticks(9)
		}, false},
		{"the same, and it is aborted", 2, func(w *world) { w.lease(); w.grow("long", 1); w.ticks(9); w.abort("long") }, false},
		{"one without a block, and no lease", 1, func(w *world) { w.must(Request{ID: "long", Prompt: prompt(1, 10), MaxTokens: 9}); w.ticks(3) }, false},
	} {
		w := newWorld(t, pool(c.pool))
		w.leaseSteps = 1 << 30
		c.setup(w)
		if got := w.s.Stuck(); got != c.want {
			t.Errorf("%s: stuck %t: %+v", c.name, got, w.s.Stats())
		}
	}
}

// lease has one block leased for good.
func (w *world) lease() {
	w.must(Request{ID: "leased", Prompt: prompt(1, 10), MaxTokens: 1, Lease: true})
	w.tick()
}

// begin starts a request in one block, with a load when external is not 0.
func (w *world) begin(external int) {
	w.must(Request{ID: "begun", Prompt: prompt(2, 10), MaxTokens: 5, External: external})
	w.tick()
}

// grow adds a request in one block that decodes into a second.
func (w *world) grow(id kv.RequestID, rank uint64) {
	w.must(Request{ID: id, Prompt: prompt(rank, 10), MaxTokens: 20, Arrival: rank})
}

func (w *world) ticks(n int) {
	for range n {
		w.tick()
	}
}

// wait adds a request that needs 2 blocks.
func (w *world) wait() {
	w.must(Request{ID: "waits", Prompt: prompt(3, 20), MaxTokens: 2, Arrival: 9})
}

// The numbers of a snapshot are those of the requests in each state.
func TestStatsCountEveryState(t *testing.T) {
	cfg := pool(40)
	cfg.MaxSeqs = 2
	w := newWorld(t, cfg)
	w.must(Request{ID: "A", Prompt: prompt(1, 20), MaxTokens: 9})
	w.must(Request{ID: "B", Prompt: prompt(2, 20), MaxTokens: 9})
	w.must(Request{ID: "C", Prompt: prompt(3, 20), MaxTokens: 9, External: 20})
	w.tick()
	w.loadSteps = func() int { return 9 }
	w.tick()
	w.must(Request{ID: "D", Prompt: prompt(4, 20), MaxTokens: 9, External: 20})
	w.must(Request{ID: "E", Prompt: prompt(5, 20), MaxTokens: 9})
	w.tick()
	got := w.s.Stats()
	if got.Running != 2 || got.Waiting != 2 || got.Parked != 1 || got.Loading != 1 || got.Blocks != 40 || got.Free != 40-4*2 {
		t.Errorf("2 run, C is parked, D loads, E waits: %+v", got)
	}
	w.finish(60)
}

// The counters of a request can be read while it is not over.
func TestCountsOfARequest(t *testing.T) {
	w := newWorld(t, pool(8))
	w.must(Request{ID: "A", Prompt: prompt(1, 40), MaxTokens: 2, External: 20})
	want := Counts{Prompt: 40, Computed: 40}
	if got, ok := w.s.Counts("A"); !ok || got != want {
		t.Errorf("queued: %+v, %t", got, ok)
	}
	w.tick()
	w.tick()
	want = Counts{Prompt: 40, Loaded: 20, Computed: 20, Output: 1}
	if got, ok := w.s.Counts("A"); !ok || got != want {
		t.Errorf("after the first token: %+v, %t", got, ok)
	}
	w.finish(9)
	if got, ok := w.s.Counts("A"); ok || got != (Counts{}) {
		t.Errorf("over: %+v, %t", got, ok)
	}
}

// Requests of one rank go in the order in which they came.
func TestEqualRanksGoInOrder(t *testing.T) {
	cfg := pool(8)
	cfg.MaxSeqs = 1
	w := newWorld(t, cfg)
	var want, order []kv.RequestID
	for i := range 5 {
		want = append(want, w.must(Request{ID: id(i), Prompt: prompt(uint64(i), 20), MaxTokens: 1}).req.ID)
	}
	for range 5 {
		w.tick()
		for _, id := range want {
			if w.all[id].over && !slices.Contains(order, id) {
				order = append(order, id)
			}
		}
	}
	if !slices.Equal(order, want) {
		t.Errorf("order %v, want %v", order, want)
	}
}

package simulation

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

var (
	seeds    = flag.Int("seeds", 400, "run so many seeds")
	first    = flag.Uint64("first", 1, "the first of them")
	requests = flag.Int("requests", 20, "requests of a seed, at least")
	one      = flag.Uint64("seed", 0, "run this seed alone")
	trace    = flag.Bool("events", false, "with -seed: print every event")
	forever  = flag.Bool("forever", false, "run until told to stop")
)

// enough is how many seeds must meet every edge and every fault often enough.
const enough = 20_000

// runnersOf returns n runners, whose memory is given back with the test.
func runnersOf(t *testing.T, n int) []*Runner {
	t.Helper()
	runners, done, err := Runners(n)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := done(); err != nil {
			t.Error(err)
		}
	})
	return runners
}

// Every promise holds under every seed.
func TestSeeds(t *testing.T) {
	given := map[string]bool{}
	flag.Visit(func(f *flag.Flag) { given[f.Name] = true })
	if why := mistake(given); why != "" {
		t.Fatal(why)
	}
	if *one != 0 {
		replay(t, *one)
		return
	}
	workers := runtime.GOMAXPROCS(0)
	runners := runnersOf(t, workers)
	began := time.Now()
	var (
		next   atomic.Uint64
		mu     sync.Mutex
		wg     sync.WaitGroup
		total  = NewCoverage()
		broken *BrokenError
	)
	for _, r := range runners {
		wg.Go(func() {
			cover := NewCoverage()
			for {
				n := next.Add(1) - 1
				if n > 0 && n%enough == 0 {
					t.Logf("%d seeds, %v", n, time.Since(began).Round(time.Second))
				}
				mu.Lock()
				stop := broken != nil
				mu.Unlock()
				if stop || n >= uint64(*seeds) && !*forever {
					break
				}
				if v := r.Run(*first+n, Options{Requests: *requests}, cover); v != nil {
					mu.Lock()
					if broken == nil || v.Seed < broken.Seed {
						broken = v
					}
					mu.Unlock()
				}
			}
			mu.Lock()
			total.Add(cover)
			mu.Unlock()
		})
	}
	wg.Wait()
	if broken != nil {
		report(t, runners[0], broken)
		return
	}
	t.Logf("%d seeds, %v", *seeds, time.Since(began).Round(time.Millisecond))
	var out bytes.Buffer
	problems := total.Report(&out)
	t.Log(out.String())
	if *seeds >= enough {
		for _, p := range problems {
			t.Error(p)
		}
	}
}

// mistake says what is wrong with the flags that are given, or "".
func mistake(given map[string]bool) string {
	switch {
	case given["seed"] && *one == 0:
		return "seed 0 is none: seeds begin at 1 (make sim SEED=1)"
	case *seeds < 1 && !*forever:
		return fmt.Sprintf("%d seeds show nothing: want at least one (make sim SEEDS=1)", *seeds)
	case *trace && !given["seed"]:
		return "the events are those of one seed: say which (make sim SEED=1 TRACE=1)"
	}
	return ""
}

func TestFlagsWithoutEffectAreErrors(t *testing.T) {
	defer func(n int, s uint64, e bool) { *seeds, *one, *trace = n, s, e }(*seeds, *one, *trace)
	for _, c := range []struct {
		given  string
		seeds  int
		one    uint64
		events bool
		says   string
	}{
		{"", 400, 0, false, ""},
		{"seed", 400, 3, true, ""},
		{"seed", 400, 0, false, "SEED=1"},
		{"seeds", 0, 0, false, "SEEDS=1"},
		{"seeds", -1, 0, false, "SEEDS=1"},
		{"seeds", 3, 0, true, "TRACE=1"},
	} {
		*seeds, *one, *trace = c.seeds, c.one, c.events
		if got := mistake(map[string]bool{c.given: true}); (got == "") != (c.says == "") || !strings.Contains(got, c.says) {
			t.Errorf("%+v: %q", c, got)
		}
	}
}

// replay runs one seed.
func replay(t *testing.T, seed uint64) {
	runners := runnersOf(t, 1)
	opt := Options{Requests: *requests}
	if *trace {
		opt.Trace = os.Stdout
	}
	cover := NewCoverage()
	if v := runners[0].Run(seed, opt, cover); v != nil {
		report(t, runners[0], v)
		return
	}
	var out bytes.Buffer
	cover.Report(&out)
	t.Log(out.String())
}

// report says what was broken and how it comes about.
func report(t *testing.T, r *Runner, v *BrokenError) {
	t.Helper()
	t.Errorf("%v\n%sagain: make sim SEED=%d TRACE=1", v, v.Stack, v.Seed)
	mask, w := r.Shrink(v, Options{Requests: *requests})
	var out bytes.Buffer
	r.Run(w.Seed, Options{Requests: *requests, Mask: mask, Trace: &out}, NewCoverage())
	t.Logf("shrunk:\n%s", out.String())
}

// The same seed has the same history, event by event, whatever ran before on the
// same memory.
func TestSeedsRepeat(t *testing.T) {
	runners := runnersOf(t, 1)
	history := func(seed uint64) string {
		var out bytes.Buffer
		if v := runners[0].Run(seed, Options{Requests: 20, Trace: &out}, NewCoverage()); v != nil {
			t.Fatal(v)
		}
		return out.String()
	}
	const n = 40
	var before []string
	for seed := range uint64(n) {
		before = append(before, history(seed+1))
	}
	for seed := range uint64(n) {
		a, b := strings.Split(before[n-1-seed], "\n"), strings.Split(history(n-seed), "\n")
		if len(a) < 100 {
			t.Fatalf("seed %d has %d lines", n-seed, len(a))
		}
		for i := range a {
			if i >= len(b) || a[i] != b[i] {
				t.Fatalf("seed %d, line %d:\n%s\n%s", n-seed, i+1, a[i], b[min(i, len(b)-1)])
			}
		}
	}
}

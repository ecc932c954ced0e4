package engine

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"

	"tandem/internal/bystander/logtest"
	"tandem/internal/connector"
	"tandem/internal/sim"
)

// pair is P and D over one fabric.
type pair struct {
	p, d   bench
	pl, dl *link
}

func startPair(t *testing.T, pm, dm sim.Config, pc, dc Config) pair {
	t.Helper()
	return joined(t, pm, dm, pc, dc, nil)
}

// startHeldPair is a pair whose D steps when the test lets it.
func startHeldPair(t *testing.T, pm, dm sim.Config, pc, dc Config) (pair, *gate) {
	t.Helper()
	g := &gate{steps: make(chan struct{})}
	return joined(t, pm, dm, pc, dc, g), g
}

func joined(t *testing.T, pm, dm sim.Config, pc, dc Config, g *gate) pair {
	t.Helper()
	f := &fabric{}
	one := func(mc sim.Config, cfg Config, g *gate) (bench, *link) {
		m, err := sim.New(mc)
		if err != nil {
			t.Fatal(err)
		}
		l := f.link(m)
		cfg.Model, cfg.Connector = m, l
		if g == nil {
			return startModel(t, m, cfg), l
		}
		g.Model, cfg.Model = m, g
		b := startModel(t, m, cfg)
		t.Cleanup(g.over) // before the engine's end
		return b, l
	}
	var x pair
	x.p, x.pl = one(pm, pc, nil)
	x.d, x.dl = one(dm, dc, g)
	return x
}

// prefill runs the P leg of r and returns the hand-off.
func (x pair) prefill(t *testing.T, r Request) *connector.Handoff {
	t.Helper()
	r.RemoteDecode, r.N = true, 7 // one choice is made all the same
	a := x.p.run(t, r)
	if a.last.Handoff == nil || len(a.tokens) != 1 {
		t.Fatalf("hand-off %v, %d tokens", a.last.Handoff, len(a.tokens))
	}
	return a.last.Handoff
}

func (x pair) both(t *testing.T, r Request) answer {
	t.Helper()
	r.Handoff = x.prefill(t, r)
	return x.d.run(t, r)
}

func (x pair) settled(t *testing.T) {
	t.Helper()
	x.d.settled(t)
	x.p.settled(t)
	for _, l := range []*link{x.pl, x.dl} {
		if _, _, _, tracked, leases := l.counts(); tracked != 0 || leases != 0 {
			t.Errorf("%d tracked, %d leases are left", tracked, leases)
		}
	}
}

// P and D give the tokens of one engine, for all ranks and block sizes, and D
// computes one token of the prompt.
func TestHandoffEqualsOneEngine(t *testing.T) {
	lengths := []int{1, 2, 15, 16, 17, 31, 32, 33, 63, 64, 65, 129, 300}
	one := start(t, sim.Config{}, Config{})
	var want []answer
	for i, n := range lengths {
		want = append(want, one.run(t, seeded(prompt(n, i+1), 10, 3)))
	}
	shapes := []sim.Config{{}, {TP: 2}, {TP: 4, BlockTokens: 32}, {BlockTokens: 64}}
	for i, ps := range shapes {
		for j, ds := range shapes {
			t.Run(fmt.Sprintf("%d to %d", i, j), func(t *testing.T) {
				x := startPair(t, ps, ds, Config{}, Config{MaxBatchedTokens: 100})
				var wg sync.WaitGroup
				for k, n := range lengths {
					wg.Go(func() {
						got := x.both(t, seeded(prompt(n, k+1), 10, 3))
						equal(t, fmt.Sprintf("prompt of %d", n), got.tokens, want[k].tokens)
						u := got.last.Usage
						if u.Loaded+u.LocalHit != n-1 || u.Computed != 1 || u.Recomputed != 0 {
							t.Errorf("prompt of %d: usage %+v", n, u)
						}
					})
				}
				wg.Wait()
				x.settled(t)
			})
		}
	}
}

// What D has already is not read again; with nothing to read the hand-off is
// returned.
func TestHandoffWithLocalHits(t *testing.T) {
	x := startPair(t, sim.Config{}, sim.Config{}, Config{}, Config{})
	long, short := prompt(100, 1), prompt(100, 1)[:50]
	first := x.both(t, greedy(short, 1))
	if u := first.last.Usage; u.Loaded != 49 {
		t.Fatalf("usage %+v", u)
	}
	if u := x.both(t, greedy(long, 4)).last.Usage; u.LocalHit != 48 || u.Loaded != 51 {
		t.Errorf("half there: usage %+v", u)
	}
	if u := x.both(t, greedy(long, 4)).last.Usage; u.LocalHit != 96 || u.Loaded != 3 {
		t.Errorf("all but the tail there: usage %+v", u)
	}
	whole := prompt(100, 1)[:97]
	if u := x.both(t, greedy(whole, 4)).last.Usage; u.LocalHit != 96 || u.Loaded != 0 || u.Computed != 1 {
		t.Errorf("all there: usage %+v", u)
	}
	if returned, _, _, _, _ := x.dl.counts(); returned != 1 {
		t.Errorf("%d hand-offs returned unread", returned)
	}
	r := greedy(long, 2)
	r.Handoff, r.PromptLogprobs = x.prefill(t, r), 0
	if u := x.d.run(t, r).last.Usage; u.Computed != 100 {
		t.Errorf("with prompt log-probabilities: usage %+v", u)
	}
	r = greedy(prompt(30, 8), 2)
	empty := *x.prefill(t, r)
	empty.Tokens = 0
	r.Handoff = &empty
	if u := x.d.run(t, r).last.Usage; u.Computed != 30 {
		t.Errorf("an offer of nothing: usage %+v", u)
	}
	r = seeded(prompt(70, 5), 5, 1)
	r.Handoff, r.N = x.prefill(t, r), 3
	s, err := x.d.Submit(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	forks, _ := read(t, s, 3)
	if u := forks[2].last.Usage; u.Loaded != 69 || u.Completion != 15 {
		t.Errorf("three choices: usage %+v", u)
	}
	x.settled(t)
}

// A load that fails at any tile is made good, or ends exactly its request.
func TestLoadFailures(t *testing.T) {
	one := start(t, sim.Config{}, Config{})
	for _, n := range []int{33, 192, 200} {
		for _, max := range []int{1, 2, 5} {
			want := one.run(t, seeded(prompt(n, 2), max, 3))
			for tile := range (n - 1 + 15) / 16 {
				var out logtest.Book
				failed := map[connector.LoadClass]int{}
				dc := Config{
					Policy: PolicyRecompute, Log: slog.New(slog.NewTextHandler(&out, nil)),
					Metrics: Metrics{LoadFailed: func(c connector.LoadClass) { failed[c]++ }},
				}
				x := startPair(t, sim.Config{}, sim.Config{}, Config{}, dc)
				x.dl.bad = func(i int) bool { return i == tile }
				x.dl.twice = true
				got := x.both(t, seeded(prompt(n, 2), max, 3))
				equal(t, fmt.Sprintf("%d tokens, tile %d", n, tile), got.tokens, want.tokens)
				u := got.last.Usage
				if lost := min(16, n-1-16*tile); u.Recomputed != lost || u.Loaded != n-1-lost || got.last.Finish != FinishLength {
					t.Errorf("%d tokens, tile %d: usage %+v", n, tile, u)
				}
				x.settled(t)
				if failed[connector.ClassSum] != 1 {
					t.Errorf("failures counted: %v", failed)
				}
				line := fmt.Sprintf("Recovered from KV load failure: 1 request(s) rescheduled (%d tokens affected).", u.Recomputed)
				if !strings.Contains(out.String(), line) {
					t.Errorf("log lacks %q:\n%s", line, out.String())
				}
			}
		}
	}
	x := startPair(t, sim.Config{}, sim.Config{}, Config{}, Config{})
	x.dl.bad = func(i int) bool { return i == 1 }
	r := greedy(prompt(60, 2), 3)
	r.Handoff = x.prefill(t, r)
	s, err := x.d.Submit(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	o, err := s.Next(t.Context())
	var le *connector.LoadError
	if err != nil || !errors.As(o.Err, &le) || le.Class != connector.ClassSum || o.Finish != FinishError {
		t.Errorf("policy fail: %+v, %v", o, err)
	}
	x.dl.bad = nil
	x.both(t, greedy(prompt(60, 2), 3))
	x.settled(t)
}

// A lease whose answer is not delivered ends.
func TestLeaseOfAnUndeliveredAnswer(t *testing.T) {
	x := startPair(t, sim.Config{}, sim.Config{}, Config{}, Config{})
	r := greedy(prompt(40, 1), 1)
	r.RemoteDecode = true
	for _, how := range []string{"aborted after the end", "closed unread", "aborted at once"} {
		s, err := x.p.Submit(t.Context(), r)
		if err != nil {
			t.Fatal(err)
		}
		if how == "aborted after the end" {
			if o, err := s.Next(t.Context()); err != nil || o.Handoff == nil {
				t.Fatal(o, err)
			}
			s.Abort("write failed")
		}
		s.Close()
	}
	s, err := x.p.Submit(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	if o, err := s.Next(t.Context()); err != nil || o.Handoff == nil {
		t.Fatal(o, err)
	}
	s.Close() // delivered: the lease stays
	x.p.drained(t)
	x.p.core.sched.Stats()
	_, _, _, _, leases := x.pl.counts()
	if leases != 1 {
		t.Errorf("%d leases are left, want the delivered one", leases)
	}
}

func TestRefusedHandoffs(t *testing.T) {
	x := startPair(t, sim.Config{}, sim.Config{}, Config{}, Config{MaxRequests: 2})
	r := greedy(prompt(40, 1), 1)
	r.Handoff = x.prefill(t, r)
	x.dl.refuse = &connector.HandoffError{Field: "remote_mac", Reason: "made up"}
	var he *connector.HandoffError
	if _, err := x.d.Submit(t.Context(), r); !errors.As(err, &he) {
		t.Errorf("refused: %v", err)
	}
	x.dl.refuse = nil
	gone, leave := context.WithCancel(t.Context())
	leave()
	if _, err := x.d.Submit(gone, r); !errors.Is(err, context.Canceled) {
		t.Errorf("its client has left: %v", err)
	}
	if returned, _, _, _, _ := x.dl.counts(); returned != 1 {
		t.Errorf("%d hand-offs returned when a client has left", returned)
	}
	r.Handoff, r.N = nil, 1
	r.Handoff = x.prefill(t, r)
	r.N = 3
	if _, err := x.d.Submit(t.Context(), r); !errors.Is(err, ErrOverloaded) {
		t.Errorf("overloaded: %v", err)
	}
	if returned, _, _, _, _ := x.dl.counts(); returned != 2 {
		t.Errorf("%d hand-offs returned", returned)
	}
	x.pl.deny = true
	r = greedy(prompt(40, 1), 1)
	r.RemoteDecode = true
	s, err := x.p.Submit(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	if o, err := s.Next(t.Context()); err != nil || o.Handoff != nil || o.Finish != FinishError || o.Err == nil {
		t.Errorf("no lease: %+v, %v", o, err)
	}
	x.settled(t)
}

package engine

import (
	"slices"
	"testing"
	"time"

	"tandem/internal/kv"
	"tandem/internal/sched"
	"tandem/internal/sim"
)

// stepper drives a core without a loop.
type stepper struct {
	*core
	e *Engine
	m *sim.Model
}

func newStepper(tb testing.TB, seqs int) stepper {
	tb.Helper()
	m, err := sim.New(sim.Config{Blocks: 64 * seqs})
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := m.Close(); err != nil {
			tb.Error(err)
		}
	})
	e, err := New(Config{Model: m, MaxOutputs: 1 << 20})
	if err != nil {
		tb.Fatal(err)
	}
	for i := range seqs {
		if _, err := e.Submit(tb.Context(), greedy(prompt(20, i), 900)); err != nil {
			tb.Fatal(err)
		}
	}
	return stepper{e.core, e, m}
}

func (s stepper) step(tb testing.TB) bool {
	b := s.e.Begin(time.Time{})
	if b == nil {
		return false
	}
	rows, err := s.m.Step(b)
	if err != nil {
		tb.Fatal(err)
	}
	s.e.Finish(rows, time.Time{})
	return true
}

// The core is a value: the same events give the same plans and tokens.
func TestCoreRepeatsItself(t *testing.T) {
	history := func() (out [][]kv.Token) {
		s := newStepper(t, 5)
		for range 40 {
			if !s.step(t) {
				break
			}
			var row []kv.Token
			for g := range s.groups {
				row = append(row, kv.Token(g.usage.Completion))
			}
			slices.Sort(row)
			out = append(out, row)
		}
		return out
	}
	a, b := history(), history()
	if len(a) != len(b) || !slices.EqualFunc(a, b, slices.Equal[[]kv.Token]) {
		t.Errorf("two runs differ:\n%v\n%v", a, b)
	}
}

// An engine without work plans nothing more after its last event.
func TestIdleEngineRests(t *testing.T) {
	b := start(t, sim.Config{}, Config{})
	b.run(t, greedy(prompt(5, 1), 2))
	b.Drain(t.Context())
	deadline := time.Now().Add(guard)
	for b.Status().Stalled != 0 {
		if time.Now().After(deadline) {
			t.Fatal("the loop does not rest")
		}
	}
	b.settled(t)
}

func TestConfigIsChecked(t *testing.T) {
	m, err := sim.New(sim.Config{})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = m.Close() }()
	for i, c := range []Config{
		{},
		{Model: m, Policy: "perhaps"},
		{Model: m, MaxOutputs: 1},
		{Model: m, MaxBatchedTokens: -1},
		{Model: m, MaxSeqs: -1},
		{Model: m, MaxModelLen: -5},
	} {
		if _, err := New(c); err == nil {
			t.Errorf("config %d was taken", i)
		}
	}
	e, err := New(Config{Model: m, MaxModelLen: 1 << 30})
	if err != nil || e.Limit() != 256*16 || e.Info().Vocab != 259 {
		t.Errorf("limit %v, %v", e.Limit(), err)
	}
	var zero sched.Totals
	if s := e.Status(); s.Stats.Totals != zero || s.Stats.Blocks != 256 || s.BlockTokens != 16 {
		t.Errorf("status %+v", s)
	}
}

func BenchmarkStep(b *testing.B) {
	s := newStepper(b, 32)
	for b.Loop() {
		if !s.step(b) {
			b.StopTimer()
			s = newStepper(b, 32)
			b.StartTimer()
		}
	}
}

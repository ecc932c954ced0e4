package engine

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"tandem/internal/kv"
	"tandem/internal/sim"
)

// gate is a model whose steps wait for the test.
type gate struct {
	*sim.Model
	steps   chan struct{} // a value lets one step run; closed: all; nil: no wait
	end     sync.Once
	entered chan int // told the sequences of each step
	edit    func(rows [][]float32) ([][]float32, error)
}

func (g *gate) Step(b *kv.Batch) ([][]float32, error) {
	if g.entered != nil {
		g.entered <- len(b.Seqs)
	}
	if g.steps != nil {
		<-g.steps
	}
	rows, err := g.Model.Step(b)
	if g.edit != nil && err == nil {
		return g.edit(rows)
	}
	return rows, err
}

func startGate(t *testing.T, mc sim.Config, cfg Config, edit func(rows [][]float32) ([][]float32, error)) (bench, *gate) {
	t.Helper()
	m, err := sim.New(mc)
	if err != nil {
		t.Fatal(err)
	}
	g := &gate{Model: m, edit: edit}
	cfg.Model = g
	b := startModel(t, m, cfg)
	t.Cleanup(g.over) // before the engine's end
	return b, g
}

// step lets n steps run. Where there is no work for as many it does not return.
func (g *gate) step(n int) {
	for range n {
		g.steps <- struct{}{}
	}
}

// over lets all further steps run.
func (g *gate) over() {
	if g.steps != nil {
		g.end.Do(func() { close(g.steps) })
	}
}

// open lets steps run until the returned function is called.
func (g *gate) open() (shut func()) {
	over, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for {
			select {
			case g.steps <- struct{}{}:
			case <-over:
				return
			}
		}
	}()
	return func() {
		close(over)
		<-done
	}
}

// drain reads a stream to its end and returns its error.
func drain(t *testing.T, s *Stream) error {
	t.Helper()
	for {
		o, err := s.Next(t.Context())
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			t.Fatal(err)
		}
		if o.Err != nil {
			if _, err := s.Next(t.Context()); !errors.Is(err, io.EOF) {
				t.Errorf("after an error: %v", err)
			}
			return o.Err
		}
	}
}

// An abort in any state gives everything back. D's steps are let run one by one,
// so that the request is still in that state when it is aborted.
func TestAbortInEveryState(t *testing.T) {
	type world struct {
		pair
		g *gate
	}
	reached := func(t *testing.T, x *world, running, waiting int) {
		t.Helper()
		// The last step that was let run may still end, then the next one waits.
		for begun := time.Now(); ; runtime.Gosched() {
			s := x.d.Status().Stats
			if s.Running >= running && s.Waiting >= waiting {
				return
			}
			if time.Since(begun) > guard {
				t.Fatalf("%+v, want %d running and %d waiting", s, running, waiting)
			}
		}
	}
	states := map[string]func(t *testing.T, x *world) *Stream{
		"just submitted": func(t *testing.T, x *world) *Stream { return x.submit(t, greedy(prompt(60, 1), 100)) },
		"prefilling": func(t *testing.T, x *world) *Stream {
			s := x.submit(t, greedy(prompt(900, 1), 100)) // 15 steps
			x.g.step(3)
			reached(t, x, 1, 0)
			return s
		},
		"decoding": func(t *testing.T, x *world) *Stream {
			s := x.submit(t, greedy(prompt(20, 1), 3000))
			x.g.step(5)
			next(t, s, 3)
			return s
		},
		"choices": func(t *testing.T, x *world) *Stream {
			r := seeded(prompt(20, 1), 2000, 1)
			r.N = 5
			s := x.submit(t, r)
			x.g.step(12)
			next(t, s, 9)
			return s
		},
		"queued behind others": func(t *testing.T, x *world) *Stream {
			for i := range 4 {
				s := x.submit(t, greedy(prompt(30, i), 30))
				t.Cleanup(s.Close)
			}
			s := x.submit(t, greedy(prompt(20, 9), 10))
			x.g.step(3)
			reached(t, x, 2, 3)
			return s
		},
		"loading": func(t *testing.T, x *world) *Stream {
			if x.dl.hold == nil {
				x.dl.hold, x.dl.posted = make(chan struct{}), make(chan kv.RequestID, 1)
			}
			r := greedy(prompt(100, 1), 10)
			r.Handoff = x.prefill(t, r)
			s := x.submit(t, r)
			<-x.dl.posted
			return s
		},
		"loaded": func(t *testing.T, x *world) *Stream {
			r := greedy(prompt(100, 1), 3000)
			r.Handoff = x.prefill(t, r)
			s := x.submit(t, r)
			x.g.step(2)
			next(t, s, 1)
			if _, _, _, tracked, _ := x.dl.counts(); tracked != 0 {
				t.Error("the lease of a finished load is renewed")
			}
			return s
		},
		"hand-off waits in the queue": func(t *testing.T, x *world) *Stream {
			for i := range 4 {
				s := x.submit(t, greedy(prompt(200, i), 5))
				t.Cleanup(s.Close)
			}
			r := greedy(prompt(100, 1), 10)
			r.Handoff = x.prefill(t, r)
			s := x.submit(t, r)
			x.g.step(3)
			reached(t, x, 1, 3) // ours is the last
			return s
		},
	}
	for name, make := range states {
		t.Run(name, func(t *testing.T) {
			var x world
			x.pair, x.g = startHeldPair(t, sim.Config{}, sim.Config{Blocks: 256}, Config{}, Config{MaxSeqs: 2, MaxBatchedTokens: 64})
			for range 50 {
				s := make(t, &x)
				s.Abort("test")
				s.Abort("again")
				shut := x.g.open()
				if err := drain(t, s); !errors.Is(err, ErrAborted) {
					t.Errorf("after the abort: %v", err)
				}
				s.Close()
				shut()
			}
			x.g.over()
			want := x.p.run(t, greedy(prompt(50, 7), 5))
			equal(t, "another request", x.d.run(t, greedy(prompt(50, 7), 5)).tokens, want.tokens)
			x.settled(t)
		})
	}
}

func (x pair) submit(t *testing.T, r Request) *Stream {
	t.Helper()
	s, err := x.d.Submit(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func next(t *testing.T, s *Stream, n int) {
	t.Helper()
	for range n {
		if o, err := s.Next(t.Context()); err != nil || o.Err != nil {
			t.Fatal(o, err)
		}
	}
}

// Client ids are labels: twenty equal ones run side by side.
func TestEqualClientIDs(t *testing.T) {
	b, g := startGate(t, sim.Config{}, Config{}, nil)
	g.steps = make(chan struct{})
	var wg sync.WaitGroup
	var victim *Stream
	for i := range 20 {
		r := greedy(prompt(30, i), 20)
		r.ClientID = "same"
		if i == 7 {
			r.Params.MaxTokens = 900
		}
		s, err := b.Submit(t.Context(), r)
		if err != nil {
			t.Fatal(err)
		}
		if i == 7 {
			victim = s
			continue
		}
		wg.Go(func() {
			if as, _ := read(t, s, 1); len(as[0].tokens) != 20 || as[0].last.Finish != FinishLength {
				t.Errorf("request %d: %d tokens, %q", i, len(as[0].tokens), as[0].last.Finish)
			}
		})
	}
	g.step(6) // three until the last prompt is computed
	next(t, victim, 2)
	victim.Abort("one of twenty")
	g.over()
	if err := drain(t, victim); !errors.Is(err, ErrAborted) {
		t.Errorf("the aborted one: %v", err)
	}
	wg.Wait()
	b.settled(t)
}

// Readers that do not read lose their requests, and nobody else notices.
func TestSlowReaders(t *testing.T) {
	b := start(t, sim.Config{Blocks: 1500}, Config{MaxOutputs: 200})
	var slow []*Stream
	for i := range 50 {
		s, err := b.Submit(t.Context(), greedy(prompt(10, i), 400))
		if err != nil {
			t.Fatal(err)
		}
		slow = append(slow, s)
	}
	if a := b.run(t, greedy(prompt(25, 3), 120)); len(a.tokens) != 120 {
		t.Errorf("%d tokens", len(a.tokens))
	}
	b.Drain(t.Context())
	for _, s := range slow {
		n := 0
		for {
			o, err := s.Next(t.Context())
			if err != nil {
				t.Fatalf("after %d outputs: %v", n, err)
			}
			if o.Err != nil {
				if !errors.Is(o.Err, ErrSlowReader) || n != 200 {
					t.Errorf("after %d outputs: %v", n, o.Err)
				}
				break
			}
			n++
		}
	}
	b.settled(t)
}

// A row that is not finite ends its request, a step that fails the engine.
func TestModelFailures(t *testing.T) {
	b, g := startGate(t, sim.Config{}, Config{}, func(rows [][]float32) ([][]float32, error) {
		if len(rows) > 1 {
			rows[0][5] = float32(math.NaN())
		}
		return rows, nil
	})
	g.steps = make(chan struct{})
	a, err := b.Submit(t.Context(), greedy(prompt(10, 1), 50))
	if err != nil {
		t.Fatal(err)
	}
	g.step(1)
	next(t, a, 1)
	second, err := b.Submit(t.Context(), greedy(prompt(10, 2), 5))
	if err != nil {
		t.Fatal(err)
	}
	g.over()
	if err := drain(t, a); err == nil || !strings.Contains(err.Error(), "not finite") {
		t.Errorf("NaN: %v", err)
	}
	if err := drain(t, second); err != nil {
		t.Errorf("its neighbour: %v", err)
	}
	b.settled(t)

	for _, how := range []string{"error", "panic"} {
		var calls atomic.Int32
		d, _ := startGate(t, sim.Config{}, Config{}, func(rows [][]float32) ([][]float32, error) {
			if calls.Add(1) < 3 {
				return rows, nil
			}
			if how == "panic" {
				panic("index out of range")
			}
			return nil, errors.New("out of luck")
		})
		var streams []*Stream
		for i := range 5 {
			s, err := d.Submit(t.Context(), greedy(prompt(10, i), 1000))
			if err != nil {
				break
			}
			streams = append(streams, s)
		}
		for i, s := range streams {
			if err := drain(t, s); !errors.Is(err, ErrDead) {
				t.Errorf("%s: request %d: %v", how, i, err)
			}
		}
		<-d.Done()
		if d.Err() == nil || d.Status().Dead == "" {
			t.Errorf("%s: engine is not dead", how)
		}
		if _, err := d.Submit(t.Context(), greedy(prompt(3, 1), 1)); !errors.Is(err, ErrClosed) {
			t.Errorf("%s: submit to a dead engine: %v", how, err)
		}
	}
}

// The end of Run ends every request, running loads included.
func TestStopEndsEverything(t *testing.T) {
	x := startPair(t, sim.Config{}, sim.Config{}, Config{}, Config{})
	x.dl.hold, x.dl.posted = make(chan struct{}), make(chan kv.RequestID, 1)
	r := greedy(prompt(100, 1), 10)
	r.Handoff = x.prefill(t, r)
	streams := []*Stream{x.submit(t, r)}
	<-x.dl.posted
	for i := range 10 {
		streams = append(streams, x.submit(t, greedy(prompt(20, i), 900)))
	}
	x.d.halt()
	for i, s := range streams {
		if err := drain(t, s); err != nil && !errors.Is(err, ErrClosed) {
			t.Errorf("request %d: %v", i, err)
		}
		s.Close()
	}
	if _, err := x.d.Submit(t.Context(), greedy(prompt(3, 1), 1)); !errors.Is(err, ErrClosed) {
		t.Errorf("submit after the end: %v", err)
	}
	x.settled(t)
}

func TestDrainAndOverload(t *testing.T) {
	b, g := startGate(t, sim.Config{}, Config{MaxRequests: 3}, nil)
	g.steps = make(chan struct{})
	var streams []*Stream
	for i := range 3 {
		s, err := b.Submit(t.Context(), greedy(prompt(5, i), 4))
		if err != nil {
			t.Fatal(err)
		}
		streams = append(streams, s)
	}
	if _, err := b.Submit(t.Context(), greedy(prompt(5, 1), 4)); !errors.Is(err, ErrOverloaded) {
		t.Errorf("one too many: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if n := b.Drain(ctx); n != 3 {
		t.Errorf("%d left", n)
	}
	if _, err := b.Submit(t.Context(), greedy(prompt(5, 1), 4)); !errors.Is(err, ErrDraining) {
		t.Errorf("while draining: %v", err)
	}
	g.over()
	if n := b.Drain(t.Context()); n != 0 {
		t.Errorf("%d left after the drain", n)
	}
	for _, s := range streams {
		if as, _ := read(t, s, 1); len(as[0].tokens) != 4 {
			t.Errorf("%d tokens", len(as[0].tokens))
		}
	}
	b.settled(t)
}

// A loop that is held up is visible; one that rests is not stalled.
func TestStalled(t *testing.T) {
	b, g := startGate(t, sim.Config{}, Config{}, nil)
	g.steps, g.entered = make(chan struct{}), make(chan int, 100)
	if s := b.Status(); s.Live != 0 || s.Stats.Free != 256 {
		t.Errorf("status at rest: %+v", s)
	}
	s, err := b.Submit(t.Context(), greedy(prompt(5, 1), 2))
	if err != nil {
		t.Fatal(err)
	}
	<-g.entered
	before := b.Status().Stalled
	deadline := time.After(20 * time.Millisecond)
	<-deadline
	if after := b.Status(); after.Stalled < before+20*time.Millisecond || after.Stats.Running != 1 || after.Live != 1 {
		t.Errorf("status while held: %+v, %v before", after, before)
	}
	g.over()
	read(t, s, 1)
	b.settled(t)
	if s := b.Status(); s.Stalled != 0 {
		t.Errorf("stalled at the end: %v", s.Stalled)
	}
}

// Late and repeated events of requests that are gone change nothing.
func TestLateEvents(t *testing.T) {
	x := startPair(t, sim.Config{}, sim.Config{}, Config{}, Config{Policy: PolicyRecompute})
	x.dl.twice = true
	x.dl.bad = func(i int) bool { return i%2 == 1 }
	for i := range 30 {
		r := greedy(prompt(70+i, i), 3)
		r.Handoff = x.prefill(t, r)
		s := x.submit(t, r)
		switch i % 3 {
		case 0:
			s.Abort("early")
			s.Stop(0)
		case 1:
			next(t, s, 1)
			s.Stop(0)
			s.Abort("late")
		}
		if err := drain(t, s); err != nil && !errors.Is(err, ErrAborted) {
			t.Error(fmt.Errorf("request %d: %w", i, err))
		}
		s.Abort("after the end")
		s.Close()
	}
	x.settled(t)
}

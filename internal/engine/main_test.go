package engine

import (
	"context"
	"errors"
	"io"
	"slices"
	"testing"
	"time"

	"go.uber.org/goleak"

	"tandem/internal/kv"
	"tandem/internal/sample"
	"tandem/internal/sim"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// guard ends a test that waits for what never comes.
const guard = time.Minute

// bench is an engine over a sim model, running until the test ends.
type bench struct {
	*Engine
	model *sim.Model
	halt  func() // ends Run and waits for it
}

func start(t *testing.T, mc sim.Config, cfg Config) bench {
	t.Helper()
	m, err := sim.New(mc)
	if err != nil {
		t.Fatal(err)
	}
	cfg.Model = m
	return startModel(t, m, cfg)
}

func startModel(t *testing.T, m *sim.Model, cfg Config) bench {
	t.Helper()
	e, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	go func() { _ = e.Run(ctx) }()
	halt := func() {
		cancel()
		<-e.Done()
	}
	t.Cleanup(func() {
		halt()
		if err := m.Close(); err != nil {
			t.Error(err)
		}
	})
	return bench{e, m, halt}
}

// settled waits until the engine has no request and no block in use.
func (b bench) settled(t *testing.T) {
	t.Helper()
	if n := b.drained(t); n != 0 {
		t.Fatalf("%d requests are left", n)
	}
	// The loop has ended: what leases gave back last is still to be taken. None
	// of it waits for a deadline.
	limit := time.After(guard)
	for b.core.sched.Stats().Leased > 0 {
		select {
		case blocks := <-b.cfg.Connector.Freed():
			b.core.sched.Release(blocks)
		case <-limit:
			t.Fatalf("blocks are leased: %+v", b.core.sched.Stats())
		}
	}
	s := b.core.sched.Stats()
	if s.Free != s.Blocks || s.Held != 0 || s.Leased != 0 || s.Running+s.Waiting+s.Loading != 0 {
		t.Fatalf("blocks or requests are left: %+v", s)
	}
}

// drained ends the engine after its last request.
func (b bench) drained(t *testing.T) int {
	t.Helper()
	n := b.Drain(t.Context())
	b.halt()
	return n
}

// answer is what one choice delivered.
type answer struct {
	tokens []kv.Token
	lps    []sample.TokenLogprobs
	last   Output
}

// read collects the outputs of a stream, by choice.
func read(t *testing.T, s *Stream, n int) ([]answer, []sample.TokenLogprobs) {
	t.Helper()
	out := make([]answer, n)
	var prompt []sample.TokenLogprobs
	for {
		o, err := s.Next(t.Context())
		if errors.Is(err, io.EOF) {
			return out, prompt
		}
		if err != nil {
			t.Fatalf("reading %s: %v", s.ID(), err)
		}
		if o.Err != nil {
			t.Fatalf("request %s: %v", s.ID(), o.Err)
		}
		a := &out[o.Choice]
		if a.last.Finish != "" {
			t.Fatalf("choice %d goes on after its end", o.Choice)
		}
		a.tokens = append(a.tokens, o.Tokens...)
		a.lps = append(a.lps, o.Logprobs...)
		a.last = o
		prompt = append(prompt, o.PromptLogprobs...)
	}
}

func (b bench) run(t *testing.T, r Request) answer {
	t.Helper()
	s, err := b.Submit(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	as, _ := read(t, s, 1)
	return as[0]
}

// prompt returns n tokens that differ by seed.
func prompt(n int, seed int) []kv.Token {
	p := make([]kv.Token, n)
	for i := range p {
		p[i] = kv.Token(97 + (i*7+seed*13+i*i*seed)%26)
	}
	return p
}

func greedy(p []kv.Token, n int) Request {
	r := Request{Prompt: p, Params: sample.Default(), PromptLogprobs: -1}
	r.Params.Temperature, r.Params.MaxTokens, r.Params.IgnoreEOS = 0, n, true
	return r
}

func seeded(p []kv.Token, n int, seed int64) Request {
	r := greedy(p, n)
	r.Params.Temperature, r.Params.Seed = 0.8, &seed
	return r
}

func equal(t *testing.T, what string, got, want []kv.Token) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Errorf("%s: tokens\n%v, want\n%v", what, got, want)
	}
}

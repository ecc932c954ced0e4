package engine

import (
	"errors"
	"fmt"
	"io"
	"math"
	"sync"
	"testing"

	"tandem/internal/kv"
	"tandem/internal/sim"
)

// A request's tokens do not depend on what else is in the batch, on chunks,
// ranks, block sizes or the prefix cache.
func TestTokensDoNotDependOnTheBatch(t *testing.T) {
	const most = 50
	var lengths []int
	for len(lengths) < most {
		lengths = append(lengths, 1, 2, 15, 16, 17, 31, 32, 33, 64, 100, 150)
	}
	lengths = lengths[:most]
	var want []answer
	alone := start(t, sim.Config{}, Config{})
	for i, n := range lengths {
		want = append(want, alone.run(t, seeded(prompt(n, i), 40, int64(i))))
	}
	alone.settled(t)
	configs := []struct {
		name  string
		model sim.Config
		cfg   Config
	}{
		{"all at once", sim.Config{}, Config{}},
		{"chunks of 7", sim.Config{}, Config{MaxBatchedTokens: 7}},
		{"two ranks", sim.Config{TP: 2}, Config{MaxBatchedTokens: 40}},
		{"four ranks, blocks of 64", sim.Config{TP: 4, BlockTokens: 64}, Config{}},
		{"blocks of 32, no cache", sim.Config{BlockTokens: 32}, Config{NoPrefixCache: true}},
		{"preemption", sim.Config{Blocks: 12}, Config{MaxBatchedTokens: 50}},
		{"three at once", sim.Config{}, Config{MaxSeqs: 3}},
		{"eight at once", sim.Config{}, Config{MaxSeqs: 8}},
	}
	for _, c := range configs {
		t.Run(c.name, func(t *testing.T) {
			preempted := 0
			c.cfg.Metrics.Preempted = func(n int) { preempted += n }
			b, g := startGate(t, c.model, c.cfg, nil)
			g.steps = make(chan struct{})
			var wg sync.WaitGroup
			for i, n := range lengths { // they meet: the first step waits for the last request
				s, err := b.Submit(t.Context(), seeded(prompt(n, i), 40, int64(i)))
				if err != nil {
					t.Fatal(err)
				}
				wg.Go(func() {
					got, _ := read(t, s, 1)
					equal(t, fmt.Sprintf("prompt of %d", n), got[0].tokens, want[i].tokens)
				})
			}
			g.over()
			wg.Wait()
			b.settled(t)
			if c.model.Blocks == 12 && preempted == 0 {
				t.Error("nothing was preempted")
			}
		})
	}
}

// A seed decides the output alone, in any company and after preemption.
func TestSeedsInChangingCompany(t *testing.T) {
	alone := start(t, sim.Config{}, Config{})
	want := alone.run(t, seeded(prompt(30, 1), 40, 7))
	other := alone.run(t, seeded(prompt(30, 1), 40, 8))
	if fmt.Sprint(want.tokens) == fmt.Sprint(other.tokens) {
		t.Fatal("two seeds give one output")
	}
	preempted := 0
	b, g := startGate(t, sim.Config{Blocks: 12}, Config{Metrics: Metrics{Preempted: func(n int) { preempted += n }}}, nil)
	g.steps = make(chan struct{})
	for round := range 20 {
		requests := []Request{seeded(prompt(30, 1), 40, 7)}
		for i := range round % 5 {
			r := seeded(prompt(20+i*9, i), 30, int64(i))
			if i%2 == 0 {
				r.Params.Seed = nil
			}
			requests = append(requests, r)
		}
		got := make([]answer, len(requests))
		var readers sync.WaitGroup
		for i, r := range requests { // they meet: the first step waits for the last request
			s, err := b.Submit(t.Context(), r)
			if err != nil {
				t.Fatal(err)
			}
			readers.Go(func() {
				as, _ := read(t, s, 1)
				got[i] = as[0]
			})
		}
		shut := g.open()
		readers.Wait()
		shut()
		equal(t, fmt.Sprintf("round %d", round), got[0].tokens, want.tokens)
	}
	b.settled(t)
	if preempted == 0 {
		t.Error("nothing was preempted")
	}
}

func TestChoices(t *testing.T) {
	b := start(t, sim.Config{}, Config{})
	r := seeded(prompt(40, 3), 12, 99)
	r.N = 4
	s, err := b.Submit(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	got, _ := read(t, s, 4)
	r.N = 1
	equal(t, "choice 0", got[0].tokens, b.run(t, r).tokens)
	seen := map[string]bool{}
	for i, a := range got {
		if len(a.tokens) != 12 || a.last.Finish != FinishLength {
			t.Errorf("choice %d: %d tokens, finish %q", i, len(a.tokens), a.last.Finish)
		}
		seen[fmt.Sprint(a.tokens)] = true
	}
	if len(seen) != 4 {
		t.Errorf("4 choices give %d outputs", len(seen))
	}
	again, err := b.Submit(t.Context(), func() Request { r.N = 4; return r }())
	if err != nil {
		t.Fatal(err)
	}
	second, _ := read(t, again, 4)
	for i := range got {
		equal(t, fmt.Sprintf("choice %d again", i), second[i].tokens, got[i].tokens)
	}
	b.settled(t)
}

func TestLimits(t *testing.T) {
	b := start(t, sim.Config{Blocks: 8}, Config{MaxN: 4}) // 128 tokens
	var invalid *InvalidError
	for _, n := range []int{128, 129, 500} {
		_, err := b.Submit(t.Context(), greedy(prompt(n, 1), 1))
		if !errors.As(err, &invalid) || invalid.Limit != 128 || invalid.Length != n || invalid.Field != "prompt" {
			t.Errorf("prompt of %d: %v", n, err)
		}
	}
	bad := []struct {
		field string
		edit  func(r *Request)
	}{
		{"prompt", func(r *Request) { r.Prompt = nil }},
		{"prompt", func(r *Request) { r.Prompt = []kv.Token{1, 999999} }},
		{"prompt", func(r *Request) { r.Prompt = []kv.Token{-1} }},
		{"prompt", func(r *Request) { r.Prompt = []kv.Token{259} }},
		{"n", func(r *Request) { r.N = 5_000_000 }},
		{"n", func(r *Request) { r.N = -1 }},
		{"prompt_logprobs", func(r *Request) { r.PromptLogprobs = 1e9 }},
		{"temperature", func(r *Request) { r.Params.Temperature = math.NaN() }},
		{"min_tokens", func(r *Request) { r.Params.MinTokens = 50 }},
	}
	for _, c := range bad {
		r := greedy(prompt(5, 1), 5)
		c.edit(&r)
		if _, err := b.Submit(t.Context(), r); !errors.As(err, &invalid) || invalid.Field != c.field {
			t.Errorf("%s: %v", c.field, err)
		}
	}
	r := greedy(prompt(5, 1), 5)
	r.RemoteDecode = true
	if _, err := b.Submit(t.Context(), r); !errors.Is(err, ErrNoConnector) {
		t.Errorf("hand-off without connector: %v", err)
	}
	// A huge max_tokens fills the pool and ends; nothing is preempted for ever.
	a := b.run(t, greedy(prompt(100, 1), 1<<40))
	if len(a.tokens) != 28 || a.last.Finish != FinishLength {
		t.Errorf("%d tokens, finish %q", len(a.tokens), a.last.Finish)
	}
	if a := b.run(t, greedy(prompt(127, 1), 0)); len(a.tokens) != 1 {
		t.Errorf("prompt of limit-1: %d tokens", len(a.tokens))
	}
	for _, n := range []int{1, 2, 3} {
		a := b.run(t, greedy(prompt(9, 1), n))
		if len(a.tokens) != n || a.last.Usage.Completion != n || a.last.Usage.Prompt != 9 {
			t.Errorf("max_tokens %d: %d tokens, usage %+v", n, len(a.tokens), a.last.Usage)
		}
	}
	b.settled(t)
}

// The first token may be the end token.
func TestEndTokenFirst(t *testing.T) {
	b := start(t, sim.Config{EOSEvery: 1}, Config{})
	r := greedy(prompt(20, 1), 5)
	r.Params.IgnoreEOS = false
	if a := b.run(t, r); len(a.tokens) != 1 || a.tokens[0] != sim.EOS || a.last.Finish != FinishStop || a.last.StopToken != nil {
		t.Errorf("end token: %v, %q", a.tokens, a.last.Finish)
	}
	r.Params.MinTokens = 3
	if a := b.run(t, r); len(a.tokens) != 4 || a.tokens[2] == sim.EOS || a.last.Finish != FinishStop {
		t.Errorf("min_tokens: %v, %q", a.tokens, a.last.Finish)
	}
	r.Params.MinTokens, r.Params.IgnoreEOS = 0, true
	if a := b.run(t, r); len(a.tokens) != 5 || a.last.Finish != FinishLength {
		t.Errorf("ignored: %v, %q", a.tokens, a.last.Finish)
	}
	r.Params.StopTokenIDs = []kv.Token{sim.EOS}
	if a := b.run(t, r); len(a.tokens) != 1 || a.last.StopToken == nil || *a.last.StopToken != sim.EOS {
		t.Errorf("stop token: %v, %v", a.tokens, a.last.StopToken)
	}
	b.settled(t)
}

func TestLogprobs(t *testing.T) {
	plain := start(t, sim.Config{}, Config{})
	want := plain.run(t, greedy(prompt(100, 2), 6))
	for _, budget := range []int{512, 9} {
		b := start(t, sim.Config{}, Config{MaxBatchedTokens: budget})
		b.run(t, greedy(prompt(100, 2), 1)) // the prompt is cached
		r := greedy(prompt(100, 2), 6)
		r.Params.Logprobs, r.PromptLogprobs = 5, 2
		s, err := b.Submit(t.Context(), r)
		if err != nil {
			t.Fatal(err)
		}
		got, lps := read(t, s, 1)
		equal(t, "with log-probabilities", got[0].tokens, want.tokens)
		if len(lps) != 99 || len(got[0].lps) != 6 {
			t.Fatalf("%d of prompt, %d of output", len(lps), len(got[0].lps))
		}
		for i, lp := range lps {
			if lp.Token != r.Prompt[i+1] || len(lp.Top) != 2 || lp.Top[0].Logprob < lp.Top[1].Logprob {
				t.Errorf("prompt token %d: %+v", i+1, lp)
			}
		}
		for i, lp := range got[0].lps {
			if lp.Token != got[0].tokens[i] || lp.Rank != 1 || lp.Top[0] != lp.Logprob || len(lp.Top) != 5 {
				t.Errorf("token %d: %+v", i, lp)
			}
		}
		// A prompt's values are those that its tokens had as output.
		whole := greedy(append(append([]kv.Token{}, r.Prompt...), want.tokens...), 1)
		whole.PromptLogprobs = 0
		s, err = b.Submit(t.Context(), whole)
		if err != nil {
			t.Fatal(err)
		}
		_, lps = read(t, s, 1)
		for i, lp := range got[0].lps {
			if x := lps[99+i]; x.Logprob != lp.Logprob {
				t.Errorf("as prompt %+v, as output %+v", x.Logprob, lp.Logprob)
			}
		}
		b.settled(t)
	}
}

func TestStopChoice(t *testing.T) {
	b, g := startGate(t, sim.Config{}, Config{}, nil)
	g.steps = make(chan struct{})
	r := seeded(prompt(20, 1), 500, 5)
	r.N = 2
	s, err := b.Submit(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	g.step(4) // both have outputs
	var finish [2]FinishReason
	stopped := [2]bool{}
	for {
		o, err := s.Next(t.Context())
		if errors.Is(err, io.EOF) {
			break
		}
		if o.Err != nil {
			t.Fatal(o.Err)
		}
		if !stopped[o.Choice] {
			stopped[o.Choice] = true
			s.Stop(o.Choice)
			s.Stop(o.Choice)
			s.Stop(17)
			if stopped == [2]bool{true, true} {
				g.over()
			}
		}
		if o.Finish != "" {
			finish[o.Choice] = o.Finish
		}
	}
	if finish != [2]FinishReason{FinishStop, FinishStop} {
		t.Errorf("finish %v", finish)
	}
	b.settled(t)
}

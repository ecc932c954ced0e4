package main

import (
	"runtime"
	"time"

	"tandem/internal/gguf"
	"tandem/internal/kv"
	"tandem/internal/model"
)

// kvBlocks are enough for every measurement here: 32 sequences, or one long
// prompt.
const kvBlocks = 32 * 16

// A runner drives the forward pass of a model without an engine around it, as
// llama-bench drives llama.cpp's.
type runner struct {
	file   *gguf.File
	model  *model.Model
	layout kv.Layout
}

func openRunner(path string, threads int) (*runner, error) {
	runtime.GOMAXPROCS(max(runtime.GOMAXPROCS(0), threads+2))
	f, err := gguf.Open(path)
	if err != nil {
		return nil, err
	}
	m, err := model.Load(f, model.Config{Threads: threads, Blocks: kvBlocks, MaxLen: 2048})
	if err != nil {
		_ = f.Close()
		return nil, err
	}
	return &runner{f, m, m.Arenas()[0].Layout()}, nil
}

func (r *runner) close() {
	_ = r.model.Close()
	_ = r.file.Close()
}

// A speed is tokens and the time they took.
type speed struct {
	tokens int
	time   time.Duration
}

func (s speed) perSecond() float64 { return float64(s.tokens) / s.time.Seconds() }

// sequence returns sequence i of a batch, with blocks for n tokens.
func (r *runner) sequence(i, n int) kv.Seq {
	var s kv.Seq
	blocks := (n + kv.TileTokens - 1) / kv.TileTokens
	for b := range blocks {
		s.Blocks = append(s.Blocks, kv.BlockID(i*blocks+b))
	}
	return s
}

// tokenAt is a token of the vocabulary for a position of a sequence: what the
// tokens are makes no difference to the speed.
func (r *runner) tokenAt(seq, pos int) kv.Token {
	return kv.Token((seq*7919 + pos*104729 + 1000) % r.model.Info().Vocab)
}

func (r *runner) tokens(seq, pos, n int) []kv.Token {
	t := make([]kv.Token, n)
	for i := range t {
		t[i] = r.tokenAt(seq, pos+i)
	}
	return t
}

// prefill computes a prompt of n tokens.
func (r *runner) prefill(n int) (speed, error) {
	s := r.sequence(0, n)
	s.Tokens, s.Logits = r.tokens(0, 0, n), 1
	b := &kv.Batch{Seqs: []kv.Seq{s}}
	start := time.Now()
	_, err := r.model.Step(b)
	return speed{n, time.Since(start)}, err
}

// decode computes steps tokens of each of seqs sequences behind prompts of
// prompt tokens, one token of each in a step.
func (r *runner) decode(seqs, prompt, steps int) (speed, error) {
	b := &kv.Batch{}
	for i := range seqs {
		s := r.sequence(i, prompt+steps)
		if prompt > 0 {
			s.Tokens = r.tokens(i, 0, prompt)
			if _, err := r.model.Step(&kv.Batch{Seqs: []kv.Seq{s}}); err != nil {
				return speed{}, err
			}
		}
		s.Logits = 1
		b.Seqs = append(b.Seqs, s)
	}
	all := make([][]kv.Token, seqs)
	for i := range all {
		all[i] = r.tokens(i, prompt, steps)
	}
	start := time.Now()
	for n := range steps {
		for i := range b.Seqs {
			s := &b.Seqs[i]
			s.Tokens, s.Pos, s.WriteFrom = all[i][n:n+1], prompt+n, prompt+n
		}
		if _, err := r.model.Step(b); err != nil {
			return speed{}, err
		}
	}
	return speed{seqs * steps, time.Since(start)}, nil
}

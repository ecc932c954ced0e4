package model_test

import (
	"fmt"
	"math"
	"testing"

	"tandem/internal/gguf"
	"tandem/internal/gguf/gguftest"
	"tandem/internal/kv"
	"tandem/internal/model"
)

// load loads a synthetic model; the cleanup closes it.
func load(t testing.TB, s gguftest.Spec, cfg model.Config) *model.Model {
	t.Helper()
	return loadFile(t, s.Open(t), cfg)
}

func loadFile(t testing.TB, f *gguf.File, cfg model.Config) *model.Model {
	t.Helper()
	if cfg.MaxLen == 0 {
		cfg.MaxLen = 1024
	}
	m, err := model.Load(f, cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := m.Close(); err != nil {
			t.Error(err)
		}
	})
	return m
}

// prompt returns n tokens; equal seeds give equal beginnings.
func prompt(n, seed int) []kv.Token {
	ids := make([]kv.Token, n)
	for i := range ids {
		ids[i] = kv.Token((i*i*31 + i*7 + seed*101 + 5) % 320)
	}
	return ids
}

// A sequence is a prompt that is computed piece by piece.
type sequence struct {
	ids    []kv.Token
	done   int
	blocks []kv.BlockID
	bits   []uint32 // of all logits so far
}

// newSequence takes blocks first, first+step, ... for ids.
func newSequence(m *model.Model, ids []kv.Token, first, step int) *sequence {
	bt := m.Arenas()[0].Layout().BlockTokens()
	s := &sequence{ids: ids}
	for i := range (len(ids) + bt - 1) / bt {
		s.blocks = append(s.blocks, kv.BlockID(first+i*step))
	}
	return s
}

// piece is the next n tokens, with the logits of all of them wanted.
func (s *sequence) piece(n int) kv.Seq {
	n = min(n, len(s.ids)-s.done)
	q := kv.Seq{Tokens: s.ids[s.done : s.done+n], Pos: s.done, Blocks: s.blocks, WriteFrom: s.done, Logits: n}
	q.SealFrom, q.SealTo = s.done/kv.TileTokens, (s.done+n+kv.TileTokens-1)/kv.TileTokens
	q.SealFilled = (s.done+n-1)%kv.TileTokens + 1
	s.done += n
	return q
}

// run computes sequences to their ends, each in pieces of its own size.
func run(t *testing.T, m *model.Model, chunk []int, seqs ...*sequence) {
	t.Helper()
	for {
		var b kv.Batch
		var of []*sequence
		for i, s := range seqs {
			if s.done == len(s.ids) {
				continue
			}
			b.Seqs = append(b.Seqs, s.piece(chunk[i%len(chunk)]))
			of = append(of, s)
		}
		if len(of) == 0 {
			return
		}
		rows, err := m.Step(&b)
		if err != nil {
			t.Fatal(err)
		}
		k := 0
		for i, s := range of {
			for range b.Seqs[i].Logits {
				for _, v := range rows[k] {
					s.bits = append(s.bits, math.Float32bits(v))
				}
				k++
			}
		}
		if k != len(rows) {
			t.Fatalf("%d rows of logits, want %d", len(rows), k)
		}
	}
}

// sameBits fails unless the logits are equal, bit for bit.
func sameBits(t *testing.T, what string, got, want []uint32) {
	t.Helper()
	if len(got) != len(want) {
		t.Fatalf("%s: %d logits, want %d", what, len(got), len(want))
	}
	for i := range got {
		if got[i] != want[i] {
			t.Fatalf("%s: logit %d is %g, want %g", what, i, math.Float32frombits(got[i]), math.Float32frombits(want[i]))
		}
	}
}

// alone returns the logits of ids computed in one step.
func alone(t *testing.T, m *model.Model, ids []kv.Token) []uint32 {
	t.Helper()
	s := newSequence(m, ids, 0, 1)
	run(t, m, []int{len(ids)}, s)
	for i, b := range s.bits {
		if v := math.Float32frombits(b); math.IsNaN(float64(v)) || math.IsInf(float64(v), 0) {
			t.Fatalf("logit %d is %g", i, v)
		}
	}
	return s.bits
}

func name(parts ...any) string { return fmt.Sprint(parts...) }

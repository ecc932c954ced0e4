package model_test

import (
	"os"
	"path/filepath"
	"testing"

	"tandem/internal/gguf"
	"tandem/internal/kv"
	"tandem/internal/model"
)

// real loads the default model on two threads.
func real(b *testing.B) *model.Model {
	b.Helper()
	dir, err := os.UserCacheDir()
	if err != nil {
		b.Fatal(err)
	}
	f, err := gguf.Open(filepath.Join(dir, "tandem", "SmolLM2-135M-Instruct.Q4_1.gguf"))
	if err != nil {
		b.Fatalf("%v: run \"make model\"", err)
	}
	b.Cleanup(func() {
		if err := f.Close(); err != nil {
			b.Error(err)
		}
	})
	m, err := model.Load(f, model.Config{Threads: 2, Blocks: 1024})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		if err := m.Close(); err != nil {
			b.Error(err)
		}
	})
	return m
}

// tokens returns n ids spread over the vocabulary.
func tokens(n, seed int) []kv.Token {
	ids := make([]kv.Token, n)
	for i := range ids {
		ids[i] = kv.Token((i*7919 + seed*104729 + 17) % 48000)
	}
	return ids
}

func table(first, n int) []kv.BlockID {
	t := make([]kv.BlockID, n)
	for i := range t {
		t[i] = kv.BlockID(first + i)
	}
	return t
}

// reportRate reports tokens a second.
func reportRate(b *testing.B, perStep int) {
	b.ReportMetric(float64(b.N*perStep)/b.Elapsed().Seconds(), "tokens/s")
}

func BenchmarkPrefill512(b *testing.B) {
	m := real(b)
	batch := &kv.Batch{Seqs: []kv.Seq{{Tokens: tokens(512, 1), Blocks: table(0, 32), Logits: 1}}}
	for b.Loop() {
		if _, err := m.Step(batch); err != nil {
			b.Fatal(err)
		}
	}
	reportRate(b, 512)
}

func BenchmarkDecode(b *testing.B) {
	for _, n := range []int{1, 8, 32} {
		b.Run(name("batch ", n), func(b *testing.B) {
			m := real(b)
			const start, room = 128, 512
			batch := &kv.Batch{}
			for i := range n {
				blocks := table(i*room/16, room/16)
				if _, err := m.Step(&kv.Batch{Seqs: []kv.Seq{{Tokens: tokens(start, i), Blocks: blocks}}}); err != nil {
					b.Fatal(err)
				}
				batch.Seqs = append(batch.Seqs, kv.Seq{Tokens: tokens(1, i), Pos: start, WriteFrom: start, Blocks: blocks, Logits: 1})
			}
			for b.Loop() {
				if _, err := m.Step(batch); err != nil {
					b.Fatal(err)
				}
				for i := range batch.Seqs {
					s := &batch.Seqs[i]
					if s.Pos++; s.Pos == start+64 {
						s.Pos = start
					}
					s.WriteFrom = s.Pos
				}
			}
			reportRate(b, n)
		})
	}
}

func BenchmarkLoad(b *testing.B) {
	for b.Loop() {
		b.StopTimer()
		dir, err := os.UserCacheDir()
		if err != nil {
			b.Fatal(err)
		}
		b.StartTimer()
		f, err := gguf.Open(filepath.Join(dir, "tandem", "SmolLM2-135M-Instruct.Q4_1.gguf"))
		if err != nil {
			b.Fatal(err)
		}
		m, err := model.Load(f, model.Config{Threads: 2, Blocks: 1024})
		if err != nil {
			b.Fatal(err)
		}
		if err := m.Close(); err != nil {
			b.Fatal(err)
		}
		if err := f.Close(); err != nil {
			b.Fatal(err)
		}
	}
}

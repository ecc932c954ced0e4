package sim

import (
	"fmt"
	"math"
	"slices"
	"testing"

	"tandem/internal/kv"
)

// generate runs one sequence: the prompt in chunks, then greedy tokens. Its
// blocks are first, first+stride, ….
func generate(t *testing.T, m *Model, prompt []kv.Token, n, chunk, first, stride int, before func(pos int)) []kv.Token {
	t.Helper()
	tokens := slices.Clone(prompt)
	var blocks []kv.BlockID
	done := 0
	for len(tokens) < len(prompt)+n {
		end := min(done+chunk, len(tokens))
		for len(blocks)*m.cfg.BlockTokens < end {
			blocks = append(blocks, kv.BlockID(first+len(blocks)*stride))
		}
		if before != nil {
			before(done)
		}
		s := kv.Seq{Tokens: tokens[done:end], Pos: done, Blocks: blocks, WriteFrom: done}
		if end == len(tokens) {
			s.Logits = 1
		}
		rows, err := m.Step(&kv.Batch{Seqs: []kv.Seq{s}})
		if err != nil {
			t.Fatal(err)
		}
		if done = end; s.Logits == 1 {
			tokens = append(tokens, argmax(rows[0]))
		}
	}
	return tokens[len(prompt):]
}

func argmax(row []float32) kv.Token {
	best := 0
	for i, x := range row {
		if x > row[best] {
			best = i
		}
	}
	return kv.Token(best)
}

func open(t *testing.T, cfg Config) *Model {
	t.Helper()
	m, err := New(cfg)
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

func prompt(n int) []kv.Token {
	p := make([]kv.Token, n)
	for i := range p {
		p[i] = kv.Token(i*i*31%256 + i%3)
	}
	return p
}

func TestTokensDoNotDependOnWhereTheBytesLie(t *testing.T) {
	p := prompt(75)
	want := generate(t, open(t, Config{}), p, 60, 1000, 0, 1, nil)
	text := make([]byte, 0, len(want))
	for _, x := range want {
		if x >= 256 {
			t.Errorf("token %d", x)
		}
		text = append(text, byte(x))
	}
	t.Logf("%q", text)
	for _, tp := range []int{1, 2, 4} {
		for _, bt := range []int{16, 32, 64} {
			for _, chunk := range []int{1, 7, 16, 50} {
				m := open(t, Config{TP: tp, BlockTokens: bt})
				if got := generate(t, m, p, 60, chunk, 100, -7, nil); !slices.Equal(got, want) {
					t.Errorf("tp %d, blocks of %d, chunks of %d: %v, want %v", tp, bt, chunk, got, want)
				}
			}
		}
	}
	if got := generate(t, open(t, Config{Seed: 1}), p, 60, 1000, 0, 1, nil); slices.Equal(got, want) {
		t.Error("another seed gives the same tokens")
	}
	f32 := open(t, Config{KVType: kv.F32})
	if !slices.Equal(generate(t, f32, p, 9, 9, 0, 1, nil), generate(t, f32, p, 9, 4, 50, 1, nil)) {
		t.Error("f32 tokens depend on chunks")
	}
}

// Every single byte of the context counts.
func TestAWrongByteGivesWrongTokens(t *testing.T) {
	m := open(t, Config{TP: 2, Blocks: 8})
	p := prompt(37)
	probe := func() []float32 {
		s := kv.Seq{Tokens: p[36:], Pos: 36, Blocks: []kv.BlockID{1, 2, 3}, WriteFrom: 37, Logits: 1}
		rows, err := m.Step(&kv.Batch{Seqs: []kv.Seq{s}})
		if err != nil {
			t.Fatal(err)
		}
		return slices.Clone(rows[0])
	}
	generate(t, m, p, 1, 50, 1, 1, nil)
	want := probe()
	l := m.arenas[0].Layout()
	unused := 0
	for _, a := range m.arenas {
		b := a.Bytes()
		for i := l.BlockBytes(); i < 4*l.BlockBytes(); i++ {
			b[i] ^= 1
			if slices.Equal(probe(), want) {
				unused++
			}
			b[i] ^= 1
		}
	}
	// Of the third tile, slots 5 to 15 are not written and not read.
	if all := l.BlockBytes() / 16 * 11 * 2; unused != all {
		t.Errorf("%d bytes do not count, want the %d that hold nothing", unused, all)
	}
	if !slices.Equal(probe(), want) {
		t.Error("the probe changed the cache")
	}
}

func TestRowsOfEveryPosition(t *testing.T) {
	m := open(t, Config{})
	p := prompt(50)
	step := func(s kv.Seq) [][]float32 {
		rows, err := m.Step(&kv.Batch{Seqs: []kv.Seq{s}})
		if err != nil {
			t.Fatal(err)
		}
		out := make([][]float32, len(rows))
		for i, r := range rows {
			out[i] = slices.Clone(r)
			for _, x := range r {
				if math.IsNaN(float64(x)) || math.IsInf(float64(x), 0) {
					t.Fatalf("logit %v", x)
				}
			}
		}
		return out
	}
	all := step(kv.Seq{Tokens: p, Blocks: []kv.BlockID{0, 1, 2, 3}, Logits: 50})
	for n := 1; n <= 50; n++ {
		one := step(kv.Seq{Tokens: p[:n], Blocks: []kv.BlockID{4, 5, 6, 7}, Logits: 1})
		if !slices.Equal(one[0], all[n-1]) {
			t.Errorf("row of position %d depends on what follows", n-1)
		}
	}
}

func TestSeal(t *testing.T) {
	m := open(t, Config{TP: 2, BlockTokens: 32})
	for i := range m.arenas[0].Bytes() {
		m.arenas[0].Bytes()[i] = 0xff
	}
	p := prompt(37)
	_, err := m.Step(&kv.Batch{Seqs: []kv.Seq{{
		Tokens: p, Blocks: []kv.BlockID{3, 1}, SealTo: 3, SealFilled: 5, Logits: 1,
	}}})
	if err != nil {
		t.Fatal(err)
	}
	for rank, a := range m.arenas {
		for _, tile := range []kv.TileID{6, 7, 2} {
			for h, sum := range a.Sums(tile) {
				if sum != kv.SumHead(a.Tile(tile), a.Layout(), h) || sum == 0 {
					t.Errorf("rank %d, tile %d, head %d: sum %x", rank, tile, h, sum)
				}
			}
		}
	}
	if b := m.arenas[0].Head(2, 0, 0); b[5*2] != 0 || b[len(b)-1] != 0 {
		t.Error("unwritten slots are not zeroed")
	}
}

func TestEndToken(t *testing.T) {
	p := prompt(20)
	if got := generate(t, open(t, Config{EOSEvery: 1}), p, 3, 50, 0, 1, nil); !slices.Equal(got, []kv.Token{EOS, EOS, EOS}) {
		t.Errorf("always: %v", got)
	}
	n := 0
	for _, x := range generate(t, open(t, Config{EOSEvery: 50}), p, 1000, 50, 0, 1, nil) {
		if x == EOS {
			n++
		}
	}
	if n < 5 || n > 50 {
		t.Errorf("%d end tokens of 1000", n)
	}
	if got := generate(t, open(t, Config{EOSEvery: -1}), p, 1000, 50, 0, 1, nil); slices.Contains(got, EOS) {
		t.Error("an end token although there is none")
	}
}

func TestBadBatchesAndConfigs(t *testing.T) {
	m := open(t, Config{Blocks: 4})
	for i, s := range []kv.Seq{
		{},
		{Tokens: []kv.Token{1}},
		{Tokens: []kv.Token{999}, Blocks: []kv.BlockID{0}},
		{Tokens: []kv.Token{1}, Blocks: []kv.BlockID{4}},
		{Tokens: []kv.Token{1}, Blocks: []kv.BlockID{0}, Logits: 2},
		{Tokens: prompt(17), Blocks: []kv.BlockID{0}},
		{Tokens: []kv.Token{1}, Pos: -1, Blocks: []kv.BlockID{0}},
	} {
		if _, err := m.Step(&kv.Batch{Seqs: []kv.Seq{s}}); err == nil {
			t.Errorf("batch %d was computed", i)
		}
	}
	for i, c := range []Config{{TP: 3}, {Vocab: 10}, {BlockTokens: 20}, {BlockTokens: 48}, {MaxLen: 1}, {Blocks: -1}} {
		if m, err := New(c); err == nil {
			_ = m.Close()
			t.Errorf("config %d was taken", i)
		}
	}
}

func TestStepDoesNotAllocate(t *testing.T) {
	m := open(t, Config{})
	b := &kv.Batch{Seqs: []kv.Seq{{Tokens: prompt(40), Blocks: []kv.BlockID{0, 1, 2}, Logits: 2, SealTo: 2, SealFilled: 16}}}
	if n := testing.AllocsPerRun(50, func() {
		if _, err := m.Step(b); err != nil {
			t.Fatal(err)
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func BenchmarkDecode(b *testing.B) {
	for _, n := range []int{100, 1000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			m, err := New(Config{})
			if err != nil {
				b.Fatal(err)
			}
			defer m.Close()
			s := kv.Seq{Tokens: []kv.Token{1}, Pos: n - 1, Logits: 1}
			for i := range (n + 15) / 16 {
				s.Blocks = append(s.Blocks, kv.BlockID(i))
			}
			for b.Loop() {
				if _, err := m.Step(&kv.Batch{Seqs: []kv.Seq{s}}); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

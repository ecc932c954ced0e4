package model_test

import (
	"slices"
	"testing"

	"tandem/internal/compute"
	"tandem/internal/gguf"
	"tandem/internal/gguf/gguftest"
	"tandem/internal/kv"
	"tandem/internal/model"
)

// The logits of a sequence have the same bits on every path.
func TestLogitsHaveTheSameBitsEverywhere(t *testing.T) {
	s := gguftest.TinyTP()
	ids := prompt(90, 1)
	want := alone(t, load(t, s, model.Config{}), ids)
	for _, kernels := range compute.Names() {
		for _, tp := range []int{1, 2, 4} {
			for _, threads := range []int{1, 2, 3} {
				block := 16 << (tp / 2)
				t.Run(name(kernels, " tp", tp, " threads", threads, " block", block), func(t *testing.T) {
					m := load(t, s, model.Config{Kernels: kernels, TP: tp, Threads: threads, BlockTokens: block})
					sameBits(t, "in one step", alone(t, m, ids), want)
					for _, chunk := range []int{1, 7, 16, 33} {
						if kernels == "portable" && chunk != 7 {
							continue
						}
						q := newSequence(m, ids, 7, 1)
						run(t, m, []int{chunk}, q)
						sameBits(t, name("in pieces of ", chunk), q.bits, want)
					}
				})
			}
		}
	}
}

// Neighbours in a batch, their number and their pieces change nothing.
func TestNeighboursChangeNothing(t *testing.T) {
	s := gguftest.Tiny()
	for _, kernels := range compute.Names() {
		t.Run(kernels, func(t *testing.T) {
			m := load(t, s, model.Config{Kernels: kernels, Threads: 2, Blocks: 256})
			n := 5
			if kernels != "portable" {
				n = 23
			}
			var seqs []*sequence
			var want [][]uint32
			for i := range n {
				ids := prompt(20+i*3, i)
				want = append(want, alone(t, m, ids))
				seqs = append(seqs, newSequence(m, ids, 20+i, n))
			}
			run(t, m, []int{1, 40, 5, 16, 2}, seqs...)
			for i, q := range seqs {
				sameBits(t, name("sequence ", i), q.bits, want[i])
			}
		})
	}
}

// A step of more tokens than a pass holds is the same as many small ones.
func TestLongSteps(t *testing.T) {
	s := gguftest.Tiny()
	m := load(t, s, model.Config{Threads: 2, Blocks: 200})
	ids := prompt(1000, 3)
	want := newSequence(m, ids, 0, 1)
	run(t, m, []int{100}, want)
	got, other := newSequence(m, ids, 64, 1), newSequence(m, prompt(700, 4), 130, 1)
	run(t, m, []int{1000, 700}, other, got)
	sameBits(t, "two long prompts in one step", got.bits, want.bits)
}

// Arenas hold the same keys and values at every degree, and seals match.
func TestRanksShareTheCache(t *testing.T) {
	s := gguftest.TinyTP()
	ids := prompt(40, 2)
	one := load(t, s, model.Config{})
	alone(t, one, ids)
	ref := one.Arenas()[0]
	for _, tp := range []int{2, 4} {
		m := load(t, s, model.Config{TP: tp, Threads: 2})
		alone(t, m, ids)
		if len(m.Arenas()) != tp {
			t.Fatalf("%d arenas, want %d", len(m.Arenas()), tp)
		}
		per := s.KVHeads / tp
		for tile := range kv.TileID(3) {
			for h := range s.KVHeads {
				a := m.Arenas()[h/per]
				if a.Sums(tile)[h%per] != ref.Sums(tile)[h] {
					t.Errorf("tp %d: sum of tile %d, head %d differs", tp, tile, h)
				}
				for l := range s.Layers {
					if !slices.Equal(a.Head(tile, l, h%per), ref.Head(tile, l, h)) {
						t.Errorf("tp %d: bytes of tile %d, layer %d, head %d differ", tp, tile, l, h)
					}
				}
			}
		}
	}
	if got, want := ref.Sums(2)[1], kv.SumHead(ref.Tile(2), ref.Layout(), 1); got != want || got == 0 {
		t.Errorf("the sum of the last tile is %x, its bytes give %x", got, want)
	}
}

// Slots below WriteFrom are read and never written; those of the last token
// need not be written at all.
func TestVerifiedSlotsAreOnlyRead(t *testing.T) {
	m := load(t, gguftest.Tiny(), model.Config{Threads: 2})
	ids := prompt(35, 5)
	want := alone(t, m, ids)
	a := m.Arenas()[0]
	before := slices.Clone(a.Bytes())
	vocab := m.Info().Vocab
	for _, n := range []int{1, 3, 10} {
		from := len(ids) - n
		rows, err := m.Step(&kv.Batch{Seqs: []kv.Seq{{
			Tokens: ids[from:], Pos: from, WriteFrom: len(ids), Blocks: []kv.BlockID{0, 1, 2}, Logits: 1,
		}}})
		if err != nil {
			t.Fatal(err)
		}
		s := sequence{}
		for _, v := range rows[0] {
			s.bits = append(s.bits, bitsOf(v))
		}
		sameBits(t, name("last ", n, " tokens again"), s.bits, want[34*vocab:])
	}
	if !slices.Equal(before, a.Bytes()) {
		t.Error("verified slots were written")
	}
	// With other tokens, and WriteFrom inside the piece, only later slots change.
	other := prompt(35, 6)
	if _, err := m.Step(&kv.Batch{Seqs: []kv.Seq{{
		Tokens: other[20:], Pos: 20, WriteFrom: 27, Blocks: []kv.BlockID{0, 1, 2},
	}}}); err != nil {
		t.Fatal(err)
	}
	l := a.Layout()
	row := l.HeadDim * l.Elem.Size()
	for slot := range 16 {
		v := a.Head(1, 1, 0)[l.KBytes():][slot*row:][:row]
		old := before[l.TileBytes()+l.LayerBytes()+l.KBytes():][slot*row:][:row]
		if changed := !slices.Equal(v, old); changed != (slot >= 11) {
			t.Errorf("slot %d of tile 1 changed: %v", slot, changed)
		}
	}
	// In the first layer a token's value depends on nothing else.
	b := kv.Batch{Seqs: []kv.Seq{newSequence(m, other, 5, 1).piece(35)}}
	if _, err := m.Step(&b); err != nil {
		t.Fatal(err)
	}
	got, all := a.Head(1, 0, 0)[l.KBytes():], a.Head(6, 0, 0)[l.KBytes():]
	if !slices.Equal(got[11*row:], all[11*row:]) {
		t.Error("the written slots do not hold their tokens' values")
	}
}

// A seal zeroes what the sequence has not written, whatever was there before.
func TestSealsZeroTheRest(t *testing.T) {
	m := load(t, gguftest.Tiny(), model.Config{})
	alone(t, m, prompt(48, 1))
	a := m.Arenas()[0]
	full := slices.Clone(a.Tile(0))
	alone(t, m, prompt(21, 1))
	if !slices.Equal(a.Tile(0), full) {
		t.Error("a full tile changed")
	}
	l := a.Layout()
	row := l.HeadDim * l.Elem.Size()
	v := a.Head(1, 1, 1)[l.KBytes():]
	if slices.Equal(v[4*row:5*row], make([]byte, row)) || !slices.Equal(v[5*row:], make([]byte, 11*row)) {
		t.Error("the last tile does not hold 5 values and zeros")
	}
}

// Every storage type loads, on both paths and in the exact mode, and the bits
// do not depend on the path.
func TestEveryType(t *testing.T) {
	ids := prompt(24, 7)
	for _, typ := range []gguf.Type{gguf.F32, gguf.F16, gguf.Q4_0, gguf.Q4_1, gguf.Q8_0} {
		for _, exact := range []bool{false, true} {
			t.Run(name(typ, " exact ", exact), func(t *testing.T) {
				s := gguftest.Tiny()
				s.Type, s.Tied, s.RopeFreqs = typ, false, true
				var want []uint32
				for _, kernels := range compute.Names() {
					m := load(t, s, model.Config{Kernels: kernels, F32: exact})
					got := alone(t, m, ids)
					if want == nil {
						want = got
					}
					sameBits(t, kernels, got, want)
				}
			})
		}
	}
}

// Rows that are not wanted are left out behind the last attention; what they
// leave in the cache, and the rows that are wanted, stay the same.
func TestUnwantedRowsChangeNothing(t *testing.T) {
	m := load(t, gguftest.Tiny(), model.Config{Threads: 2, Blocks: 64})
	ids, vocab := prompt(75, 9), m.Info().Vocab
	want := alone(t, m, ids)
	for _, c := range []struct{ chunk, logits int }{{75, 1}, {75, 20}, {1, 0}, {1, 1}, {30, 0}, {30, 3}} {
		q := newSequence(m, ids, 16, 1)
		other := newSequence(m, prompt(200, 10), 30, 1)
		for q.done < len(ids) {
			p := q.piece(c.chunk)
			p.Logits = min(c.logits, len(p.Tokens))
			if q.done == len(ids) {
				p.Logits = max(p.Logits, 1)
			}
			o := other.piece(2)
			o.Logits = 0
			rows, err := m.Step(&kv.Batch{Seqs: []kv.Seq{o, p}})
			if err != nil {
				t.Fatal(err)
			}
			if len(rows) != p.Logits {
				t.Fatalf("%d rows, want %d", len(rows), p.Logits)
			}
			for i, r := range rows {
				var bits []uint32
				for _, v := range r {
					bits = append(bits, bitsOf(v))
				}
				at := q.done - p.Logits + i
				sameBits(t, name("pieces of ", c.chunk, ", position ", at), bits, want[at*vocab:(at+1)*vocab])
			}
		}
	}
}

func TestStepAllocatesNothing(t *testing.T) {
	m := load(t, gguftest.TinyTP(), model.Config{Threads: 2, TP: 2, Blocks: 64})
	var b kv.Batch
	for i := range 4 {
		b.Seqs = append(b.Seqs, newSequence(m, prompt(40, i), i*8, 1).piece(1+i*13))
	}
	step := func() {
		if _, err := m.Step(&b); err != nil {
			t.Fatal(err)
		}
	}
	step()
	if n := testing.AllocsPerRun(50, step); n != 0 {
		t.Errorf("%g allocations a step", n)
	}
}

package compute

import (
	"fmt"
	"testing"
)

func plainSource(seed uint64) source {
	r := newSource(seed)
	r.plain = true
	return r
}

// benchWeights returns matrices of 8192 by 2048 that together exceed any cache.
func benchWeights(b *testing.B, typ Type) []*Matrix {
	b.Helper()
	const rows, cols = 8192, 2048
	src := plainSource(31).tensor(typ, 64, cols)
	size := PackedBytes(typ, rows, cols)
	n := max(2, (288<<20)/size)
	mem, err := Alloc(n * size)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		if err := Free(mem); err != nil {
			b.Error(err)
		}
	})
	ms := make([]*Matrix, n)
	for i := range ms {
		m, err := NewMatrix(typ, rows, cols, mem[i*size:(i+1)*size])
		if err != nil {
			b.Fatal(err)
		}
		ms[i] = m
		if i > 0 {
			copy(m.w, ms[0].w)
			copy(m.d, ms[0].d)
			continue
		}
		if err := m.Pack(0, Rows{Type: typ, Data: src, Cols: cols, Count: rows, Index: func(r int) int { return r % 64 }}); err != nil {
			b.Fatal(err)
		}
	}
	return ms
}

// BenchmarkMul multiplies weights that come from memory, on one thread.
func BenchmarkMul(b *testing.B) {
	k, err := Select("auto")
	if err != nil {
		b.Fatal(err)
	}
	for _, typ := range []Type{Q8_0, Q4_0, Q4_1, F16, F32} {
		b.Run(typ.String(), func(b *testing.B) {
			ms := benchWeights(b, typ)
			for _, tokens := range []int{1, 2, 4, 8, 16, 64} {
				b.Run(fmt.Sprintf("tokens%d", tokens), func(b *testing.B) {
					benchMul(b, k, ms, tokens)
				})
			}
		})
	}
}

func benchMul(b *testing.B, k *Kernels, ms []*Matrix, tokens int) {
	b.Helper()
	m := ms[0]
	a := NewAct(tokens, m.Cols, FormOf(m.Type))
	a.Reset(tokens)
	x := newSource(32).floats(m.Cols)
	for i := range tokens {
		k.Set(a, i, x)
	}
	out := make([]float32, tokens*m.Rows)
	b.SetBytes(int64(m.Bytes()))
	i := 0
	for b.Loop() {
		m := ms[i%len(ms)]
		k.Mul(m, out, m.Rows, a, 0, m.Groups())
		i++
	}
	ops := 2 * float64(m.Rows) * float64(m.Cols) * float64(tokens)
	b.ReportMetric(ops*float64(b.N)/b.Elapsed().Seconds()/1e9, "GOP/s")
}

// BenchmarkMulPortable multiplies a small matrix in plain Go.
func BenchmarkMulPortable(b *testing.B) {
	for _, typ := range []Type{Q8_0, Q4_1, F32} {
		for _, tokens := range []int{1, 16} {
			benchPortable(b, typ, tokens)
		}
	}
}

func benchPortable(b *testing.B, typ Type, tokens int) {
	b.Run(fmt.Sprintf("%v/%d", typ, tokens), func(b *testing.B) {
		m, err := NewMatrix(typ, 256, 576, make([]byte, PackedBytes(typ, 256, 576)))
		if err != nil {
			b.Fatal(err)
		}
		src := plainSource(33).tensor(typ, 256, 576)
		if err := m.Pack(0, Rows{Type: typ, Data: src, Cols: 576, Count: 256}); err != nil {
			b.Fatal(err)
		}
		benchMul(b, portable(), []*Matrix{m}, tokens)
	})
}

func BenchmarkPack(b *testing.B) {
	for _, typ := range []Type{Q8_0, Q4_1, F16, F32} {
		b.Run(typ.String(), func(b *testing.B) {
			const rows, cols = 1536, 576
			src := plainSource(34).tensor(typ, rows, cols)
			m, err := NewMatrix(typ, rows, cols, make([]byte, PackedBytes(typ, rows, cols)))
			if err != nil {
				b.Fatal(err)
			}
			b.SetBytes(int64(len(src)))
			for b.Loop() {
				if err := m.Pack(0, Rows{Type: typ, Data: src, Cols: cols, Count: rows}); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func BenchmarkRows(b *testing.B) {
	k, err := Select("auto")
	if err != nil {
		b.Fatal(err)
	}
	const n = 576
	r := newSource(35)
	x, y, z, w := r.floats(n), r.floats(n), r.floats(n), r.floats(49152)
	a := NewAct(16, n, Int8)
	a.Reset(16)
	tile := make([]byte, 2*16*64*2)
	for _, c := range []struct {
		name string
		f    func()
	}{
		{"RMSNorm576", func() { k.RMSNorm(x, z, y, 1e-5) }},
		{"Set576", func() { k.Set(a, 3, y) }},
		{"SiluMul576", func() { copy(x, z); k.SiluMul(x, y) }},
		{"Rope64", func() { copy(x, z); k.Rope(x[:64], y[:32], y[32:64]) }},
		{"WriteK64x16", func() { k.WriteK(tile, F16, 64, 0, 16, w, 64) }},
		{"WriteK64x1", func() { k.WriteK(tile, F16, 64, 3, 1, w, 64) }},
	} {
		b.Run(c.name, func(b *testing.B) {
			for b.Loop() {
				c.f()
			}
		})
	}
}

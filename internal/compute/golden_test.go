package compute

import (
	"encoding/binary"
	"hash/fnv"
	"math"
	"math/rand/v2"
	"testing"
)

// The bits of every kernel belong to ArithmeticVersion. When this test fails,
// either a kernel is wrong, or docs/arithmetic.md says something new and its
// number must rise.
func TestBitsAreThoseOfTheArithmeticVersion(t *testing.T) {
	const want = 0xd19f5deddf7ae473
	if ArithmeticVersion != 1 {
		t.Fatal("the hash is that of version 1")
	}
	for _, k := range allKernels(t) {
		if got := arithmeticHash(t, k); got != want {
			t.Errorf("%s: hash %#x, want %#x", k.Name(), got, uint64(want))
		}
	}
}

func arithmeticHash(t *testing.T, k *Kernels) uint64 {
	t.Helper()
	r := rand.New(rand.NewPCG(1, 2))
	floats := func(n int) []float32 {
		x := make([]float32, n)
		for i := range x {
			x[i] = float32(int32(r.Uint32())) / (1 << 29)
		}
		return x
	}
	h := fnv.New64a()
	add := func(x []float32) {
		var b [4]byte
		for _, v := range x {
			binary.LittleEndian.PutUint32(b[:], math.Float32bits(v))
			h.Write(b[:])
		}
	}
	const rows, cols, tokens = 32, 96, 5
	x := floats(tokens * cols)
	for _, typ := range allTypes {
		src := make([]byte, rows*typ.RowBytes(cols))
		for i := range src {
			src[i] = byte(r.Uint32())
		}
		switch n := typ.BlockBytes(); typ {
		case F32:
			for i, v := range floats(rows * cols) {
				binary.LittleEndian.PutUint32(src[4*i:], math.Float32bits(v))
			}
		default: // scales, minima and numbers of binary16 below 2
			for o := 0; o < len(src); o += n {
				src[o+1] &= 0xbf
				if typ == Q4_1 {
					src[o+3] &= 0xbf
				}
			}
		}
		add(multiply(k, packed(t, typ, rows, cols, src), x, tokens))
	}
	y := floats(cols)
	k.RMSNorm(y, y, x, 1e-6)
	add(y)
	k.Rope(y, x[:48], x[48:96])
	add(y)
	k.SiluMul(y, x)
	add(y)
	k.AddParts(y, x, x[96:], x[192:], x[288:])
	add(y)
	for _, elem := range []Type{F16, F32} {
		const dim, n = 32, 40
		c := fill(k, elem, dim, n, floats(n*2*dim))
		h.Write(c.kv)
		q := floats(3 * dim)
		k.Attend(&Attn{
			Q: q, QStride: dim, Out: q, OutStride: dim, Tokens: 3, Group: 1, Dim: dim, Pos: n - 3,
			Scale: 0.25, KV: c.kv, At: cacheAt, Tiles: c.tiles, Elem: elem,
		}, NewAttnScratch(dim))
		add(q)
	}
	return h.Sum64()
}

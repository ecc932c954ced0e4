package compute

import (
	"encoding/binary"
	"math"
	"math/big"
	"math/rand/v2"
	"testing"
)

// The reference below follows docs/arithmetic.md word by word over rows as they
// lie in a file, with sums rounded by package big.

func exactFMA(a, b, c float32) float32 {
	s := float64(a)*float64(b) + float64(c)
	if s == 0 || math.IsNaN(s) || math.IsInf(s, 0) {
		return float32(s)
	}
	p := new(big.Float).SetPrec(600).Mul(big.NewFloat(float64(a)), big.NewFloat(float64(b)))
	f, _ := p.Add(p, big.NewFloat(float64(c))).Float32()
	return f
}

func exactExp(x float32) float32 {
	if x < -64 {
		return 0
	}
	if x != x {
		return x
	}
	n := float32(math.RoundToEven(float64(x * float32(1.44269504))))
	r := exactFMA(float32(-0.693359375), n, x)
	r = exactFMA(float32(2.12194440e-4), n, r)
	y := float32(1.3981999507e-3)
	for _, c := range []float32{8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 5.0000001201e-1, 1, 1} {
		y = exactFMA(y, r, c)
	}
	return float32(math.Ldexp(float64(y), int(n)))
}

func exactTree(l []float32, op func(lo, hi float32) float32) float32 {
	if len(l) == 1 {
		return l[0]
	}
	h := len(l) / 2
	t := make([]float32, h)
	for i := range t {
		t[i] = op(l[i], l[i+h])
	}
	return exactTree(t, op)
}

func plus(a, b float32) float32 { return a + b }

// exactQuant is a block of activations.
type exactQuant struct {
	q   [32]int32
	da  float32
	sum int32
}

func exactQuantize(x []float32) []exactQuant {
	var out []exactQuant
	for ; len(x) > 0; x = x[32:] {
		amax, bad := float32(math.Ldexp(1, -100)), false
		for _, v := range x[:32] {
			if v != v {
				bad = true
			}
			amax = max(amax, float32(math.Abs(float64(v))))
		}
		if bad {
			amax = float32(math.NaN())
		}
		b := exactQuant{da: amax / 127}
		inv := 127 / amax
		for i, v := range x[:32] {
			p := float64(v * inv)
			if math.IsNaN(p) {
				p = -128
			}
			b.q[i] = int32(math.RoundToEven(p))
			b.sum += b.q[i]
		}
		out = append(out, b)
	}
	return out
}

func half(b []byte) float32 { return F16Float(binary.LittleEndian.Uint16(b)) }

// exactDot is one output of a matrix product: row of a file times a token.
func exactDot(t Type, row []byte, cols int, x []float32) float32 {
	var acc float32
	if !t.Quantized() {
		w := make([]float32, cols)
		Dequantize(w, t, row)
		for k, v := range w {
			acc = exactFMA(v, x[k], acc)
		}
		return acc
	}
	for i, a := range exactQuantize(x) {
		b := row[i*t.BlockBytes():]
		var dot int32
		for k, q := range a.q {
			switch t {
			case Q8_0:
				dot += int32(int8(b[2+k])) * q
			case Q4_0:
				dot += (int32(b[2+k%16]>>(k/16*4)&15) - 8) * q
			default:
				dot += int32(b[4+k%16]>>(k/16*4)&15) * q
			}
		}
		if t == Q4_1 {
			acc = exactFMA(half(b[2:]), float32(a.sum)*a.da, acc)
		}
		acc = exactFMA(half(b), float32(dot)*a.da, acc)
	}
	return acc
}

// sameBits compares bits; every NaN equals every other.
func sameBits(a, b float32) bool {
	return math.Float32bits(a) == math.Float32bits(b) || a != a && b != b
}

func checkRow(t *testing.T, what string, got, want []float32) {
	t.Helper()
	if len(got) != len(want) {
		t.Fatalf("%s: %d numbers, want %d", what, len(got), len(want))
	}
	for i := range want {
		if !sameBits(got[i], want[i]) {
			t.Fatalf("%s: number %d of %d is %v (%#x), want %v (%#x)", what, i, len(want),
				got[i], math.Float32bits(got[i]), want[i], math.Float32bits(want[i]))
		}
	}
}

// allKernels returns every implementation of this machine.
func allKernels(t *testing.T) []*Kernels {
	t.Helper()
	var all []*Kernels
	for _, name := range Names() {
		k, err := Select(name)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, k)
	}
	return all
}

type source struct {
	*rand.Rand
	plain bool // tensors without odd numbers, for timing
}

func newSource(seed uint64) source { return source{Rand: rand.New(rand.NewPCG(seed, 77))} }

func (r source) floats(n int) []float32 {
	x := make([]float32, n)
	for i := range x {
		x[i] = float32(r.NormFloat64())
	}
	return x
}

// odd is floats with zeros of both signs, denormals and wide exponents.
func (r source) odd(n int) []float32 {
	x := r.floats(n)
	for i := range x {
		switch r.IntN(8) {
		case 0:
			x[i] = 0
		case 1:
			x[i] = float32(math.Copysign(0, -1))
		case 2:
			x[i] = math.Float32frombits(r.Uint32() & 0x807fffff)
		case 3:
			x[i] *= float32(math.Ldexp(1, r.IntN(60)-30))
		}
	}
	return x
}

// tensor returns rows of a file; some blocks have zero or denormal scales.
func (r source) tensor(t Type, rows, cols int) []byte {
	b := make([]byte, rows*t.RowBytes(cols))
	for i := range b {
		b[i] = byte(r.Uint32())
	}
	scale := func(o int) {
		h := uint16(0x2000) | uint16(r.Uint32()&0x83ff)
		switch n := r.IntN(10); {
		case r.plain:
		case n == 0:
			h = 0
		case n == 1:
			h &= 0x83ff
		}
		binary.LittleEndian.PutUint16(b[o:], h)
	}
	switch t {
	case F32:
		x := r.floats(rows * cols)
		if !r.plain {
			x = r.odd(rows * cols)
		}
		for i, v := range x {
			binary.LittleEndian.PutUint32(b[4*i:], math.Float32bits(v))
		}
	case F16:
		for i := range rows * cols {
			scale(2 * i)
		}
	default:
		for o := 0; o < len(b); o += t.BlockBytes() {
			scale(o)
			if t == Q4_1 {
				scale(o + 2)
			}
		}
	}
	return b
}

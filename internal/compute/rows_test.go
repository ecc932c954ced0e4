package compute

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/big"
	"slices"
	"testing"
)

var rowLengths = []int{1, 5, 15, 16, 17, 32, 64, 172, 576}

func TestRowOperationsMatchTheReference(t *testing.T) {
	r := newSource(21)
	for _, n := range rowLengths {
		x, y, z := r.odd(n), r.odd(n), r.odd(n)
		for _, k := range allKernels(t) {
			t.Run(k.Name(), func(t *testing.T) {
				what := func(s string) string { return fmt.Sprintf("%s of %d", s, n) }
				want := make([]float32, n)

				for i := range want {
					want[i] = x[i] + ((y[i] + z[i]) + (x[i] + y[i]))
				}
				got := slices.Clone(x)
				k.AddParts(got, y, z, x, y)
				checkRow(t, what("AddParts"), got, want)

				lanes := make([]float32, 16)
				for i, v := range x {
					lanes[i%16] = exactFMA(v, v, lanes[i%16])
				}
				v := exactTree(lanes, plus)/float32(n) + 1e-5
				s := float32(1 / math.Sqrt(float64(v)))
				for i := range want {
					want[i] = x[i] * s * y[i]
				}
				got = slices.Clone(x)
				k.RMSNorm(got, got, y, 1e-5)
				checkRow(t, what("RMSNorm"), got, want)

				for i, g := range x {
					want[i] = g / (1 + exactExp(min(-g+0, 80))) * y[i]
				}
				got = slices.Clone(x)
				k.SiluMul(got, y)
				checkRow(t, what("SiluMul"), got, want)

				h := make([]byte, 2*n)
				k.ToF16(h, x)
				for i, v := range x {
					if got := binary.LittleEndian.Uint16(h[2*i:]); got != exactF16(v) {
						t.Fatalf("%s: %v is %#x, want %#x", what("ToF16"), v, got, exactF16(v))
					}
				}
			})
		}
	}
}

func TestRopeMatchesTheReference(t *testing.T) {
	r := newSource(22)
	for _, n := range []int{4, 8, 16, 20, 32, 64} {
		x, c, s := r.odd(2*n+3), r.floats(n), r.floats(n)
		want := slices.Clone(x)
		for i := range n {
			want[i] = exactFMA(x[i], c[i], -(x[n+i] * s[i]))
			want[n+i] = exactFMA(x[n+i], c[i], x[i]*s[i])
		}
		for _, k := range allKernels(t) {
			t.Run(k.Name(), func(t *testing.T) {
				got := slices.Clone(x)
				k.Rope(got, c, s)
				checkRow(t, fmt.Sprintf("Rope of %d pairs", n), got, want)
			})
		}
	}
}

func TestSiluOfExtremes(t *testing.T) {
	inf, nan := float32(math.Inf(1)), float32(math.NaN())
	x := []float32{inf, -inf, nan, 100, -100, 64, -64.5, 80, -80, 1e-40, -1e-40, math.MaxFloat32, -math.MaxFloat32, 0, 63.99, -79.99}
	want := make([]float32, len(x))
	for i, g := range x {
		e := -g
		if e > 80 {
			e = 80
		}
		want[i] = g / (1 + exactExp(e)) * 2
	}
	for _, k := range allKernels(t) {
		t.Run(k.Name(), func(t *testing.T) {
			got := slices.Clone(x)
			k.SiluMul(got, slices.Repeat([]float32{2}, 16))
			checkRow(t, "SiluMul", got, want)
		})
	}
}

func TestSoftmaxKeepsNaNAndFlushes(t *testing.T) {
	inf, nan := float32(math.Inf(1)), float32(math.NaN())
	base := make([]float32, 32)
	for i := range base {
		base[i] = float32(i) * -2.5
	}
	for i, bad := range []float32{0, nan, inf, -inf, nan} {
		at := 9
		if i == 4 {
			at = 16 // behind the greatest of its lane
		}
		for _, k := range allKernels(t) {
			t.Run(k.Name(), func(t *testing.T) {
				s := slices.Clone(base)
				s[at] = bad
				greater := func(a, b float32) float32 {
					if a > b {
						return a
					}
					return b
				}
				want, tops := slices.Clone(s), slices.Repeat([]float32{-inf}, 16)
				for i, v := range s {
					tops[i%16] = greater(v, tops[i%16])
				}
				m := exactTree(tops, greater)
				lanes := make([]float32, 16)
				for i, v := range want {
					want[i] = exactExp((v - m) * 0.9)
					lanes[i%16] += want[i]
				}
				top, sum := k.softmax(s, 0.9)
				checkRow(t, "weights", s, want)
				checkRow(t, "maximum and sum", []float32{top, sum}, []float32{m, exactTree(lanes, plus)})
			})
		}
	}
}

// exactF16 rounds through package big: binary16 has 11 bits, and 10 fewer for
// each halving below 2^-14.
func exactF16(x float32) uint16 {
	switch {
	case x != x:
		return 0
	case x > 65504:
		x = 65504
	case x < -65504:
		x = -65504
	}
	sign := uint16(0)
	if math.Signbit(float64(x)) {
		sign = 0x8000
		x = -x
	}
	if x == 0 {
		return sign
	}
	exp := max(math.Ilogb(float64(x)), -14)
	// x in units of the last place, rounded to an integer to nearest even.
	u := new(big.Float).SetMantExp(big.NewFloat(float64(x)), 10-exp)
	f, _ := u.Float64()
	n := uint16(math.RoundToEven(f))
	if n >= 1<<11 {
		n >>= 1
		exp++
	}
	if n >= 1<<10 {
		n = n - 1<<10 + uint16(exp+15)<<10
	}
	return sign | n
}

func TestF16ConversionIsExact(t *testing.T) {
	var bits []uint32
	for h := range 1 << 16 {
		if h&0x7fff >= 0x7c00 {
			continue
		}
		f := F16Float(uint16(h))
		if F16Bits(f) != uint16(h) {
			t.Fatalf("%#x comes back as %#x", h, F16Bits(f))
		}
		u := math.Float32bits(f)
		for _, d := range []uint32{0x1000, 0xfff, 0x1001} { // beside the midpoints
			bits = append(bits, u+d, u-d)
		}
	}
	r := newSource(24)
	for range 1 << 17 {
		bits = append(bits, r.Uint32())
	}
	for len(bits)%16 != 0 {
		bits = append(bits, 0)
	}
	x, h := make([]float32, len(bits)), make([]byte, 2*len(bits))
	for i, b := range bits {
		x[i] = math.Float32frombits(b)
	}
	for _, k := range allKernels(t) {
		t.Run(k.Name(), func(t *testing.T) {
			k.ToF16(h, x)
			for i, v := range x {
				if got := binary.LittleEndian.Uint16(h[2*i:]); got != exactF16(v) {
					t.Fatalf("%v (%#x) is %#x, want %#x", v, bits[i], got, exactF16(v))
				}
			}
		})
	}
}

func TestExpMatchesTheReference(t *testing.T) {
	r := newSource(25)
	for range 100000 {
		x := float32(r.Float64()*150 - 70)
		if got, want := exp32(x), exactExp(x); !sameBits(got, want) {
			t.Fatalf("exp(%v) = %v, want %v", x, got, want)
		}
		if got, want := float64(exp32(x)), math.Exp(float64(x)); x >= -64 && math.Abs(got-want) > 3e-7*want {
			t.Fatalf("exp(%v) = %v, math has %v", x, got, want)
		}
	}
}

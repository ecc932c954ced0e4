package compute

import (
	"errors"
	"fmt"
	"math"
	"os"
	"runtime"
	"slices"
	"strings"
	"testing"
)

var allTypes = []Type{F32, F16, Q4_0, Q4_1, Q8_0}

func TestFMAIsExact(t *testing.T) {
	r := newSource(1)
	check := func(a, b, c float32) {
		t.Helper()
		if got, want := fma32(a, b, c), exactFMA(a, b, c); !sameBits(got, want) {
			t.Fatalf("%v * %v + %v = %v, want %v", a, b, c, got, want)
		}
		row, rows := []float32{c}, []float32{c}
		fmaRow(row, []float32{a}, b)
		fmaRows(rows, []float32{a}, []float32{b})
		if want := fma32(a, b, c); !sameBits(row[0], want) || !sameBits(rows[0], want) {
			t.Fatalf("%v * %v + %v = %v and %v in rows, want %v", a, b, c, row[0], rows[0], want)
		}
	}
	// The sum lies beside a float32 midpoint, where the float64 one is on it.
	check(float32(1+1.0/(1<<23)), float32(1-1.0/(1<<23))/(1<<24), float32(1+1.0/(1<<23)))
	// The same for any exponent, subnormal results too: c has an odd last bit
	// and a*b is just below or just above half of it.
	for e := -149; e < 127; e++ {
		unit := math.Ldexp(1, max(e-23, -149))
		c := float32(math.Ldexp(1+r.Float64(), e))
		if math.Mod(float64(c)/unit, 2) == 0 {
			c += float32(unit)
		}
		for _, h := range []float32{1 - 0x1p-23, 1 + 0x1p-23} {
			_, x := math.Frexp(unit)
			a, b := float32(math.Ldexp(1+0x1p-23, (x-2)/2)), h*float32(math.Ldexp(1, x-2-(x-2)/2))
			check(a, b, c)
			check(-a, b, c)
			check(a, b, -c)
		}
	}
	for range 200000 {
		x := r.odd(3)
		check(x[0], x[1], x[2])
		// Any bits, so sums that cancel, overflow and underflow.
		a, b := math.Float32frombits(r.Uint32()), math.Float32frombits(r.Uint32())
		check(a, b, math.Float32frombits(r.Uint32()))
		// A sum near a midpoint: c has one bit at half of a*b's last place.
		check(x[0], float32(1), float32(math.Ldexp(float64(x[0]), -24-r.IntN(3))))
		check(a, b, -float32(float64(a)*float64(b)))
	}
}

func TestProductsMatchTheReference(t *testing.T) {
	r := newSource(2)
	for _, typ := range allTypes {
		for _, s := range []struct{ rows, cols, tokens int }{
			{1, 32, 1}, {16, 32, 2}, {17, 64, 3}, {48, 96, 5}, {33, 160, 8}, {16, 32, 15}, {31, 64, 16},
			{20, 64, 17}, {16, 96, 23}, {16, 32, 41}, {18, 4, 3}, {5, 43, 9}, {16, 1, 1}, {7, 6, 16},
		} {
			if s.cols%typ.BlockSize() != 0 {
				continue
			}
			src := r.tensor(typ, s.rows, s.cols)
			x := r.odd(s.tokens * s.cols)
			if typ.Quantized() {
				clear(x[:32]) // an all-zero block
			}
			want := make([]float32, s.tokens*s.rows)
			for i := range s.tokens {
				for row := range s.rows {
					want[i*s.rows+row] = exactDot(typ, src[row*typ.RowBytes(s.cols):], s.cols, x[i*s.cols:][:s.cols])
				}
			}
			t.Run(fmt.Sprintf("%v %dx%d %d tokens", typ, s.rows, s.cols, s.tokens), func(t *testing.T) {
				for _, k := range allKernels(t) {
					t.Run(k.Name(), func(t *testing.T) {
						m := packed(t, typ, s.rows, s.cols, src)
						got := multiply(k, m, x, s.tokens)
						for i := range s.tokens {
							checkRow(t, fmt.Sprintf("token %d", i), got[i*m.Padded():][:s.rows], want[i*s.rows:][:s.rows])
							checkRow(t, fmt.Sprintf("padding of token %d", i), got[i*m.Padded():][s.rows:m.Padded()], make([]float32, m.Padded()-s.rows))
						}
					})
				}
			})
		}
	}
}

func packed(tb testing.TB, typ Type, rows, cols int, src []byte) *Matrix {
	tb.Helper()
	m, err := NewMatrix(typ, rows, cols, make([]byte, PackedBytes(typ, rows, cols)))
	if err != nil {
		tb.Fatal(err)
	}
	if err := m.Pack(0, Rows{Type: typ, Data: src, Cols: cols, Count: rows}); err != nil {
		tb.Fatal(err)
	}
	return m
}

// multiply returns m times tokens, in two calls of different groups, padded.
func multiply(k *Kernels, m *Matrix, x []float32, tokens int) []float32 {
	form := Float
	if m.Cols%32 == 0 {
		form |= Int8
	}
	a := NewAct(tokens+3, m.Cols, form)
	a.Reset(tokens)
	for i := range tokens {
		k.Set(a, i, x[i*m.Cols:])
	}
	out := make([]float32, tokens*m.Padded())
	g := m.Groups() / 2
	k.Mul(m, out, m.Padded(), a, g, m.Groups())
	k.Mul(m, out, m.Padded(), a, 0, g)
	return out
}

func TestRangesOfTokensAgree(t *testing.T) {
	r := newSource(41)
	for _, typ := range allTypes {
		const rows, cols, tokens = 40, 64, 53
		m := packed(t, typ, rows, cols, r.tensor(typ, rows, cols))
		x := r.floats(tokens * cols)
		for _, k := range allKernels(t) {
			want := multiply(k, m, x, tokens)
			a := NewAct(tokens, cols, FormOf(typ))
			a.Reset(tokens)
			for i := range tokens {
				k.Set(a, i, x[i*cols:])
			}
			for _, v := range [][2]int{{0, 16}, {0, 53}, {16, 48}, {32, 53}, {48, 53}, {48, 49}} {
				n := v[1] - v[0]
				out := make([]float32, n*m.Padded())
				k.MulTokens(m, out, m.Padded(), a, v[0], v[1], 0, m.Groups())
				checkRow(t, fmt.Sprintf("%s %v tokens %v", k.Name(), typ, v), out, want[v[0]*m.Padded():v[1]*m.Padded()])
			}
		}
	}
}

func TestNaNAndInfinityReachTheOutput(t *testing.T) {
	r := newSource(3)
	inf := float32(math.Inf(1))
	for _, typ := range allTypes {
		src := r.tensor(typ, 16, 64)
		for _, bad := range []float32{inf, -inf, float32(math.NaN())} {
			x := r.floats(3 * 64)
			x[64+33] = bad
			for _, k := range allKernels(t) {
				t.Run(k.Name(), func(t *testing.T) {
					got := multiply(k, packed(t, typ, 16, 64, src), x, 3)
					for i := range 3 {
						for row := range 16 {
							want := exactDot(typ, src[row*typ.RowBytes(64):], 64, x[i*64:][:64])
							if !sameBits(got[i*16+row], want) {
								t.Fatalf("%v %v token %d row %d: %v, want %v", typ, bad, i, row, got[i*16+row], want)
							}
						}
					}
				})
			}
		}
	}
}

// A token's outputs must not depend on the tokens beside it.
func TestTileSizesAgree(t *testing.T) {
	r := newSource(4)
	for _, typ := range allTypes {
		src := r.tensor(typ, 48, 576)
		x := r.floats(23 * 576)
		for _, k := range allKernels(t) {
			t.Run(k.Name(), func(t *testing.T) {
				m := packed(t, typ, 48, 576, src)
				all := multiply(k, m, x, 23)
				for _, n := range []int{1, 2, 3, 7, 12, 16} {
					for i := 0; i+n <= 23; i += n {
						checkRow(t, fmt.Sprintf("%v: %d tokens from %d", typ, n, i), multiply(k, m, x[i*576:], n), all[i*48:(i+n)*48])
					}
				}
			})
		}
	}
}

// The assembly must be tested wherever the CPU has the instructions.
func TestEveryPathOfThisCPUIsTested(t *testing.T) {
	if runtime.GOARCH == "amd64" {
		info, err := os.ReadFile("/proc/cpuinfo")
		if err != nil {
			t.Fatal(err)
		}
		flags := strings.Fields(string(info))
		for name, needs := range map[string][]string{"avx512": {"avx512_vnni"}, "avx2": {"avx2", "fma", "f16c"}} {
			has := true
			for _, f := range needs {
				has = has && slices.Contains(flags, f)
			}
			if has != slices.Contains(Names(), name) {
				t.Fatalf("kernels are %v, which is not what /proc/cpuinfo says", Names())
			}
		}
	}
	k, err := Select("auto")
	if err != nil || k.Name() != Names()[0] {
		t.Fatalf("auto is %v, %v; want %s", k, err, Names()[0])
	}
	if _, err := Select("abacus"); !errors.Is(err, ErrNoKernels) {
		t.Fatalf("selecting abacus: %v", err)
	}
}

func TestRowsCanBePermutedStackedAndCut(t *testing.T) {
	r := newSource(5)
	k := portable()
	for _, typ := range allTypes {
		a, b := r.tensor(typ, 20, 128), r.tensor(typ, 24, 128)
		m, err := NewMatrix(typ, 27, 64, make([]byte, PackedBytes(typ, 27, 64)))
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range []struct {
			at int
			r  Rows
		}{
			{0, Rows{Type: typ, Data: a, Cols: 128, Col: 32, Count: 20, Index: func(i int) int { return i/2 + i%2*10 }}},
			{20, Rows{Type: typ, Data: b, Cols: 128, Col: 32, Count: 7, Index: func(i int) int { return 3 + i }}},
		} {
			if err := m.Pack(p.at, p.r); err != nil {
				t.Fatal(err)
			}
		}
		x := r.floats(64)
		got := multiply(k, m, x, 1)
		for row := range 27 {
			src, i := a, row/2+row%2*10
			if row >= 20 {
				src, i = b, row-20+3
			}
			want := exactDot(typ, src[i*typ.RowBytes(128)+typ.RowBytes(32):], 64, x)
			checkRow(t, fmt.Sprintf("%v row %d", typ, row), got[row:row+1], []float32{want})
		}
	}
}

func TestAnyTypePacksIntoF32(t *testing.T) {
	r := newSource(6)
	for _, typ := range allTypes {
		src := r.tensor(typ, 17, 96)
		m, err := NewMatrix(F32, 17, 96, make([]byte, PackedBytes(F32, 17, 96)))
		if err != nil {
			t.Fatal(err)
		}
		if err := m.Pack(0, Rows{Type: typ, Data: src, Cols: 96, Count: 17}); err != nil {
			t.Fatal(err)
		}
		x := r.floats(96)
		w := make([]float32, 96)
		for _, k := range allKernels(t) {
			t.Run(k.Name(), func(t *testing.T) {
				got := multiply(k, m, x, 1)
				for row := range 17 {
					Dequantize(w, typ, src[row*typ.RowBytes(96):])
					var want float32
					for c, v := range w {
						want = exactFMA(v, x[c], want)
					}
					checkRow(t, fmt.Sprintf("%v row %d", typ, row), got[row:row+1], []float32{want})
				}
			})
		}
	}
}

func TestShapesAreChecked(t *testing.T) {
	mem := make([]byte, 1<<16)
	for _, c := range []struct {
		t          Type
		rows, cols int
	}{{Q8_0, 16, 33}, {Q4_0, 0, 32}, {F32, 16, -1}, {Type(9), 16, 32}, {F32, 1 << 12, 32}} {
		if _, err := NewMatrix(c.t, c.rows, c.cols, mem); !errors.Is(err, ErrShape) {
			t.Errorf("%v %d by %d: %v", c.t, c.rows, c.cols, err)
		}
	}
	m, err := NewMatrix(Q8_0, 16, 64, mem)
	if err != nil {
		t.Fatal(err)
	}
	data := make([]byte, 16*Q8_0.RowBytes(64))
	for _, c := range []struct {
		at int
		r  Rows
	}{
		{0, Rows{Type: Q4_0, Data: data, Cols: 64, Count: 16}},
		{1, Rows{Type: Q8_0, Data: data, Cols: 64, Count: 16}},
		{0, Rows{Type: Q8_0, Data: data, Cols: 96, Col: 16, Count: 1}},
		{0, Rows{Type: Q8_0, Data: data, Cols: 64, Col: 32, Count: 1}},
		{0, Rows{Type: Q8_0, Data: data[:100], Cols: 64, Count: 16}},
		{0, Rows{Type: Q8_0, Data: data, Cols: 64, Count: 1, Index: func(int) int { return 16 }}},
	} {
		if err := m.Pack(c.at, c.r); !errors.Is(err, ErrShape) {
			t.Errorf("packing %+v: %v", c.r.Type, err)
		}
	}
}

func TestProductsWithoutColumnsAreZero(t *testing.T) {
	m, err := NewMatrix(Q8_0, 17, 0, nil)
	if err != nil {
		t.Fatal(err)
	}
	a := NewAct(4, 0, Int8)
	a.Reset(2)
	k := portable()
	k.Set(a, 0, nil)
	out := slices.Repeat([]float32{7}, 2*32)
	k.Mul(m, out, 32, a, 0, 2)
	checkRow(t, "outputs", out, make([]float32, 64))
}

func TestNothingAllocates(t *testing.T) {
	r := newSource(7)
	for _, k := range allKernels(t) {
		t.Run(k.Name(), func(t *testing.T) {
			m := packed(t, Q4_1, 32, 64, r.tensor(Q4_1, 32, 64))
			a := NewAct(5, 64, Int8)
			a.Reset(5)
			out, x, tile := make([]float32, 5*32), r.floats(20*64), make([]byte, 2*16*64*2)
			sc := NewAttnScratch(64)
			tiles := []int64{0}
			if n := testing.AllocsPerRun(10, func() {
				for i := range 5 {
					k.Set(a, i, x)
				}
				k.Mul(m, out, 32, a, 0, 2)
				k.RMSNorm(x[:64], x[:64], x[64:128], 1e-5)
				k.Rope(x[:64], x[64:96], x[96:128])
				k.SiluMul(x[:70], x[70:140])
				k.WriteK(tile, F16, 64, 3, 2, x, 64)
				k.WriteK(tile, F16, 64, 0, 16, x, 64)
				k.WriteV(tile[2048:], F16, 64, 3, 2, x, 64)
				k.Attend(&Attn{Q: x, QStride: 64, Out: x[640:], OutStride: 64, Tokens: 3, Group: 1, Dim: 64, Pos: 4, Scale: 1, KV: tile, Tiles: tiles, Elem: F16}, sc)
			}); n != 0 {
				t.Fatalf("%v allocations", n)
			}
		})
	}
}

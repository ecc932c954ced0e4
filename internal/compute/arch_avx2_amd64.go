package compute

import "unsafe"

// avx2Name names the kernels for AVX2 with FMA and F16C.
const avx2Name = "avx2"

// avx2 returns the kernels in AVX2 assembly. They take at most 4 tokens or query
// rows at once, and 3 rows of weighted values; wider tiles are computed in parts.
func avx2() *Kernels {
	return &Kernels{
		name: avx2Name,
		mul: [numTypes]func(m *Matrix, out []float32, stride int, a *Act, t0, t, n, g0, g1 int){
			F32: mulFloatAVX2, F16: mulFloatAVX2, Q4_0: mulQuantAVX2, Q4_1: mulQuantAVX2, Q8_0: mulQuantAVX2,
		},
		quantize: func(a *Act, t0, t, i int, x []float32) {
			nb := a.Cols / quantBlock
			c := t0*nb + i
			quantizeRowAVX2(&x[0], nb, &a.q[c*quantBlock], &a.da[c], &a.sum8[c], &a.sum4[c], &a.sumf[c], t)
		},
		addParts: func(x, s0, s1, s2, s3 []float32) {
			addPartsRowAVX2(&x[0], &s0[0], &s1[0], &s2[0], &s3[0], len(x)/Lanes)
		},
		sumSq: func(x []float32) (lanes [Lanes]float32) {
			sumSqRowAVX2(&x[0], len(x)/Lanes, &lanes[0])
			return lanes
		},
		scaleMul: func(out, x, w []float32, scale float32) {
			scaleMulRowAVX2(&out[0], &x[0], &w[0], len(x)/Lanes, scale)
		},
		rope:    func(x, y, cos, sin []float32) { ropeRowAVX2(&x[0], &y[0], &cos[0], &sin[0], len(x)/Lanes) },
		siluMul: func(gate, up []float32) { siluMulRowAVX2(&gate[0], &up[0], len(gate)/Lanes) },
		toF16:   func(dst []byte, x []float32) { halfRowAVX2(&dst[0], &x[0], len(x)/Lanes) },
		softmax: func(s []float32, scale float32) (top, sum float32) {
			return softmaxRowAVX2(&s[0], len(s)/Lanes, scale)
		},
		qk: qkAVX2,
		pv: pvAVX2,
		writeK: func(dst []byte, dim, slot, n int, x []float32, stride int) {
			writeK(false, dst, dim, slot, n, x, stride)
		},
	}
}

// mulQuantAVX2 goes through the tile in parts within each group, so that its
// weights are in a near cache when the next part reads them.
func mulQuantAVX2(m *Matrix, out []float32, stride int, a *Act, t0, t, n, g0, g1 int) {
	nb := m.Cols / quantBlock
	wb, db := groupBytes(m.Type, m.Cols)
	var f func(w, d *byte, nb, ng int, q *int8, da *float32, sum *byte, out *float32, ostride, n, t int)
	switch m.Type {
	case Q8_0:
		f = pick4(t, mulQ8x1AVX2, mulQ8x2AVX2, mulQ8x4AVX2)
	case Q4_0:
		f = pick4(t, mulQ40x1AVX2, mulQ40x2AVX2, mulQ40x4AVX2)
	default:
		f = pick4(t, mulQ41x1AVX2, mulQ41x2AVX2, mulQ41x4AVX2)
	}
	groups := g1 - g0
	if t > 4 {
		groups = 1
	}
	for g := g0; g < g1; g += groups {
		for i := 0; i < n; i += 4 {
			c := t0*nb + i
			f(&m.w[g*wb], &m.d[g*db], nb, groups, &a.q[c*quantBlock], &a.da[c], sums(m.Type, a, c),
				&out[i*stride+g*Lanes], stride, min(4, n-i), t)
		}
	}
}

// sums returns where the sums of block c lie that products with type t take.
func sums(t Type, a *Act, c int) *byte {
	switch t {
	case Q8_0:
		return (*byte)(unsafe.Pointer(&a.sum8[c]))
	case Q4_0:
		return (*byte)(unsafe.Pointer(&a.sum4[c]))
	default:
		return (*byte)(unsafe.Pointer(&a.sumf[c]))
	}
}

func mulFloatAVX2(m *Matrix, out []float32, stride int, a *Act, t0, t, n, g0, g1 int) {
	wb, _ := groupBytes(m.Type, m.Cols)
	f := pick4(t, mulF32x1AVX2, mulF32x2AVX2, mulF32x4AVX2)
	if m.Type == F16 {
		f = pick4(t, mulF16x1AVX2, mulF16x2AVX2, mulF16x4AVX2)
	}
	groups := g1 - g0
	if t > 4 {
		groups = 1
	}
	for g := g0; g < g1; g += groups {
		for i := 0; i < n; i += 4 {
			f(&m.w[g*wb], m.Cols, groups, &a.x[t0*m.Cols+i], &out[i*stride+g*Lanes], stride, min(4, n-i), t)
		}
	}
}

// pick4 returns the kernel for tiles of t tokens.
func pick4[F any](t int, f1, f2, f4 F) F {
	switch t {
	case 1:
		return f1
	case 2:
		return f2
	}
	return f4
}

func qkAVX2(j *attnJob) {
	if j.dim%Lanes != 0 {
		qkGo(j)
		return
	}
	f := pick4(j.rows, qkF32x1AVX2, qkF32x2AVX2, qkF32x4AVX2)
	if j.elem == F16 {
		f = pick4(j.rows, qkF16x1AVX2, qkF16x2AVX2, qkF16x4AVX2)
	}
	ss := Lanes * len(j.offs)
	for r := 0; r < j.rows; r += 4 {
		f(&j.q[r], j.dim, &j.k[0], &j.offs[0], len(j.offs), &j.s[r*ss], ss, j.rows)
	}
}

func pvAVX2(j *attnJob, row, rows int) {
	if j.dim%Lanes != 0 {
		pvGo(j, row, rows)
		return
	}
	ss, size := Lanes*len(j.offs), j.elem.BlockBytes()
	for d := 0; d < j.dim; {
		w := min(32, j.dim-d)
		for r := row; r < row+rows; {
			n := min(3, row+rows-r)
			var f pvFunc
			switch {
			case j.elem == F16 && w == 32:
				f = pick3(n, pvF16x1x32AVX2, pvF16x2x32AVX2, pvF16x3x32AVX2)
			case j.elem == F16:
				f = pick3(n, pvF16x1x16AVX2, pvF16x2x16AVX2, pvF16x3x16AVX2)
			case w == 32:
				f = pick3(n, pvF32x1x32AVX2, pvF32x2x32AVX2, pvF32x3x32AVX2)
			default:
				f = pick3(n, pvF32x1x16AVX2, pvF32x2x16AVX2, pvF32x3x16AVX2)
			}
			f(&j.s[r*ss], ss, &j.v[d*size], &j.offs[0], j.keys, j.dim, &j.o[r*j.dim+d], j.dim)
			r += n
		}
		d += w
	}
}

// pick3 returns the kernel for n rows.
func pick3(n int, f1, f2, f3 pvFunc) pvFunc {
	switch n {
	case 1:
		return f1
	case 2:
		return f2
	}
	return f3
}

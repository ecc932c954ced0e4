package compute

import "golang.org/x/sys/cpu"

// avx512Name names the kernels for AVX-512 with VNNI.
const avx512Name = "avx512"

// archKernels returns the assembly kernels that this CPU and system run, the
// fastest first. The feature flags are set only where CPUID has the
// instructions and XGETBV says that the system saves their registers.
func archKernels() []*Kernels {
	var all []*Kernels
	if cpu.X86.HasAVX512F && cpu.X86.HasAVX512BW && cpu.X86.HasAVX512VL && cpu.X86.HasAVX512DQ &&
		cpu.X86.HasAVX512VNNI && cpu.X86.HasFMA {
		all = append(all, avx512())
	}
	if cpu.X86.HasAVX2 && cpu.X86.HasFMA && cpu.X86.HasF16C {
		all = append(all, avx2())
	}
	return all
}

// avx512 returns the kernels in AVX-512 assembly.
func avx512() *Kernels {
	return &Kernels{
		name: avx512Name,
		mul: [numTypes]func(m *Matrix, out []float32, stride int, a *Act, t0, t, n, g0, g1 int){
			F32: mulFloatAVX, F16: mulFloatAVX, Q4_0: mulQuantAVX, Q4_1: mulQuantAVX, Q8_0: mulQuantAVX,
		},
		quantize: quantizeAVX,
		addParts: func(x, s0, s1, s2, s3 []float32) {
			addPartsRow(&x[0], &s0[0], &s1[0], &s2[0], &s3[0], len(x)/Lanes)
		},
		sumSq: func(x []float32) (lanes [Lanes]float32) {
			sumSqRow(&x[0], len(x)/Lanes, &lanes[0])
			return lanes
		},
		scaleMul: func(out, x, w []float32, scale float32) {
			scaleMulRow(&out[0], &x[0], &w[0], len(x)/Lanes, scale)
		},
		rope:    func(x, y, cos, sin []float32) { ropeRow(&x[0], &y[0], &cos[0], &sin[0], len(x)/Lanes) },
		siluMul: func(gate, up []float32) { siluMulRow(&gate[0], &up[0], len(gate)/Lanes) },
		toF16:   func(dst []byte, x []float32) { halfRow(&dst[0], &x[0], len(x)/Lanes) },
		softmax: func(s []float32, scale float32) (top, sum float32) { return softmaxRow(&s[0], len(s)/Lanes, scale) },
		qk:      qkAVX,
		pv:      pvAVX,
		writeK: func(dst []byte, dim, slot, n int, x []float32, stride int) {
			writeK(true, dst, dim, slot, n, x, stride)
		},
	}
}

// writeK transposes 16 tokens at once and scatters fewer one by one, with the
// kernels of AVX-512 where wide is set and else of AVX2. (By a function value its
// buffer would escape.)
func writeK(wide bool, dst []byte, dim, slot, n int, x []float32, stride int) {
	w := whole(dim)
	if w == 0 {
		writeKGo(dst, dim, slot, n, x, stride)
		return
	}
	if n == Lanes {
		if wide {
			transposeF16(&dst[0], w/Lanes, &x[0], stride)
		} else {
			transposeF16AVX2(&dst[0], w/Lanes, &x[0], stride)
		}
		if w < dim {
			writeKGo(dst[w*Lanes*2:], dim-w, 0, n, x[w:], stride)
		}
		return
	}
	var buf [64 * 2]byte
	for t := range n {
		row := x[t*stride:][:dim]
		for d := 0; d < w; d += 64 {
			c := min(64, w-d)
			if wide {
				halfRow(&buf[0], &row[d], c/Lanes)
			} else {
				halfRowAVX2(&buf[0], &row[d], c/Lanes)
			}
			col := dst[(d*Lanes+slot+t)*2:]
			for i := range c {
				col[i*Lanes*2], col[i*Lanes*2+1] = buf[2*i], buf[2*i+1]
			}
		}
	}
	if w < dim {
		writeKGo(dst[w*Lanes*2:], dim-w, slot, n, x[w:], stride)
	}
}

func quantizeAVX(a *Act, t0, t, i int, x []float32) {
	nb := a.Cols / quantBlock
	c := t0*nb + i
	quantizeRow(&x[0], nb, &a.q[c*quantBlock], &a.da[c], &a.sum8[c], &a.sum4[c], &a.sumf[c], t)
}

type mulQuantFunc = func(w, d *byte, nb, ng int, q *int8, da *float32, sum *byte, out *float32, ostride, n int)

func mulQuantAVX(m *Matrix, out []float32, stride int, a *Act, t0, t, n, g0, g1 int) {
	nb := m.Cols / quantBlock
	wb, db := groupBytes(m.Type, m.Cols)
	c := t0 * nb
	var f mulQuantFunc
	switch m.Type {
	case Q8_0:
		f = pick(t, mulQ8x1, mulQ8x2, mulQ8x4, mulQ8x8, mulQ8x16)
	case Q4_0:
		f = pick(t, mulQ40x1, mulQ40x2, mulQ40x4, mulQ40x8, mulQ40x16)
	default:
		f = pick(t, mulQ41x1, mulQ41x2, mulQ41x4, mulQ41x8, mulQ41x16)
	}
	f(&m.w[g0*wb], &m.d[g0*db], nb, g1-g0, &a.q[c*quantBlock], &a.da[c], sums(m.Type, a, c),
		&out[g0*Lanes], stride, n)
}

func mulFloatAVX(m *Matrix, out []float32, stride int, a *Act, t0, t, n, g0, g1 int) {
	wb, _ := groupBytes(m.Type, m.Cols)
	var f func(w *byte, cols, ng int, x, out *float32, ostride, n int)
	if m.Type == F16 {
		f = pick(t, mulF16x1, mulF16x2, mulF16x4, mulF16x8, mulF16x16)
	} else {
		f = pick(t, mulF32x1, mulF32x2, mulF32x4, mulF32x8, mulF32x16)
	}
	f(&m.w[g0*wb], m.Cols, g1-g0, &a.x[t0*m.Cols], &out[g0*Lanes], stride, n)
}

// pick returns the kernel for a tile of t tokens.
func pick[F any](t int, f1, f2, f4, f8, f16 F) F {
	switch t {
	case 1:
		return f1
	case 2:
		return f2
	case 4:
		return f4
	case 8:
		return f8
	}
	return f16
}

func qkAVX(j *attnJob) {
	if j.dim%Lanes != 0 {
		qkGo(j)
		return
	}
	var f func(q *float32, d int, base *byte, offs *int64, tiles int, s *float32, sstride int)
	if j.elem == F16 {
		f = pick(j.rows, qkF16x1, qkF16x2, qkF16x4, qkF16x8, qkF16x16)
	} else {
		f = pick(j.rows, qkF32x1, qkF32x2, qkF32x4, qkF32x8, qkF32x16)
	}
	f(&j.q[0], j.dim, &j.k[0], &j.offs[0], len(j.offs), &j.s[0], Lanes*len(j.offs))
}

type pvFunc = func(p *float32, pstride int, base *byte, offs *int64, n int, vstride int, out *float32, ostride int)

func pvAVX(j *attnJob, row, rows int) {
	if j.dim%Lanes != 0 {
		pvGo(j, row, rows)
		return
	}
	ss, size := Lanes*len(j.offs), j.elem.BlockBytes()
	for d := 0; d < j.dim; {
		w := 64
		for w > j.dim-d {
			w /= 2
		}
		for r := row; r < row+rows; {
			f, n := pvPick(j.elem, w, row+rows-r)
			f(&j.s[r*ss], ss, &j.v[d*size], &j.offs[0], j.keys, j.dim, &j.o[r*j.dim+d], j.dim)
			r += n
		}
		d += w
	}
}

// pvPick returns the kernel for w dimensions of as many rows as it can take,
// and how many these are.
func pvPick(elem Type, w, rows int) (f pvFunc, n int) {
	n = min(rows, 6)
	if n == 5 {
		n = 3
	}
	switch {
	case elem == F16 && w == 64:
		return pickRows(n, pvF16x1x64, pvF16x2x64, pvF16x3x64, pvF16x4x64, pvF16x6x64), n
	case elem == F16 && w == 32:
		return pickRows(n, pvF16x1x32, pvF16x2x32, pvF16x3x32, pvF16x4x32, pvF16x6x32), n
	case elem == F16:
		return pickRows(n, pvF16x1x16, pvF16x2x16, pvF16x3x16, pvF16x4x16, pvF16x6x16), n
	case w == 64:
		return pickRows(n, pvF32x1x64, pvF32x2x64, pvF32x3x64, pvF32x4x64, pvF32x6x64), n
	case w == 32:
		return pickRows(n, pvF32x1x32, pvF32x2x32, pvF32x3x32, pvF32x4x32, pvF32x6x32), n
	}
	return pickRows(n, pvF32x1x16, pvF32x2x16, pvF32x3x16, pvF32x4x16, pvF32x6x16), n
}

// pickRows returns the kernel for n rows.
func pickRows(n int, f1, f2, f3, f4, f6 pvFunc) pvFunc {
	switch n {
	case 1:
		return f1
	case 2:
		return f2
	case 3:
		return f3
	case 4:
		return f4
	}
	return f6
}

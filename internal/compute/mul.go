package compute

import "math"

// Mul computes out[t*stride+r] = row r of m times token t of a, for every token
// and the rows of groups [g0, g1), rows of the padding (whose outputs are 0)
// included: stride must be at least m.Padded(). Different groups may be
// computed at the same time.
//
// A group of weights is read from memory once for all tokens.
func (k *Kernels) Mul(m *Matrix, out []float32, stride int, a *Act, g0, g1 int) {
	n := a.n
	if g0 >= g1 || n == 0 {
		return
	}
	if m.Cols != a.Cols || a.form&FormOf(m.Type) == 0 || g0 < 0 || g1 > m.Groups() || stride < m.Padded() {
		panic("compute: product of a matrix and activations that do not fit")
	}
	out = out[:(n-1)*stride+g1*Lanes]
	if m.Cols == 0 {
		for t := range n {
			clear(out[t*stride+g0*Lanes:][:(g1-g0)*Lanes])
		}
		return
	}
	f := k.mul[m.Type]
	if n <= Lanes {
		f(m, out, stride, a, 0, a.tile(0), n, g0, g1)
		return
	}
	for g := g0; g < g1; g++ {
		for t0 := 0; t0 < n; t0 += Lanes {
			f(m, out, stride, a, t0, a.tile(t0), min(Lanes, n-t0), g, g+1)
		}
	}
}

func mulQuantGo(m *Matrix, out []float32, stride int, a *Act, t0, t, n, g0, g1 int) {
	wb, db := groupBytes(m.Type, m.Cols)
	for g := g0; g < g1; g++ {
		for i := range n {
			o := out[(t0+i)*stride+g*Lanes:][:Lanes]
			mulQuantRow(m.Type, o, m.w[g*wb:][:wb], m.d[g*db:][:db], a, t0*(m.Cols/quantBlock)+i, t)
		}
	}
}

// mulQuantRow computes a group's outputs for one token, whose blocks are at
// cell, cell+t, ... of a.
func mulQuantRow(typ Type, out []float32, w, d []byte, a *Act, cell, t int) {
	var acc, scale, dot [Lanes]float32
	for len(d) > 0 {
		q := (*[quantBlock]int8)(a.q[cell*quantBlock:])
		da := a.da[cell]
		if typ == Q4_1 {
			loadRow(scale[:], F16, d[32:])
			fmaRow(acc[:], scale[:], a.sumf[cell])
		}
		for l := range dot {
			switch typ {
			case Q8_0:
				dot[l] = float32(a.sum8[cell]+dotBytes(w[4*l:], q)) * da
			case Q4_0:
				dot[l] = float32(a.sum4[cell]+dotNibbles(w[4*l:], q)) * da
			default:
				dot[l] = float32(dotNibbles(w[4*l:], q)) * da
			}
		}
		loadRow(scale[:], F16, d)
		fmaRows(acc[:], scale[:], dot[:])
		switch typ {
		case Q8_0:
			w, d = w[512:], d[32:]
		case Q4_0:
			w, d = w[256:], d[32:]
		default:
			w, d = w[256:], d[64:]
		}
		cell += t
	}
	copy(out, acc[:])
}

// dotBytes returns the product of a lane's 32 unsigned bytes, 4 in every 64,
// with q.
func dotBytes(w []byte, q *[quantBlock]int8) int32 {
	var s int32
	for j := range 8 {
		v := (*[4]byte)(w[64*j:])
		p := (*[4]int8)(q[4*j:])
		s += int32(v[0])*int32(p[0]) + int32(v[1])*int32(p[1]) + int32(v[2])*int32(p[2]) + int32(v[3])*int32(p[3])
	}
	return s
}

// dotNibbles is dotBytes for nibbles: the low ones are columns 0 to 15.
func dotNibbles(w []byte, q *[quantBlock]int8) int32 {
	var s int32
	for j := range 4 {
		v := (*[4]byte)(w[64*j:])
		p, r := (*[4]int8)(q[4*j:]), (*[4]int8)(q[16+4*j:])
		for c := range 4 {
			s += int32(v[c]&15)*int32(p[c]) + int32(v[c]>>4)*int32(r[c])
		}
	}
	return s
}

func mulFloatGo(m *Matrix, out []float32, stride int, a *Act, t0, t, n, g0, g1 int) {
	wb, _ := groupBytes(m.Type, m.Cols)
	row := Lanes * m.Type.BlockBytes()
	for g := g0; g < g1; g++ {
		var acc [Lanes][Lanes]float32
		var v [Lanes]float32
		w := m.w[g*wb:][:wb]
		for c := range m.Cols {
			loadRow(v[:], m.Type, w[c*row:])
			for i, x := range a.x[t0*m.Cols+c*t:][:n] {
				fmaRow(acc[i][:], v[:], x)
			}
		}
		for i := range n {
			copy(out[(t0+i)*stride+g*Lanes:], acc[i][:])
		}
	}
}

// leastMax is the least scale numerator of a block, 2^-100: the scale of an
// all-zero block must be no denormal, whose products take microcode assists.
const leastMax = 1.0 / (1 << 100)

func quantizeGo(a *Act, t0, t, i int, x []float32) {
	cell := t0*(a.Cols/quantBlock) + i
	for ; len(x) > 0; x = x[quantBlock:] {
		top := math.Float32bits(leastMax)
		for _, v := range x[:quantBlock] {
			top = max(top, math.Float32bits(v)&0x7fffffff)
		}
		amax := math.Float32frombits(top)
		da, inv := amax/127, 127/amax
		var sum int32
		q := a.q[cell*quantBlock:][:quantBlock]
		for j := range q {
			q[j] = toInt8(x[j] * inv)
			sum += int32(q[j])
		}
		a.da[cell] = da
		a.sum8[cell] = -128 * sum
		a.sum4[cell] = -8 * sum
		a.sumf[cell] = float32(sum) * da
		cell += t
	}
}

// toInt8 rounds v, no greater than 127.5 in size, to nearest even; NaN gives
// -128.
func toInt8(v float32) int8 {
	if v != v {
		return -128
	}
	return int8(math.RoundToEven(float64(v)))
}

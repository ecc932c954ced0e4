package compute

import "math"

// Mul computes out[t*stride+r] = row r of m times token t of a, for every token
// and the rows of groups [g0, g1), rows of the padding (whose outputs are 0)
// included: stride must be at least m.Padded(). Different groups may be
// computed at the same time.
//
// A group of weights is read from memory once for all tokens.
func (k *Kernels) Mul(m *Matrix, out []float32, stride int, a *Act, g0, g1 int) {
	k.MulTokens(m, out, stride, a, 0, a.n, g0, g1)
}

// MulTokens is Mul for the tokens [t0, t1) of a; t0 is a multiple of 16. The
// outputs of token t0 come first in out.
func (k *Kernels) MulTokens(m *Matrix, out []float32, stride int, a *Act, t0, t1, g0, g1 int) {
	if g0 >= g1 || t0 >= t1 {
		return
	}
	if m.Cols != a.Cols || a.form&FormOf(m.Type) == 0 || g0 < 0 || g1 > m.Groups() || stride < m.Padded() ||
		t0 < 0 || t0%Lanes != 0 || t1 > a.n {
		panic("compute: product of a matrix and activations that do not fit")
	}
	n := t1 - t0
	out = out[:(n-1)*stride+g1*Lanes]
	if m.Cols == 0 {
		for t := range n {
			clear(out[t*stride+g0*Lanes:][:(g1-g0)*Lanes])
		}
		return
	}
	f := k.mul[m.Type]
	if n <= Lanes {
		f(m, out, stride, a, t0, a.tile(t0), n, g0, g1)
		return
	}
	for g := g0; g < g1; g++ {
		for t := t0; t < t1; t += Lanes {
			f(m, out[(t-t0)*stride:], stride, a, t, a.tile(t), min(Lanes, t1-t), g, g+1)
		}
	}
}

func mulQuantGo(m *Matrix, out []float32, stride int, a *Act, t0, t, n, g0, g1 int) {
	wb, db := groupBytes(m.Type, m.Cols)
	ws, ds := blockStrides(m.Type)
	var p pairs
	for g := g0; g < g1; g++ {
		var acc [Lanes][Lanes]float32
		var scale, low, dot [Lanes]float32
		w, d := m.w[g*wb:][:wb], m.d[g*db:][:db]
		for cell := t0 * (m.Cols / quantBlock); len(d) > 0; cell += t {
			p.unpack(m.Type, w)
			loadRow(scale[:], F16, d)
			if m.Type == Q4_1 {
				loadRow(low[:], F16, d[32:])
			}
			for i := range n {
				c := cell + i
				var sum int32
				switch m.Type {
				case Q4_1:
					fmaRow(acc[i][:], low[:], a.sumf[c])
				case Q8_0:
					sum = a.sum8[c]
				default:
					sum = a.sum4[c]
				}
				p.dot(&dot, (*[quantBlock]int8)(a.q[c*quantBlock:]), sum, a.da[c])
				fmaRows(acc[i][:], scale[:], dot[:])
			}
			w, d = w[ws:], d[ds:]
		}
		for i := range n {
			copy(out[i*stride+g*Lanes:], acc[i][:])
		}
	}
}

// blockStrides returns the bytes of weights and of scales of one block of a
// group.
func blockStrides(t Type) (w, d int) {
	switch t {
	case Q8_0:
		return 512, 32
	case Q4_0:
		return 256, 32
	default:
		return 256, 64
	}
}

// pairs holds the weights of a group's block, two lanes to a word: lane l in the
// low half, lane l+8 in the high. One multiplication then serves two lanes:
// the low product, which may be negative, borrows from the high one and is
// taken out again at the end.
type pairs [quantBlock][Lanes / 2]int64

// unpack fills p from a block of packed weights, unsigned bytes or nibbles.
func (p *pairs) unpack(t Type, w []byte) {
	if t == Q8_0 {
		for j := range 8 {
			v := (*[64]byte)(w[64*j:])
			for c := range 4 {
				for l := range Lanes / 2 {
					p[4*j+c][l] = int64(v[4*l+c]) | int64(v[4*l+32+c])<<32
				}
			}
		}
		return
	}
	for j := range 4 { // the low nibbles are columns 0 to 15
		v := (*[64]byte)(w[64*j:])
		for c := range 4 {
			for l := range Lanes / 2 {
				x := int64(v[4*l+c]) | int64(v[4*l+32+c])<<32
				p[4*j+c][l] = x & 0x0f_0000_000f
				p[16+4*j+c][l] = x >> 4 & 0x0f_0000_000f
			}
		}
	}
}

// dot sets out[l] = float32(sum + weights of lane l · q) * da.
func (p *pairs) dot(out *[Lanes]float32, q *[quantBlock]int8, sum int32, da float32) {
	var s0, s1, s2, s3, s4, s5, s6, s7 int64
	for k := range p {
		x, v := int64(q[k]), &p[k]
		s0 += v[0] * x
		s1 += v[1] * x
		s2 += v[2] * x
		s3 += v[3] * x
		s4 += v[4] * x
		s5 += v[5] * x
		s6 += v[6] * x
		s7 += v[7] * x
	}
	for l, s := range [Lanes / 2]int64{s0, s1, s2, s3, s4, s5, s6, s7} {
		lo := int32(s)
		hi := int32((s - int64(lo)) >> 32)
		out[l] = float32(sum+lo) * da
		out[l+Lanes/2] = float32(sum+hi) * da
	}
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
			copy(out[i*stride+g*Lanes:], acc[i][:])
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

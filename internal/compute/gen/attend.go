package main

import (
	"fmt"

	. "github.com/mmcloughlin/avo/operand"
	. "github.com/mmcloughlin/avo/reg"
)

func attendKernels(a *asm) {
	for _, half := range []bool{true, false} {
		e := map[bool]string{true: "F16", false: "F32"}[half]
		for _, t := range []int{1, 2, 4, 8, 16} {
			qk(a, fmt.Sprintf("qk%sx%d", e, t), half, t)
		}
		for _, j := range []int{4, 2, 1} {
			for _, t := range []int{1, 2, 3, 4, 6} {
				pv(a, fmt.Sprintf("pv%sx%dx%d", e, t, 16*j), half, t, j)
			}
		}
	}
	softmax(a)
	transposeK(a)
}

// load fills v with elements of 2 or 4 bytes.
func (a *asm) load(half bool, m Mem, v VecVirtual) {
	if half {
		a.VCVTPH2PS(m, v)
	} else {
		a.VMOVUPS(m, v)
	}
}

// prefetch asks for n bytes of the next tile. Tiles of a sequence lie apart, so
// the hardware's guess ends with each.
func (a *asm) prefetch(p Register, n int) {
	for o := 0; o < n; o += 64 {
		a.PREFETCHT0(Mem{Base: p, Disp: o})
	}
}

// tile finds the tile that offs points at and the one behind it, to be asked for
// ahead; behind the last it is the last one itself. last compares so that the flag
// for equal is set there.
func (a *asm) tile(base, offs, at, next Register, last func()) {
	a.MOVQ(Mem{Base: offs}, at)
	a.LEAQ(Mem{Base: offs, Disp: 8}, next)
	last()
	a.CMOVQEQ(offs, next)
	a.MOVQ(Mem{Base: next}, next)
	a.ADDQ(base, at)
	a.ADDQ(base, next)
}

// takeKeys takes the keys of a tile, c, from n, those that are left.
func (a *asm) takeKeys(n, c Register) {
	a.MOVQ(U64(16), c)
	a.CMPQ(n, c)
	a.CMOVQLT(n, c)
	a.SUBQ(c, n)
}

// elemBytes returns the bytes of an element of the cache.
func elemBytes(half bool) int {
	if half {
		return 2
	}
	return 4
}

// qk emits the scores of T query rows against tiles of 16 keys: a lane is a
// key. d is even.
func qk(a *asm, name string, half bool, T int) {
	a.fn(name, "func(q *float32, d int, base *byte, offs *int64, tiles int, s *float32, sstride int)",
		fmt.Sprintf("scores %d query rows, [d][%d], against tiles of 16 keys.", T, T))
	q, d, base, offs := a.param("q"), a.param("d"), a.param("base"), a.param("offs")
	tiles, s, ss := a.param("tiles"), a.param("s"), a.param("sstride")
	a.SHLQ(Imm(2), ss)
	acc := a.zmms(T)
	k, next, qp, n, o := a.GP64(), a.GP64(), a.GP64(), a.GP64(), a.GP64()
	size := 16 * elemBytes(half)
	a.label("tile")
	a.tile(base, offs, k, next, func() { a.CMPQ(tiles, Imm(1)) })
	a.MOVQ(q, qp)
	a.MOVQ(d, n)
	a.zero(acc...)
	a.label("dim")
	for u := range 2 {
		kv := a.ZMM()
		a.load(half, Mem{Base: k, Disp: size * u}, kv)
		for i := range acc {
			a.VFMADD231PS_BCST(Mem{Base: qp, Disp: 4 * (u*T + i)}, kv, acc[i])
		}
	}
	a.prefetch(next, 2*size)
	a.step(2*size, k, next)
	a.step(8*T, qp)
	a.SUBQ(U32(2), n)
	a.JNZ(a.ref("dim"))
	a.MOVQ(s, o)
	for i := range acc {
		a.VMOVUPS(acc[i], Mem{Base: o})
		if i < T-1 {
			a.ADDQ(ss, o)
		}
	}
	a.step(64, s)
	a.step(8, offs)
	a.DECQ(tiles)
	a.JNZ(a.ref("tile"))
	a.end()
}

// pv emits the weighted sum of values, 16*J dimensions of T query rows, over n
// tokens in order.
func pv(a *asm, name string, half bool, T, J int) {
	a.fn(name, "func(p *float32, pstride int, base *byte, offs *int64, n int, vstride int, out *float32, ostride int)",
		fmt.Sprintf("sums %d dimensions of the values of n keys for %d query rows.", 16*J, T))
	p, ps, base, offs := a.param("p"), a.param("pstride"), a.param("base"), a.param("offs")
	n, vs := a.param("n"), a.param("vstride")
	a.SHLQ(Imm(2), ps)
	size := elemBytes(half)
	a.SHLQ(Imm(uint64(size/2)), vs)
	acc, vv := a.zmms(J*T), a.zmms(J)
	a.zero(acc...)
	rows := []Register{p}
	for i := 1; i < T; i++ {
		r := a.GP64()
		a.LEAQ(Mem{Base: rows[i-1], Index: ps, Scale: 1}, r)
		rows = append(rows, r)
	}
	v, next, c := a.GP64(), a.GP64(), a.GP64()
	a.label("tile")
	a.tile(base, offs, v, next, func() { a.takeKeys(n, c) })
	a.label("token")
	for j := range vv {
		a.load(half, Mem{Base: v, Disp: 16 * size * j}, vv[j])
	}
	for i := range T {
		for j := range vv {
			a.VFMADD231PS_BCST(Mem{Base: rows[i]}, vv[j], acc[J*i+j])
		}
	}
	a.prefetch(next, 16*size*J)
	a.step(4, rows...)
	a.ADDQ(vs, v)
	a.ADDQ(vs, next)
	a.DECQ(c)
	a.JNZ(a.ref("token"))
	a.step(8, offs)
	a.TESTQ(n, n)
	a.JNZ(a.ref("tile"))
	out, os := a.param("out"), a.param("ostride")
	a.SHLQ(Imm(2), os)
	for i := range T {
		for j := range J {
			a.VMOVUPS(acc[J*i+j], Mem{Base: out, Disp: 64 * j})
		}
		if i < T-1 {
			a.ADDQ(os, out)
		}
	}
	a.end()
}

// softmax emits the row operation of attention.
func softmax(a *asm) {
	a.fn("softmaxRow", "func(s *float32, nvec int, scale float32) (top, sum float32)",
		"replaces nvec vectors by e^(scale*(s-top)) and returns their maximum and sum.")
	s, n, sc := a.param("s"), a.param("nvec"), a.scalar("scale")
	m := a.dword(0xff800000)
	p, c, x := a.GP64(), a.GP64(), a.ZMM()
	a.MOVQ(s, p)
	a.MOVQ(n, c)
	a.label("max")
	a.VMOVUPS(Mem{Base: p}, x)
	a.VMAXPS(m, x, m) // NaN in x keeps m
	a.step(64, p)
	a.DECQ(c)
	a.JNZ(a.ref("max"))
	a.fold(m, func(x, y, z Op) { a.VMAXPS(x, y, z) })
	a.Store(m.AsX(), a.Return("top"))
	a.VBROADCASTSS(m.AsX(), m)
	e, sum := a.exp(), a.ZMM()
	a.zero(sum)
	a.label("exp")
	a.VMOVUPS(Mem{Base: s}, x)
	a.VSUBPS(m, x, x)
	a.VMULPS(sc, x, x)
	e.apply(a, x)
	a.VMOVUPS(x, Mem{Base: s})
	a.VADDPS(x, sum, sum)
	a.step(64, s)
	a.DECQ(n)
	a.JNZ(a.ref("exp"))
	a.fold(sum, func(x, y, z Op) { a.VADDPS(x, y, z) })
	a.Store(sum.AsX(), a.Return("sum"))
	a.end()
}

// fold reduces 16 lanes in the fixed tree: i and i+8, i+4, i+2, i+1. op gets
// the upper half, the lower half and where the result goes.
func (a *asm) fold(z VecVirtual, op func(hi, lo, dst Op)) {
	t := a.YMM()
	a.VEXTRACTF64X4(Imm(1), z, t)
	op(t, z.AsY(), z.AsY())
	a.fold8(z, t, op)
}

// fold8 is the rest of fold, for the lower 8 lanes of v. t is overwritten.
func (a *asm) fold8(v, t VecVirtual, op func(hi, lo, dst Op)) {
	a.VEXTRACTF128(Imm(1), v.AsY(), t.AsX())
	op(t.AsX(), v.AsX(), v.AsX())
	a.VMOVHLPS(v.AsX(), v.AsX(), t.AsX())
	op(t.AsX(), v.AsX(), v.AsX())
	a.VMOVSHDUP(v.AsX(), t.AsX())
	op(t.AsX(), v.AsX(), v.AsX())
}

// transposeK emits the conversion of 16 rows of floats to [d][16] of binary16.
func transposeK(a *asm) {
	a.fn("transposeF16", "func(dst *byte, nvec int, x *float32, stride int)",
		"writes nvec times 16 columns of 16 rows of x transposed, as binary16.")
	dst, n, x, stride := a.param("dst"), a.param("nvec"), a.param("x"), a.param("stride")
	a.SHLQ(Imm(2), stride)
	h := a.half()
	p := a.GP64()
	a.label("block")
	a.MOVQ(x, p)
	for part := range 2 {
		r := make([]VecVirtual, 8)
		for i := range r {
			z := a.ZMM()
			r[i] = a.YMM()
			a.VMOVUPS(Mem{Base: p}, z)
			h.clamp(a, z)
			a.VCVTPS2PH(Imm(0), z, r[i])
			a.ADDQ(stride, p)
		}
		transpose8(a, r, dst, 16*part)
	}
	a.step(512, dst)
	a.step(64, x)
	a.DECQ(n)
	a.JNZ(a.ref("block"))
	a.end()
}

// transpose8 writes 8 rows of 16 binary16 as the columns of [16][16], of which they
// are the half at disp.
func transpose8(a *asm, r []VecVirtual, dst Register, disp int) {
	// Words, then pairs, then quadruples of rows; each stage interleaves
	// registers that are one, two, four rows apart.
	word := func(x, y, z Op, hi bool) {
		if hi {
			a.VPUNPCKHWD(x, y, z)
		} else {
			a.VPUNPCKLWD(x, y, z)
		}
	}
	dw := func(x, y, z Op, hi bool) {
		if hi {
			a.VPUNPCKHDQ(x, y, z)
		} else {
			a.VPUNPCKLDQ(x, y, z)
		}
	}
	qw := func(x, y, z Op, hi bool) {
		if hi {
			a.VPUNPCKHQDQ(x, y, z)
		} else {
			a.VPUNPCKLQDQ(x, y, z)
		}
	}
	pair := func(op func(x, y, z Op, hi bool), x, y VecVirtual) (lo, hi VecVirtual) {
		lo, hi = a.YMM(), a.YMM()
		op(y, x, lo, false)
		op(y, x, hi, true)
		return lo, hi
	}
	var w [8]VecVirtual // w[2i+half]: columns 0-3 or 4-7 of rows 2i, 2i+1
	for i := range 4 {
		w[2*i], w[2*i+1] = pair(word, r[2*i], r[2*i+1])
	}
	var d [8]VecVirtual // d[4i+c]: columns 2c, 2c+1 of rows 4i to 4i+3
	for i := range 2 {
		d[4*i], d[4*i+1] = pair(dw, w[4*i], w[4*i+2])
		d[4*i+2], d[4*i+3] = pair(dw, w[4*i+1], w[4*i+3])
	}
	for c := range 4 {
		lo, hi := pair(qw, d[c], d[4+c])
		for i, v := range []VecVirtual{lo, hi} {
			o := 32*(2*c+i) + disp
			a.VMOVDQU(v.AsX(), Mem{Base: dst, Disp: o})
			a.VEXTRACTI128(Imm(1), v, Mem{Base: dst, Disp: o + 32*8})
		}
	}
}

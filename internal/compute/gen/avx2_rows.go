package main

import (
	. "github.com/mmcloughlin/avo/operand"
	. "github.com/mmcloughlin/avo/reg"
)

// expTables are the constants of e^x in memory.
type expTables struct {
	log2e, ln2hi, ln2lo, c6, c5, c4, c3, c2, one, lo Mem
	bias                                             Mem // of an exponent, an integer
}

// expY writes the tables of e^x. A file has them once.
func (a *asm) expY() expTables {
	c := a.floats
	return expTables{
		log2e: c("log2e", 1.44269504),
		ln2hi: c("ln2Hi", 0.693359375),
		ln2lo: c("ln2Lo", -2.12194440e-4),
		c6:    c("c6", 1.3981999507e-3),
		c5:    c("c5", 8.3334519073e-3),
		c4:    c("c4", 4.1665795894e-2),
		c3:    c("c3", 1.6666665459e-1),
		c2:    c("c2", 5.0000001201e-1),
		one:   c("one", 1),
		lo:    c("lo", -64),
		bias:  a.table("bias", 127),
	}
}

// apply replaces x by e^x, 0 for x < -64; NaN stays NaN.
func (e expTables) apply(a *asm, x VecVirtual) {
	keep, n, r, y := a.YMM(), a.YMM(), a.YMM(), a.YMM()
	a.VCMPPS(Imm(5), e.lo, x, keep) // not less than
	a.VMULPS(e.log2e, x, n)
	a.VROUNDPS(Imm(0), n, n)
	a.VMOVAPS(x, r)
	a.VFNMADD231PS(e.ln2hi, n, r)
	a.VFNMADD231PS(e.ln2lo, n, r)
	a.VMOVUPS(e.c6, y)
	for _, c := range []Mem{e.c5, e.c4, e.c3, e.c2, e.one, e.one} {
		a.VFMADD213PS(c, r, y)
	}
	// 2^n; what lies outside of its range is below -64, or NaN with any factor.
	a.VCVTPS2DQ(n, n)
	a.VPADDD(e.bias, n, n)
	a.VPSLLD(Imm(23), n, n)
	a.VMULPS(n, y, x)
	a.VANDPS(keep, x, x)
}

// halfTables are the constants of the conversion to binary16.
type halfTables struct{ top, low Mem }

func (a *asm) halfY() halfTables {
	return halfTables{a.floats("top", 65504), a.floats("low", -65504)}
}

// clamp makes v finite in binary16: NaN becomes 0.
func (h halfTables) clamp(a *asm, v VecVirtual) {
	ordered := a.YMM()
	a.VCMPPS(Imm(7), v, v, ordered)
	a.VMINPS(h.top, v, v)
	a.VANDPS(ordered, v, v)
	a.VMAXPS(h.low, v, v)
}

// loopY runs body for nvec vectors of 16, a register at a time, and then steps the
// pointers by a register's size.
func (a *asm) loopY(nvec Register, body func(), p ...Register) {
	a.SHLQ(Imm(1), nvec)
	a.label("loop")
	body()
	a.step(32, p...)
	a.DECQ(nvec)
	a.JNZ(a.ref("loop"))
	a.end()
}

func rowKernelsAVX2(a *asm) {
	e := a.expY()
	h := a.halfY()

	w := width{"AVX2", a.YMM, a.loopY}
	addPartsRow(a, w)
	sumSqAVX2(a)
	scaleMulRow(a, w, a.scalarY)
	ropeRow(a, w)

	a.fn("siluMulRowAVX2", "func(gate, up *float32, nvec int)", "computes gate = gate/(1+e^-gate)*up.")
	g, up, big := a.param("gate"), a.param("up"), a.YMM()
	n := a.param("nvec")
	v, t := a.YMM(), a.YMM()
	a.VMOVUPS(a.floats("big", 80), big)
	a.loopY(n, func() {
		a.VMOVUPS(Mem{Base: g}, v)
		a.zeroY(t)
		a.VSUBPS(v, t, t)
		a.VMINPS(t, big, t) // NaN stays
		e.apply(a, t)
		a.VADDPS(e.one, t, t)
		a.VDIVPS(t, v, v)
		a.VMULPS(Mem{Base: up}, v, v)
		a.VMOVUPS(v, Mem{Base: g})
	}, g, up)

	a.fn("halfRowAVX2", "func(dst *byte, x *float32, nvec int)", "converts nvec vectors to binary16.")
	dst, x := a.param("dst"), a.param("x")
	n, v = a.param("nvec"), a.YMM()
	a.SHLQ(Imm(1), n)
	a.label("loop")
	a.VMOVUPS(Mem{Base: x}, v)
	h.clamp(a, v)
	a.VCVTPS2PH(Imm(0), v, Mem{Base: dst})
	a.step(16, dst)
	a.step(32, x)
	a.DECQ(n)
	a.JNZ(a.ref("loop"))
	a.end()
}

func sumSqAVX2(a *asm) {
	a.fn("sumSqRowAVX2", "func(x *float32, nvec int, lanes *float32)", "sums squares into 16 lanes.")
	x, n, lanes, v, sum := a.param("x"), a.param("nvec"), a.param("lanes"), a.ymms(2), a.ymms(2)
	a.zeroY(sum...)
	a.label("loop")
	for i := range v {
		a.VMOVUPS(Mem{Base: x, Disp: 32 * i}, v[i])
		a.VFMADD231PS(v[i], v[i], sum[i])
	}
	a.step(64, x)
	a.DECQ(n)
	a.JNZ(a.ref("loop"))
	for i := range sum {
		a.VMOVUPS(sum[i], Mem{Base: lanes, Disp: 32 * i})
	}
	a.end()
}

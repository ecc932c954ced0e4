package main

import (
	. "github.com/mmcloughlin/avo/operand"
	. "github.com/mmcloughlin/avo/reg"
)

// expConsts are the constants of e^x in registers.
type expConsts struct{ log2e, ln2hi, ln2lo, c6, c5, c4, c3, c2, one, lo VecVirtual }

func (a *asm) exp() expConsts {
	return expConsts{
		log2e: a.float(1.44269504),
		ln2hi: a.float(0.693359375),
		ln2lo: a.float(-2.12194440e-4),
		c6:    a.float(1.3981999507e-3),
		c5:    a.float(8.3334519073e-3),
		c4:    a.float(4.1665795894e-2),
		c3:    a.float(1.6666665459e-1),
		c2:    a.float(5.0000001201e-1),
		one:   a.float(1),
		lo:    a.float(-64),
	}
}

// apply replaces x by e^x, 0 for x < -64; NaN stays NaN.
func (e expConsts) apply(a *asm, x VecVirtual) {
	k := a.K()
	a.VCMPPS(Imm(5), e.lo, x, k) // not less than
	n, r, y := a.ZMM(), a.ZMM(), a.ZMM()
	a.VMULPS(e.log2e, x, n)
	a.VRNDSCALEPS(Imm(0), n, n)
	a.VMOVAPS(x, r)
	a.VFNMADD231PS(e.ln2hi, n, r)
	a.VFNMADD231PS(e.ln2lo, n, r)
	a.VMOVAPS(e.c6, y)
	for _, c := range []VecVirtual{e.c5, e.c4, e.c3, e.c2, e.one, e.one} {
		a.VFMADD213PS(c, r, y)
	}
	a.VSCALEFPS_Z(n, y, k, x)
}

// halfConsts are the constants of the conversion to binary16.
type halfConsts struct{ top, low VecVirtual }

func (a *asm) half() halfConsts { return halfConsts{a.float(65504), a.float(-65504)} }

// clamp makes v finite in binary16: NaN becomes 0.
func (h halfConsts) clamp(a *asm, v VecVirtual) {
	k := a.K()
	a.VCMPPS(Imm(7), v, v, k) // ordered
	a.VMINPS_Z(h.top, v, k, v)
	a.VMAXPS(h.low, v, v)
}

// loop runs body for nvec vectors and then steps the pointers by a vector.
func (a *asm) loop(n Register, body func(), p ...Register) {
	a.label("loop")
	body()
	a.step(64, p...)
	a.DECQ(n)
	a.JNZ(a.ref("loop"))
	a.end()
}

// A width is a size of registers, with which kernels that keep no constants are
// emitted alike.
type width struct {
	suffix string // of names
	vec    func() VecVirtual
	loop   func(nvec Register, body func(), p ...Register)
}

func rowKernels(a *asm) {
	w := width{"", a.ZMM, a.loop}
	addPartsRow(a, w)
	sumSqRow(a)
	scaleMulRow(a, w, a.scalar)
	ropeRow(a, w)
	siluRow(a)
	halfRow(a)

	a.Function("pause")
	a.SignatureExpr("func(n int)")
	a.Doc("pause lets a spinning thread take n breaths.")
	n := a.param("n")
	a.name = "pause"
	a.label("loop")
	a.PAUSE()
	a.DECQ(n)
	a.JNZ(a.ref("loop"))
	a.RET()
}

func addPartsRow(a *asm, v width) {
	a.fn("addPartsRow"+v.suffix, "func(x, s0, s1, s2, s3 *float32, nvec int)", "computes x += (s0+s1)+(s2+s3).")
	x, n := a.param("x"), a.param("nvec")
	s0, s1, s2, s3 := a.param("s0"), a.param("s1"), a.param("s2"), a.param("s3")
	u, w := v.vec(), v.vec()
	v.loop(n, func() {
		a.VMOVUPS(Mem{Base: s0}, u)
		a.VADDPS(Mem{Base: s1}, u, u)
		a.VMOVUPS(Mem{Base: s2}, w)
		a.VADDPS(Mem{Base: s3}, w, w)
		a.VADDPS(w, u, u)
		a.VADDPS(Mem{Base: x}, u, u)
		a.VMOVUPS(u, Mem{Base: x})
	}, x, s0, s1, s2, s3)
}

func sumSqRow(a *asm) {
	a.fn("sumSqRow", "func(x *float32, nvec int, lanes *float32)", "sums squares into 16 lanes.")
	x, n, lanes, v, sum := a.param("x"), a.param("nvec"), a.param("lanes"), a.ZMM(), a.ZMM()
	a.zero(sum)
	a.label("loop")
	a.VMOVUPS(Mem{Base: x}, v)
	a.VFMADD231PS(v, v, sum)
	a.step(64, x)
	a.DECQ(n)
	a.JNZ(a.ref("loop"))
	a.VMOVUPS(sum, Mem{Base: lanes})
	a.end()
}

// scaleMulRow gets what broadcasts a parameter.
func scaleMulRow(a *asm, v width, scalar func(name string) VecVirtual) {
	a.fn("scaleMulRow"+v.suffix, "func(out, x, w *float32, nvec int, scale float32)", "computes out = x*scale*w.")
	p := v.vec()
	out, w, sc := a.param("out"), a.param("w"), scalar("scale")
	x, n := a.param("x"), a.param("nvec")
	v.loop(n, func() {
		a.VMULPS(Mem{Base: x}, sc, p)
		a.VMULPS(Mem{Base: w}, p, p)
		a.VMOVUPS(p, Mem{Base: out})
	}, out, x, w)
}

func ropeRow(a *asm, w width) {
	a.fn("ropeRow"+w.suffix, "func(x, y, cos, sin *float32, nvec int)", "rotates the pairs (x, y).")
	x, y, co, si, n := a.param("x"), a.param("y"), a.param("cos"), a.param("sin"), a.param("nvec")
	u, v, c, s, r1, r2 := w.vec(), w.vec(), w.vec(), w.vec(), w.vec(), w.vec()
	w.loop(n, func() {
		a.VMOVUPS(Mem{Base: x}, u)
		a.VMOVUPS(Mem{Base: y}, v)
		a.VMOVUPS(Mem{Base: co}, c)
		a.VMOVUPS(Mem{Base: si}, s)
		a.VMULPS(v, s, r1)
		a.VFMSUB231PS(u, c, r1)
		a.VMULPS(u, s, r2)
		a.VFMADD231PS(v, c, r2)
		a.VMOVUPS(r1, Mem{Base: x})
		a.VMOVUPS(r2, Mem{Base: y})
	}, x, y, co, si)
}

func siluRow(a *asm) {
	a.fn("siluMulRow", "func(gate, up *float32, nvec int)", "computes gate = gate/(1+e^-gate)*up.")
	g, u, n, e, big := a.param("gate"), a.param("up"), a.param("nvec"), a.exp(), a.float(80)
	v, t := a.ZMM(), a.ZMM()
	a.loop(n, func() {
		a.VMOVUPS(Mem{Base: g}, v)
		a.zero(t)
		a.VSUBPS(v, t, t)
		a.VMINPS(t, big, t) // NaN stays
		e.apply(a, t)
		a.VADDPS(e.one, t, t)
		a.VDIVPS(t, v, v)
		a.VMULPS(Mem{Base: u}, v, v)
		a.VMOVUPS(v, Mem{Base: g})
	}, g, u)
}

func halfRow(a *asm) {
	a.fn("halfRow", "func(dst *byte, x *float32, nvec int)", "converts nvec vectors to binary16.")
	dst, x, n, h, v := a.param("dst"), a.param("x"), a.param("nvec"), a.half(), a.ZMM()
	a.label("loop")
	a.VMOVUPS(Mem{Base: x}, v)
	h.clamp(a, v)
	a.VCVTPS2PH(Imm(0), v, Mem{Base: dst})
	a.step(32, dst)
	a.step(64, x)
	a.DECQ(n)
	a.JNZ(a.ref("loop"))
	a.end()
}

package main

import (
	"fmt"

	. "github.com/mmcloughlin/avo/operand"
	. "github.com/mmcloughlin/avo/reg"
)

// prefetch is how far ahead of the weights in use the next ones are asked for:
// the hardware prefetcher alone leaves a third of the bandwidth unused once the
// arithmetic of several tokens fills the reorder window.
const prefetch = 4096

type format int

const (
	q8 format = iota
	q40
	q41
)

// bytes returns those of the weights and of the scales of a group's block.
func (f format) bytes() (w, d int) {
	switch f {
	case q8:
		return 512, 32
	case q40:
		return 256, 32
	}
	return 256, 64
}

func mulKernels(a *asm) {
	for _, f := range []struct {
		name string
		f    format
	}{{"mulQ8", q8}, {"mulQ40", q40}, {"mulQ41", q41}} {
		for _, t := range []int{1, 2, 4, 8, 16} {
			mulQuant(a, fmt.Sprintf("%sx%d", f.name, t), f.f, t)
		}
	}
	for _, t := range []int{1, 2, 4, 8, 16} {
		mulFloat(a, fmt.Sprintf("mulF16x%d", t), true, t)
		mulFloat(a, fmt.Sprintf("mulF32x%d", t), false, t)
	}
	quantize(a)
}

// mulQuant emits the product of ng groups of 16 rows with a tile of T tokens.
// A lane is a row; each (row, token) sum is the same sequence of operations
// for every T.
func mulQuant(a *asm, name string, f format, T int) {
	a.fn(name, "func(w, d *byte, nb, ng int, q *int8, da *float32, sum *byte, out *float32, ostride, n int)",
		fmt.Sprintf("multiplies ng groups of nb blocks with a tile of %d tokens and stores n of them.", T))
	w, d, nb, ng := a.param("w"), a.param("d"), a.param("nb"), a.param("ng")
	out, ostride := a.param("out"), a.param("ostride")
	a.SHLQ(Imm(2), ostride)
	q, da, sum, b, o, cnt := a.GP64(), a.GP64(), a.GP64(), a.GP64(), a.GP64(), a.GP64()

	acc := a.zmms(T)
	var nib, mn VecVirtual
	if f != q8 {
		nib = a.dword(0x0f0f0f0f)
	}
	if f == q41 {
		mn = a.ZMM()
	}
	wr, dw := a.zmms(8), a.ZMM()
	step := min(T, 4)
	dot := a.zmms(step)
	wbytes, dbytes := f.bytes()

	a.label("group")
	a.Load(a.Param("q"), q)
	a.Load(a.Param("da"), da)
	a.Load(a.Param("sum"), sum)
	a.MOVQ(nb, b)
	a.zero(acc...)
	a.label("block")
	if f == q8 {
		for j := range wr {
			a.VMOVDQU64(Mem{Base: w, Disp: 64 * j}, wr[j])
		}
	} else {
		for j := range 4 {
			a.VMOVDQU64(Mem{Base: w, Disp: 64 * j}, wr[j])
			a.VPSRLD(Imm(4), wr[j], wr[j+4])
			a.VPANDD(nib, wr[j], wr[j])
			a.VPANDD(nib, wr[j+4], wr[j+4])
		}
	}
	for j := range wbytes / 64 {
		a.PREFETCHT0(Mem{Base: w, Disp: prefetch + 64*j})
	}
	a.VCVTPH2PS(Mem{Base: d}, dw)
	if f == q41 {
		a.VCVTPH2PS(Mem{Base: d, Disp: 32}, mn)
	}
	for t0 := 0; t0 < T; t0 += step {
		for i, v := range dot {
			if f == q41 {
				a.VFMADD231PS_BCST(Mem{Base: sum, Disp: 4 * (t0 + i)}, mn, acc[t0+i])
				a.zero(v)
			} else {
				a.VPBROADCASTD(Mem{Base: sum, Disp: 4 * (t0 + i)}, v)
			}
		}
		for j := range wr {
			for i, v := range dot {
				a.VPDPBUSD_BCST(Mem{Base: q, Disp: 32*(t0+i) + 4*j}, wr[j], v)
			}
		}
		for _, v := range dot {
			a.VCVTDQ2PS(v, v)
		}
		for i, v := range dot {
			a.VMULPS_BCST(Mem{Base: da, Disp: 4 * (t0 + i)}, v, v)
		}
		for i, v := range dot {
			a.VFMADD231PS(dw, v, acc[t0+i])
		}
	}
	a.step(wbytes, w)
	a.step(dbytes, d)
	a.step(32*T, q)
	a.step(4*T, da, sum)
	a.DECQ(b)
	a.JNZ(a.ref("block"))
	storeTile(a, acc, out, ostride, o, cnt)
	a.step(64, out)
	a.DECQ(ng)
	a.JNZ(a.ref("group"))
	a.end()
}

// storeTile stores the first n of the tile's outputs.
func storeTile(a *asm, acc []VecVirtual, out, ostride, o, cnt Register) {
	a.MOVQ(out, o)
	a.Load(a.Param("n"), cnt)
	for t, v := range acc {
		a.VMOVUPS(v, Mem{Base: o})
		if t < len(acc)-1 {
			a.ADDQ(ostride, o)
			a.DECQ(cnt)
			a.JZ(a.ref("stored"))
		}
	}
	a.label("stored")
}

// mulFloat is mulQuant for F16 and F32 matrices and float32 activations.
func mulFloat(a *asm, name string, half bool, T int) {
	a.fn(name, "func(w *byte, cols, ng int, x, out *float32, ostride, n int)",
		fmt.Sprintf("multiplies ng groups of cols columns with a tile of %d tokens and stores n of them.", T))
	w, cols, ng := a.param("w"), a.param("cols"), a.param("ng")
	out, ostride := a.param("out"), a.param("ostride")
	a.SHLQ(Imm(2), ostride)
	x, c, o, cnt := a.GP64(), a.GP64(), a.GP64(), a.GP64()
	acc, v := a.zmms(T), a.zmms(4)
	wbytes := 64
	if half {
		wbytes = 32
	}
	column := func(u int) {
		if half {
			a.VCVTPH2PS(Mem{Base: w, Disp: wbytes * u}, v[u])
		} else {
			a.VMOVUPS(Mem{Base: w, Disp: wbytes * u}, v[u])
		}
		for i := range acc {
			a.VFMADD231PS_BCST(Mem{Base: x, Disp: 4 * (u*T + i)}, v[u], acc[i])
		}
	}
	a.label("group")
	a.Load(a.Param("x"), x)
	a.MOVQ(cols, c)
	a.zero(acc...)
	a.SUBQ(U32(4), c)
	a.JL(a.ref("tail"))
	a.label("four")
	for j := range 4 * wbytes / 64 {
		a.PREFETCHT0(Mem{Base: w, Disp: prefetch + 64*j})
	}
	for u := range 4 {
		column(u)
	}
	a.step(4*wbytes, w)
	a.step(16*T, x)
	a.SUBQ(U32(4), c)
	a.JGE(a.ref("four"))
	a.label("tail")
	a.ADDQ(U32(4), c)
	a.JZ(a.ref("done"))
	a.label("one")
	column(0)
	a.step(wbytes, w)
	a.step(4*T, x)
	a.DECQ(c)
	a.JNZ(a.ref("one"))
	a.label("done")
	storeTile(a, acc, out, ostride, o, cnt)
	a.step(64, out)
	a.DECQ(ng)
	a.JNZ(a.ref("group"))
	a.end()
}

// quantize emits the quantization of one token of a tile of t tokens.
func quantize(a *asm) {
	a.fn("quantizeRow", "func(x *float32, nb int, q *int8, da *float32, sum8, sum4 *int32, sumf *float32, t int)",
		"quantizes nb blocks of 32 numbers into a tile of t tokens.")
	x, nb, q, da := a.param("x"), a.param("nb"), a.param("q"), a.param("da")
	sum8, sum4, sumf, t4 := a.param("sum8"), a.param("sum4"), a.param("sumf"), a.param("t")
	t32 := a.GP64()
	a.MOVQ(t4, t32)
	a.SHLQ(Imm(5), t32)
	a.SHLQ(Imm(2), t4)
	abs, low := a.dword(0x7fffffff), a.dword(0xffffff80)
	c127, tiny := a.float(127), a.float(0x1p-100)
	a.label("block")
	v0, v1, m0, m1, y := a.ZMM(), a.ZMM(), a.ZMM(), a.ZMM(), a.YMM()
	a.VMOVUPS(Mem{Base: x}, v0)
	a.VMOVUPS(Mem{Base: x, Disp: 64}, v1)
	a.VPANDD(abs, v0, m0)
	a.VPANDD(abs, v1, m1)
	// Magnitudes order like their bits, and NaN stays on top.
	a.VPMAXUD(m1, m0, m0)
	a.VEXTRACTI64X4(Imm(1), m0, y)
	a.VPMAXUD(y, m0.AsY(), m0.AsY())
	a.foldInts(m0, y, func(x, y, z Op) { a.VPMAXUD(x, y, z) })
	a.VPMAXUD(tiny.AsX(), m0.AsX(), m0.AsX())
	dx, inv, sc := a.XMM(), a.XMM(), a.ZMM()
	a.VDIVSS(c127.AsX(), m0.AsX(), dx)
	a.VDIVSS(m0.AsX(), c127.AsX(), inv)
	a.VMOVSS(dx, Mem{Base: da})
	a.VBROADCASTSS(inv, sc)
	for i, v := range []VecVirtual{v0, v1} {
		a.VMULPS(sc, v, v)
		a.VCVTPS2DQ(v, v)
		a.VPMAXSD(low, v, v)
		a.VPMOVSDB(v, Mem{Base: q, Disp: 16 * i})
	}
	a.VPADDD(v1, v0, v0)
	a.VEXTRACTI64X4(Imm(1), v0, y)
	a.VPADDD(y, v0.AsY(), v0.AsY())
	a.foldInts(v0, y, func(x, y, z Op) { a.VPADDD(x, y, z) })
	f, s := a.XMM(), a.GP32()
	a.VCVTDQ2PS(v0.AsX(), f)
	a.VMULSS(dx, f, f)
	a.VMOVSS(f, Mem{Base: sumf})
	a.VMOVD(v0.AsX(), s)
	a.NEGL(s)
	a.SHLL(Imm(3), s)
	a.MOVL(s, Mem{Base: sum4})
	a.SHLL(Imm(4), s)
	a.MOVL(s, Mem{Base: sum8})
	a.step(128, x)
	a.ADDQ(t32, q)
	for _, p := range []Register{da, sum8, sum4, sumf} {
		a.ADDQ(t4, p)
	}
	a.DECQ(nb)
	a.JNZ(a.ref("block"))
	a.end()
}

// foldInts reduces the lower 8 integers of v, in any order, to its lowest lane.
func (a *asm) foldInts(v, t VecVirtual, op func(x, y, z Op)) {
	a.VEXTRACTI128(Imm(1), v.AsY(), t.AsX())
	op(t.AsX(), v.AsX(), v.AsX())
	a.VPSHUFD(Imm(0x4e), v.AsX(), t.AsX())
	op(t.AsX(), v.AsX(), v.AsX())
	a.VPSHUFD(Imm(0xb1), v.AsX(), t.AsX())
	op(t.AsX(), v.AsX(), v.AsX())
}

package main

import (
	"fmt"

	. "github.com/mmcloughlin/avo/operand"
	. "github.com/mmcloughlin/avo/reg"
)

// mulKernelsAVX2 emits products of up to 4 tokens: 16 registers hold no more. A
// wider tile is computed in parts, so the kernels get its width.
func mulKernelsAVX2(a *asm) {
	nib := a.table("nibbles", 0x0f0f0f0f)
	ones := a.table("ones", 0x00010001)
	for _, f := range []struct {
		name string
		f    format
	}{{"mulQ8", q8}, {"mulQ40", q40}, {"mulQ41", q41}} {
		for _, t := range []int{1, 2, 4} {
			mulQuantAVX2(a, fmt.Sprintf("%sx%dAVX2", f.name, t), f.f, t, nib, ones)
		}
	}
	for _, t := range []int{1, 2, 4} {
		mulFloatAVX2(a, fmt.Sprintf("mulF16x%dAVX2", t), true, t)
		mulFloatAVX2(a, fmt.Sprintf("mulF32x%dAVX2", t), false, t)
	}
	quantizeAVX2(a)
}

// mulQuantAVX2 emits the product of ng groups of 16 rows with T tokens of a tile of
// t. A block's sum is one of 16-bit numbers as long as it can be: nibbles times
// activations stay below 2^15 over a whole block, so a byte is taken apart as well.
func mulQuantAVX2(a *asm, name string, f format, T int, nib, ones Mem) {
	a.fn(name, "func(w, d *byte, nb, ng int, q *int8, da *float32, sum *byte, out *float32, ostride, n, t int)",
		fmt.Sprintf("multiplies ng groups of nb blocks with %d tokens of a tile of t and stores n of them.", T))
	w, d, ng, out := a.param("w"), a.param("d"), a.param("ng"), a.param("out")
	t32, t4 := a.bytes("t", 32), a.bytes("t", 4)
	wp, dp, q, da, sum, b := a.GP64(), a.GP64(), a.GP64(), a.GP64(), a.GP64(), a.GP64()
	wbytes, dbytes := f.bytes()
	halves := [][]int{{0}, {1}} // one after the other where both at once are too many
	if T == 1 || T == 2 && f != q8 {
		halves = [][]int{{0, 1}}
	}
	a.label("group")
	for pass, hs := range halves {
		a.MOVQ(w, wp)
		a.MOVQ(d, dp)
		a.Load(a.Param("q"), q)
		a.Load(a.Param("da"), da)
		a.Load(a.Param("sum"), sum)
		a.Load(a.Param("nb"), b)
		acc := a.ymms(T * len(hs))
		a.zeroY(acc...)
		a.label(fmt.Sprint("block", pass))
		if pass == 0 {
			for j := range wbytes / 64 {
				a.PREFETCHT0(Mem{Base: wp, Disp: prefetch + 64*j})
			}
		}
		blockAVX2(a, f, T, hs, nib, ones, acc, wp, dp, q, da, sum)
		a.step(wbytes, wp)
		a.step(dbytes, dp)
		a.ADDQ(t32, q)
		a.ADDQ(t4, da)
		a.ADDQ(t4, sum)
		a.DECQ(b)
		a.JNZ(a.ref(fmt.Sprint("block", pass)))
		storeTileAVX2(a, acc, len(hs), out, 32*hs[0], fmt.Sprint("stored", pass))
	}
	a.MOVQ(wp, w)
	a.MOVQ(dp, d)
	a.step(64, out)
	a.DECQ(ng)
	a.JNZ(a.ref("group"))
	a.end()
}

// blockAVX2 emits one block of the halves hs of a group.
func blockAVX2(a *asm, f format, T int, hs []int, nib, ones Mem, acc []VecVirtual, wp, dp, q, da, sum Register) {
	H := len(hs)
	// The sums of low and of high nibbles. Those of a byte weigh 1 and 16; in
	// formats of 4 bits both count the same and lie in one register.
	low := a.ymms(T * H)
	high := low
	if f == q8 {
		high = a.ymms(T * H)
	}
	begun := map[VecVirtual]bool{}
	lo, hi, x, qv := a.ymms(H), a.ymms(H), a.YMM(), a.YMM()
	add := func(w, dst VecVirtual) {
		if !begun[dst] {
			begun[dst] = true
			a.VPMADDUBSW(qv, w, dst)
			return
		}
		a.VPMADDUBSW(qv, w, x)
		a.VPADDW(x, dst, dst)
	}
	for j := range map[format]int{q8: 8, q40: 4, q41: 4}[f] {
		for i, h := range hs {
			a.VMOVDQU(Mem{Base: wp, Disp: 64*j + 32*h}, lo[i])
			a.VPSRLW(Imm(4), lo[i], hi[i])
			a.VPAND(nib, lo[i], lo[i])
			a.VPAND(nib, hi[i], hi[i])
		}
		for t := range T {
			a.VPBROADCASTD(Mem{Base: q, Disp: 32*t + 4*j}, qv)
			for i := range hs {
				add(lo[i], low[t*H+i])
			}
			if f != q8 {
				a.VPBROADCASTD(Mem{Base: q, Disp: 32*t + 16 + 4*j}, qv)
			}
			for i := range hs {
				add(hi[i], high[t*H+i])
			}
		}
	}
	dw, mn := a.ymms(H), a.ymms(H)
	for i, h := range hs {
		a.VCVTPH2PS(Mem{Base: dp, Disp: 16 * h}, dw[i])
		if f == q41 {
			a.VCVTPH2PS(Mem{Base: dp, Disp: 32 + 16*h}, mn[i])
		}
	}
	for t := range T {
		v := a.YMM()
		switch f {
		case q41:
			a.VBROADCASTSS(Mem{Base: sum, Disp: 4 * t}, v)
			for i := range hs {
				a.VFMADD231PS(v, mn[i], acc[t*H+i])
			}
		default:
			a.VPBROADCASTD(Mem{Base: sum, Disp: 4 * t}, v)
		}
		for i := range hs {
			dot := low[t*H+i]
			a.VPMADDWD(ones, dot, dot)
			if f == q8 {
				h := high[t*H+i]
				a.VPMADDWD(ones, h, h)
				a.VPSLLD(Imm(4), h, h)
				a.VPADDD(h, dot, dot)
			}
			if f != q41 {
				a.VPADDD(v, dot, dot)
			}
			a.VCVTDQ2PS(dot, dot)
		}
		s := a.YMM()
		a.VBROADCASTSS(Mem{Base: da, Disp: 4 * t}, s)
		for i := range hs {
			a.VMULPS(s, low[t*H+i], low[t*H+i])
			a.VFMADD231PS(dw[i], low[t*H+i], acc[t*H+i])
		}
	}
}

// storeTileAVX2 stores the outputs of the first n tokens, regs registers each.
func storeTileAVX2(a *asm, acc []VecVirtual, regs int, out Register, disp int, label string) {
	o, cnt := a.GP64(), a.GP64()
	a.MOVQ(out, o)
	a.Load(a.Param("n"), cnt)
	stride := a.bytes("ostride", 4)
	for t := 0; t < len(acc); t += regs {
		for i := range regs {
			a.VMOVUPS(acc[t+i], Mem{Base: o, Disp: disp + 32*i})
		}
		if t+regs < len(acc) {
			a.ADDQ(stride, o)
			a.DECQ(cnt)
			a.JZ(a.ref(label))
		}
	}
	a.label(label)
}

// mulFloatAVX2 is mulQuantAVX2 for F16 and F32 matrices and float32 activations.
func mulFloatAVX2(a *asm, name string, half bool, T int) {
	a.fn(name, "func(w *byte, cols, ng int, x, out *float32, ostride, n, t int)",
		fmt.Sprintf("multiplies ng groups of cols columns with %d tokens of a tile of t and stores n of them.", T))
	w, ng, out := a.param("w"), a.param("ng"), a.param("out")
	t4 := a.bytes("t", 4)
	x, c := a.GP64(), a.GP64()
	acc, v, xv := a.ymms(2*T), a.ymms(2), a.YMM()
	wbytes := 64
	if half {
		wbytes = 32
	}
	a.label("group")
	a.Load(a.Param("x"), x)
	a.Load(a.Param("cols"), c)
	a.zeroY(acc...)
	a.label("column")
	a.PREFETCHT0(Mem{Base: w, Disp: prefetch})
	for i := range v {
		a.load(half, Mem{Base: w, Disp: wbytes / 2 * i}, v[i])
	}
	for t := range T {
		a.VBROADCASTSS(Mem{Base: x, Disp: 4 * t}, xv)
		for i := range v {
			a.VFMADD231PS(xv, v[i], acc[2*t+i])
		}
	}
	a.step(wbytes, w)
	a.ADDQ(t4, x)
	a.DECQ(c)
	a.JNZ(a.ref("column"))
	storeTileAVX2(a, acc, 2, out, 0, "stored")
	a.step(64, out)
	a.DECQ(ng)
	a.JNZ(a.ref("group"))
	a.end()
}

// quantizeAVX2 emits the quantization of one token of a tile of t tokens.
func quantizeAVX2(a *asm) {
	abs, low := a.table("magnitude", 0x7fffffff), a.table("lowest", 0xffffff80)
	c127, tiny := a.floats("c127", 127), a.floats("tiny", 0x1p-100)
	a.fn("quantizeRowAVX2", "func(x *float32, nb int, q *int8, da *float32, sum8, sum4 *int32, sumf *float32, t int)",
		"quantizes nb blocks of 32 numbers into a tile of t tokens.")
	x, nb, q, da := a.param("x"), a.param("nb"), a.param("q"), a.param("da")
	sum8, sum4, sumf := a.param("sum8"), a.param("sum4"), a.param("sumf")
	t32, t4 := a.bytes("t", 32), a.bytes("t", 4)
	order := a.YMM() // what packing the halves of two registers leaves apart
	a.VMOVDQU(a.table("order", 0, 4, 1, 5, 2, 6, 3, 7), order)
	top := a.XMM()
	a.VMOVUPS(c127, top)
	a.label("block")
	v, m, y := a.ymms(4), a.YMM(), a.YMM()
	for i := range v {
		a.VMOVUPS(Mem{Base: x, Disp: 32 * i}, v[i])
	}
	a.VANDPS(abs, v[0], m)
	for _, r := range v[1:] {
		a.VANDPS(abs, r, y)
		a.VPMAXUD(y, m, m)
	}
	// Magnitudes order like their bits, and NaN stays on top.
	a.foldInts(m, y, func(x, y, z Op) { a.VPMAXUD(x, y, z) })
	a.VPMAXUD(tiny, m.AsX(), m.AsX())
	dx, inv, sc := a.XMM(), a.XMM(), a.YMM()
	a.VDIVSS(top, m.AsX(), dx)
	a.VDIVSS(m.AsX(), top, inv)
	a.VMOVSS(dx, Mem{Base: da})
	a.VBROADCASTSS(inv, sc)
	for _, r := range v {
		a.VMULPS(sc, r, r)
		a.VCVTPS2DQ(r, r)
		a.VPMAXSD(low, r, r)
	}
	s := a.YMM()
	a.VPADDD(v[1], v[0], s)
	a.VPADDD(v[2], s, s)
	a.VPADDD(v[3], s, s)
	a.VPACKSSDW(v[1], v[0], v[0])
	a.VPACKSSDW(v[3], v[2], v[2])
	a.VPACKSSWB(v[2], v[0], v[0])
	a.VPERMD(v[0], order, v[0])
	a.VMOVDQU(v[0], Mem{Base: q})
	a.foldInts(s, y, func(x, y, z Op) { a.VPADDD(x, y, z) })
	f, g := a.XMM(), a.GP32()
	a.VCVTDQ2PS(s.AsX(), f)
	a.VMULSS(dx, f, f)
	a.VMOVSS(f, Mem{Base: sumf})
	a.VMOVD(s.AsX(), g)
	a.NEGL(g)
	a.SHLL(Imm(3), g)
	a.MOVL(g, Mem{Base: sum4})
	a.SHLL(Imm(4), g)
	a.MOVL(g, Mem{Base: sum8})
	a.step(128, x)
	a.ADDQ(t32, q)
	for _, p := range []Register{da, sum8, sum4, sumf} {
		a.ADDQ(t4, p)
	}
	a.DECQ(nb)
	a.JNZ(a.ref("block"))
	a.end()
}

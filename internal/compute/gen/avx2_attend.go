package main

import (
	"fmt"

	. "github.com/mmcloughlin/avo/operand"
	. "github.com/mmcloughlin/avo/reg"
)

func attendKernelsAVX2(a *asm) {
	for _, half := range []bool{true, false} {
		e := map[bool]string{true: "F16", false: "F32"}[half]
		for _, t := range []int{1, 2, 4} {
			qkAVX2(a, fmt.Sprintf("qk%sx%dAVX2", e, t), half, t)
		}
		for _, j := range []int{2, 1} {
			for _, t := range []int{1, 2, 3} {
				pvAVX2(a, fmt.Sprintf("pv%sx%dx%dAVX2", e, t, 16*j), half, t, j)
			}
		}
	}
	softmaxAVX2(a)
	transposeAVX2(a)
}

// qkAVX2 is qk for T of the t query rows that q holds.
func qkAVX2(a *asm, name string, half bool, T int) {
	a.fn(name, "func(q *float32, d int, base *byte, offs *int64, tiles int, s *float32, sstride, t int)",
		fmt.Sprintf("scores %d query rows of q, [d][t], against tiles of 16 keys.", T))
	q, d, base, offs := a.param("q"), a.param("d"), a.param("base"), a.param("offs")
	tiles, s, ss, t4 := a.param("tiles"), a.param("s"), a.bytes("sstride", 4), a.bytes("t", 4)
	acc := a.ymms(2 * T)
	k, next, qp, n := a.GP64(), a.GP64(), a.GP64(), a.GP64()
	size := 16 * elemBytes(half)
	a.label("tile")
	a.tile(base, offs, k, next, func() { a.CMPQ(tiles, Imm(1)) })
	a.MOVQ(q, qp)
	a.MOVQ(d, n)
	a.zeroY(acc...)
	a.label("dim")
	for u := range 2 {
		kv, qv := a.ymms(2), a.YMM()
		for i := range kv {
			a.load(half, Mem{Base: k, Disp: size*u + size/2*i}, kv[i])
		}
		for t := range T {
			a.VBROADCASTSS(Mem{Base: qp, Disp: 4 * t}, qv)
			for i := range kv {
				a.VFMADD231PS(qv, kv[i], acc[2*t+i])
			}
		}
		a.ADDQ(t4, qp)
	}
	a.prefetch(next, 2*size)
	a.step(2*size, k, next)
	a.SUBQ(U32(2), n)
	a.JNZ(a.ref("dim"))
	a.MOVQ(s, qp)
	for t := range T {
		for i := range 2 {
			a.VMOVUPS(acc[2*t+i], Mem{Base: qp, Disp: 32 * i})
		}
		if t < T-1 {
			a.ADDQ(ss, qp)
		}
	}
	a.step(64, s)
	a.step(8, offs)
	a.DECQ(tiles)
	a.JNZ(a.ref("tile"))
	a.end()
}

// pvAVX2 is pv; 16 registers hold the sums of 3 rows at most.
func pvAVX2(a *asm, name string, half bool, T, J int) {
	a.fn(name, "func(p *float32, pstride int, base *byte, offs *int64, n int, vstride int, out *float32, ostride int)",
		fmt.Sprintf("sums %d dimensions of the values of n keys for %d query rows.", 16*J, T))
	p, ps, base, offs := a.param("p"), a.bytes("pstride", 4), a.param("base"), a.param("offs")
	size := elemBytes(half)
	n, vs := a.param("n"), a.bytes("vstride", size)
	acc := a.ymms(2 * J * T)
	a.zeroY(acc...)
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
	pv, vv := a.ymms(T), a.YMM()
	for t := range T {
		a.VBROADCASTSS(Mem{Base: rows[t]}, pv[t])
	}
	for j := range 2 * J {
		a.load(half, Mem{Base: v, Disp: 8 * size * j}, vv)
		for t := range T {
			a.VFMADD231PS(pv[t], vv, acc[2*J*t+j])
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
	out, os := a.param("out"), a.bytes("ostride", 4)
	for t := range T {
		for j := range 2 * J {
			a.VMOVUPS(acc[2*J*t+j], Mem{Base: out, Disp: 32 * j})
		}
		if t < T-1 {
			a.ADDQ(os, out)
		}
	}
	a.end()
}

// softmaxAVX2 emits the row operation of attention.
func softmaxAVX2(a *asm) {
	e := a.expY()
	a.fn("softmaxRowAVX2", "func(s *float32, nvec int, scale float32) (top, sum float32)",
		"replaces nvec vectors by e^(scale*(s-top)) and returns their maximum and sum.")
	s, n, sc := a.param("s"), a.param("nvec"), a.scalarY("scale")
	m, sum, x := a.ymms(2), a.ymms(2), a.YMM()
	p, c := a.GP64(), a.GP64()
	least := a.table("least", 0xff800000)
	for i := range m {
		a.VMOVUPS(least, m[i])
	}
	a.MOVQ(s, p)
	a.MOVQ(n, c)
	a.label("max")
	for i := range m {
		a.VMOVUPS(Mem{Base: p, Disp: 32 * i}, x)
		a.VMAXPS(m[i], x, m[i]) // NaN in x keeps m
	}
	a.step(64, p)
	a.DECQ(c)
	a.JNZ(a.ref("max"))
	a.foldY(m[0], m[1], func(x, y, z Op) { a.VMAXPS(x, y, z) })
	top := m[0]
	a.Store(top.AsX(), a.Return("top"))
	a.VBROADCASTSS(top.AsX(), top)
	a.zeroY(sum...)
	a.label("exp")
	for i := range sum {
		a.VMOVUPS(Mem{Base: s, Disp: 32 * i}, x)
		a.VSUBPS(top, x, x)
		a.VMULPS(sc, x, x)
		e.apply(a, x)
		a.VMOVUPS(x, Mem{Base: s, Disp: 32 * i})
		a.VADDPS(x, sum[i], sum[i])
	}
	a.step(64, s)
	a.DECQ(n)
	a.JNZ(a.ref("exp"))
	a.foldY(sum[0], sum[1], func(x, y, z Op) { a.VADDPS(x, y, z) })
	a.Store(sum[0].AsX(), a.Return("sum"))
	a.end()
}

// transposeAVX2 emits the conversion of 16 rows of floats to [d][16] of binary16.
func transposeAVX2(a *asm) {
	h := a.halfY()
	a.fn("transposeF16AVX2", "func(dst *byte, nvec int, x *float32, stride int)",
		"writes nvec times 16 columns of 16 rows of x transposed, as binary16.")
	dst, n, x, stride := a.param("dst"), a.param("nvec"), a.param("x"), a.bytes("stride", 4)
	p := a.GP64()
	a.label("block")
	a.MOVQ(x, p)
	for part := range 2 {
		rows := make([]VecVirtual, 8)
		for i := range rows {
			lo, hi := a.YMM(), a.YMM()
			rows[i] = a.YMM()
			a.VMOVUPS(Mem{Base: p}, lo)
			a.VMOVUPS(Mem{Base: p, Disp: 32}, hi)
			h.clamp(a, lo)
			h.clamp(a, hi)
			a.VCVTPS2PH(Imm(0), lo, lo.AsX())
			a.VCVTPS2PH(Imm(0), hi, hi.AsX())
			a.VINSERTI128(Imm(1), hi.AsX(), lo, rows[i])
			a.ADDQ(stride, p)
		}
		transpose8(a, rows, dst, 16*part)
	}
	a.step(512, dst)
	a.step(64, x)
	a.DECQ(n)
	a.JNZ(a.ref("block"))
	a.end()
}

package main

import (
	"math"
	"math/bits"

	"github.com/mmcloughlin/avo/attr"
	. "github.com/mmcloughlin/avo/operand"
	. "github.com/mmcloughlin/avo/reg"
)

// A vector of 16 lanes is two registers here, lanes 0 to 7 and 8 to 15. The names
// of these kernels end with AVX2.

// ymms returns n vector registers.
func (a *asm) ymms(n int) []VecVirtual {
	v := make([]VecVirtual, n)
	for i := range v {
		v[i] = a.YMM()
	}
	return v
}

func (a *asm) zeroY(v ...VecVirtual) {
	for _, y := range v {
		a.VPXOR(y, y, y)
	}
}

// table returns 8 numbers, or 8 copies of one, in memory. There are too few
// registers to keep constants in.
func (a *asm) table(name string, v ...uint32) Mem {
	m := a.StaticGlobal(name)
	a.DataAttributes(attr.RODATA | attr.NOPTR)
	for i := range 8 {
		a.AddDatum(4*i, U32(v[i%len(v)]))
	}
	return m
}

// floats is table for a float32.
func (a *asm) floats(name string, v float32) Mem { return a.table(name, math.Float32bits(v)) }

// scalarY broadcasts a float32 parameter.
func (a *asm) scalarY(name string) VecVirtual {
	x, y := a.XMM(), a.YMM()
	a.Load(a.Param(name), x)
	a.VBROADCASTSS(x, y)
	return y
}

// bytes returns a parameter that counts in units of n bytes, a power of two.
func (a *asm) bytes(param string, n int) Register {
	r := a.param(param)
	a.SHLQ(Imm(uint64(bits.TrailingZeros(uint(n)))), r)
	return r
}

// foldY is fold for two registers; the result is in the lowest lane of lo.
func (a *asm) foldY(lo, hi VecVirtual, op func(hi, lo, dst Op)) {
	op(hi, lo, lo)
	a.fold8(lo, a.XMM(), op)
}

package compute

import (
	"encoding/binary"
	"math"
)

// whole returns how many of n numbers are in whole vectors.
func whole(n int) int { return n &^ (Lanes - 1) }

// AddParts computes x += (s0+s1)+(s2+s3), the partial sums of a matrix whose
// columns are cut into four segments.
func (k *Kernels) AddParts(x, s0, s1, s2, s3 []float32) {
	n := len(x)
	s0, s1, s2, s3 = s0[:n], s1[:n], s2[:n], s3[:n]
	w := whole(n)
	if w > 0 {
		k.addParts(x[:w], s0[:w], s1[:w], s2[:w], s3[:w])
	}
	addPartsGo(x[w:], s0[w:], s1[w:], s2[w:], s3[w:])
}

func addPartsGo(x, s0, s1, s2, s3 []float32) {
	for i := range x {
		x[i] += (s0[i] + s1[i]) + (s2[i] + s3[i])
	}
}

// RMSNorm computes out = x / sqrt(mean(x^2) + eps) * w. out may be x.
func (k *Kernels) RMSNorm(out, x, w []float32, eps float32) {
	n := len(x)
	if n == 0 {
		return
	}
	out, w = out[:n], w[:n]
	v := whole(n)
	var lanes [Lanes]float32
	if v > 0 {
		lanes = k.sumSq(x[:v])
	}
	for l, e := range x[v:] {
		lanes[l] = fma32(e, e, lanes[l])
	}
	mean := sumLanes(&lanes) / float32(n)
	scale := float32(1 / math.Sqrt(float64(mean+eps)))
	if v > 0 {
		k.scaleMul(out[:v], x[:v], w[:v], scale)
	}
	scaleMulGo(out[v:], x[v:], w[v:], scale)
}

func sumSqGo(x []float32) (lanes [Lanes]float32) {
	for ; len(x) >= Lanes; x = x[Lanes:] {
		fmaRows(lanes[:], x[:Lanes], x[:Lanes])
	}
	return lanes
}

func scaleMulGo(out, x, w []float32, scale float32) {
	for i, v := range x {
		out[i] = float32(v*scale) * w[i]
	}
}

// Rope rotates the pairs (x[i], x[i+n]) of a head, n = len(cos) = len(sin), by
// angle i. Elements from 2n on are left as they are.
func (k *Kernels) Rope(x, cos, sin []float32) {
	n := len(cos)
	a, b, sin := x[:n], x[n:2*n], sin[:n]
	w := whole(n)
	if w > 0 {
		k.rope(a[:w], b[:w], cos[:w], sin[:w])
	}
	ropeGo(a[w:], b[w:], cos[w:], sin[w:])
}

func ropeGo(x, y, cos, sin []float32) {
	for i, a := range x {
		b, c, s := y[i], cos[i], sin[i]
		x[i] = fma32(a, c, -float32(b*s))
		y[i] = fma32(b, c, float32(a*s))
	}
}

// SiluMul computes gate = gate / (1 + e^-gate) * up.
func (k *Kernels) SiluMul(gate, up []float32) {
	up = up[:len(gate)]
	w := whole(len(gate))
	if w > 0 {
		k.siluMul(gate[:w], up[:w])
	}
	siluMulGo(gate[w:], up[w:])
}

func siluMulGo(gate, up []float32) {
	for i, g := range gate {
		t := 0 - g
		if t > 80 {
			t = 80
		}
		gate[i] = float32(g/(1+exp32(t))) * up[i]
	}
}

// ToF16 writes x as little-endian binary16 by the rule of F16Bits.
func (k *Kernels) ToF16(dst []byte, x []float32) {
	dst = dst[:2*len(x)]
	w := whole(len(x))
	if w > 0 {
		k.toF16(dst[:2*w], x[:w])
	}
	toF16Go(dst[2*w:], x[w:])
}

func toF16Go(dst []byte, x []float32) {
	for i, v := range x {
		binary.LittleEndian.PutUint16(dst[2*i:], F16Bits(v))
	}
}

package compute

import "math"

// fma32 returns a*b + c rounded once to float32. The product is exact in
// float64; when the float64 sum lies where a second rounding could go wrong,
// it is first rounded to odd.
func fma32(a, b, c float32) float32 {
	p := float64(a) * float64(b)
	s := p + float64(c)
	u := math.Float64bits(s)
	if u&(1<<29-1) == 1<<28 || u>>52&0x7ff < 1023-126 {
		return fmaOdd(p, float64(c), s)
	}
	return float32(s)
}

// fmaRow computes acc[i] = fma32(w[i], x, acc[i]). It is fma32 in a loop,
// spelled out because a call costs more than the operation.
func fmaRow(acc, w []float32, x float32) {
	w = w[:len(acc)]
	for i, c := range acc {
		p := float64(w[i]) * float64(x)
		s := p + float64(c)
		u := math.Float64bits(s)
		if u&(1<<29-1) == 1<<28 || u>>52&0x7ff < 1023-126 {
			acc[i] = fmaOdd(p, float64(c), s)
			continue
		}
		acc[i] = float32(s)
	}
}

// fmaRows is fmaRow with a factor for each number.
func fmaRows(acc, w, x []float32) {
	w, x = w[:len(acc)], x[:len(acc)]
	for i, c := range acc {
		p := float64(w[i]) * float64(x[i])
		s := p + float64(c)
		u := math.Float64bits(s)
		if u&(1<<29-1) == 1<<28 || u>>52&0x7ff < 1023-126 {
			acc[i] = fmaOdd(p, float64(c), s)
			continue
		}
		acc[i] = float32(s)
	}
}

// fmaOdd returns p + c, whose float64 sum is s, rounded once to float32.
func fmaOdd(p, c, s float64) float32 {
	if math.IsInf(s, 0) || math.IsNaN(s) {
		return float32(s)
	}
	b := s - p
	e := (p - (s - b)) + (c - b)
	if u := math.Float64bits(s); e != 0 && u&1 == 0 {
		if (e > 0) == (s > 0) {
			u++
		} else {
			u--
		}
		s = math.Float64frombits(u)
	}
	return float32(s)
}

// The constants of exp32.
const (
	expLog2e  = float32(1.44269504)
	expLn2Hi  = float32(0.693359375)
	expLn2Lo  = float32(-2.12194440e-4)
	expC6     = float32(1.3981999507e-3)
	expC5     = float32(8.3334519073e-3)
	expC4     = float32(4.1665795894e-2)
	expC3     = float32(1.6666665459e-1)
	expC2     = float32(5.0000001201e-1)
	expLowest = float32(-64)
)

// exp32 returns e^x for x <= 80, and 0 for x < -64: far from denormals, whose
// products take microcode assists.
func exp32(x float32) float32 {
	if x < expLowest {
		return 0
	}
	if x != x {
		return x
	}
	n := float32(math.RoundToEven(float64(float32(x * expLog2e))))
	r := fma32(-expLn2Hi, n, x)
	r = fma32(-expLn2Lo, n, r)
	y := fma32(expC6, r, expC5)
	y = fma32(y, r, expC4)
	y = fma32(y, r, expC3)
	y = fma32(y, r, expC2)
	y = fma32(y, r, 1)
	y = fma32(y, r, 1)
	return y * math.Float32frombits(uint32(int32(n)+127)<<23)
}

// sumLanes adds 16 lanes in the fixed tree: lane i and i+8, then i+4, i+2, i+1.
func sumLanes(l *[Lanes]float32) float32 {
	t := *l
	for h := Lanes / 2; h > 0; h /= 2 {
		for i := range h {
			t[i] += t[i+h]
		}
	}
	return t[0]
}

// maxLanes is sumLanes with the maximum; of two that do not compare greater
// the upper lane's is kept.
func maxLanes(l *[Lanes]float32) float32 {
	t := *l
	for h := Lanes / 2; h > 0; h /= 2 {
		for i := range h {
			if !(t[i] > t[i+h]) {
				t[i] = t[i+h]
			}
		}
	}
	return t[0]
}

// maxF16 is the greatest finite binary16.
const maxF16 = 65504

// F16Bits returns x as binary16, rounded to nearest even. What lies beyond the
// finite range, infinities too, becomes the greatest finite number of its
// sign, and NaN becomes +0: the cache holds finite numbers only.
func F16Bits(x float32) uint16 {
	switch {
	case x != x:
		return 0
	case x > maxF16:
		x = maxF16
	case x < -maxF16:
		x = -maxF16
	}
	u := math.Float32bits(x)
	sign := uint16(u >> 16 & 0x8000)
	u &= 0x7fffffff
	e := int(u >> 23)
	if e < 113-11 { // below half of the least subnormal
		return sign
	}
	m := u&(1<<23-1) | 1<<23
	shift := uint(13)
	base := uint32(e-113) << 10
	if e < 113 {
		shift += uint(113 - e)
		base = 0
	} else {
		m &^= 1 << 23
		base += 1 << 10
	}
	q := m >> shift
	rest, half := m&(1<<shift-1), uint32(1)<<(shift-1)
	if rest > half || rest == half && q&1 == 1 {
		q++
	}
	return sign | uint16(base+q)
}

// F16Float returns the value of a binary16.
func F16Float(h uint16) float32 {
	s := uint32(h>>15) << 31
	e := uint32(h >> 10 & 31)
	m := uint32(h & 0x3ff)
	switch e {
	case 0:
		return math.Float32frombits(s | math.Float32bits(float32(m)*(1.0/(1<<24))))
	case 31:
		return math.Float32frombits(s | 0x7f800000 | m<<13)
	}
	return math.Float32frombits(s | (e+112)<<23 | m<<13)
}

// clampF32 is F16Bits's rule for caches of float32.
func clampF32(x float32) float32 {
	switch {
	case x != x:
		return 0
	case x > math.MaxFloat32:
		return math.MaxFloat32
	case x < -math.MaxFloat32:
		return -math.MaxFloat32
	}
	return x
}

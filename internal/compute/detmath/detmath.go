// Package detmath has the few transcendental functions whose results reach a
// token: position tables, sampling and log-probabilities.
//
// Go's package math picks an assembly routine where an architecture has one
// and lets the compiler fuse a product with a sum where the architecture can,
// so its results differ between machines in the last bit. The functions here
// give the same bits everywhere: they use only operations that IEEE 754
// defines exactly, and every product goes through an explicit conversion,
// which forbids fusing. They are accurate to about one unit in the last place;
// each doc comment says where that ends.
package detmath

import "math"

const (
	ln2Hi = 6.93147180369123816490e-01 // ln 2, the upper 32 bits of its fraction
	ln2Lo = 1.90821492927058770002e-10 // ln 2 - ln2Hi
	log2e = 1.44269504088896338700e+00

	expMax = 7.09782712893383973096e+02  // above it e^x is infinite
	expMin = -7.45133219101941108420e+02 // below it e^x rounds to zero
)

// Exp64 returns e^x. Its error is below one unit in the last place for normal
// results. Exp64(+Inf) is +Inf, Exp64(-Inf) is 0 and Exp64(NaN) is NaN.
func Exp64(x float64) float64 {
	switch {
	case math.IsNaN(x):
		return x
	case x > expMax:
		return math.Inf(1)
	case x < expMin:
		return 0
	case x > -1.0/(1<<28) && x < 1.0/(1<<28):
		return 1 + x
	}
	// x = k ln 2 + r with |r| <= ln 2 / 2, r = hi - lo.
	k := math.Floor(float64(log2e*x) + 0.5)
	hi := x - float64(k*ln2Hi)
	lo := float64(k * ln2Lo)
	return expmulti(hi, lo, int(k))
}

// expmulti returns e^(hi-lo) * 2^k for |hi-lo| <= ln 2 / 2.
func expmulti(hi, lo float64, k int) float64 {
	const (
		p1 = 1.66666666666666657415e-01
		p2 = -2.77777777770155933842e-03
		p3 = 6.61375632143793436117e-05
		p4 = -1.65339022054652515390e-06
		p5 = 4.13813679705723846039e-08
	)
	r := hi - lo
	t := float64(r * r)
	p := p4 + float64(t*p5)
	p = p3 + float64(t*p)
	p = p2 + float64(t*p)
	p = p1 + float64(t*p)
	c := r - float64(t*p)
	y := 1 - ((lo - float64(r*c)/(2-c)) - hi)
	return math.Ldexp(y, k)
}

// Log64 returns the natural logarithm of x with an error below one unit in the
// last place. Log64(0) is -Inf; Log64 of a negative number or NaN is NaN;
// Log64(+Inf) is +Inf.
func Log64(x float64) float64 {
	const (
		l1 = 6.666666666666735130e-01
		l2 = 3.999999999940941908e-01
		l3 = 2.857142874366239149e-01
		l4 = 2.222219843214978396e-01
		l5 = 1.818357216161805012e-01
		l6 = 1.531383769920937332e-01
		l7 = 1.479819860511658591e-01
	)
	switch {
	case math.IsNaN(x) || math.IsInf(x, 1):
		return x
	case x < 0:
		return math.NaN()
	case x == 0:
		return math.Inf(-1)
	}
	// x = 2^k (1 + f) with sqrt(1/2) <= 1 + f < sqrt(2).
	m, e := math.Frexp(x)
	if m < math.Sqrt2/2 {
		m *= 2
		e--
	}
	f := m - 1
	k := float64(e)
	s := f / (2 + f)
	s2 := float64(s * s)
	s4 := float64(s2 * s2)
	t1 := l5 + float64(s4*l7)
	t1 = l3 + float64(s4*t1)
	t1 = l1 + float64(s4*t1)
	t1 = float64(s2 * t1)
	t2 := l4 + float64(s4*l6)
	t2 = l2 + float64(s4*t2)
	t2 = float64(s4 * t2)
	h := float64(float64(0.5*f) * f)
	c := float64(s*(h+(t1+t2))) + float64(k*ln2Lo)
	return float64(k*ln2Hi) - ((h - c) - f)
}

// Pow64 returns x^y for x >= 0. The integer part of y is raised by repeated
// squaring and the rest through Exp64 and Log64, so the error is a few units in
// the last place for |y| up to about 1 and grows with log2|y| and |ln x| beyond.
// Pow64(x, 0) is 1 for any x, Pow64(1, y) is 1 for any y; a negative x gives
// NaN unless y is an integer.
func Pow64(x, y float64) float64 {
	switch {
	case y == 0 || x == 1:
		return 1
	case y == 1:
		return x
	case math.IsNaN(x) || math.IsNaN(y):
		return math.NaN()
	case x == 0:
		return powZero(x, y)
	case math.IsInf(y, 0):
		return powInf(x, y)
	case math.IsInf(x, 0):
		if math.IsInf(x, -1) {
			return Pow64(1/x, -y)
		}
		if y < 0 {
			return 0
		}
		return math.Inf(1)
	case y == 0.5:
		return math.Sqrt(x)
	case y == -0.5:
		return 1 / math.Sqrt(x)
	}
	yi, yf := math.Modf(math.Abs(y))
	if yf != 0 && x < 0 {
		return math.NaN()
	}
	if yi >= 1<<63 {
		return powHuge(x, y)
	}
	// The answer is a * 2^e; the fraction of y is at most one half either way.
	a, e := 1.0, 0
	if yf != 0 {
		if yf > 0.5 {
			yf--
			yi++
		}
		a = Exp64(float64(yf * Log64(x)))
	}
	m, me := math.Frexp(x)
	for i := uint64(yi); i != 0; i >>= 1 {
		if me < -1<<12 || me > 1<<12 {
			e += me // overflows or underflows whatever follows
			break
		}
		if i&1 == 1 {
			a = float64(a * m)
			e += me
		}
		m = float64(m * m)
		me <<= 1
		if m < 0.5 {
			m += m
			me--
		}
	}
	if y < 0 {
		a, e = 1/a, -e
	}
	return math.Ldexp(a, e)
}

// powZero returns (±0)^y for y other than 0 and NaN.
func powZero(x, y float64) float64 {
	neg := math.Signbit(x) && oddInteger(y)
	switch {
	case y < 0 && neg:
		return math.Inf(-1)
	case y < 0:
		return math.Inf(1)
	case neg:
		return x
	}
	return 0
}

// powInf returns x^(±Inf) for x other than 0, 1 and NaN.
func powInf(x, y float64) float64 {
	switch {
	case x == -1:
		return 1
	case (math.Abs(x) < 1) == math.IsInf(y, 1):
		return 0
	}
	return math.Inf(1)
}

// powHuge returns x^y for an even integer |y| >= 2^63 and a finite x.
func powHuge(x, y float64) float64 {
	switch {
	case x == -1:
		return 1
	case (math.Abs(x) < 1) == (y > 0):
		return 0
	}
	return math.Inf(1)
}

// oddInteger reports whether y is an odd integer.
func oddInteger(y float64) bool {
	if math.Abs(y) >= 1<<53 {
		return false
	}
	i, f := math.Modf(y)
	return f == 0 && int64(i)&1 == 1
}

// Sincos64 returns sin x and cos x with an absolute error below 2e-16 for
// |x| < 2^29; there lie all angles of position tables. Larger arguments are
// first reduced by the float64 nearest to 2 pi, so they have the same bits
// everywhere but follow a slightly wrong period. Infinities and NaN give NaN.
func Sincos64(x float64) (sin, cos float64) {
	if math.IsNaN(x) || math.IsInf(x, 0) {
		return math.NaN(), math.NaN()
	}
	neg := math.Signbit(x)
	x = math.Abs(x)
	if x >= 1<<29 {
		x = math.Mod(x, 2*math.Pi)
	}
	// x = j pi/4 + z with an even j and |z| <= pi/4; pi/4 in three parts, so
	// that the products with j are exact.
	const (
		pi4A = 7.85398125648498535156e-1
		pi4B = 3.77489470793079817668e-8
		pi4C = 2.69515142907905952645e-15
	)
	j := uint64(x * (4 / math.Pi))
	j += j & 1
	y := float64(j)
	z := ((x - float64(y*pi4A)) - float64(y*pi4B)) - float64(y*pi4C)
	sin, cos = sinPoly(z), cosPoly(z)
	switch j & 7 {
	case 2:
		sin, cos = cos, -sin
	case 4:
		sin, cos = -sin, -cos
	case 6:
		sin, cos = -cos, sin
	}
	if neg {
		sin = -sin
	}
	return sin, cos
}

// sinPoly returns sin z for |z| <= pi/4.
func sinPoly(z float64) float64 {
	zz := float64(z * z)
	p := float64(1.58962301576546568060e-10*zz) - 2.50507477628578072866e-8
	p = float64(p*zz) + 2.75573136213857245213e-6
	p = float64(p*zz) - 1.98412698295895385996e-4
	p = float64(p*zz) + 8.33333333332211858878e-3
	p = float64(p*zz) - 1.66666666666666307295e-1
	return z + float64(float64(z*zz)*p)
}

// cosPoly returns cos z for |z| <= pi/4.
func cosPoly(z float64) float64 {
	zz := float64(z * z)
	p := float64(-1.13585365213876817300e-11*zz) + 2.08757008419747316778e-9
	p = float64(p*zz) - 2.75573141792967388112e-7
	p = float64(p*zz) + 2.48015872888517045348e-5
	p = float64(p*zz) - 1.38888888888730564116e-3
	p = float64(p*zz) + 4.16666666666665929218e-2
	return (1 - float64(0.5*zz)) + float64(float64(zz*zz)*p)
}

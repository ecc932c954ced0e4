package detmath

import (
	"math"
	"math/big"
	"math/rand/v2"
	"testing"
)

const prec = 200

// bigExp returns e^x to about 60 digits.
func bigExp(x float64) *big.Float {
	r := new(big.Float).SetPrec(prec).SetFloat64(x)
	r.SetMantExp(r, -20)
	sum, term := big.NewFloat(1).SetPrec(prec), big.NewFloat(1).SetPrec(prec)
	for i := 1; i < 40; i++ {
		term.Mul(term, r)
		term.Quo(term, new(big.Float).SetPrec(prec).SetInt64(int64(i)))
		sum.Add(sum, term)
	}
	for range 20 {
		sum.Mul(sum, sum)
	}
	return sum
}

// ulps returns |got-want| in units of the last place of want.
func ulps(got float64, want *big.Float) float64 {
	w, _ := want.Float64()
	u := math.Nextafter(math.Abs(w), math.Inf(1)) - math.Abs(w)
	d := new(big.Float).SetPrec(prec).SetFloat64(got)
	d.Sub(d, want)
	f, _ := d.Float64()
	return math.Abs(f) / u
}

func TestExpIsWithinOneUnit(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 3000 {
		x := r.Float64()*1400 - 700
		if r.IntN(2) == 0 {
			x = r.NormFloat64()
		}
		if u := ulps(Exp64(x), bigExp(x)); u > 1 {
			t.Fatalf("Exp64(%v) is %v units off", x, u)
		}
	}
}

func TestLogIsWithinOneUnit(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	for range 3000 {
		x := math.Exp(r.NormFloat64() * 50)
		if r.IntN(2) == 0 {
			x = 1 + r.NormFloat64()/16
		}
		got := Log64(x)
		// got + (x e^-got - 1) is log x to second order.
		d := bigExp(-got)
		d.Mul(d, new(big.Float).SetPrec(prec).SetFloat64(x))
		d.Sub(d, big.NewFloat(1).SetPrec(prec))
		d.Add(d, new(big.Float).SetPrec(prec).SetFloat64(got))
		if u := ulps(got, d); u > 1 {
			t.Fatalf("Log64(%v) is %v units off", x, u)
		}
	}
}

func TestPowOfRopeBases(t *testing.T) {
	for _, base := range []float64{10000, 500000, 1e6} {
		for j := range 64 {
			y := float64(2*j) / 128
			got := Pow64(base, y)
			want := bigExp(0)
			for range j {
				want.Mul(want, big.NewFloat(base).SetPrec(prec))
			}
			for range 6 { // the 64th root
				want.Sqrt(want)
			}
			if u := ulps(got, want); u > 16 {
				t.Fatalf("Pow64(%v, %v) is %v units off", base, y, u)
			}
		}
	}
}

func TestPowAgreesWithMath(t *testing.T) {
	sp := []float64{0, math.Copysign(0, -1), 1, -1, 0.5, -0.5, 2, -2, 3, -3, 1e300, -1e300, 1e-300, math.Inf(1), math.Inf(-1), math.NaN(), 1 << 63, 1e19, 0.3, 7.25, math.MaxFloat64, 0x1p-1022}
	for _, x := range sp {
		for _, y := range sp {
			got, want := Pow64(x, y), math.Pow(x, y)
			same := got == want && math.Signbit(got) == math.Signbit(want) || math.IsNaN(got) && math.IsNaN(want)
			if !same && math.Abs(got-want) > 1e-14*math.Abs(want) {
				t.Errorf("Pow64(%v, %v) = %v, math has %v", x, y, got, want)
			}
		}
	}
}

func TestSincosAgreesWithMath(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 6))
	for range 200000 {
		x := r.NormFloat64() * math.Pow(10, float64(r.IntN(8)))
		s, c := Sincos64(x)
		ws, wc := math.Sincos(x)
		if math.Abs(s-ws) > 2.3e-16 || math.Abs(c-wc) > 2.3e-16 {
			t.Fatalf("Sincos64(%v) = %v %v, math has %v %v", x, s, c, ws, wc)
		}
	}
}

func TestSpecialValues(t *testing.T) {
	inf, nan := math.Inf(1), math.NaN()
	for _, c := range []struct {
		name      string
		got, want float64
	}{
		{"exp 0", Exp64(0), 1},
		{"exp inf", Exp64(inf), inf},
		{"exp -inf", Exp64(-inf), 0},
		{"exp nan", Exp64(nan), nan},
		{"exp large", Exp64(710), inf},
		{"exp small", Exp64(-746), 0},
		{"log 0", Log64(0), -inf},
		{"log -1", Log64(-1), nan},
		{"log inf", Log64(inf), inf},
		{"log 1", Log64(1), 0},
	} {
		if c.got != c.want && !(math.IsNaN(c.got) && math.IsNaN(c.want)) {
			t.Errorf("%s: %v, want %v", c.name, c.got, c.want)
		}
	}
}

// The bits of a sweep are part of the arithmetic version: they must not differ
// between architectures or releases of Go.
func TestBitsAreFixed(t *testing.T) {
	h := uint64(14695981039346656037)
	mix := func(v float64) { h = (h ^ math.Float64bits(v)) * 1099511628211 }
	for i := range 2000 {
		x := float64(i)*0.37 - 350
		mix(Exp64(x))
		mix(Log64(math.Abs(x) + 0.001))
		mix(Pow64(10000, float64(i)/2000))
		s, c := Sincos64(x * 97)
		mix(s)
		mix(c)
	}
	const want = 0xd12d0b714b699635
	if h != want {
		t.Fatalf("sweep hash %#x, want %#x", h, uint64(want))
	}
}

package compute

// Form says in which forms activations are kept. They may be combined.
type Form uint8

// The forms.
const (
	Int8  Form = 1 << iota // blocks of 32 with a scale, for quantized matrices
	Float                  // float32, for F16 and F32 matrices
)

// FormOf returns the form that matrices of type t multiply with.
func FormOf(t Type) Form {
	if t.Quantized() {
		return Int8
	}
	return Float
}

// An Act holds the inputs of matrix products: up to a fixed number of tokens
// of Cols columns each, in tiles of up to 16 tokens. The last tile is padded to
// 1, 2, 4, 8 or 16 tokens. Different tokens of one Act may be set at the same
// time.
type Act struct {
	Cols int

	n, max int
	form   Form

	// Int8, by tile, then block, then token.
	q    []int8    // 32 a block
	da   []float32 // scale
	sum8 []int32   // -128 times the sum of the block's numbers
	sum4 []int32   // -8 times the sum
	sumf []float32 // scale times the sum

	// Float, by tile, then column, then token.
	x []float32
}

// NewAct returns an Act for up to max tokens of cols columns. For Int8 cols
// must be a multiple of 32. It holds no tokens until Reset.
func NewAct(max, cols int, form Form) *Act {
	a := &Act{Cols: cols, max: max, form: form}
	p := (max + Lanes - 1) / Lanes * Lanes
	if form&Int8 != 0 {
		if cols%quantBlock != 0 {
			panic("compute: int8 activations whose columns are no multiple of 32")
		}
		n := p * cols / quantBlock
		a.q = make([]int8, n*quantBlock)
		a.da, a.sumf = make([]float32, n), make([]float32, n)
		a.sum8, a.sum4 = make([]int32, n), make([]int32, n)
	}
	if form&Float != 0 {
		a.x = make([]float32, p*cols)
	}
	return a
}

// Reset makes a hold n tokens; all of them must be set before the next product.
func (a *Act) Reset(n int) {
	if n < 0 || n > a.max {
		panic("compute: more tokens than the activations were made for")
	}
	a.n = n
}

// Tokens returns the number of tokens.
func (a *Act) Tokens() int { return a.n }

// tile returns the width of the tile that starts at token t0.
func (a *Act) tile(t0 int) int { return padTile(min(a.n-t0, Lanes)) }

// padTile returns the least of 1, 2, 4, 8 and 16 that holds n tokens.
func padTile(n int) int {
	t := 1
	for t < n {
		t *= 2
	}
	return t
}

// Set makes x, of a.Cols numbers, token i of a: quantized for Int8, as it is
// for Float.
func (k *Kernels) Set(a *Act, i int, x []float32) {
	x = x[:a.Cols]
	if i < 0 || i >= a.n {
		panic("compute: setting a token that the activations do not hold")
	}
	t0 := i &^ (Lanes - 1)
	t := a.tile(t0)
	if a.form&Int8 != 0 && a.Cols > 0 {
		k.quantize(a, t0, t, i-t0, x)
	}
	if a.form&Float != 0 {
		o := a.x[t0*a.Cols:][:t*a.Cols]
		for c, j := 0, i-t0; c < len(x) && j < len(o); c, j = c+1, j+t {
			o[j] = x[c]
		}
	}
}

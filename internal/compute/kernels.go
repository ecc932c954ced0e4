package compute

import (
	"errors"
	"fmt"
	"slices"
)

// ErrNoKernels says that this machine or build has no such kernels.
var ErrNoKernels = errors.New("kernels are not available")

// Kernels is one implementation of the arithmetic. Its methods may be called
// from any goroutine; they are pure but for what they write.
type Kernels struct {
	name string

	// mul computes groups [g0, g1) for the tile of t tokens from t0 on and
	// stores the outputs of n of them, those of t0 first.
	mul [numTypes]func(m *Matrix, out []float32, stride int, a *Act, t0, t, n, g0, g1 int)

	// quantize makes x token i of the tile of t tokens that starts at t0.
	quantize func(a *Act, t0, t, i int, x []float32)

	// Row operations over whole vectors of 16. (What a function value gets by
	// pointer escapes, so small results are returned.)
	addParts func(x, s0, s1, s2, s3 []float32)
	sumSq    func(x []float32) [Lanes]float32
	scaleMul func(out, x, w []float32, scale float32)
	rope     func(x, y, cos, sin []float32)
	siluMul  func(gate, up []float32)
	toF16    func(dst []byte, x []float32)

	// Attention; see attend.go.
	softmax func(s []float32, scale float32) (top, sum float32)
	qk      func(j *attnJob)
	pv      func(j *attnJob, row, rows int)
	writeK  func(dst []byte, dim, slot, n int, x []float32, stride int)
}

// Name returns "avx512", "avx2" or "portable".
func (k *Kernels) Name() string { return k.name }

// Names returns the names of the kernels of this build and machine, the
// fastest first.
func Names() []string {
	var names []string
	for _, k := range archKernels() {
		names = append(names, k.name)
	}
	return append(names, portableName)
}

// Select returns the kernels of a name of Names; "auto" and "" mean the
// fastest. It returns ErrNoKernels for others.
func Select(name string) (*Kernels, error) {
	all := append(archKernels(), portable())
	if name == "auto" || name == "" {
		return all[0], nil
	}
	i := slices.IndexFunc(all, func(k *Kernels) bool { return k.name == name })
	if i < 0 {
		return nil, fmt.Errorf("compute: selecting kernels %q of %v: %w", name, Names(), ErrNoKernels)
	}
	return all[i], nil
}

const portableName = "portable"

// portable returns the kernels in plain Go, for any architecture.
func portable() *Kernels {
	return &Kernels{
		name: portableName,
		mul: [numTypes]func(m *Matrix, out []float32, stride int, a *Act, t0, t, n, g0, g1 int){
			F32: mulFloatGo, F16: mulFloatGo, Q4_0: mulQuantGo, Q4_1: mulQuantGo, Q8_0: mulQuantGo,
		},
		quantize: quantizeGo,
		addParts: addPartsGo,
		sumSq:    sumSqGo,
		scaleMul: scaleMulGo,
		rope:     ropeGo,
		siluMul:  siluMulGo,
		toF16:    toF16Go,
		softmax:  softmaxGo,
		qk:       qkGo,
		pv:       pvGo,
		writeK:   writeKGo,
	}
}

package model

import (
	"tandem/internal/compute"
	"tandem/internal/compute/detmath"
)

// rotary holds the cosines and sines of every position: n of each in a row.
type rotary struct {
	n        int
	cos, sin []float32
}

// newRotary computes the table of positions 0 to length-1 on the team. factors
// divide the frequencies; nil means none do.
func newRotary(p *params, factors []float32, length int, team *compute.Team) rotary {
	n := p.rot / 2
	r := rotary{n: n, cos: make([]float32, length*n), sin: make([]float32, length*n)}
	freq := make([]float64, n)
	for i := range freq {
		freq[i] = 1 / detmath.Pow64(p.base, float64(2*i)/float64(p.rot))
		if factors != nil {
			freq[i] /= float64(factors[i])
		}
	}
	chunks := min(length, 64)
	team.Do(chunks, func(_, c int) {
		for pos := length * c / chunks; pos < length*(c+1)/chunks; pos++ {
			for i, f := range freq {
				s, c := detmath.Sincos64(float64(pos) * f)
				r.cos[pos*n+i], r.sin[pos*n+i] = float32(c), float32(s)
			}
		}
	})
	return r
}

// at returns the cosines and sines of a position.
func (r *rotary) at(pos int) (cos, sin []float32) {
	return r.cos[pos*r.n : (pos+1)*r.n], r.sin[pos*r.n : (pos+1)*r.n]
}

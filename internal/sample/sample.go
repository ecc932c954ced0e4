package sample

import (
	"errors"
	"math"
	"slices"

	"tandem/internal/compute/detmath"
	"tandem/internal/kv"
)

// ErrNotFinite says that a row of logits holds a NaN or +Inf, or no token that
// can be chosen.
var ErrNotFinite = errors.New("sample: logits are not finite")

// A cand is a token that may be chosen, with its logit and its weight, the
// probability relative to the most probable token's.
type cand struct {
	token kv.Token
	logit float64
	w     float64
}

// before orders candidates: higher logit first, then lower token.
func before(a, b cand) int {
	switch {
	case a.logit > b.logit:
		return -1
	case a.logit < b.logit:
		return 1
	}
	return int(a.token) - int(b.token)
}

// A Sampler holds the scratch memory of sampling. It carries nothing from call
// to call; one serves all requests of an engine loop.
type Sampler struct {
	logits []float64
	cands  []cand
	heap   topHeap
}

// Argmax returns the lowest index of the highest value of row. The only error is
// ErrNotFinite.
func Argmax(row []float32) (kv.Token, error) {
	best, at := float32(math.Inf(-1)), -1
	for i := 0; i < len(row); i += 4 {
		r := row[i:min(i+4, len(row))]
		// Nearly all are lower, which a NaN is not: four at a time.
		if len(r) == 4 && r[0] <= best && r[1] <= best && r[2] <= best && r[3] <= best {
			continue
		}
		for j, x := range r {
			if x > best {
				best, at = x, i+j
			} else if x != x {
				return 0, ErrNotFinite
			}
		}
	}
	if at < 0 || math.IsInf(float64(best), 1) {
		return 0, ErrNotFinite
	}
	return kv.Token(at), nil
}

// Next chooses the token that follows, from the row of logits of the last one.
// It does not change st and does not keep row. The only error is ErrNotFinite.
func (s *Sampler) Next(st *State, row []float32) (kv.Token, error) {
	raw, err := Argmax(row)
	if err != nil {
		return 0, err
	}
	if st.plain() && st.p.Greedy() {
		return raw, nil
	}
	s.logits = slices.Grow(s.logits[:0], len(row))[:len(row)]
	for i, x := range row {
		s.logits[i] = float64(x)
	}
	st.adjust(s.logits)
	best := 0
	for i, x := range s.logits {
		if x > s.logits[best] {
			best = i
		}
	}
	if math.IsInf(s.logits[best], -1) {
		return 0, ErrNotFinite
	}
	if st.p.Greedy() {
		return kv.Token(best), nil
	}
	s.filter(&st.p, s.logits[best])
	return s.draw(Uniform(st.seed, st.choice, st.prompt+st.out)), nil
}

// filter fills s.cands with the tokens that temperature, min_p, top_k and top_p
// leave, in vLLM's order.
func (s *Sampler) filter(p *Params, best float64) {
	s.cands = s.cands[:0]
	for i, x := range s.logits {
		if w := detmath.Exp64((x - best) / p.Temperature); w > 0 && w >= p.MinP {
			s.cands = append(s.cands, cand{kv.Token(i), x, w})
		}
	}
	if p.TopK > 0 && p.TopK < len(s.cands) {
		s.cands = s.heap.top(s.cands, p.TopK)
	}
	if p.TopP < 1 {
		s.nucleus(p.TopP)
	}
}

// nucleus keeps the shortest run of the most probable candidates whose
// probabilities reach p. Sorting a whole vocabulary is what this avoids: only
// candidates above a falling threshold are sorted, and a threshold is right
// when they reach p among themselves, since those below come after them.
func (s *Sampler) nucleus(p float64) {
	var total float64
	for _, c := range s.cands {
		total += c.w
	}
	want := float64(p * total)
	all := s.cands
	for _, limit := range [...]float64{1e-2, 1e-4, 1e-7, 0} {
		n := 0
		for i := range all { // the chosen move to the front; order is restored by sorting
			if all[i].w >= limit {
				all[n], all[i] = all[i], all[n]
				n++
			}
		}
		head := all[:n]
		slices.SortFunc(head, before)
		var sum float64
		for i := range head {
			sum += head[i].w
			if sum >= want {
				s.cands = head[:i+1]
				return
			}
		}
	}
	s.cands = all // rounding left the sum below p of the total
}

// draw picks the candidate at which the running sum of weights passes u of the
// total, in the order of s.cands.
func (s *Sampler) draw(u float64) kv.Token {
	var total float64
	for _, c := range s.cands {
		total += c.w
	}
	at := float64(u * total)
	var sum float64
	for _, c := range s.cands {
		sum += c.w
		if sum > at {
			return c.token
		}
	}
	return s.cands[len(s.cands)-1].token
}

package sample

import (
	"slices"

	"tandem/internal/compute/detmath"
	"tandem/internal/kv"
)

// LogprobFloor is the lowest log-probability that is reported, as in vLLM, so
// that every number fits JSON.
const LogprobFloor = -9999

// A Logprob is the log-probability of one token.
type Logprob struct {
	Token   kv.Token
	Logprob float64 // natural logarithm, in [LogprobFloor, 0]
	Rank    int     // 1 for the most probable token of the vocabulary
}

// TokenLogprobs are the log-probabilities reported with one token: its own and
// those of the most probable tokens, best first. They come from the logits of
// the model as they are, before temperature, penalties and filters.
type TokenLogprobs struct {
	Logprob
	Top []Logprob
}

// Logprobs returns the log-probabilities of token t under row, with the n most
// probable alternatives. The result shares no memory with row or s. The only
// error is ErrNotFinite.
func (s *Sampler) Logprobs(row []float32, t kv.Token, n int) (TokenLogprobs, error) {
	best, err := Argmax(row)
	if err != nil {
		return TokenLogprobs{}, err
	}
	top := float64(row[best])
	var sum float64
	rank, own := 1, row[t]
	for i, x := range row {
		sum += detmath.Exp64(float64(x) - top)
		if x > own || x == own && i < int(t) {
			rank++
		}
	}
	norm := detmath.Log64(sum)
	value := func(x float64) float64 { return min(max(x-top-norm, LogprobFloor), 0) }
	out := TokenLogprobs{Logprob: Logprob{Token: t, Logprob: value(float64(own)), Rank: rank}}
	if n <= 0 {
		return out, nil
	}
	s.cands = s.cands[:0]
	for i, x := range row {
		s.cands = append(s.cands, cand{token: kv.Token(i), logit: float64(x)})
	}
	if n < len(s.cands) {
		s.cands = s.heap.top(s.cands, n)
	} else {
		slices.SortFunc(s.cands, before)
	}
	out.Top = make([]Logprob, len(s.cands))
	for i, c := range s.cands {
		out.Top[i] = Logprob{Token: c.token, Logprob: value(c.logit), Rank: i + 1}
	}
	return out, nil
}

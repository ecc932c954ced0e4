package sample

import (
	"math"
	"slices"

	"tandem/internal/kv"
)

// A Stop says why a choice's output ends with its last token.
type Stop uint8

// The reasons.
const (
	Continue  Stop = iota // it does not end
	StopEOS               // an end-of-sequence token of the model
	StopToken             // one of the request's stop token ids
	Length                // max_tokens
)

type bias struct {
	token kv.Token
	value float64
}

// A State is what sampling remembers of one choice: its parameters, resolved
// for the model, and counts of the tokens it has seen. It belongs to one
// goroutine.
type State struct {
	p      Params
	seed   uint64
	choice int
	prompt int // tokens of the prompt
	out    int // tokens of the output so far
	max    int
	eos    []kv.Token
	masked []kv.Token // tokens forbidden before MinTokens, ascending
	bias   []bias     // ascending token

	penalised bool
	seen      []kv.Token         // distinct tokens under a penalty, in order of first sight
	count     map[kv.Token]int32 // their counts in the output, 0: only in the prompt
}

// NewState prepares the sampling of one choice of a request. p must be valid;
// maxTokens is the number of tokens after which the output ends, at least 1;
// eos are the model's end tokens. The seed is the request's own or one drawn
// for it; the choices of one request share it.
func NewState(p Params, prompt, eos []kv.Token, maxTokens, choice int, seed uint64) *State {
	s := &State{p: p, seed: seed, choice: choice, prompt: len(prompt), max: maxTokens, eos: eos}
	if p.MinTokens > 0 {
		s.masked = append(append(s.masked, eos...), p.StopTokenIDs...)
		slices.Sort(s.masked)
		s.masked = slices.Compact(s.masked)
	}
	for t, v := range p.LogitBias {
		s.bias = append(s.bias, bias{t, min(max(v, -maxBias), maxBias)})
	}
	slices.SortFunc(s.bias, func(a, b bias) int { return int(a.token) - int(b.token) })
	s.penalised = p.RepetitionPenalty != 1 || p.PresencePenalty != 0 || p.FrequencyPenalty != 0
	if s.penalised {
		s.count = make(map[kv.Token]int32)
		if p.RepetitionPenalty != 1 {
			for _, t := range prompt {
				s.see(t, 0)
			}
		}
	}
	return s
}

func (s *State) see(t kv.Token, n int32) {
	c, ok := s.count[t]
	if !ok {
		s.seen = append(s.seen, t)
	}
	s.count[t] = c + n
}

// Tokens returns the number of accepted tokens.
func (s *State) Tokens() int { return s.out }

// Accept adds t to the output and says whether the output ends with it. An end
// token wins over a stop token and both over the length.
func (s *State) Accept(t kv.Token) Stop {
	s.out++
	if s.penalised {
		s.see(t, 1)
	}
	if s.out >= s.p.MinTokens {
		switch {
		case !s.p.IgnoreEOS && slices.Contains(s.eos, t):
			return StopEOS
		case slices.Contains(s.p.StopTokenIDs, t):
			return StopToken
		}
	}
	if s.out >= s.max {
		return Length
	}
	return Continue
}

// plain reports whether the next token is chosen from the logits as they are.
func (s *State) plain() bool {
	return !s.penalised && len(s.bias) == 0 && !s.masking()
}

func (s *State) masking() bool { return s.out < s.p.MinTokens && len(s.masked) > 0 }

// adjust applies everything that changes single logits, in vLLM's order:
// min_tokens, logit_bias, repetition, then frequency and presence. Results
// saturate at the largest float32.
func (s *State) adjust(l []float64) {
	if s.masking() {
		for _, t := range s.masked {
			l[t] = math.Inf(-1)
		}
	}
	for _, b := range s.bias {
		l[b.token] += b.value
	}
	if !s.penalised {
		return
	}
	rep := s.p.RepetitionPenalty
	for _, t := range s.seen {
		x := l[t]
		if math.IsInf(x, -1) {
			continue
		}
		if rep != 1 {
			if x > 0 {
				x /= rep
			} else {
				x = float64(x * rep)
			}
		}
		if c := s.count[t]; c > 0 {
			x -= float64(float64(c) * s.p.FrequencyPenalty)
			x -= s.p.PresencePenalty
		}
		l[t] = min(max(x, -math.MaxFloat32), math.MaxFloat32)
	}
}

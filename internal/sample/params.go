// Package sample turns a row of logits into a token.
//
// Everything here is a pure function of its arguments: the same parameters,
// history and row give the same token on every machine and in every batch. No
// generator state is carried from token to token; a random number is computed
// from (seed, choice, position), so a request that was preempted, moved to
// another engine or forked goes on exactly as if nothing had happened. The
// exponentials and logarithms are detmath's, since the standard library's
// differ between architectures.
//
// Values that are not finite: a row that holds a NaN or +Inf, or nothing above
// -Inf, was computed wrongly and is refused with ErrNotFinite. -Inf is a token
// that cannot be chosen. Log-probabilities that leave here are finite, at least
// LogprobFloor.
package sample

import (
	"fmt"
	"math"

	"tandem/internal/kv"
)

// Limits on the parameters of one request.
const (
	MaxLogprobs     = 256  // alternatives per token; the server may allow fewer
	MaxStopTokens   = 1024 // stop token ids
	MaxLogitBias    = 4096 // entries of a logit bias
	maxPenalty      = 2    // presence and frequency, either sign
	maxBias         = 100  // either sign; what is beyond is clamped, as in vLLM
	greedyThreshold = 1e-5 // a temperature below this is greedy, as in vLLM
)

// Params are the sampling parameters of a request, with vLLM's meanings. The
// zero value is not usable; start from Default.
type Params struct {
	Temperature float64 // 0 or below 1e-5: greedy
	TopK        int     // 0 or -1: off
	TopP        float64 // in (0, 1]; 1: off
	MinP        float64 // in [0, 1]; 0: off

	RepetitionPenalty float64 // above 0; 1: off; over prompt and output
	PresencePenalty   float64 // in [-2, 2]; 0: off; over the output
	FrequencyPenalty  float64 // in [-2, 2]; 0: off; over the output

	// LogitBias is added to the logits of its tokens, clamped to [-100, 100].
	LogitBias map[kv.Token]float64

	// Seed makes the output reproducible. Nil: the engine draws one.
	Seed *int64

	MaxTokens    int // at least 1, or 0: as many as fit
	MinTokens    int // no end or stop token before this many
	StopTokenIDs []kv.Token
	IgnoreEOS    bool

	// Logprobs is the number of alternatives reported with each token; 0
	// reports the token's own value only and -1 nothing.
	Logprobs int
}

// Default returns the parameters of a request that sets none: temperature 1,
// all filters off, no log-probabilities, as many tokens as fit.
func Default() Params {
	return Params{Temperature: 1, TopP: 1, RepetitionPenalty: 1, Logprobs: -1}
}

// A ParamError says which parameter has a value that no request may have.
type ParamError struct {
	Field string // vLLM's name of the parameter
	Msg   string // "must be …, got …"
}

// Error returns the field and what is wrong with it.
func (e *ParamError) Error() string { return "sample: " + e.Field + " " + e.Msg }

func paramErr(field, format string, args ...any) *ParamError {
	return &ParamError{Field: field, Msg: fmt.Sprintf(format, args...)}
}

// Validate checks p for a model with vocab tokens. The error is a *ParamError.
func (p *Params) Validate(vocab int) error {
	if err := p.validateNumbers(); err != nil {
		return err
	}
	return p.validateTokens(vocab)
}

func (p *Params) validateNumbers() error {
	finite := func(x float64) bool { return !math.IsNaN(x) && !math.IsInf(x, 0) }
	switch {
	case !finite(p.Temperature) || p.Temperature < 0:
		return paramErr("temperature", "must be a finite number of at least 0, got %v", p.Temperature)
	case p.TopK < -1:
		return paramErr("top_k", "must be 0 or -1 (off) or at least 1, got %d", p.TopK)
	case !(p.TopP > 0 && p.TopP <= 1):
		return paramErr("top_p", "must be in (0, 1], got %v", p.TopP)
	case !(p.MinP >= 0 && p.MinP <= 1):
		return paramErr("min_p", "must be in [0, 1], got %v", p.MinP)
	case !finite(p.RepetitionPenalty) || p.RepetitionPenalty <= 0:
		return paramErr("repetition_penalty", "must be a finite number above 0, got %v", p.RepetitionPenalty)
	case !(math.Abs(p.PresencePenalty) <= maxPenalty):
		return paramErr("presence_penalty", "must be in [-2, 2], got %v", p.PresencePenalty)
	case !(math.Abs(p.FrequencyPenalty) <= maxPenalty):
		return paramErr("frequency_penalty", "must be in [-2, 2], got %v", p.FrequencyPenalty)
	case p.MaxTokens < 0:
		return paramErr("max_tokens", "must be at least 1, got %d", p.MaxTokens)
	case p.MinTokens < 0:
		return paramErr("min_tokens", "must be at least 0, got %d", p.MinTokens)
	case p.MaxTokens > 0 && p.MinTokens > p.MaxTokens:
		return paramErr("min_tokens", "must be at most max_tokens=%d, got %d", p.MaxTokens, p.MinTokens)
	case p.Logprobs < -1 || p.Logprobs > MaxLogprobs:
		return paramErr("logprobs", "must be at most %d, got %d", MaxLogprobs, p.Logprobs)
	}
	return nil
}

func (p *Params) validateTokens(vocab int) error {
	if len(p.StopTokenIDs) > MaxStopTokens {
		return paramErr("stop_token_ids", "must have at most %d entries, got %d", MaxStopTokens, len(p.StopTokenIDs))
	}
	for _, t := range p.StopTokenIDs {
		if t < 0 || int(t) >= vocab {
			return paramErr("stop_token_ids", "must be token ids below %d, got %d", vocab, t)
		}
	}
	if len(p.LogitBias) > MaxLogitBias {
		return paramErr("logit_bias", "must have at most %d entries, got %d", MaxLogitBias, len(p.LogitBias))
	}
	var bad *ParamError
	worst := kv.Token(math.MaxInt32)
	for t, b := range p.LogitBias {
		switch {
		case t > worst:
		case t < 0 || int(t) >= vocab:
			worst, bad = t, paramErr("logit_bias", "must name token ids below %d, got %d", vocab, t)
		case math.IsNaN(b) || math.IsInf(b, 0):
			worst, bad = t, paramErr("logit_bias", "must be finite, got %v for token %d", b, t)
		}
	}
	if bad != nil {
		return bad
	}
	return nil
}

// Greedy reports whether p always takes the most probable token.
func (p *Params) Greedy() bool { return p.Temperature < greedyThreshold }

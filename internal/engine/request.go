package engine

import (
	"errors"
	"fmt"

	"tandem/internal/connector"
	"tandem/internal/kv"
	"tandem/internal/sample"
)

// Decisions that callers make.
var (
	// ErrOverloaded says that as many requests run and wait as may.
	ErrOverloaded = errors.New("engine: too many requests")
	// ErrDraining says that the engine takes no new requests.
	ErrDraining = errors.New("engine: draining")
	// ErrClosed says that the engine is not running any more.
	ErrClosed = errors.New("engine: not running")
	// ErrStalled says that the step loop has made no progress for longer than
	// Config.StallLimit.
	ErrStalled = errors.New("engine: no progress")
	// ErrDead ends the requests of an engine whose model failed. Its text is for
	// logs, not for clients.
	ErrDead = errors.New("engine: dead")
	// ErrSlowReader ends a request whose outputs were not read in time.
	ErrSlowReader = errors.New("engine: outputs were not read in time")
	// ErrAborted ends a request that its reader gave up.
	ErrAborted = errors.New("engine: aborted")
	// ErrNoConnector says that a request needs a hand-off, which this engine
	// cannot do.
	ErrNoConnector = errors.New("engine: no connector for hand-offs")
)

// An InvalidError says what no engine of this configuration could run. It is
// the client's mistake.
type InvalidError struct {
	Field string // vLLM's name of the parameter
	Msg   string

	// Limit and Length are set for a prompt that is too long: the tokens that
	// prompt and output can have together, and those of the prompt.
	Limit, Length int

	Err error // cause, or nil
}

// Error names the field and the mistake.
func (e *InvalidError) Error() string { return "engine: " + e.Field + ": " + e.Msg }

// Unwrap returns the cause.
func (e *InvalidError) Unwrap() error { return e.Err }

// A Request is one client call. The engine does not change it; the caller must
// not change it either until its stream has ended.
type Request struct {
	ClientID string     // a label for logs, never a key
	Prompt   []kv.Token // at least one token
	Params   sample.Params
	N        int // choices; 0: 1
	Priority int
	Salt     string // prefix hits need the same salt

	// RemoteDecode keeps the KV of the prompt for another engine: one token and
	// one choice are made, whatever Params and N say, and the last Output has a
	// Handoff.
	RemoteDecode bool

	// Handoff offers the KV of the prompt, or is nil.
	Handoff *connector.Handoff

	// Policy says what happens when the load of Handoff fails; "": what the
	// Config says.
	Policy FailPolicy

	// PromptLogprobs is the number of alternatives reported with each prompt
	// token; -1: no prompt log-probabilities. Such a prompt is computed whole
	// here, and a Handoff is returned unread.
	PromptLogprobs int
}

// A FinishReason says why a choice ended; "" while it goes on.
type FinishReason string

// The reasons.
const (
	FinishStop   FinishReason = "stop"
	FinishLength FinishReason = "length"
	FinishAbort  FinishReason = "abort"
	FinishError  FinishReason = "error"
)

// Usage counts tokens. LocalHit, Loaded, Recomputed and Computed say where the KV
// of the prompt came from; they add up to Prompt from the first token on.
type Usage struct {
	Prompt     int
	Completion int // over all choices

	LocalHit   int // hits of the prefix index
	Loaded     int // read from a peer and verified
	Recomputed int // promised by a load that failed, computed here
	Computed   int

	// Failure is the class of the load's failure, "" when none failed.
	Failure connector.LoadClass
}

// Cached returns the prompt tokens that were not computed here.
func (u Usage) Cached() int { return u.LocalHit + u.Loaded }

// An Output is a piece of one choice. Its slices belong to the reader.
type Output struct {
	Choice   int
	Tokens   []kv.Token             // new ones, end and stop tokens included
	Logprobs []sample.TokenLogprobs // one for each of Tokens, when asked for

	Finish    FinishReason // set on the last output of the choice
	StopToken *kv.Token    // the stop token id of the request that ended the choice, or nil

	// Usage is set on the first output of choice 0, when the prompt's counts stand,
	// and with Finish: the completion tokens are those of all choices so far.
	Usage Usage

	// Handoff is set on the last output of a RemoteDecode request.
	Handoff *connector.Handoff

	// PromptLogprobs come with the first output of choice 0: an entry for each
	// prompt token from the second on.
	PromptLogprobs []sample.TokenLogprobs

	// Err ends the whole request, all choices: nothing follows. Finish is
	// FinishError, or FinishAbort when the engine was stopped.
	Err error
}

// check validates r against the limits of e and returns it with defaults set.
func (e *Engine) check(r Request) (Request, error) {
	if r.N == 0 {
		r.N = 1
	}
	if r.RemoteDecode {
		r.N, r.Params.MaxTokens, r.Params.MinTokens, r.PromptLogprobs = 1, 1, 0, -1
	}
	vocab, limit := e.info.Vocab, e.limit
	if len(r.Prompt) == 0 {
		return r, &InvalidError{Field: "prompt", Msg: "must have at least one token"}
	}
	if len(r.Prompt) >= limit {
		return r, &InvalidError{
			Field: "prompt", Limit: limit, Length: len(r.Prompt),
			Msg: fmt.Sprintf("%d tokens leave no room for an answer: prompt and answer together have at most %d tokens",
				len(r.Prompt), limit),
		}
	}
	for i, t := range r.Prompt {
		if t < 0 || int(t) >= vocab {
			return r, &InvalidError{Field: "prompt", Msg: fmt.Sprintf("token id %d at index %d is not in [0, %d)", t, i, vocab)}
		}
	}
	if r.N < 1 || r.N > e.cfg.MaxN {
		return r, &InvalidError{Field: "n", Msg: fmt.Sprintf("must be in [1, %d], got %d", e.cfg.MaxN, r.N)}
	}
	if r.PromptLogprobs < -1 || r.PromptLogprobs > sample.MaxLogprobs {
		return r, &InvalidError{
			Field: "prompt_logprobs",
			Msg:   fmt.Sprintf("must be at most %d, got %d", sample.MaxLogprobs, r.PromptLogprobs),
		}
	}
	if err := r.Params.Validate(vocab); err != nil {
		var pe *sample.ParamError
		errors.As(err, &pe)
		return r, &InvalidError{Field: pe.Field, Msg: pe.Msg, Err: err}
	}
	if r.Policy != "" && !r.Policy.valid() {
		return r, &InvalidError{
			Field: "kv_load_failure_policy", Msg: fmt.Sprintf("must be %q or %q", PolicyFail, PolicyRecompute),
		}
	}
	if r.RemoteDecode && r.Handoff != nil {
		return r, &InvalidError{Field: "kv_transfer_params", Msg: "a request cannot both read and offer KV"}
	}
	if (r.RemoteDecode || r.Handoff != nil) && e.cfg.Connector == nil {
		return r, ErrNoConnector
	}
	return r, nil
}

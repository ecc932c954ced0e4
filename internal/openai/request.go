// Package openai is the OpenAI API as Tandem speaks it, with vLLM's extensions.
//
// It hides JSON: which fields there are, what they may hold and what their
// defaults are, the form of answers and errors, the framing of event streams,
// and how a body is changed without touching any byte that is not meant. It
// knows neither engines nor models. The server parses and answers with it; the
// router only looks into bodies and edits them.
//
// Every mistake of a client is an Error that names the field, and no body costs
// more memory than its limits allow, whatever it claims.
package openai

import (
	"encoding/json"
	"math"
	"strconv"
)

// A Sampling holds the sampling fields of a request. Nil means absent; defaults
// are the server's.
type Sampling struct {
	Temperature, TopP, MinP                              *float64
	RepetitionPenalty, PresencePenalty, FrequencyPenalty *float64
	TopK                                                 *int
	Seed                                                 *int64
	LogitBias                                            map[int32]float64

	MaxTokens    *int // 0 is only possible with echo
	MinTokens    *int
	Stop         []string
	StopTokenIDs []int32
	IgnoreEOS    bool
}

// A Common holds what completions and chat completions share.
type Common struct {
	Model string // "" when absent
	N     int    // 1 to MaxChoices
	Sampling

	Stream          bool
	IncludeUsage    bool // a last chunk with the usage
	ContinuousUsage bool // the usage so far in every chunk

	Priority         int
	CacheSalt        string
	PromptLogprobs   *int
	ReturnTokenIDs   bool
	TokensAsIDs      bool // log-probabilities name tokens as "token_id:N"
	IncludeStop      bool // include_stop_str_in_output
	SkipSpecial      bool // skip_special_tokens; true when absent
	KVTransferParams json.RawMessage
	Ignored          []string // unknown fields, printable, at most 32
	AddSpecial       bool     // add_special_tokens
}

// A Prompt is a text or a list of token ids.
type Prompt struct {
	Text   string
	Tokens []int32
	IDs    bool // Tokens is the prompt
}

// A CompletionRequest is the body of POST /v1/completions.
type CompletionRequest struct {
	Common
	Prompts      []Prompt
	Echo         bool
	Logprobs     *int
	ParseSpecial bool // text of control tokens becomes those tokens; true when absent
}

// A ChatRequest is the body of POST /v1/chat/completions.
type ChatRequest struct {
	Common
	Messages            []json.RawMessage // objects with a role; content is a string or absent
	AddGenerationPrompt bool              // true when absent
	TemplateArgs        map[string]json.RawMessage
	Logprobs            bool
	TopLogprobs         int
}

// ParseCompletion reads a completion request. All limits are checked here.
func ParseCompletion(raw []byte) (*CompletionRequest, *Error) {
	f, err := newFields(raw)
	if err != nil {
		return nil, err
	}
	r := &CompletionRequest{}
	r.Prompts = f.prompts()
	r.Echo = f.flag("echo", false)
	r.ParseSpecial = f.flag("parse_special", true)
	r.Logprobs = f.small("logprobs", 0, MaxLogprobs)
	if s, ok := f.text("suffix"); ok && s != "" {
		f.fail("suffix", "is not supported")
	}
	least := int64(1)
	if r.Echo {
		least = 0
	}
	f.common(&r.Common, least, true)
	if r.Stream && r.PromptLogprobs != nil {
		f.fail("prompt_logprobs", "is not available when stream is true")
	}
	if len(r.Prompts) > 1 && r.KVTransferParams != nil && f.handoff(r.KVTransferParams) {
		f.fail("kv_transfer_params", "needs a single prompt: a hand-off belongs to one prompt")
	}
	return r, f.done(&r.Common)
}

// ParseChat reads a chat completion request. Content parts are joined to one
// text; anything but text is refused.
func ParseChat(raw []byte) (*ChatRequest, *Error) {
	f, err := newFields(raw)
	if err != nil {
		return nil, err
	}
	r := &ChatRequest{}
	r.Messages, r.AddGenerationPrompt, r.TemplateArgs = f.conversation()
	r.Logprobs = f.flag("logprobs", false)
	if n := f.small("top_logprobs", 0, MaxLogprobs); n != nil {
		r.TopLogprobs = *n
		if *n > 0 && !r.Logprobs {
			f.fail("top_logprobs", "needs logprobs to be true")
		}
	}
	f.common(&r.Common, 1, false)
	if n := f.small("max_completion_tokens", 1, MaxMaxTokens); n != nil {
		r.MaxTokens = n
	}
	if r.Stream && r.PromptLogprobs != nil {
		f.fail("prompt_logprobs", "is not available when stream is true")
	}
	return r, f.done(&r.Common)
}

// done returns the first mistake, after the names of unknown fields are noted.
func (f *fields) done(c *Common) *Error {
	for _, name := range [...]string{"user", "metadata", "store", "service_tier", "safety_identifier"} {
		f.seen[name] = true // for the caller's own books
	}
	c.Ignored = f.unknown()
	return f.err
}

func (f *fields) common(c *Common, leastTokens int64, addSpecial bool) {
	c.Model, _ = f.text("model")
	c.N = 1
	if n := f.small("n", 1, MaxChoices); n != nil {
		c.N = *n
	}
	f.sampling(&c.Sampling, leastTokens)
	c.Stream = f.flag("stream", false)
	if o := f.object("stream_options"); o != nil {
		f.streamOptions(c, o)
	}
	if n := f.small("priority", math.MinInt32, math.MaxInt32); n != nil {
		c.Priority = *n
	}
	if s, ok := f.text("cache_salt"); ok {
		c.CacheSalt = s
		if s == "" || len(s) > MaxSaltBytes {
			f.fail("cache_salt", "must have 1 to %d bytes", MaxSaltBytes)
		}
	}
	c.PromptLogprobs = f.small("prompt_logprobs", 0, MaxLogprobs)
	c.ReturnTokenIDs = f.flag("return_token_ids", false)
	c.TokensAsIDs = f.flag("return_tokens_as_token_ids", false)
	c.IncludeStop = f.flag("include_stop_str_in_output", false)
	c.SkipSpecial = f.flag("skip_special_tokens", true)
	c.AddSpecial = f.flag("add_special_tokens", addSpecial)
	c.KVTransferParams = f.object("kv_transfer_params")
	f.refused()
}

// refused fails fields whose silent loss would change the answer.
func (f *fields) refused() {
	for _, name := range [...]string{"bad_words", "allowed_token_ids"} {
		if v := f.get(name); v != nil && !emptyList(v) {
			f.fail(name, "is not supported")
		}
	}
	if f.flag("use_beam_search", false) {
		f.fail("use_beam_search", "is not supported")
	}
	if f.get("truncate_prompt_tokens") != nil {
		f.fail("truncate_prompt_tokens", "is not supported: a prompt is never cut")
	}
	if n := f.whole("best_of", 0, math.MaxInt64); n != nil && *n > 1 {
		f.fail("best_of", "is not supported")
	}
}

func emptyList(v json.RawMessage) bool {
	return v[0] == '[' && v[space(v, 1)] == ']'
}

func (f *fields) sampling(s *Sampling, leastTokens int64) {
	big := math.MaxFloat64
	s.Temperature = f.number("temperature", 0, big)
	s.TopP = f.number("top_p", 0, 1)
	if s.TopP != nil && *s.TopP == 0 {
		f.fail("top_p", "must be in (0, 1]")
	}
	s.MinP = f.number("min_p", 0, 1)
	s.TopK = f.small("top_k", -1, math.MaxInt32)
	s.RepetitionPenalty = f.number("repetition_penalty", 0, big)
	if s.RepetitionPenalty != nil && *s.RepetitionPenalty == 0 {
		f.fail("repetition_penalty", "must be above 0")
	}
	s.PresencePenalty = f.number("presence_penalty", -2, 2)
	s.FrequencyPenalty = f.number("frequency_penalty", -2, 2)
	s.Seed = f.whole("seed", math.MinInt64, math.MaxInt64)
	s.MaxTokens = f.small("max_tokens", leastTokens, MaxMaxTokens)
	s.MinTokens = f.small("min_tokens", 0, MaxMaxTokens)
	s.IgnoreEOS = f.flag("ignore_eos", false)
	s.Stop = f.stops()
	if v := f.get("stop_token_ids"); v != nil {
		if v[0] != '[' {
			f.fail("stop_token_ids", "must be a list of token ids")
		} else {
			s.StopTokenIDs = f.tokens("stop_token_ids", v, MaxStopTokens)
		}
	}
	s.LogitBias = f.logitBias()
}

func (f *fields) stops() []string {
	v := f.get("stop")
	if v == nil {
		return nil
	}
	if s, ok := textOf(v); ok {
		f.stop("stop", s)
		return []string{s}
	}
	if v[0] != '[' {
		f.fail("stop", "must be a string or a list of strings")
		return nil
	}
	var out []string
	each(v, func(i int, e json.RawMessage) bool {
		at := "stop[" + strconv.Itoa(i) + "]"
		s, ok := textOf(e)
		switch {
		case i >= MaxStops:
			f.fail("stop", "must have at most %d strings", MaxStops)
		case !ok:
			f.fail(at, "must be a string")
		default:
			f.stop(at, s)
			out = append(out, s)
		}
		return f.err == nil
	})
	return out
}

func (f *fields) stop(at, s string) {
	if s == "" || len(s) > MaxStopBytes {
		f.fail(at, "must have 1 to %d bytes", MaxStopBytes)
	}
}

func (f *fields) logitBias() map[int32]float64 {
	v := f.object("logit_bias")
	if v == nil {
		return nil
	}
	b, more := scan(v, MaxLogitBias)
	if more {
		f.fail("logit_bias", "must have at most %d entries", MaxLogitBias)
		return nil
	}
	out := make(map[int32]float64, len(b.members))
	for _, m := range b.members {
		id, err := strconv.ParseInt(m.key, 10, 32)
		if err != nil || id < 0 {
			f.fail("logit_bias", "must have token ids as keys, got %s", printable(m.key))
			return nil
		}
		raw := json.RawMessage(b.raw[m.value:m.end])
		x, err := strconv.ParseFloat(string(raw), 64)
		if !isNumber(raw) || err != nil {
			f.fail("logit_bias", "must have numbers as values, token %d has none", id)
			return nil
		}
		out[int32(id)] = x
	}
	return out
}

func (f *fields) streamOptions(c *Common, raw json.RawMessage) {
	if !c.Stream {
		f.fail("stream_options", "is only allowed when stream is true")
		return
	}
	o, err := newFields(raw)
	if err != nil {
		f.fail("stream_options", "must be an object")
		return
	}
	c.IncludeUsage = o.flag("include_usage", false)
	c.ContinuousUsage = o.flag("continuous_usage_stats", false)
	if o.err != nil {
		f.fail("stream_options."+o.err.Param, "%s", o.err.Message)
	}
}

// handoff reports whether kv_transfer_params ask for anything.
func (f *fields) handoff(raw json.RawMessage) bool {
	p, err := newFields(raw)
	if err != nil {
		return false
	}
	for _, name := range [...]string{"do_remote_decode", "do_remote_prefill"} {
		if v := p.get(name); v != nil && string(v) != "false" {
			return true
		}
	}
	return false
}

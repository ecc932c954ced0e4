package server

import (
	"errors"
	"net/http"
	"strconv"

	"tandem/internal/connector"
	"tandem/internal/engine"
	"tandem/internal/openai"
)

// headerPolicy is the request header that says what happens to this request when
// its KV load fails: "fail" or "recompute".
const headerPolicy = "X-KV-Load-Failure-Policy"

// Response headers that say where the KV of the prompts came from. The last four
// numbers add up to the first. A stream of several prompts has none of them: its
// first byte leaves before all prompts are known.
const (
	headerPrompt     = "X-KV-Prompt-Tokens"
	headerLoaded     = "X-KV-Loaded-Tokens"
	headerLocal      = "X-KV-Local-Tokens"
	headerRecomputed = "X-KV-Recomputed-Tokens"
	headerComputed   = "X-KV-Computed-Tokens"

	headerFailure = "X-KV-Load-Failure" // the class of a load that failed, whatever came of it
)

// policy reads the request's own load failure policy. Without leave to have one
// the header is ignored, as unknown fields are.
func (c *call) policy() (engine.FailPolicy, error) {
	v := c.q.Header.Values(headerPolicy)
	if len(v) == 0 {
		return "", nil
	}
	if !c.s.cfg.AllowRequestPolicy {
		c.common.Ignored = append(c.common.Ignored, headerPolicy)
		return "", nil
	}
	p := engine.FailPolicy(v[0])
	if len(v) > 1 || p != engine.PolicyFail && p != engine.PolicyRecompute {
		return "", openai.Bad(headerPolicy, "must be %q or %q, and be sent once", engine.PolicyFail, engine.PolicyRecompute)
	}
	return p, nil
}

// addTransfer adds the counts of one prompt. Of several failures the first
// prompt's is told.
func addTransfer(to *openai.KVTransfer, u *engine.Usage) {
	to.Prompt += u.LocalHit + u.Loaded + u.Recomputed + u.Computed
	to.Local += u.LocalHit
	to.Loaded += u.Loaded
	to.Recomputed += u.Recomputed
	to.Computed += u.Computed
	if to.Failure == "" {
		to.Failure = string(u.Failure)
	}
}

// tellTransfer sets the response headers.
func tellTransfer(h http.Header, t *openai.KVTransfer) {
	for name, n := range map[string]int{
		headerPrompt: t.Prompt, headerLoaded: t.Loaded, headerLocal: t.Local,
		headerRecomputed: t.Recomputed, headerComputed: t.Computed,
	} {
		h.Set(name, strconv.Itoa(n))
	}
	if t.Failure != "" {
		h.Set(headerFailure, t.Failure)
	}
}

// tellFailure sets the header of a request that ends because its load failed.
// There are no counts then: nothing was computed.
func tellFailure(h http.Header, err error) {
	if load, ok := errors.AsType[*connector.LoadError](err); ok {
		h.Set(headerFailure, string(load.Class))
	}
}

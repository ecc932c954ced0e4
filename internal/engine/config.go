package engine

import (
	"errors"
	"fmt"
	"log/slog"
	"time"

	"tandem/internal/bystander"
	"tandem/internal/engine/spec"
	"tandem/internal/kv"
)

// ModelInfo describes a model.
type ModelInfo = spec.ModelInfo

// Factor is one named property of a fingerprint.
type Factor = spec.Factor

// A Model computes steps. The engine's loop is its only caller.
type Model interface {
	// Step computes b and returns one row of Vocab logits for each wanted
	// logit, in the order of the sequences. The rows are valid until the next
	// Step. After an error the model is not used any more.
	Step(b *kv.Batch) ([][]float32, error)

	// Info describes the model.
	Info() ModelInfo

	// Arenas returns the KV memory, one arena for each rank.
	Arenas() []*kv.Arena

	// Close gives all memory back. Nobody may use the arenas any more.
	Close() error
}

// A FailPolicy says what happens to a request whose KV load fails.
type FailPolicy string

// The policies, by the names of vLLM's kv_load_failure_policy.
const (
	PolicyFail      FailPolicy = "fail"      // the request ends with a *connector.LoadError
	PolicyRecompute FailPolicy = "recompute" // what is missing is computed here
)

func (p FailPolicy) valid() bool { return p == PolicyFail || p == PolicyRecompute }

// Config says how an engine works. Zero values take the defaults below.
type Config struct {
	Model Model
	ID    kv.EngineID // for logs

	MaxBatchedTokens int  // tokens of a step; 512
	MaxSeqs          int  // requests that run at once; 64
	MaxModelLen      int  // tokens of a sequence; the model's limit, which also bounds it
	MaxRequests      int  // choices that run or wait, over all requests; 1024. More is ErrOverloaded
	MaxOutputs       int  // outputs that a stream holds unread; 1024. More is ErrSlowReader
	MaxN             int  // choices of a request; 128
	Priority         bool // rank by Request.Priority, then arrival; else by arrival
	NoPrefixCache    bool

	// StallLimit is the longest turn of the step loop. While one takes longer, the
	// engine counts as stalled: waits for outputs end and new requests are refused
	// with ErrStalled. It is found within a quarter more. 60 s
	StallLimit time.Duration

	// Connector brings KV from peers and keeps it for them; nil: no hand-offs.
	Connector Connector
	Policy    FailPolicy // of requests that bring none; PolicyFail

	// Seed is the source of the seeds of requests without one; 0: random.
	Seed uint64

	Metrics Metrics
	Log     *slog.Logger // nil: no logs; the step loop writes to it, see package bystander
}

// fill sets defaults and checks cfg.
func (c *Config) fill() error {
	if c.Model == nil {
		return errors.New("engine: config: no model")
	}
	info := c.Model.Info()
	def := func(p *int, v int) {
		if *p == 0 {
			*p = v
		}
	}
	def(&c.MaxBatchedTokens, 512)
	def(&c.MaxSeqs, 64)
	def(&c.MaxModelLen, info.MaxLen)
	def(&c.MaxRequests, 1024)
	def(&c.MaxOutputs, 1024)
	def(&c.MaxN, 128)
	if c.StallLimit == 0 {
		c.StallLimit = time.Minute
	}
	c.MaxModelLen = min(c.MaxModelLen, info.MaxLen)
	if c.Policy == "" {
		c.Policy = PolicyFail
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	c.Metrics.fill(bystander.NewHooks("engine", c.Log))
	switch {
	case len(c.Model.Arenas()) == 0 || len(c.Model.Arenas()) != info.TP:
		return fmt.Errorf("engine: config: model has %d arenas for %d ranks", len(c.Model.Arenas()), info.TP)
	case !c.Policy.valid():
		return fmt.Errorf("engine: config: load failure policy %q: want %q or %q", c.Policy, PolicyFail, PolicyRecompute)
	case c.MaxRequests < 0 || c.MaxOutputs < 2 || c.MaxN < 0 || c.StallLimit < 0:
		return fmt.Errorf("engine: config: limits below their least values")
	}
	return nil
}

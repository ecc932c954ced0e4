package model

import (
	"errors"
	"fmt"
	"math"

	"tandem/internal/gguf"
)

// ErrUnsupported is matched by errors about models and settings that are
// sound but that this package cannot run.
var ErrUnsupported = errors.New("not supported")

// Caps on sizes, far above any model this package is for.
const (
	maxLayers = 1024
	maxWidth  = 1 << 17
	maxHeads  = 1024
	maxVocab  = 1 << 21
	maxLen    = 1 << 20
	maxGroup  = 16 // query heads of a KV head: one tile of query rows
	headStep  = 16 // head sizes are multiples of it: one vector
)

// params are the sizes and constants of a model, checked against each other.
type params struct {
	name    string
	layers  int
	width   int // of the residual stream
	heads   int
	kvHeads int
	headDim int
	rot     int // dimensions of a head that are rotated
	ffn     int
	vocab   int
	context int
	base    float64 // of the rotary embedding
	eps     float32 // of RMSNorm
	eos     []int32
}

// group returns the query heads of a KV head.
func (p *params) group() int { return p.heads / p.kvHeads }

// qDim and kDim return the outputs of the query matrix, and of the key or
// value matrix.
func (p *params) qDim() int { return p.heads * p.headDim }
func (p *params) kDim() int { return p.kvHeads * p.headDim }

const arch = "llama"

// reader reads metadata and keeps the first error.
type reader struct {
	f   *gguf.File
	err error
}

func (r *reader) fail(format string, args ...any) {
	if r.err == nil {
		r.err = fmt.Errorf("model: loading %s: "+format, append([]any{r.f.Name()}, args...)...)
	}
}

// size returns an integer between 1 and limit.
func (r *reader) size(key string, limit int) int {
	v, err := r.f.Uint(key)
	switch {
	case err != nil:
		r.fail("%w", err)
		return 1
	case v == 0 || v > uint64(limit):
		r.fail("key %q is %d, want 1 to %d", key, v, limit)
		return 1
	}
	return int(v)
}

func (r *reader) sizeOr(key string, limit, otherwise int) int {
	if !r.f.Has(key) {
		return otherwise
	}
	return r.size(key, limit)
}

func (r *reader) float(key string) float64 {
	v, err := r.f.Float(key)
	if err != nil {
		r.fail("%w", err)
		return 1
	}
	if !(v > 0) || math.IsInf(v, 0) {
		r.fail("key %q is %g, want a positive number", key, v)
		return 1
	}
	return v
}

// readParams reads the metadata of f and checks what it says by itself.
func readParams(f *gguf.File) (*params, error) {
	a, err := f.String("general.architecture")
	if err != nil {
		return nil, fmt.Errorf("model: loading %s: %w", f.Name(), err)
	}
	if a != arch {
		return nil, fmt.Errorf("model: loading %s: architecture %q: %w (%q is)", f.Name(), a, ErrUnsupported, arch)
	}
	r := &reader{f: f}
	p := &params{
		layers:  r.size("llama.block_count", maxLayers),
		width:   r.size("llama.embedding_length", maxWidth),
		heads:   r.size("llama.attention.head_count", maxHeads),
		ffn:     r.size("llama.feed_forward_length", 4*maxWidth),
		context: r.size("llama.context_length", 1<<30),
		eps:     float32(r.float("llama.attention.layer_norm_rms_epsilon")),
		base:    10000,
	}
	p.kvHeads = r.sizeOr("llama.attention.head_count_kv", maxHeads, p.heads)
	p.headDim = r.sizeOr("llama.attention.key_length", maxWidth, max(1, p.width/p.heads))
	p.rot = r.sizeOr("llama.rope.dimension_count", p.headDim, p.headDim)
	if f.Has("llama.rope.freq_base") {
		p.base = r.float("llama.rope.freq_base")
	}
	if p.name, err = f.String("general.name"); err != nil {
		p.name = a
	}
	r.relations(p)
	r.refused()
	r.vocabulary(p)
	if r.err != nil {
		return nil, r.err
	}
	return p, nil
}

// relations checks sizes against each other.
func (r *reader) relations(p *params) {
	if p.heads%p.kvHeads != 0 {
		r.fail("%d heads are not a multiple of %d KV heads", p.heads, p.kvHeads)
	}
	if !r.f.Has("llama.attention.key_length") && p.width%p.heads != 0 {
		r.fail("embedding length %d is not a multiple of %d heads", p.width, p.heads)
	}
	if v := r.sizeOr("llama.attention.value_length", maxWidth, p.headDim); v != p.headDim {
		r.fail("key length %d and value length %d differ: %w", p.headDim, v, ErrUnsupported)
	}
	if p.heads/p.kvHeads > maxGroup {
		r.fail("%d query heads to a KV head: %w (at most %d are)", p.heads/p.kvHeads, ErrUnsupported, maxGroup)
	}
	if p.headDim%headStep != 0 {
		r.fail("head size %d: %w (multiples of %d are)", p.headDim, ErrUnsupported, headStep)
	}
	if p.rot%2 != 0 {
		r.fail("key %q is %d, want an even number", "llama.rope.dimension_count", p.rot)
	}
}

// refused fails for settings that would change the forward pass in ways this
// package does not compute.
func (r *reader) refused() {
	if r.f.Has("llama.rope.scaling.type") {
		if s, err := r.f.String("llama.rope.scaling.type"); err != nil || s != "none" {
			r.fail("rope scaling %q: %w", s, ErrUnsupported)
		}
	}
	if r.f.Has("llama.expert_count") {
		if n, err := r.f.Uint("llama.expert_count"); err != nil || n != 0 {
			r.fail("%d experts: %w", n, ErrUnsupported)
		}
	}
	for _, key := range []string{"llama.attention.sliding_window", "llama.logit_scale", "llama.residual_scale", "llama.attention.scale"} {
		if r.f.Has(key) {
			r.fail("key %q: %w", key, ErrUnsupported)
		}
	}
}

// vocabulary checks what the file says about its tokens.
func (r *reader) vocabulary(p *params) {
	t, ok := r.f.Tensor("token_embd.weight")
	if !ok || len(t.Dims) != 2 {
		r.fail("tensor %q is missing or no matrix", "token_embd.weight")
		return
	}
	if t.Dims[1] > maxVocab {
		r.fail("tensor %q has %d rows, at most %d are allowed", t.Name, t.Dims[1], maxVocab)
		return
	}
	p.vocab = int(t.Dims[1])
	if r.f.Has("llama.vocab_size") {
		if n := r.size("llama.vocab_size", maxVocab); n != p.vocab && r.err == nil {
			r.fail("key %q is %d, tensor %q has %d rows", "llama.vocab_size", n, t.Name, p.vocab)
		}
	}
	if r.f.Has("tokenizer.ggml.tokens") {
		n, err := r.f.Len("tokenizer.ggml.tokens")
		if err != nil {
			r.fail("%w", err)
		} else if n != p.vocab {
			r.fail("key %q has %d tokens, tensor %q has %d rows", "tokenizer.ggml.tokens", n, t.Name, p.vocab)
		}
	}
	for _, key := range []string{"tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id"} {
		if !r.f.Has(key) {
			continue
		}
		id, err := r.f.Uint(key)
		switch {
		case err != nil:
			r.fail("%w", err)
		case id >= uint64(p.vocab):
			r.fail("key %q is %d, the vocabulary has %d tokens", key, id, p.vocab)
		default:
			p.eos = append(p.eos, int32(id))
		}
	}
}

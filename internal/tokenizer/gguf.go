package tokenizer

import (
	"errors"
	"fmt"

	"tandem/internal/gguf"
)

// FromGGUF makes the tokenizer that a model file describes.
func FromGGUF(f *gguf.File) (*Tokenizer, error) {
	v, err := VocabFromGGUF(f)
	if err != nil {
		return nil, err
	}
	return New(v)
}

// VocabFromGGUF reads the tokenizer metadata of a model file. Absent optional
// keys stay absent; a key of another type is an error.
func VocabFromGGUF(f *gguf.File) (Vocab, error) {
	const prefix = "tokenizer.ggml."
	r := reader{f: f}
	v := Vocab{
		Model:   r.str(prefix+"model", true),
		Pre:     r.str(prefix+"pre", false),
		Tokens:  r.strs(prefix+"tokens", true),
		Merges:  r.strs(prefix+"merges", false),
		Types:   r.types(prefix + "token_type"),
		BOS:     r.id(prefix + "bos_token_id"),
		EOS:     r.id(prefix + "eos_token_id"),
		EOT:     r.id(prefix + "eot_token_id"),
		EOM:     r.id(prefix + "eom_token_id"),
		Unknown: r.id(prefix + "unknown_token_id"),
		Padding: r.id(prefix + "padding_token_id"),
		AddBOS:  r.flag(prefix + "add_bos_token"),
	}
	if r.err != nil {
		return Vocab{}, fmt.Errorf("tokenizer: reading vocabulary of %s: %w", f.Name(), r.err)
	}
	return v, nil
}

// A reader reads keys until the first error.
type reader struct {
	f   *gguf.File
	err error
}

// keep notes err, unless the key is optional and absent, and reports whether a
// value was read.
func (r *reader) keep(err error, need bool) bool {
	if err == nil {
		return r.err == nil
	}
	if r.err == nil && (need || !errors.Is(err, gguf.ErrNoKey)) {
		r.err = err
	}
	return false
}

func (r *reader) str(key string, need bool) string {
	s, err := r.f.String(key)
	r.keep(err, need)
	return s
}

func (r *reader) strs(key string, need bool) []string {
	s, err := r.f.Strings(key)
	r.keep(err, need)
	return s
}

func (r *reader) types(key string) []int32 {
	s, err := r.f.Ints(key)
	if !r.keep(err, false) {
		return nil
	}
	out := make([]int32, len(s))
	for i, x := range s {
		out[i] = int32(x)
	}
	return out
}

func (r *reader) id(key string) *int {
	x, err := r.f.Int(key)
	if !r.keep(err, false) {
		return nil
	}
	n := int(x)
	return &n
}

func (r *reader) flag(key string) *bool {
	b, err := r.f.Bool(key)
	if !r.keep(err, false) {
		return nil
	}
	return &b
}

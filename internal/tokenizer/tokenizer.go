// Package tokenizer turns text into token ids and back, from the vocabulary of
// a model file.
//
// It hides byte-level BPE: the pre-tokenizers, the merges and the printable
// alphabet in which vocabularies spell bytes. The server is its caller; the
// engine sees ids only. A Tokenizer is immutable and safe for concurrent use.
//
// Three rules hold for every vocabulary:
//   - text becomes a control token only where the caller allows it, so message
//     content cannot forge a turn marker;
//   - a prompt never begins with two start tokens;
//   - a byte for which the vocabulary has no token gives no token, and it stops
//     merges across itself, as in llama.cpp.
package tokenizer

import (
	"fmt"
	"slices"
)

// A TokenType says how a token takes part in encoding and decoding. The values
// are those of GGUF's tokenizer.ggml.token_type.
type TokenType int32

// The token types of GGUF.
const (
	Normal      TokenType = 1
	Unknown     TokenType = 2
	Control     TokenType = 3 // made from text only where special tokens are allowed
	UserDefined TokenType = 4 // always matched as a whole
	Unused      TokenType = 5
	Byte        TokenType = 6
)

// A Vocab is what a model file says about its tokenizer. Absent ids are nil
// and mean that the model has no such token.
type Vocab struct {
	Model  string   // "gpt2": byte-level BPE, the only kind supported
	Pre    string   // pre-tokenizer: "smollm", "gpt-2" or "default"; "" is "default"
	Tokens []string // token texts by id, bytes spelled in the GPT-2 alphabet
	Types  []int32  // a TokenType for each token; nil: all normal
	Merges []string // "left right", best first

	BOS, EOS, EOT, EOM, Unknown, Padding *int

	AddBOS *bool // whether a prompt begins with BOS; nil is false
}

// A Tokenizer encodes and decodes text with one vocabulary.
type Tokenizer struct {
	pre    splitter
	texts  []string    // as in the vocabulary
	pieces []string    // the bytes that each id stands for
	types  []TokenType // by id
	merges *bpe

	special trie // control, unknown and user-defined tokens
	user    trie // user-defined tokens only

	bos, eos, pad int32 // none when absent
	addBOS        bool
	eog           []int32 // ascending
}

// none stands for an absent token id.
const none int32 = -1

// New makes a tokenizer for v. It refuses vocabularies whose rules it does not
// know rather than encode text in a way that the model has not seen.
func New(v Vocab) (*Tokenizer, error) {
	if v.Model != "gpt2" {
		return nil, fmt.Errorf("tokenizer: reading vocabulary: model %q is not supported (only gpt2)", v.Model)
	}
	pre, ok := splitters(v.Pre)
	if !ok {
		return nil, fmt.Errorf("tokenizer: reading vocabulary: pre-tokenizer %q is not supported (only smollm, gpt-2, default)", v.Pre)
	}
	n := len(v.Tokens)
	if n == 0 {
		return nil, fmt.Errorf("tokenizer: reading vocabulary: no tokens")
	}
	if v.Types != nil && len(v.Types) != n {
		return nil, fmt.Errorf("tokenizer: reading vocabulary: %d token types for %d tokens", len(v.Types), n)
	}
	t := &Tokenizer{pre: pre, texts: v.Tokens, types: make([]TokenType, n)}
	for i := range t.types {
		t.types[i] = Normal
		if v.Types != nil {
			t.types[i] = TokenType(v.Types[i])
		}
	}
	var eot, eom, unk int32
	for _, f := range []struct {
		name string
		from *int
		to   *int32
	}{
		{"bos", v.BOS, &t.bos}, {"eos", v.EOS, &t.eos}, {"padding", v.Padding, &t.pad},
		{"eot", v.EOT, &eot}, {"eom", v.EOM, &eom}, {"unknown", v.Unknown, &unk},
	} {
		*f.to = none
		if f.from == nil {
			continue
		}
		if *f.from < 0 || *f.from >= n {
			return nil, fmt.Errorf("tokenizer: reading vocabulary: %s token id %d is not in a vocabulary of %d tokens", f.name, *f.from, n)
		}
		*f.to = int32(*f.from)
	}
	t.addBOS = v.AddBOS != nil && *v.AddBOS && t.bos != none
	t.findEOG(eot, eom)
	t.readPieces()
	for id, text := range t.texts {
		switch t.types[id] {
		case Control, Unknown:
			t.special.add(text, int32(id))
		case UserDefined:
			t.special.add(text, int32(id))
			t.user.add(text, int32(id))
		default: // found by merges, if at all
		}
	}
	var err error
	if t.merges, err = newBPE(v.Tokens, v.Merges); err != nil {
		return nil, err
	}
	return t, nil
}

// findEOG collects the tokens that end a generation: those the file names and
// those known by their text. The latter are control tokens whatever type the
// file gives them, for content must not be able to write them.
func (t *Tokenizer) findEOG(ids ...int32) {
	set := map[int32]bool{}
	for _, id := range append(ids, t.eos) {
		if id != none {
			set[id] = true
		}
	}
	for id, text := range t.texts {
		// Every known text begins with one of three letters, or is "</s>" like.
		if len(text) < 3 || (text[0] != '<' && text[0] != '[' && text[0] != '_') {
			continue
		}
		switch {
		case endsGeneration(text):
			set[int32(id)] = true
			t.types[id] = Control
		case fillInMarker(text) && t.types[id] == Control:
			set[int32(id)] = true
		}
	}
	for id := range set {
		t.eog = append(t.eog, id)
	}
	slices.Sort(t.eog)
}

// endsGeneration reports whether text is known as the end of a turn or text.
func endsGeneration(text string) bool {
	switch text {
	case "<|eot_id|>", "<|im_end|>", "<|end|>", "<|return|>", "<|call|>", "<end_of_turn>",
		"<|endoftext|>", "</s>", "<|eom_id|>", "<EOT>", "_<EOT>", "[EOT]", "[EOS]",
		"<|end_of_text|>", "<end_of_utterance>", "<eos>", "<｜end▁of▁sentence｜>":
		return true
	}
	return false
}

// fillInMarker reports whether text is known as a fill-in-the-middle token
// that separates files; a model that makes one has finished its text.
func fillInMarker(text string) bool {
	switch text {
	case "<|fim_repo|>", "<|repo_name|>", "<fim-repo>", "<REPO>", "<reponame>",
		"<|file_sep|>", "<|fim_pad|>", "<fim-pad>", "<fim_pad>":
		return true
	}
	return false
}

// Size returns the number of tokens.
func (t *Tokenizer) Size() int { return len(t.texts) }

// BOS returns the start token; ok is false when the model has none.
func (t *Tokenizer) BOS() (id int32, ok bool) { return t.bos, t.bos != none }

// EOS returns the end token; ok is false when the model has none.
func (t *Tokenizer) EOS() (id int32, ok bool) { return t.eos, t.eos != none }

// AddBOS reports whether prompts begin with the start token.
func (t *Tokenizer) AddBOS() bool { return t.addBOS }

// EOG returns the ids that end a generation, ascending. The caller must not
// change it.
func (t *Tokenizer) EOG() []int32 { return t.eog }

// IsControl reports whether id is a control token: one that text makes only
// where special tokens are allowed, and that has no text of its own in answers.
func (t *Tokenizer) IsControl(id int32) bool {
	return t.valid(id) && (t.types[id] == Control || t.types[id] == Unknown)
}

// Text returns the vocabulary's own spelling of id, or "" for an unknown id.
func (t *Tokenizer) Text(id int32) string {
	if !t.valid(id) {
		return ""
	}
	return t.texts[id]
}

func (t *Tokenizer) valid(id int32) bool { return id >= 0 && int(id) < len(t.texts) }

// Bytes returns a tokenizer whose ids 0 to 255 are the bytes themselves,
// followed by BOS 256, EOS 257 and PAD 258. Simulated models use it.
func Bytes() *Tokenizer {
	v := Vocab{Model: "gpt2", Tokens: make([]string, 259), Types: make([]int32, 259)}
	for b := range 256 {
		v.Tokens[b], v.Types[b] = string(spell(byte(b))), int32(Normal)
	}
	for i, s := range []string{"<|bos|>", "<|eos|>", "<|pad|>"} {
		v.Tokens[256+i], v.Types[256+i] = s, int32(Control)
	}
	bos, eos, pad := 256, 257, 258
	v.BOS, v.EOS, v.Padding = &bos, &eos, &pad
	t, err := New(v)
	if err != nil {
		panic("tokenizer: byte vocabulary: " + err.Error())
	}
	return t
}

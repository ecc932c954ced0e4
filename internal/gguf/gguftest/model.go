package gguftest

import (
	"fmt"
	"math"
	"math/bits"
	"testing"

	"tandem/internal/gguf"
)

// A Spec describes a synthetic model of architecture llama with a byte-level
// BPE tokenizer. Equal specs give equal bytes.
type Spec struct {
	Layers, Width    int
	Heads, KVHeads   int
	HeadDim          int
	FFN              int
	Vocab            int // at least MinVocab
	Context          int // tokens
	Type             gguf.Type
	EmbdType         gguf.Type // of token_embd and output
	Tied             bool      // no output.weight
	RopeFreqs        bool      // adds rope_freqs.weight
	Pre              string    // pre-tokenizer: smollm or default
	Seed             uint64
	NoTemplate       bool // leaves the chat template out
	EndAfterMarker   bool // greedy decoding answers a prompt that ends with Marker by ImEnd; needs Tied false
	Name             string
	RopeBase, RMSEps float32
	ScaleK           float32 // multiplies attn_k; 0 means 1
}

// Tiny returns the spec of the default test model: 2 layers of width 64, 4
// heads of 32 over 2 KV heads, 320 tokens, Q4_1 with Q8_0 embeddings, tied.
func Tiny() Spec {
	return Spec{
		Name: "tiny", Layers: 2, Width: 64, Heads: 4, KVHeads: 2, HeadDim: 32, FFN: 192, Vocab: 320, Context: 2048,
		Type: gguf.Q4_1, EmbdType: gguf.Q8_0, Tied: true, Pre: "smollm", Seed: 1, RopeBase: 10000, RMSEps: 1e-5,
	}
}

// TinyTP returns the spec of the test model that can be split over 1, 2 and 4
// ranks: width 128, 8 heads of 32 over 4 KV heads, feed-forward 256.
func TinyTP() Spec {
	s := Tiny()
	s.Name, s.Width, s.Heads, s.KVHeads, s.FFN = "tiny-tp", 128, 8, 4, 256
	return s
}

// Open returns the model as a file in memory.
func (s Spec) Open(t testing.TB) *gguf.File {
	t.Helper()
	f, err := gguf.Parse(s.Name, s.Bytes())
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// Bytes returns the model's file.
func (s Spec) Bytes() []byte { return s.Writer().Bytes() }

// Writer returns the model's keys and tensors, for tests that change them.
func (s Spec) Writer() *Writer {
	w := &Writer{}
	s.metadata(w)
	s.tokenizer(w)
	s.weights(w)
	return w
}

func (s Spec) metadata(w *Writer) {
	w.String("general.architecture", "llama")
	w.String("general.name", s.Name)
	w.Uint32("llama.block_count", uint32(s.Layers))
	w.Uint32("llama.context_length", uint32(s.Context))
	w.Uint32("llama.embedding_length", uint32(s.Width))
	w.Uint32("llama.feed_forward_length", uint32(s.FFN))
	w.Uint32("llama.attention.head_count", uint32(s.Heads))
	w.Uint32("llama.attention.head_count_kv", uint32(s.KVHeads))
	w.Uint32("llama.attention.key_length", uint32(s.HeadDim))
	w.Uint32("llama.attention.value_length", uint32(s.HeadDim))
	w.Uint32("llama.rope.dimension_count", uint32(s.HeadDim))
	w.Float32("llama.rope.freq_base", s.RopeBase)
	w.Float32("llama.attention.layer_norm_rms_epsilon", s.RMSEps)
	w.Uint32("llama.vocab_size", uint32(s.Vocab))
}

func (s Spec) tokenizer(w *Writer) {
	tokens, types, merges := vocabulary(s.Vocab)
	w.String("tokenizer.ggml.model", "gpt2")
	w.String("tokenizer.ggml.pre", s.Pre)
	w.Strings("tokenizer.ggml.tokens", tokens)
	w.Int32s("tokenizer.ggml.token_type", types)
	w.Strings("tokenizer.ggml.merges", merges)
	w.Uint32("tokenizer.ggml.bos_token_id", ImStart)
	w.Uint32("tokenizer.ggml.eos_token_id", ImEnd)
	w.Uint32("tokenizer.ggml.unknown_token_id", EndOfText)
	w.Uint32("tokenizer.ggml.padding_token_id", ImEnd)
	w.Bool("tokenizer.ggml.add_bos_token", false)
	w.Bool("tokenizer.ggml.add_space_prefix", false)
	if !s.NoTemplate {
		w.String("tokenizer.chat_template", ChatTemplate)
	}
}

func (s Spec) weights(w *Writer) {
	g := generator{s: s, w: w}
	qd, kd := s.Heads*s.HeadDim, s.KVHeads*s.HeadDim
	g.embedding()
	if s.RopeFreqs {
		f := make([]float32, s.HeadDim/2)
		for i := range f {
			f[i] = 1 + float32(i)/8
		}
		g.vector("rope_freqs.weight", f)
	}
	for l := range s.Layers {
		p := fmt.Sprintf("blk.%d.", l)
		g.norm(p + "attn_norm.weight")
		g.matrix(p+"attn_q.weight", qd, s.Width, 2)
		k := s.ScaleK
		if k == 0 {
			k = 1
		}
		g.matrix(p+"attn_k.weight", kd, s.Width, k)
		g.matrix(p+"attn_v.weight", kd, s.Width, 1)
		g.matrix(p+"attn_output.weight", s.Width, qd, 1)
		g.norm(p + "ffn_norm.weight")
		g.matrix(p+"ffn_gate.weight", s.FFN, s.Width, 1)
		g.matrix(p+"ffn_up.weight", s.FFN, s.Width, 1)
		g.matrix(p+"ffn_down.weight", s.Width, s.FFN, 1)
	}
	g.norm("output_norm.weight")
	if !s.Tied {
		g.output()
	}
}

// A generator writes tensors; each has a random stream of its own.
type generator struct {
	s Spec
	w *Writer
	n uint64
}

func (g *generator) random(n int, scale float32) []float32 {
	g.n++
	r := newRand(g.s.Seed*1000003 + g.n)
	x := make([]float32, n)
	for i := range x {
		x[i] = r.normal() * scale
	}
	return x
}

func (g *generator) vector(name string, x []float32) {
	g.w.Tensor(name, gguf.F32, []uint64{uint64(len(x))}, Encode(gguf.F32, x))
}

// norm weights lie around 1.
func (g *generator) norm(name string) {
	x := g.random(g.s.Width, 0.1)
	for i := range x {
		x[i]++
	}
	g.vector(name, x)
}

func (g *generator) matrix(name string, rows, cols int, scale float32) {
	x := g.random(rows*cols, scale/float32(math.Sqrt(float64(cols))))
	g.put(name, g.s.Type, rows, cols, x)
}

func (g *generator) put(name string, typ gguf.Type, rows, cols int, x []float32) {
	g.w.Tensor(name, typ, []uint64{uint64(cols), uint64(rows)}, Encode(typ, x))
}

// markerSize is the marker's embedding in dimension 0, which no other token
// has: far above what two layers add to it.
const markerSize = 256

func (g *generator) embedding() {
	s := g.s
	x := g.random(s.Vocab*s.Width, 0.5)
	if s.EndAfterMarker {
		for t := range s.Vocab {
			x[t*s.Width] = 0
		}
		x[Marker*s.Width] = markerSize
	}
	g.put("token_embd.weight", s.EmbdType, s.Vocab, s.Width, x)
}

func (g *generator) output() {
	s := g.s
	x := g.random(s.Vocab*s.Width, 1/float32(math.Sqrt(float64(s.Width))))
	if s.EndAfterMarker {
		for t := range s.Vocab {
			x[t*s.Width] = 0
		}
		x[ImEnd*s.Width] = 8
	}
	g.put("output.weight", s.EmbdType, s.Vocab, s.Width, x)
}

// rng is xoshiro256** seeded by splitmix64: the files must not change with
// the Go release.
type rng [4]uint64

func newRand(seed uint64) *rng {
	var r rng
	for i := range r {
		seed += 0x9e3779b97f4a7c15
		z := seed
		z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
		z = (z ^ z>>27) * 0x94d049bb133111eb
		r[i] = z ^ z>>31
	}
	return &r
}

func (s *rng) next() uint64 {
	x := bits.RotateLeft64(s[1]*5, 7) * 9
	t := s[1] << 17
	s[2] ^= s[0]
	s[3] ^= s[1]
	s[1] ^= s[2]
	s[0] ^= s[3]
	s[2] ^= t
	s[3] = bits.RotateLeft64(s[3], 45)
	return x
}

// normal is a sum of four 16-bit uniforms scaled to unit variance.
func (s *rng) normal() float32 {
	u := s.next()
	v := int(u&0xffff) + int(u>>16&0xffff) + int(u>>32&0xffff) + int(u>>48) - 2*65535
	return float32(v) * (1.7320508 / 65536)
}

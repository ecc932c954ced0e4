package model_test

import (
	"errors"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"tandem/internal/gguf"
	"tandem/internal/gguf/gguftest"
	"tandem/internal/kv"
	"tandem/internal/model"
)

func bitsOf(v float32) uint32 { return math.Float32bits(v) }

// rewrite returns the tiny model with keys replaced: set is called after all
// keys but those in drop were copied.
func rewrite(t *testing.T, s gguftest.Spec, drop []string, set func(w *gguftest.Writer)) *gguf.File {
	t.Helper()
	w := s.Writer()
	for _, k := range drop {
		w.Drop(k)
	}
	if set != nil {
		set(w)
	}
	f, err := gguf.Parse("changed", w.Bytes())
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func TestWrongMetadataIsRefused(t *testing.T) {
	tests := []struct {
		name string
		key  string
		set  func(w *gguftest.Writer, key string)
		want []string
	}{
		{"no layers", "llama.block_count", u32(0), nil},
		{"layers is a string", "llama.block_count", str("2"), nil},
		{"100000 layers", "llama.block_count", u32(100000), []string{"100000"}},
		{"more layers than tensors", "llama.block_count", u32(3), []string{"blk.2.attn_norm.weight", "missing"}},
		{"fewer layers than tensors", "llama.block_count", u32(1), []string{"blk.1.", "is 1"}},
		{"no width", "llama.embedding_length", u32(0), nil},
		{"another width", "llama.embedding_length", u32(96), []string{"[96 320]", "[64 320]"}},
		{"no heads", "llama.attention.head_count", u32(0), nil},
		{"three heads", "llama.attention.head_count", u32(3), []string{"3 heads", "2 KV heads"}},
		{"no KV heads", "llama.attention.head_count_kv", u32(0), nil},
		{"negative KV heads", "llama.attention.head_count_kv", i32(-2), []string{"negative"}},
		{"no head size", "llama.attention.key_length", u32(0), nil},
		{"head size of no vectors", "llama.attention.key_length", u32(40), []string{"40", "32"}},
		{"value length differs", "llama.attention.value_length", u32(64), []string{"32", "64"}},
		{"no feed-forward", "llama.feed_forward_length", u32(0), nil},
		{"another feed-forward", "llama.feed_forward_length", u32(256), []string{"[64 192]", "[64 256]"}},
		{"no context", "llama.context_length", u32(0), nil},
		{"epsilon is zero", "llama.attention.layer_norm_rms_epsilon", f32(0), nil},
		{"epsilon is NaN", "llama.attention.layer_norm_rms_epsilon", f32(float32(math.NaN())), nil},
		{"rope base is negative", "llama.rope.freq_base", f32(-1), nil},
		{"odd rope dimensions", "llama.rope.dimension_count", u32(31), []string{"31"}},
		{"more rope dimensions than a head has", "llama.rope.dimension_count", u32(64), []string{"64"}},
		{"no vocabulary", "llama.vocab_size", u32(0), nil},
		{"another vocabulary", "llama.vocab_size", u32(300), []string{"300", "320"}},
		{"end token outside", "tokenizer.ggml.eos_token_id", u32(320), []string{"320"}},
		{"architecture", "general.architecture", str("mamba"), []string{"mamba", "llama"}},
		{"experts", "llama.expert_count", u32(8), []string{"8 experts"}},
		{"rope scaling", "llama.rope.scaling.type", str("yarn"), []string{"yarn"}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			f := rewrite(t, gguftest.Tiny(), []string{test.key}, func(w *gguftest.Writer) { test.set(w, test.key) })
			_, err := model.Load(f, model.Config{MaxLen: 64})
			if err == nil {
				t.Fatal("it loads")
			}
			want := test.want
			if want == nil {
				want = []string{test.key}
			}
			for _, s := range want {
				if !strings.Contains(err.Error(), s) {
					t.Errorf("error %q does not say %q", err, s)
				}
			}
		})
	}
}

func u32(v uint32) func(*gguftest.Writer, string) {
	return func(w *gguftest.Writer, key string) { w.Uint32(key, v) }
}

func i32(v int32) func(*gguftest.Writer, string) {
	return func(w *gguftest.Writer, key string) {
		w.Raw(key, 5, []byte{byte(v), byte(v >> 8), byte(v >> 16), byte(v >> 24)})
	}
}

func f32(v float32) func(*gguftest.Writer, string) {
	return func(w *gguftest.Writer, key string) { w.Float32(key, v) }
}

func str(v string) func(*gguftest.Writer, string) {
	return func(w *gguftest.Writer, key string) { w.String(key, v) }
}

func TestWrongTensorsAreRefused(t *testing.T) {
	const k = "blk.1.attn_k.weight"
	vec := func(n int) []byte { return gguftest.Encode(gguf.F32, make([]float32, n)) }
	tests := []struct {
		name        string
		drop        string
		typ         gguf.Type
		dims        []uint64
		add         string
		unsupported bool
		want        []string
	}{
		{name: "missing", drop: k, want: []string{k, "missing"}},
		{name: "transposed", drop: "blk.0.attn_output.weight", add: "blk.0.attn_output.weight", dims: []uint64{64, 128}, want: []string{"[64 128]", "[128 64]"}},
		{name: "flat", drop: k, add: k, dims: []uint64{4096}, want: []string{k, "[4096]"}},
		{name: "three dimensions", drop: k, add: k, dims: []uint64{64, 64, 1}, want: []string{k}},
		{name: "a type that is not computed with", drop: k, add: k, typ: gguf.BF16, dims: []uint64{64, 64}, unsupported: true, want: []string{k, "BF16"}},
		{name: "an unknown tensor", add: "blk.0.attn_q.bias", dims: []uint64{128}, unsupported: true, want: []string{"attn_q.bias"}},
		{name: "norm of another length", drop: "output_norm.weight", add: "output_norm.weight", dims: []uint64{32}, want: []string{"output_norm.weight", "[32]", "[64]"}},
		{name: "no embedding", drop: "token_embd.weight", want: []string{"token_embd.weight"}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			f := rewrite(t, gguftest.Tiny(), nil, func(w *gguftest.Writer) {
				w.DropTensor(test.drop)
				if test.add != "" {
					n := 1
					for _, d := range test.dims {
						n *= int(d)
					}
					w.Tensor(test.add, test.typ, test.dims, vec(n))
				}
			})
			_, err := model.Load(f, model.Config{MaxLen: 64})
			if err == nil || errors.Is(err, model.ErrUnsupported) != test.unsupported {
				t.Fatalf("error is %v", err)
			}
			for _, s := range test.want {
				if !strings.Contains(err.Error(), s) {
					t.Errorf("error %q does not say %q", err, s)
				}
			}
		})
	}
}

// A tied output is the embedding, and an unused table of a rotary embedding is
// ignored.
func TestVariantsOfAFileAreTheSameModel(t *testing.T) {
	s := gguftest.Tiny()
	ids := prompt(20, 8)
	want := alone(t, load(t, s, model.Config{}), ids)
	tied := s.Writer()
	embd, _ := s.Open(t).Tensor("token_embd.weight")
	tied.Tensor("output.weight", embd.Type, embd.Dims, embd.Data)
	tied.Tensor("blk.0.attn_rot_embd", gguf.F32, []uint64{16}, make([]byte, 64))
	f, err := gguf.Parse("untied", tied.Bytes())
	if err != nil {
		t.Fatal(err)
	}
	sameBits(t, "with an output matrix equal to the embedding", alone(t, loadFile(t, f, model.Config{}), ids), want)
}

// A file that is cut while the team packs it is an error, whoever of the team
// reads behind its end. The last tensor is read by the team alone.
func TestFileIsCutWhileItIsPacked(t *testing.T) {
	s := gguftest.Tiny()
	s.Tied = false
	for _, threads := range []int{1, 3} {
		path := filepath.Join(t.TempDir(), "cut.gguf")
		if err := os.WriteFile(path, s.Bytes(), 0o600); err != nil {
			t.Fatal(err)
		}
		f, err := gguf.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		if last := f.Tensors()[len(f.Tensors())-1]; os.Truncate(path, int64(last.Offset)) != nil || len(last.Data) < 2*os.Getpagesize() {
			t.Fatalf("cutting %s before %s of %d bytes", path, last.Name, len(last.Data))
		}
		_, err = model.Load(f, model.Config{Threads: threads, MaxLen: 64})
		if !errors.Is(err, gguf.ErrShrunk) || !strings.Contains(err.Error(), path) {
			t.Errorf("%d threads: %v", threads, err)
		}
	}
}

func TestSettingsThatDoNotFitAreRefused(t *testing.T) {
	tests := []struct {
		name string
		spec gguftest.Spec
		cfg  model.Config
		want string
	}{
		{"tp 3", gguftest.TinyTP(), model.Config{TP: 3}, "1, 2 and 4"},
		{"tp 4 of two KV heads", gguftest.Tiny(), model.Config{TP: 4}, "2 KV heads"},
		{"tp 2 of 192 feed-forward inputs", gguftest.Tiny(), model.Config{TP: 2}, "192 inputs of the down matrix"},
		{"blocks of 8", gguftest.Tiny(), model.Config{BlockTokens: 8}, "8 tokens a block"},
		{"blocks of 128", gguftest.Tiny(), model.Config{BlockTokens: 128}, "128 tokens a block"},
		{"longer than the context", gguftest.Tiny(), model.Config{MaxLen: 4096}, "2048"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			_, err := model.Load(test.spec.Open(t), test.cfg)
			if !errors.Is(err, model.ErrUnsupported) || !strings.Contains(err.Error(), test.want) {
				t.Errorf("error is %v, want one with %q", err, test.want)
			}
		})
	}
	if _, err := model.Load(gguftest.Tiny().Open(t), model.Config{Kernels: "abacus"}); err == nil {
		t.Error("unknown kernels were accepted")
	}
}

func TestWrongBatchesAreRefused(t *testing.T) {
	m := load(t, gguftest.Tiny(), model.Config{MaxLen: 64, Blocks: 4})
	good := kv.Seq{Tokens: []kv.Token{1, 2}, Pos: 16, Blocks: []kv.BlockID{0, 1}, WriteFrom: 16, Logits: 1}
	tests := map[string]func(s *kv.Seq){
		"no tokens":               func(s *kv.Seq) { s.Tokens = nil },
		"negative position":       func(s *kv.Seq) { s.Pos = -1 },
		"position beyond the end": func(s *kv.Seq) { s.Pos = 63 },
		"table too short":         func(s *kv.Seq) { s.Blocks = s.Blocks[:1] },
		"block outside":           func(s *kv.Seq) { s.Blocks = []kv.BlockID{0, 4} },
		"negative block":          func(s *kv.Seq) { s.Blocks = []kv.BlockID{-1, 0} },
		"token outside":           func(s *kv.Seq) { s.Tokens = []kv.Token{1, 320} },
		"negative token":          func(s *kv.Seq) { s.Tokens = []kv.Token{-1, 1} },
		"more logits than tokens": func(s *kv.Seq) { s.Logits = 3 },
		"seal outside":            func(s *kv.Seq) { s.SealFrom, s.SealTo, s.SealFilled = 1, 3, 16 },
		"seal of 17":              func(s *kv.Seq) { s.SealFrom, s.SealTo, s.SealFilled = 1, 2, 17 },
	}
	for what, change := range tests {
		s := good
		change(&s)
		_, err := m.Step(&kv.Batch{Seqs: []kv.Seq{good, s}})
		var e *model.BatchError
		if !errors.As(err, &e) || e.Seq != 1 {
			t.Errorf("%s: error is %v", what, err)
		}
	}
	if rows, err := m.Step(&kv.Batch{Seqs: []kv.Seq{good}}); err != nil || len(rows) != 1 {
		t.Errorf("a good batch gives %d rows, error %v", len(rows), err)
	}
	if rows, err := m.Step(&kv.Batch{}); err != nil || len(rows) != 0 {
		t.Errorf("an empty batch gives %d rows, error %v", len(rows), err)
	}
	if err := m.Close(); err != nil {
		t.Error(err)
	}
	if _, err := m.Step(&kv.Batch{Seqs: []kv.Seq{good}}); err == nil {
		t.Error("a closed model computes")
	}
}

func TestInfo(t *testing.T) {
	s := gguftest.TinyTP()
	a, b := load(t, s, model.Config{TP: 2}).Info(), load(t, s, model.Config{Threads: 2}).Info()
	if a.TP != 2 || a.KVHeads != 4 || a.Vocab != 320 || a.MaxLen != 1024 || a.Layers != 2 || len(a.EOS) != 1 || a.EOS[0] != gguftest.ImEnd {
		t.Errorf("info is %+v", a)
	}
	for i := range a.Fingerprint {
		if a.Fingerprint[i] != b.Fingerprint[i] {
			t.Errorf("factors %v and %v of the same model differ", a.Fingerprint[i], b.Fingerprint[i])
		}
	}
	s.Seed++
	if c := load(t, s, model.Config{}).Info(); c.Fingerprint[0] == a.Fingerprint[0] {
		t.Error("another model has the same content hash")
	}
	if e := load(t, s, model.Config{F32: true}); e.Arenas()[0].Layout().Elem != kv.F32 {
		t.Error("the exact mode does not keep float32 keys")
	}
}

// A prompt that ends with the marker is answered with the end token.
func TestMarkerEndsTheAnswer(t *testing.T) {
	s := gguftest.Tiny()
	s.Tied, s.EndAfterMarker = false, true
	m := load(t, s, model.Config{})
	for _, n := range []int{1, 5, 40} {
		ids := append(prompt(n-1, n), gguftest.Marker)
		bits := alone(t, m, ids)
		last := bits[(n-1)*320:]
		best := 0
		for i, b := range last {
			if math.Float32frombits(b) > math.Float32frombits(last[best]) {
				best = i
			}
		}
		if best != gguftest.ImEnd {
			t.Errorf("after %d tokens and the marker comes %d", n-1, best)
		}
	}
}

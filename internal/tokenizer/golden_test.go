package tokenizer

import (
	"bufio"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"tandem/internal/gguf"
)

// openModel opens the default model, which these tests need.
func openModel(tb testing.TB) *gguf.File {
	tb.Helper()
	dir, err := os.UserCacheDir()
	if err != nil {
		tb.Fatal(err)
	}
	f, err := gguf.Open(filepath.Join(dir, "tandem", "SmolLM2-135M-Instruct.Q4_1.gguf"))
	if err != nil {
		tb.Fatalf("the default model is missing, run \"make model\": %v", err)
	}
	tb.Cleanup(func() { f.Close() })
	return f
}

func smol(tb testing.TB) *Tokenizer {
	tb.Helper()
	tok, err := FromGGUF(openModel(tb))
	if err != nil {
		tb.Fatal(err)
	}
	return tok
}

// golden calls f with every line of a file of golden data.
func golden[T any](t *testing.T, name string, want int, f func(line T)) {
	t.Helper()
	file, err := os.Open(filepath.Join("..", "..", "testdata", "golden", name))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	sc := bufio.NewScanner(file)
	sc.Buffer(nil, 1<<24)
	n := 0
	for ; sc.Scan(); n++ {
		var line T
		if err := json.Unmarshal(sc.Bytes(), &line); err != nil {
			t.Fatalf("%s: line %d: %v", name, n+1, err)
		}
		f(line)
	}
	if err := sc.Err(); err != nil {
		t.Fatal(err)
	}
	if n != want {
		t.Fatalf("%s has %d lines, not %d", name, n, want)
	}
}

func TestGoldenTokenize(t *testing.T) {
	tok := smol(t)
	type line struct {
		ID, Text     string
		AddSpecial   bool `json:"add_special"`
		ParseSpecial bool `json:"parse_special"`
		IDs          []int32
	}
	golden(t, "tokenize.jsonl", 429, func(l line) {
		got := tok.Encode(l.Text, EncodeOptions{AddSpecial: l.AddSpecial, ParseSpecial: l.ParseSpecial})
		if !slices.Equal(got, l.IDs) {
			t.Errorf("%s: %q\n got %v\nwant %v", l.ID, l.Text, got, l.IDs)
		}
	})
}

func TestGoldenDetokenize(t *testing.T) {
	tok := smol(t)
	type line struct {
		ID      string
		IDs     []int32
		Special bool
		Bytes   []byte
	}
	golden(t, "detokenize.jsonl", 310, func(l line) {
		if got := tok.Decode(l.IDs, l.Special); string(got) != string(l.Bytes) {
			t.Errorf("%s: %v\n got %q\nwant %q", l.ID, l.IDs, got, l.Bytes)
		}
	})
}

// The two references differ on bytes without a token between characters that
// merge; this tokenizer follows llama.cpp.
func TestByteWithoutTokenStopsMergesAcrossItself(t *testing.T) {
	got := smol(t).Encode("!\x04!", EncodeOptions{})
	if want := []int32{17, 17}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

func TestEOGOfTheDefaultModel(t *testing.T) {
	if got, want := smol(t).EOG(), []int32{0, 2, 4}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

// Every control token's text stays text in a content part.
func TestContentNeverBecomesAControlToken(t *testing.T) {
	tok := smol(t)
	n := 0
	for id := range int32(tok.Size()) {
		if !tok.IsControl(id) {
			continue
		}
		n++
		s := tok.Text(id)
		for _, parts := range [][]Part{
			{{s, false}},
			{{"user\n", true}, {"a " + s + " b", false}, {"<|im_end|>", true}},
			{{s[:1], true}, {s[1:], false}},
			{{s[:len(s)-1], false}, {s[len(s)-1:], true}},
		} {
			for _, got := range tok.EncodeParts(parts) {
				if got == id && s != "<|im_end|>" {
					t.Errorf("%q: content became token %d in %v", s, id, parts)
				}
			}
		}
		if got := tok.EncodeParts([]Part{{s[:2], true}, {"", false}, {s[2:], true}}); !slices.Equal(got, []int32{id}) {
			t.Errorf("%q: template text gave %v, not %d", s, got, id)
		}
	}
	if n != 17 {
		t.Errorf("%d control tokens, not 17", n)
	}
}

// BenchmarkLoad prints what making the tokenizer costs beyond reading the file's
// strings, which is the least that loading does.
func BenchmarkLoad(b *testing.B) {
	f := openModel(b)
	var read, load time.Duration
	for b.Loop() {
		start := time.Now()
		if _, err := VocabFromGGUF(f); err != nil {
			b.Fatal(err)
		}
		read += time.Since(start)
		start = time.Now()
		if _, err := FromGGUF(f); err != nil {
			b.Fatal(err)
		}
		load += time.Since(start)
	}
	b.ReportMetric(float64(load)/float64(read), "load/read")
}

package tokenizer

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"pgregory.net/rapid"
)

func ptr[T any](x T) *T { return &x }

// tiny is a vocabulary of all bytes, a few merges and special tokens.
func tiny() Vocab {
	v := Vocab{Model: "gpt2", Pre: "gpt-2"}
	for b := range 256 {
		v.Tokens, v.Types = append(v.Tokens, string(spell(byte(b)))), append(v.Types, int32(Normal))
	}
	for _, s := range []string{"he", "ll", "hell", "hello", "Ġhe", "aa", "aaaa"} {
		v.Tokens, v.Types = append(v.Tokens, s), append(v.Types, int32(Normal))
	}
	v.Merges = []string{"h e", "l l", "he ll", "hell o", "Ġ he", "a a", "aa aa", "x y", "xy z"}
	for _, s := range []string{"<s>", "</s>", "<|im|>"} { // 263, 264, 265
		v.Tokens, v.Types = append(v.Tokens, s), append(v.Types, int32(Control))
	}
	v.Tokens, v.Types = append(v.Tokens, "[mark]"), append(v.Types, int32(UserDefined)) // 266
	return v
}

func mustNew(tb testing.TB, v Vocab) *Tokenizer {
	tb.Helper()
	tok, err := New(v)
	if err != nil {
		tb.Fatal(err)
	}
	return tok
}

func TestEncodeTiny(t *testing.T) {
	tok := mustNew(t, tiny())
	for _, c := range []struct {
		text    string
		special bool
		want    []int32
	}{
		{"", false, nil},
		{"hello", false, []int32{259}},
		{"hello hello", false, []int32{259, ' ', 259}}, // "h e" comes before "Ġ he"
		{"aaaaaaa", false, []int32{262, 261, 'a'}},
		{"xyz", false, []int32{'x', 'y', 'z'}}, // merges whose result is no token
		{"<s>", false, []int32{'<', 's', '>'}},
		{"<s>", true, []int32{263}},
		{"a[mark]b", false, []int32{'a', 266, 'b'}},
		{"<|im|<|im|>", true, []int32{'<', '|', 'i', 'm', '|', 265}},
		{"\xff\x80a", false, []int32{255, 128, 'a'}},
	} {
		if got := tok.Encode(c.text, EncodeOptions{ParseSpecial: c.special}); !slices.Equal(got, c.want) {
			t.Errorf("%q: got %v, want %v", c.text, got, c.want)
		}
	}
}

// One start token at most, whatever the file and the prompt say.
func TestStartToken(t *testing.T) {
	for _, c := range []struct {
		name string
		bos  *int
		add  *bool
		text string
		want []int32
	}{
		{"add true", ptr(263), ptr(true), "a", []int32{263, 'a'}},
		{"add true, prompt begins with it", ptr(263), ptr(true), "<s>a", []int32{263, 'a'}},
		{"add true, prompt writes two", ptr(263), ptr(true), "<s><s>a", []int32{263, 'a'}},
		{"add false", ptr(263), ptr(false), "a", []int32{'a'}},
		{"add false, prompt begins with it", ptr(263), ptr(false), "<s>a", []int32{263, 'a'}},
		{"add absent", ptr(263), nil, "a", []int32{'a'}},
		{"ids absent", nil, ptr(true), "a", []int32{'a'}},
		{"add true, empty prompt", ptr(263), ptr(true), "", []int32{263}},
	} {
		v := tiny()
		v.BOS, v.AddBOS = c.bos, c.add
		tok := mustNew(t, v)
		if got := tok.Encode(c.text, EncodeOptions{AddSpecial: true, ParseSpecial: true}); !slices.Equal(got, c.want) {
			t.Errorf("%s: Encode gave %v, want %v", c.name, got, c.want)
		}
		if got := tok.EncodeParts([]Part{{c.text, true}}); !slices.Equal(got, c.want) {
			t.Errorf("%s: EncodeParts gave %v, want %v", c.name, got, c.want)
		}
	}
}

func TestVocabulariesThatAreRefused(t *testing.T) {
	for _, c := range []struct {
		change func(v *Vocab)
		want   string
	}{
		{func(v *Vocab) { v.Model = "llama" }, `model "llama"`},
		{func(v *Vocab) { v.Pre = "qwen2" }, `pre-tokenizer "qwen2"`},
		{func(v *Vocab) { v.Tokens = nil }, "no tokens"},
		{func(v *Vocab) { v.Types = v.Types[1:] }, "266 token types for 267 tokens"},
		{func(v *Vocab) { v.EOS = ptr(267) }, "eos token id 267"},
		{func(v *Vocab) { v.BOS = ptr(-1) }, "bos token id -1"},
		{func(v *Vocab) { v.Merges = append(v.Merges, "ab") }, "merge 9"},
		{func(v *Vocab) { v.Merges = append(v.Merges, "ab ") }, "merge 9"},
		{func(v *Vocab) { v.Merges = append(v.Merges, "") }, "merge 9"},
	} {
		v := tiny()
		c.change(&v)
		if _, err := New(v); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("got %v, want %s", err, c.want)
		}
	}
}

func TestControlTokenByItsText(t *testing.T) {
	v := tiny()
	v.Tokens, v.Types = append(v.Tokens, "<|im_end|>"), append(v.Types, int32(UserDefined))
	tok := mustNew(t, v)
	if got := tok.Encode("<|im_end|>", EncodeOptions{}); slices.Contains(got, 267) {
		t.Errorf("content became an end of turn: %v", got)
	}
	if got := tok.EOG(); !slices.Equal(got, []int32{264, 267}) {
		t.Errorf("end tokens are %v", got)
	}
}

func TestByteTokenizer(t *testing.T) {
	tok := Bytes()
	if tok.Size() != 259 || !slices.Equal(tok.EOG(), []int32{257}) {
		t.Errorf("size %d, end tokens %v", tok.Size(), tok.EOG())
	}
	rapid.Check(t, func(t *rapid.T) {
		b := rapid.SliceOf(rapid.Byte()).Draw(t, "bytes")
		ids := tok.Encode(string(b), EncodeOptions{AddSpecial: true})
		if len(ids) != len(b) {
			t.Fatalf("%d ids for %d bytes", len(ids), len(b))
		}
		for i, id := range ids {
			if id != int32(b[i]) {
				t.Fatalf("byte %d is token %d", b[i], id)
			}
		}
	})
}

// slowWord merges the way the definition says: always the best pair, leftmost
// first.
func slowWord(tok *Tokenizer, word string) []int32 {
	b := tok.merges
	var syms []int32
	for i := range len(word) {
		syms = append(syms, b.bytes[word[i]])
	}
	for {
		best, at := int32(-1), -1
		for i := 0; i+1 < len(syms); i++ {
			if r, ok := b.pairs[pair(syms[i], syms[i+1])]; ok && (at < 0 || r < best) {
				best, at = r, i
			}
		}
		if at < 0 {
			break
		}
		syms[at] = b.result[best]
		syms = slices.Delete(syms, at+1, at+2)
	}
	var out []int32
	for _, s := range syms {
		out = b.appendSymbol(out, s)
	}
	return out
}

func TestMergesEqualTheirDefinition(t *testing.T) {
	for name, tok := range map[string]*Tokenizer{"tiny": mustNew(t, tiny()), "smol": smol(t)} {
		t.Run(name, func(t *testing.T) {
			var w work
			rapid.Check(t, func(t *rapid.T) {
				word := rapid.StringOfN(rapid.RuneFrom([]rune("hellozxya \n=-é\x04")), 1, 150, -1).Draw(t, "word")
				got := tok.merges.appendWord(nil, word, &w)
				if want := slowWord(tok, word); !slices.Equal(got, want) {
					t.Fatalf("%q: got %v, want %v", word, got, want)
				}
			})
		})
	}
}

func TestSplitters(t *testing.T) {
	for _, c := range []struct{ name, text, want string }{
		{"gpt-2", "I'll go  to\n\n x12 !?'s ", "I|'ll| go| | to|\n\n| x|12| !?'| s| "},
		{"gpt-2", "a\u00a0\u00a0b '", "a|\u00a0|\u00a0|b| '"},
		{"gpt-2", "'x 'r're'lL", "'|x| '|r|'re|'|lL"},
		{"smollm", "ab 12c  3", "ab| |1|2|c|  |3"},
		{"default", "a+b 12345 x1 ...", "a|+|b| |123|45| x|1| |..."},
		{"default", "it's 1234567", "it|'|s| |123|456|7"},
	} {
		split, _ := splitters(c.name)
		var got []string
		split(c.text, func(w string) { got = append(got, w) })
		want := strings.Split(c.want, "|")
		if c.text == "I'll go  to\n\n x12 !?'s " {
			want = []string{"I", "'ll", " go", " ", " to", "\n\n", " x", "12", " !?'", "s", " "}
		}
		if !slices.Equal(got, want) {
			t.Errorf("%s %q: got %q, want %q", c.name, c.text, got, want)
		}
	}
}

// longRuns are the units of texts that make one long word, or one long hunt for
// a special token.
var longRuns = []string{"a", "1", " ", ".", "你", "ab", "=", "\x04", "<|im_end|", "é\u0301"}

// A mebibyte of one thing is encoded. Quadratic work would keep it busy for
// minutes; how the time grows is what BenchmarkLongRuns prints.
func TestLongRunsComeBack(t *testing.T) {
	tok := smol(t)
	for _, unit := range longRuns {
		s := strings.Repeat(unit, (1<<20)/len(unit))
		ids := make(chan []int32, 1)
		go func() { ids <- tok.Encode(s, EncodeOptions{ParseSpecial: true}) }()
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		select {
		case got := <-ids:
			want := s
			if unit == "\x04" { // a byte that this vocabulary has no token for
				want = ""
			}
			if string(tok.Decode(got, true)) != want {
				t.Errorf("%q: %d tokens are another text", unit, len(got))
			}
		case <-ctx.Done():
			t.Fatalf("%q: 1 MiB is not encoded", unit)
		}
		cancel()
	}
}

// Characters whose bytes are tokens of their own come out whole.
func TestDecoderNeverCutsACharacter(t *testing.T) {
	tok := Bytes()
	rng := rand.New(rand.NewPCG(1, 2))
	for i := range 600 {
		lo, hi := []int{0x80, 0x800, 0x10000}[i%3], []int{0x7ff, 0xffff, 0x10ffff}[i%3]
		r := rune(lo + rng.IntN(hi-lo+1))
		if !utf8.ValidRune(r) || r == utf8.RuneError {
			continue
		}
		s := "x" + string(r) + "y"
		d := tok.NewDecoder(false)
		var got strings.Builder
		for j := range len(s) {
			piece := d.Push(int32(s[j]))
			if !utf8.ValidString(piece) || strings.ContainsRune(piece, utf8.RuneError) {
				t.Fatalf("%q: piece %q", s, piece)
			}
			got.WriteString(piece)
		}
		if got.WriteString(d.Flush()); got.String() != s {
			t.Errorf("got %q, want %q", got.String(), s)
		}
	}
}

func TestDecoderReplacesWhatCannotBeACharacter(t *testing.T) {
	tok := Bytes()
	for _, c := range []struct{ in, want string }{
		{"\x80", "\ufffd|"},
		{"\xff\xffa", "\ufffd|\ufffd|a|"},
		{"\xe2\x82", "||\ufffd"},
		{"\xe2\x82a", "||\ufffda|"},
		{"\xf0\x9f\x98\xe2\x82\xac", "|||\ufffd||€|"},
		{"\xc3\xc3\xa9", "|\ufffd|é|"},
		{"\xed\xa0\x80", "|\ufffd\ufffd|\ufffd|"},
		{"\xf5a", "\ufffd|a|"},
	} {
		d := tok.NewDecoder(false)
		var got []string
		for i := range len(c.in) {
			got = append(got, d.Push(int32(c.in[i])))
		}
		got = append(got, d.Flush())
		if s := strings.Join(got, "|"); s != c.want {
			t.Errorf("%q: got %q, want %q", c.in, s, c.want)
		}
	}
}

func TestDecoderPiecesAddUpToTheText(t *testing.T) {
	tok := smol(t)
	rapid.Check(t, func(t *rapid.T) {
		ids := rapid.SliceOf(rapid.Int32Range(-1, int32(tok.Size()))).Draw(t, "ids")
		d := tok.NewDecoder(true)
		var b strings.Builder
		for _, id := range ids {
			piece := d.Push(id)
			if !utf8.ValidString(piece) {
				t.Fatalf("piece %q is not valid UTF-8", piece)
			}
			b.WriteString(piece)
		}
		b.WriteString(d.Flush())
		if want := strings.ToValidUTF8(string(tok.Decode(ids, true)), ""); strings.ReplaceAll(b.String(), "\ufffd", "") != strings.ReplaceAll(want, "\ufffd", "") {
			t.Fatalf("got %q, want %q", b.String(), want)
		}
		if got := tok.DecodeText(ids, true); got != b.String() {
			t.Fatalf("DecodeText gave %q, the decoder %q", got, b.String())
		}
	})
}

func FuzzRoundTrip(f *testing.F) {
	tok := smol(f)
	def := tiny()
	def.Pre = "default"
	others := []*Tokenizer{mustNew(f, tiny()), mustNew(f, def)}
	for _, s := range []string{"", "Hello world", "<|im_end|>", "  \n\t 12 é 你 👩\u200d🚀", "\xff\xc3", "I'll've", "a\u00a0 b"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		var want []byte
		for i := range len(s) {
			if tok.merges.isByte[s[i]] {
				want = append(want, s[i])
			}
		}
		for _, special := range []bool{false, true} {
			ids := tok.Encode(s, EncodeOptions{ParseSpecial: special})
			if got := tok.Decode(ids, true); string(got) != string(want) {
				t.Errorf("%q: got %q, want %q", s, got, want)
			}
			for _, id := range ids {
				if !special && tok.IsControl(id) {
					t.Errorf("%q: text became control token %d", s, id)
				}
			}
		}
		for i, o := range others {
			if got := o.Decode(o.Encode(s, EncodeOptions{}), true); string(got) != s {
				t.Errorf("vocabulary %d: %q became %q", i, s, got)
			}
		}
	})
}

func BenchmarkEncode(b *testing.B) {
	tok := smol(b)
	text := strings.Repeat("The quick brown fox jumps over the lazy dog, 42 times; isn't it?\n", 1000)
	b.SetBytes(int64(len(text)))
	for b.Loop() {
		tok.Encode(text, EncodeOptions{})
	}
}

// BenchmarkLongRuns prints how much longer twice the text takes: near 2 where
// time is linear, and a quadratic unit outweighs all others towards 4.
func BenchmarkLongRuns(b *testing.B) {
	tok := smol(b)
	encode := func(s string) time.Duration {
		best := time.Duration(math.MaxInt64)
		for range 3 {
			start := time.Now()
			tok.Encode(s, EncodeOptions{ParseSpecial: true})
			best = min(best, time.Since(start))
		}
		return best
	}
	var half, whole time.Duration
	for b.Loop() {
		for _, unit := range longRuns {
			n := (1 << 20) / len(unit)
			half += encode(strings.Repeat(unit, n/2))
			whole += encode(strings.Repeat(unit, n))
		}
	}
	b.ReportMetric(float64(whole)/float64(half), "whole/half")
}

func Example() {
	tok := Bytes()
	ids := tok.EncodeParts([]Part{{"<|bos|>", true}, {"<|eos|>", false}})
	fmt.Println(ids)
	// Output: [256 60 124 101 111 115 124 62]
}

// Decode returns the bytes of ids one after the other, unchanged: a list may
// begin or end inside a character. Control tokens give their text when special
// is set and nothing otherwise.
func (t *Tokenizer) Decode(ids []int32, special bool) []byte {
	n := 0
	for _, id := range ids {
		n += len(t.Piece(id))
	}
	out := make([]byte, 0, n)
	for _, id := range ids {
		if special || !t.IsControl(id) {
			out = append(out, t.Piece(id)...)
		}
	}
	return out
}

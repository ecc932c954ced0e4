package gguf_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"testing"

	"tandem/internal/gguf"
	"tandem/internal/gguf/gguftest"
)

// A file cut anywhere must be refused with a place and a reason, except where
// only padding was lost.
func TestFileCutAnywhere(t *testing.T) {
	s := gguftest.Tiny()
	w := s.Writer()
	whole := w.Bytes()
	if n := len(whole); n < 100<<10 || n > 400<<10 {
		t.Fatalf("the model has %d bytes", n)
	}
	cuts := w.Fields()
	for n := 0; n < len(whole); n += 64 {
		cuts = append(cuts, n, n+1)
	}
	for _, n := range cuts {
		_, err := gguf.Parse("cut", whole[:n:n])
		var f *gguf.FormatError
		if !errors.As(err, &f) {
			t.Fatalf("cut at %d: error is %v", n, err)
		}
		if f.Item == "" || f.Reason == "" || !strings.Contains(err.Error(), "at offset") {
			t.Fatalf("cut at %d: error names too little: %v", n, err)
		}
	}
	parse(t, whole)
}

// u64s returns little-endian words of 8 bytes.
func u64s(v ...uint64) []byte {
	var b []byte
	for _, x := range v {
		b = binary.LittleEndian.AppendUint64(b, x)
	}
	return b
}

func u32(v uint32) []byte { return binary.LittleEndian.AppendUint32(nil, v) }

// header is a file header that announces counts.
func header(tensors, keys uint64, rest ...[]byte) []byte {
	b := append([]byte("GGUF"), u32(3)...)
	b = append(b, u64s(tensors, keys)...)
	return append(b, bytes.Join(rest, nil)...)
}

func name(s string) []byte { return append(u64s(uint64(len(s))), s...) }

// nested is depth arrays inside each other around an empty array of bytes.
func nested(depth int) []byte {
	var b []byte
	for range depth {
		b = append(append(b, u32(9)...), u64s(1)...)
	}
	return append(append(b, u32(0)...), u64s(0)...)
}

// wide is an array of n empty arrays.
func wide(n uint64) []byte { return append(u32(9), u64s(n)...) }

func TestBombsCostNothing(t *testing.T) {
	pad := make([]byte, 256)
	key := func(typ uint32, v ...[]byte) []byte {
		return header(0, 1, name("k"), u32(typ), bytes.Join(v, nil), pad)
	}
	bombs := map[string][]byte{
		"string of 2^40 bytes":          key(8, u64s(1<<40)),
		"string of 2^64-1 bytes":        key(8, u64s(1<<64-1)),
		"key of 2^40 bytes":             header(0, 1, u64s(1<<40), pad),
		"array of 2^32 bytes":           key(9, u32(0), u64s(1<<32)),
		"array of 2^32 strings":         key(9, u32(8), u64s(1<<32)),
		"array of 2^61 integers":        key(9, u32(10), u64s(1<<61)),
		"array of 2^32 arrays":          key(9, wide(1<<32)),
		"arrays nested 1000 deep":       key(9, nested(1000)),
		"2^31 tensors":                  header(1<<31, 0, pad),
		"2^64-1 tensors":                header(1<<64-1, 0, pad),
		"2^31 keys":                     header(0, 1<<31, pad),
		"tensor name of 2^40 bytes":     header(1, 0, u64s(1<<40), pad),
		"2^32-1 dimensions":             header(1, 0, name("t"), u32(1<<32-1), pad),
		"2^20 keys in a file with room": header(0, 1<<20, make([]byte, 16<<20)),
	}
	for what, b := range bombs {
		t.Run(what, func(t *testing.T) {
			var m0, m1 runtime.MemStats
			runtime.ReadMemStats(&m0)
			_, err := gguf.Parse("bomb", b)
			runtime.ReadMemStats(&m1)
			var f *gguf.FormatError
			if !errors.As(err, &f) {
				t.Fatalf("error is %v", err)
			}
			if n := m1.TotalAlloc - m0.TotalAlloc; n > 16<<20 {
				t.Errorf("%d bytes were allocated", n)
			}
			if f.Offset > 128 { // every step of the parser moves it on
				t.Errorf("read up to %d before it refused", f.Offset)
			}
		})
	}
}

func TestWrappingDimensions(t *testing.T) {
	const big = 1 << 63
	dims := map[string][]uint64{
		"2^63":                      {big},
		"2^64-1":                    {1<<64 - 1},
		"2^64-32":                   {1<<64 - 32},
		"2^62 floats wrap to 0":     {1 << 62},
		"2^62+1 floats wrap to 4":   {1<<62 + 1},
		"2^42 twice":                {1 << 42, 1 << 42},
		"2^32 twice wraps to 0":     {1 << 32, 1 << 32},
		"2^31 times 2^31":           {1 << 31, 1 << 31},
		"2^16 four times":           {1 << 16, 1 << 16, 1 << 16, 1 << 16},
		"2^63 and 2":                {big, 2},
		"2 and 2^63":                {2, big},
		"one and 2^62":              {1, 1 << 62},
		"three of 2^21 and one":     {1 << 21, 1 << 21, 1 << 21, 1},
		"2^61 times 8 as 1 2 3 4":   {1, 2, 1 << 61, 4},
		"product wraps to 1 (odd)":  {0x5555555555555555, 3},
		"more than the file has":    {1 << 20},
		"one float too many":        {17},
		"zero":                      {0},
		"zero rows":                 {16, 0},
		"zero in the last of four":  {1, 1, 1, 0},
		"zero hides a wrapping one": {big, 0, big},
	}
	for what, d := range dims {
		for _, typ := range []gguf.Type{gguf.F32, gguf.Q8_0, gguf.Q4_1} {
			w := &gguftest.Writer{}
			w.Tensor("t", typ, d, make([]byte, 64))
			_, err := gguf.Parse("dims", w.Bytes())
			var f *gguf.FormatError
			if !errors.As(err, &f) || !strings.Contains(f.Item, `"t"`) {
				t.Errorf("%s of %v: error is %v", what, typ, err)
			}
		}
	}
}

// tensor is one entry of the tensor table by its raw fields.
func tensor(typ uint32, dim, offset uint64) []byte {
	return bytes.Join([][]byte{name("t"), u32(1), u64s(dim), u32(typ), u64s(offset)}, nil)
}

func TestHeaderFieldsThatAreWrong(t *testing.T) {
	good := header(1, 0, tensor(0, 8, 0), make([]byte, 128))
	parse(t, good)
	alignment := func(typ uint32, v []byte) []byte {
		return header(0, 1, name("general.alignment"), u32(typ), v, make([]byte, 64))
	}
	edit := func(at int, v ...byte) []byte {
		b := bytes.Clone(good)
		copy(b[at:], v)
		return b
	}
	tests := []struct {
		name string
		file []byte
		want string
	}{
		{"magic", edit(0, 'g'), "magic"},
		{"version 0", edit(4, 0), "version 0"},
		{"version 1", edit(4, 1), "version 1"},
		{"version 4", edit(4, 4), "version 4"},
		{"big-endian", edit(4, 0, 0, 0, 3), "big-endian"},
		{"alignment 0", alignment(4, u32(0)), "general.alignment"},
		{"alignment 12", alignment(4, u32(12)), "power of two"},
		{"alignment 2^31", alignment(4, u32(1<<31)), "power of two"},
		{"alignment is a string", alignment(8, name("32")), "general.alignment"},
		{"alignment is negative", alignment(5, u32(1<<32-32)), "negative"},
		{"value type 13", header(0, 1, name("k"), u32(13), make([]byte, 64)), "unknown value type 13"},
		{"array of type 99", header(0, 1, name("k"), u32(9), u32(99), u64s(1), make([]byte, 64)), "99"},
		{"boolean of 7", header(0, 1, name("k"), u32(7), []byte{7}, make([]byte, 64)), "boolean"},
		{"empty key", header(0, 1, name(""), u32(4), u32(1), make([]byte, 64)), "empty name"},
		{"key twice", header(0, 2, name("k"), u32(4), u32(1), name("k"), u32(4), u32(1), make([]byte, 64)), "twice"},
		{"tensor twice", header(2, 0, tensor(0, 8, 0), tensor(0, 8, 32), make([]byte, 128)), "twice"},
		{"no dimensions", header(1, 0, name("t"), u32(0), u32(0), u64s(0), make([]byte, 64)), "0 dimensions"},
		{"five dimensions", header(1, 0, name("t"), u32(5), u64s(1, 1, 1, 1, 1), u32(0), u64s(0), make([]byte, 64)), "5 dimensions"},
		{"tensor type 4, removed from the format", header(1, 0, tensor(4, 32, 0), make([]byte, 128)), "unknown tensor type 4"},
		{"tensor type 4096", header(1, 0, tensor(4096, 32, 0), make([]byte, 128)), "unknown tensor type 4096"},
		{"tensor type 2^32-1", header(1, 0, tensor(1<<32-1, 32, 0), make([]byte, 128)), "unknown tensor type"},
		{"half a block", header(1, 0, tensor(8, 48, 0), make([]byte, 128)), "whole blocks"},
		{"unaligned offset", header(1, 0, tensor(0, 8, 4), make([]byte, 128)), "alignment"},
		{"offset beyond the end", header(1, 0, tensor(0, 8, 1<<20), make([]byte, 128)), "beyond the end"},
		{"offset that wraps", header(1, 0, tensor(0, 8, 1<<64-64), make([]byte, 128)), "beyond the end"},
		{"offset and size that wrap", header(1, 0, tensor(0, 8, 1<<64-128), make([]byte, 128)), "beyond the end"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			_, err := gguf.Parse("wrong", test.file)
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("error is %v, want one with %q", err, test.want)
			}
		})
	}
}

// A vocabulary costs a few allocations, not one or more for each token.
func TestLargeVocabularyIsOneCopy(t *testing.T) {
	tokens := make([]string, 150_000)
	for i := range tokens {
		tokens[i] = fmt.Sprint("token ", i)
	}
	w := &gguftest.Writer{}
	w.Strings("tokenizer.ggml.tokens", tokens)
	b := w.Bytes()
	var got []string
	allocs := testing.AllocsPerRun(3, func() {
		var err error
		if got, err = parse(t, b).Strings("tokenizer.ggml.tokens"); err != nil {
			t.Fatal(err)
		}
	})
	if allocs > 32 {
		t.Errorf("%v allocations", allocs)
	}
	if len(got) != len(tokens) || got[149_999] != "token 149999" {
		t.Errorf("%d tokens, the last is %q", len(got), got[len(got)-1])
	}
}

// FuzzOpen reads any bytes: it must end in an error or in a file of which
// everything can be read.
func FuzzOpen(f *testing.F) {
	s := gguftest.Tiny()
	s.Layers, s.Width, s.Heads, s.KVHeads, s.FFN, s.Vocab = 1, 32, 1, 1, 32, gguftest.MinVocab
	f.Add(sample().Bytes())
	f.Add(s.Bytes()[:4096])
	f.Add(header(1, 0, tensor(0, 8, 1<<64-64), make([]byte, 128)))
	f.Add(header(0, 1, name("k"), u32(9), nested(3), make([]byte, 64)))
	f.Add(header(0, 1, name("general.alignment"), u32(4), u32(1<<20), make([]byte, 64)))
	f.Fuzz(func(t *testing.T, b []byte) {
		file, err := gguf.Parse("fuzz", b)
		if err != nil {
			return
		}
		for _, k := range file.Keys() {
			_, _ = file.String(k)
			_, _ = file.Uint(k)
			_, _ = file.Int(k)
			_, _ = file.Float(k)
			_, _ = file.Bool(k)
			_, _ = file.Len(k)
			_, _ = file.Strings(k)
			_, _ = file.Ints(k)
		}
		for _, x := range file.Tensors() {
			if uint64(len(x.Data)) != x.Elements()/uint64(x.Type.BlockSize())*uint64(x.Type.BlockBytes()) {
				t.Errorf("tensor %q of %d elements has %d bytes", x.Name, x.Elements(), len(x.Data))
			}
		}
	})
}

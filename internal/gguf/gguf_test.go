package gguf_test

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"tandem/internal/gguf"
	"tandem/internal/gguf/gguftest"
)

func sample() *gguftest.Writer {
	w := &gguftest.Writer{}
	w.String("s", "grüß")
	w.Uint32("u", 1<<31)
	w.Raw("i8", 1, []byte{0xff})
	w.Raw("i64", 11, []byte{0xfe, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff})
	w.Raw("u64", 10, bytes.Repeat([]byte{0xff}, 8))
	w.Float32("f", 0.5)
	w.Raw("f64", 12, []byte{0, 0, 0, 0, 0, 0, 0xd0, 0x3f})
	w.Bool("b", true)
	w.Strings("ss", []string{"a", "", "ccc"})
	w.Int32s("is", []int32{1, -2, 3})
	w.Tensor("t", gguf.Q8_0, []uint64{32, 2}, make([]byte, 68))
	w.Tensor("v", gguf.F32, []uint64{3}, []byte("abcdefghijkl"))
	return w
}

func TestGettersReturnWhatWasWritten(t *testing.T) {
	f := parse(t, sample().Bytes())
	check := func(got any, err error, want any) {
		t.Helper()
		if err != nil {
			t.Error(err)
		}
		if d := cmp.Diff(want, got); d != "" {
			t.Error(d)
		}
	}
	s, err := f.String("s")
	check(s, err, "grüß")
	u, err := f.Uint("u")
	check(u, err, uint64(1<<31))
	i, err := f.Int("i8")
	check(i, err, int64(-1))
	i, err = f.Int("i64")
	check(i, err, int64(-2))
	x, err := f.Float("f")
	check(x, err, 0.5)
	x, err = f.Float("f64")
	check(x, err, 0.25)
	b, err := f.Bool("b")
	check(b, err, true)
	ss, err := f.Strings("ss")
	check(ss, err, []string{"a", "", "ccc"})
	is, err := f.Ints("is")
	check(is, err, []int64{1, -2, 3})
	n, err := f.Len("ss")
	check(n, err, 3)
	check(f.Keys()[:3], nil, []string{"s", "u", "i8"})
	v, ok := f.Tensor("v")
	if !ok || string(v.Data) != "abcdefghijkl" || v.Type != gguf.F32 || v.Elements() != 3 || v.Offset != f.DataOffset()+96 {
		t.Errorf("tensor v is %+v", v)
	}
	if m, ok := f.Tensor("t"); !ok || len(m.Data) != 68 || m.Dims[1] != 2 {
		t.Errorf("tensor t is %+v", m)
	}
}

func TestGettersRefuseOtherTypes(t *testing.T) {
	f := parse(t, sample().Bytes())
	tests := []struct {
		name string
		get  func() error
		want string
	}{
		{"integer as string", func() error { _, err := f.String("u"); return err }, `key "u" at offset`},
		{"string as integer", func() error { _, err := f.Uint("s"); return err }, "is string, not an integer"},
		{"negative as unsigned", func() error { _, err := f.Uint("i8"); return err }, "is negative: -1"},
		{"too large as signed", func() error { _, err := f.Int("u64"); return err }, "is too large"},
		{"integer as float", func() error { _, err := f.Float("u"); return err }, "not a float"},
		{"string as bool", func() error { _, err := f.Bool("s"); return err }, "not a boolean"},
		{"scalar as array", func() error { _, err := f.Len("u"); return err }, "not an array"},
		{"strings as integers", func() error { _, err := f.Ints("ss"); return err }, "is array of string, not an array of integers"},
		{"integers as strings", func() error { _, err := f.Strings("is"); return err }, "is array of int32"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			err := test.get()
			var v *gguf.ValueError
			if !errors.As(err, &v) || errors.Is(err, gguf.ErrNoKey) || !strings.Contains(err.Error(), test.want) {
				t.Errorf("error is %v, want one with %q", err, test.want)
			}
		})
	}
	if _, err := f.Uint("none"); !errors.Is(err, gguf.ErrNoKey) || !strings.Contains(err.Error(), `"none"`) {
		t.Errorf("missing key: %v", err)
	}
}

func TestOpenMapsAFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "m.gguf")
	if err := os.WriteFile(path, sample().Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := gguf.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := f.DropPages(); err != nil {
		t.Error(err)
	}
	if v, _ := f.Tensor("v"); string(v.Data) != "abcdefghijkl" {
		t.Errorf("data after DropPages is %q", v.Data)
	}
	for range 2 {
		if err := f.Close(); err != nil {
			t.Error(err)
		}
	}
}

func TestOpenRefusesWhatIsNoModelFile(t *testing.T) {
	dir := t.TempDir()
	for name, data := range map[string]string{"empty": "", "magic only": "GGUF", "text": strings.Repeat("hello ", 100)} {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(data), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := gguf.Open(path); err == nil || !strings.Contains(err.Error(), path) {
			t.Errorf("%s: error is %v", name, err)
		}
	}
	if _, err := gguf.Open(dir); err == nil {
		t.Error("a directory was opened")
	}
	if _, err := gguf.Open(filepath.Join(dir, "none")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a missing file gives %v", err)
	}
}

func parse(t *testing.T, b []byte) *gguf.File {
	t.Helper()
	f, err := gguf.Parse("test", b)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// What is read of a file that was cut under its map is an error; other panics stay
// panics.
func TestGuard(t *testing.T) {
	path := filepath.Join(t.TempDir(), "cut.gguf")
	if err := os.WriteFile(path, gguftest.Tiny().Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := gguf.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := os.Truncate(path, 8192); err != nil {
		t.Fatal(err)
	}
	sum := 0
	read := func() error {
		for _, b := range f.Bytes() {
			sum += int(b)
		}
		return nil
	}
	if err := f.Guard(read); !errors.Is(err, gguf.ErrShrunk) || !strings.Contains(err.Error(), path) || sum == 0 {
		t.Errorf("%v after a sum of %d", err, sum)
	}
	own := errors.New("its own")
	if err := f.Guard(func() error { return own }); !errors.Is(err, own) {
		t.Error(err)
	}
	other, err := gguf.Parse("other", gguftest.Tiny().Bytes())
	if err != nil {
		t.Fatal(err)
	}
	for name, guarded := range map[string]func() error{
		"a panic":              func() error { return f.Guard(func() error { panic(own) }) },
		"another file's fault": func() error { return other.Guard(read) },
	} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%s became an error", name)
				}
			}()
			_ = guarded()
		}()
	}
}

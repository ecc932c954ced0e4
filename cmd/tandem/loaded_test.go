package main

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"tandem/internal/gguf"
	"tandem/internal/gguf/gguftest"
	"tandem/internal/kv"
)

// modelFile writes a model and returns its path.
func modelFile(t *testing.T, s gguftest.Spec) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "model.gguf")
	if err := os.WriteFile(path, s.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func openFile(t *testing.T, path string) *gguf.File {
	t.Helper()
	f, err := gguf.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := f.Close(); err != nil {
			t.Error(err)
		}
	})
	return f
}

// A file that somebody cuts while it is loaded ends the start with its name,
// wherever it is being read.
func TestFileIsCutWhileItIsLoaded(t *testing.T) {
	path := modelFile(t, gguftest.Tiny())
	for name, read := range map[string]func(*gguf.File) error{
		"all": func(f *gguf.File) error {
			_, err := readModel(&serveOptions{kernels: "auto", memory: 1 << 20}, f, 2)
			return err
		},
		"the vocabulary": func(f *gguf.File) error {
			return f.Guard(func() error { _, _, err := openText(f); return err })
		},
	} {
		if err := os.WriteFile(path, gguftest.Tiny().Bytes(), 0o600); err != nil {
			t.Fatal(err)
		}
		f := openFile(t, path)
		if err := os.Truncate(path, 0); err != nil {
			t.Fatal(err)
		}
		if err := read(f); !errors.Is(err, gguf.ErrShrunk) || !strings.Contains(err.Error(), path) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// What each rank has memory for, all ranks together may not have.
func TestMemoryOfAllRanks(t *testing.T) {
	var s syscall.Sysinfo_t
	if err := syscall.Sysinfo(&s); err != nil {
		t.Fatal(err)
	}
	o := &serveOptions{kernels: "auto", tp: 2, memory: byteSize(s.Totalram * uint64(s.Unit) * 3 / 2)}
	m, err := loadWeights(o, openFile(t, modelFile(t, gguftest.TinyTP())), 1)
	if m != nil {
		err = errors.Join(err, m.Close())
	}
	if !errors.Is(err, kv.ErrMemory) || !strings.Contains(err.Error(), "; give less than --kv-cache-memory ") {
		t.Error(err)
	}
}

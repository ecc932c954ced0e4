package main

import (
	"fmt"
	"os"
	"runtime"
	"testing"
)

// A tb lets the helpers that start processes for tests do so for a
// measurement: what would fail the test is an error.
type tb struct {
	testing.TB // nil: it has the method that only package testing can write

	cleanups []func()
	err      error
}

// withTB runs f and then, last first, what f left to be cleaned up.
func withTB(f func(t testing.TB) error) error {
	t := &tb{}
	done := make(chan struct{})
	go func() { // Fatal ends the goroutine, as in a test
		defer close(done)
		if err := f(t); err != nil {
			t.err = err
		}
	}()
	<-done
	for i := len(t.cleanups) - 1; i >= 0; i-- {
		t.cleanups[i]()
	}
	return t.err
}

func (t *tb) Helper()                         {}
func (t *tb) Name() string                    { return "bench" }
func (t *tb) Failed() bool                    { return t.err != nil }
func (t *tb) Cleanup(f func())                { t.cleanups = append(t.cleanups, f) }
func (t *tb) Logf(format string, args ...any) { fmt.Fprintf(os.Stderr, format+"\n", args...) }

func (t *tb) Fatal(args ...any) {
	t.err = fmt.Errorf("%s", fmt.Sprint(args...))
	runtime.Goexit()
}

func (t *tb) Fatalf(format string, args ...any) {
	t.err = fmt.Errorf(format, args...)
	runtime.Goexit()
}

func (t *tb) TempDir() string {
	dir, err := os.MkdirTemp("", "tb")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

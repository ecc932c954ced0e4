package cluster

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"sync"
	"testing"
)

// Outside runs f with this package's helpers in a program that is no test: what
// would fail the test is part of the error. Everything that f started has ended
// when Outside returns. Fatal ends the goroutine that calls it, as in a test.
func Outside(name string, f func(t testing.TB) error) error {
	ctx, cancel := context.WithCancel(context.Background())
	t := &outside{name: name, ctx: ctx}
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := f(t); err != nil {
			t.fail(err)
		}
	}()
	<-done
	cancel()
	for {
		last := t.last()
		if last == nil {
			break
		}
		last()
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	return errors.Join(t.errs...)
}

type outside struct {
	testing.TB // nil: it has the method that only package testing can write

	name string
	ctx  context.Context //nolint:containedctx // testing.TB hands it out

	mu       sync.Mutex
	cleanups []func()
	errs     []error
}

func (t *outside) fail(err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.errs = append(t.errs, err)
}

// last takes the newest cleanup, or returns nil.
func (t *outside) last() func() {
	t.mu.Lock()
	defer t.mu.Unlock()
	n := len(t.cleanups)
	if n == 0 {
		return nil
	}
	f := t.cleanups[n-1]
	t.cleanups = t.cleanups[:n-1]
	return f
}

// Helper implements testing.TB.
func (t *outside) Helper() {}

// Name implements testing.TB.
func (t *outside) Name() string { return t.name }

// Context implements testing.TB.
func (t *outside) Context() context.Context { return t.ctx }

// Failed implements testing.TB.
func (t *outside) Failed() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.errs) > 0
}

// Cleanup implements testing.TB.
func (t *outside) Cleanup(f func()) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.cleanups = append(t.cleanups, f)
}

// lastOfLog is how much of a text Logf prints, in bytes: its end.
const lastOfLog = 16000

// Logf implements testing.TB.
func (t *outside) Logf(format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	if cut := len(text) - lastOfLog; cut > 0 {
		text = text[:80] + "\n…\n" + text[cut:]
	}
	fmt.Fprintln(os.Stderr, text)
}

// Error implements testing.TB.
func (t *outside) Error(args ...any) { t.fail(errors.New(fmt.Sprint(args...))) }

// Errorf implements testing.TB.
func (t *outside) Errorf(format string, args ...any) { t.fail(fmt.Errorf(format, args...)) }

// Fatal implements testing.TB.
func (t *outside) Fatal(args ...any) {
	t.Error(args...)
	runtime.Goexit()
}

// Fatalf implements testing.TB.
func (t *outside) Fatalf(format string, args ...any) {
	t.Errorf(format, args...)
	runtime.Goexit()
}

// TempDir implements testing.TB.
func (t *outside) TempDir() string {
	dir, err := os.MkdirTemp("", t.name)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

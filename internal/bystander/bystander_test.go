package bystander

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// A stuck handler waits until the test lets it go.
type stuck struct {
	slog.Handler
	entered chan struct{}
	let     chan struct{}
}

func (s *stuck) Handle(ctx context.Context, r slog.Record) error {
	s.entered <- struct{}{}
	<-s.let
	return s.Handler.Handle(ctx, r)
}

func TestPanicsOfHooksEndInOneLine(t *testing.T) {
	var out bytes.Buffer
	calls := 0
	f := Safe1(NewHooks("test", slog.New(slog.NewTextHandler(&out, nil))), func(n int) {
		calls += n
		panic("no such label")
	})
	for range 3 {
		f(1)
	}
	if calls != 3 || strings.Count(out.String(), "no such label") != 1 {
		t.Errorf("%d calls: %s", calls, out.String())
	}
}

func TestEveryHookIsCalledOrSkipped(t *testing.T) {
	h := NewHooks("test", slog.New(slog.DiscardHandler))
	Safe0(h, nil)()
	Safe1[int](h, nil)(1)
	Safe2[int, int](h, nil)(1, 2)
	Safe3[int, int, int](h, nil)(1, 2, 3)
	Safe4[int, int, int, int](h, nil)(1, 2, 3, 4)
	var got []int
	add := func(n ...int) {
		got = append(got, n...)
		panic("added")
	}
	Safe0(h, func() { add() })()
	Safe1(h, func(a int) { add(a) })(1)
	Safe2(h, func(a, b int) { add(a, b) })(2, 3)
	Safe3(h, func(a, b, c int) { add(a, b, c) })(4, 5, 6)
	Safe4(h, func(a, b, c, d int) { add(a, b, c, d) })(7, 8, 9, 10)
	if want := []int{1, 2, 3, 4, 5, 6, 7, 8, 9, 10}; !slices.Equal(got, want) {
		t.Errorf("arguments %v, want %v", got, want)
	}
}

func TestCallersNeverWaitForALine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		s := &stuck{slog.NewTextHandler(&out, nil), make(chan struct{}), make(chan struct{})}
		h := NewLogs(s)
		slog.New(h).Info("first")
		log := slog.New(h).With("part", "engine").WithGroup("g") // not stuck
		<-s.entered                                              // the goroutine holds a line now
		for i := range queued + 7 {
			log.Info("line", "i", i)
		}
		if h.Lost() != 7 {
			t.Errorf("%d lines lost", h.Lost())
		}
		close(s.let)
		h.Close()
		lines := strings.Split(strings.TrimSpace(out.String()), "\n")
		if len(lines) != queued+1 || !strings.Contains(lines[1], "part=engine g.i=0 g.dropped_lines=7") || strings.Count(out.String(), "dropped_lines") != 1 {
			t.Errorf("%d lines, the second is %s", len(lines), lines[1])
		}
		for i, l := range lines[1:] {
			if !strings.Contains(l, fmt.Sprintf("g.i=%d", i)) {
				t.Fatalf("line %d: %s", i, l)
			}
		}
		log.Info("too late")
		h.Close()
		if h.Lost() != 8 {
			t.Errorf("%d lines lost", h.Lost())
		}
	})
}

func TestCloseLeavesAStuckHandlerBehind(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &stuck{slog.NewTextHandler(&bytes.Buffer{}, nil), make(chan struct{}), make(chan struct{})}
		h := NewLogs(s)
		slog.New(h).Info("x")
		<-s.entered
		began := time.Now()
		h.Close()
		if d := time.Since(began); d != closing {
			t.Errorf("closed after %v", d)
		}
		close(s.let)
	})
}

type broken struct{ slog.Handler }

func (b broken) Handle(ctx context.Context, r slog.Record) error {
	switch r.Message {
	case "bad":
		panic("handler")
	case "full":
		return errors.New("no space left on device")
	}
	return b.Handler.Handle(ctx, r)
}

func TestWhatTheHandlerDoesNotTakeIsLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // Close waits no longer than it takes
		var out bytes.Buffer
		h := NewLogs(broken{slog.NewTextHandler(&out, nil)})
		log := slog.New(h)
		log.Info("one")
		log.Info("bad")
		log.Info("full")
		log.Info("two")
		h.Close()
		if h.Lost() != 2 || strings.Count(out.String(), "\n") != 2 || !strings.Contains(out.String(), "msg=two dropped_lines=2") {
			t.Errorf("lost %d: %s", h.Lost(), out.String())
		}
	})
}

func TestFlushWaitsForWhatIsQueued(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		s := &stuck{slog.NewTextHandler(&out, nil), make(chan struct{}, 2), make(chan struct{})}
		h := NewLogs(s)
		slog.New(h).Info("one")
		slog.New(h).Info("two")
		<-s.entered
		flushed := make(chan string, 1)
		go func() {
			h.Flush()
			flushed <- out.String()
		}()
		synctest.Wait()
		select {
		case <-flushed:
			t.Error("flushed while a line waits")
		default:
		}
		close(s.let)
		if got := <-flushed; !strings.Contains(got, "msg=two") {
			t.Errorf("flushed: %s", got)
		}
		h.Close()
		began := time.Now()
		h.Flush()
		if d := time.Since(began); d != 0 {
			t.Errorf("flushed after %v what is closed", d)
		}
	})
}

func TestFlushLeavesAStuckHandlerBehind(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &stuck{slog.NewTextHandler(&bytes.Buffer{}, nil), make(chan struct{}), make(chan struct{})}
		h := NewLogs(s)
		slog.New(h).Info("x")
		<-s.entered
		began := time.Now()
		h.Flush()
		if d := time.Since(began); d != closing {
			t.Errorf("flushed after %v", d)
		}
		close(s.let)
		h.Close()
	})
}

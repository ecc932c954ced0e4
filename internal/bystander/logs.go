package bystander

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"
)

// queued is how many lines wait at most; more are dropped and counted.
const queued = 1024

// closing bounds how long Close and Flush wait for a handler that is stuck.
const closing = 2 * time.Second

// Logs is a slog.Handler whose callers never wait: lines go through a bounded
// queue to one goroutine, which hands them to another handler in order. Lines
// that find no room are dropped; the next line that is written says how many. A
// panic or an error of the handler costs its line.
type Logs struct {
	*sink
	to slog.Handler
}

// sink is what a handler and those made from it share.
type sink struct {
	lines   chan line
	flush   chan chan struct{}
	dropped atomic.Uint64
	lost    atomic.Uint64 // all that were dropped, and those that the handler did not take
	done    chan struct{}

	mu     sync.RWMutex // of closing lines
	closed bool
}

type line struct {
	to slog.Handler
	r  slog.Record
}

// NewLogs returns a handler in front of to. Close ends its goroutine.
func NewLogs(to slog.Handler) *Logs {
	s := &sink{lines: make(chan line, queued), flush: make(chan chan struct{}), done: make(chan struct{})}
	go s.write()
	return &Logs{s, to}
}

// Enabled implements slog.Handler.
func (l *Logs) Enabled(ctx context.Context, level slog.Level) bool { return l.to.Enabled(ctx, level) }

// WithAttrs implements slog.Handler.
func (l *Logs) WithAttrs(attrs []slog.Attr) slog.Handler { return &Logs{l.sink, l.to.WithAttrs(attrs)} }

// WithGroup implements slog.Handler.
func (l *Logs) WithGroup(name string) slog.Handler { return &Logs{l.sink, l.to.WithGroup(name)} }

// Handle implements slog.Handler. It returns at once.
func (l *Logs) Handle(_ context.Context, r slog.Record) error {
	l.mu.RLock()
	defer l.mu.RUnlock()
	if l.closed {
		l.lost.Add(1)
		return nil
	}
	select {
	case l.lines <- line{l.to, r.Clone()}:
	default:
		l.dropped.Add(1)
		l.lost.Add(1)
	}
	return nil
}

// Lost returns how many lines were never written.
func (l *Logs) Lost() uint64 { return l.lost.Load() }

// write hands lines on until the queue is closed and empty.
func (s *sink) write() {
	defer close(s.done)
	for {
		select {
		case x, ok := <-s.lines:
			if !ok {
				return
			}
			s.handle(x)
		case written := <-s.flush:
			for range len(s.lines) { // nobody else takes from it
				s.handle(<-s.lines)
			}
			close(written)
		}
	}
}

func (s *sink) handle(x line) {
	n := s.dropped.Swap(0)
	if n > 0 {
		x.r.AddAttrs(slog.Uint64("dropped_lines", n))
	}
	written := false
	defer func() {
		if _ = recover(); !written { // the next line tells, where there is one
			s.lost.Add(1)
			s.dropped.Add(n + 1)
		}
	}()
	written = x.to.Handle(context.Background(), x.r) == nil
}

// Flush returns when all lines that were handled before it are written, or after
// two seconds where the handler is stuck.
func (l *Logs) Flush() {
	t := time.NewTimer(closing)
	defer t.Stop()
	written := make(chan struct{})
	select {
	case l.flush <- written:
	case <-l.done:
		return
	case <-t.C:
		return
	}
	select {
	case <-written:
	case <-t.C:
	}
}

// Close writes what waits and ends the goroutine. A handler that is stuck is left
// behind after two seconds. Lines that come later are dropped.
func (l *Logs) Close() {
	l.mu.Lock()
	if !l.closed {
		l.closed = true
		close(l.lines)
	}
	l.mu.Unlock()
	t := time.NewTimer(closing)
	defer t.Stop()
	select {
	case <-l.done:
	case <-t.C:
	}
}

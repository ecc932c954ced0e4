package engine

import (
	"log/slog"
	"sync"
	"sync/atomic"
	"time"
)

// A sign is up while the step loop is held up. Waiting for it allocates nothing.
type sign struct {
	mu sync.Mutex
	is atomic.Bool
	c  atomic.Pointer[chan struct{}] // closed while up
}

func newSign() *sign {
	s := &sign{}
	c := make(chan struct{})
	s.c.Store(&c)
	return s
}

// up reports whether the sign is up.
func (s *sign) up() bool { return s.is.Load() }

// raised returns a channel that is closed when the sign goes up.
func (s *sign) raised() <-chan struct{} { return *s.c.Load() }

// set raises or lowers the sign and reports whether that changed it.
func (s *sign) set(up bool) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.is.Load() == up {
		return false
	}
	// Whoever the channel wakes must find the sign up.
	if up {
		s.is.Store(true)
		close(*s.c.Load())
	} else {
		c := make(chan struct{})
		s.c.Store(&c)
		s.is.Store(false)
	}
	return true
}

// A watcher tells a loop that hangs from a process that did not run, for example
// on a machine that was suspended: there the watchdog did not look either.
type watcher struct {
	at    int64 // when the turn began, as last seen
	looks int   // that saw it
}

// saw takes the beginning of the present turn and reports whether enough looks
// saw the same one.
func (w *watcher) saw(at int64) bool {
	if at != w.at {
		*w = watcher{at: at}
	}
	w.looks++
	return w.looks >= 4
}

// watch starts the watchdog of the loop. The returned function ends it.
func (e *Engine) watch() (end func()) {
	quit := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		tick := time.NewTicker(max(time.Millisecond, e.cfg.StallLimit/4))
		defer tick.Stop()
		var w watcher
		for {
			select {
			case <-quit:
				return
			case <-tick.C:
				if w.saw(e.turn.Load()) {
					e.look()
				}
			}
		}
	})
	return func() {
		close(quit)
		wg.Wait()
		e.sign.set(false)
	}
}

// look raises the sign when the loop's turn takes too long.
func (e *Engine) look() {
	at := e.turn.Load()
	if at == 0 || e.since(at) < e.cfg.StallLimit {
		return
	}
	if e.sign.set(true) {
		e.log.Error("the step loop is held up", slog.Duration("for", e.since(at)))
	}
	// The turn may have ended meanwhile, before goesOn could see the sign.
	if e.turn.Load() != at {
		e.goesOn()
	}
}

// since returns how long the turn that began at a time after origin has taken.
func (e *Engine) since(at int64) time.Duration { return time.Since(e.origin.Add(time.Duration(at))) }

// goesOn lowers the sign. The loop calls it after it noted a new turn or its rest.
func (e *Engine) goesOn() {
	if e.sign.up() && e.sign.set(false) {
		e.log.Warn("the step loop goes on")
	}
}

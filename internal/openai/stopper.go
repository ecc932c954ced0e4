package openai

import (
	"context"
	"errors"
	"net/http"
	"sync"
)

// ErrStopping is the cause with which a Stopper ends the contexts of requests.
// Its text is what clients are told.
var ErrStopping = errors.New("the server is shutting down")

// Stopping reports whether ctx ended because its server stops.
func Stopping(ctx context.Context) bool { return errors.Is(context.Cause(ctx), ErrStopping) }

// A Stopper ends the requests of a server that cannot wait for them any longer,
// so that each of them is still told why. Its zero value is ready.
type Stopper struct {
	mu      sync.Mutex
	stopped bool
	next    uint64
	running map[uint64]context.CancelCauseFunc
}

// Bind returns q with a context that ends with q's, and on Stop. done is to be
// called when q has been answered.
func (s *Stopper) Bind(q *http.Request) (bound *http.Request, done func()) {
	ctx, cancel := context.WithCancelCause(q.Context())
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stopped {
		cancel(ErrStopping)
	}
	if s.running == nil {
		s.running = map[uint64]context.CancelCauseFunc{}
	}
	id := s.next
	s.next++
	s.running[id] = cancel
	return q.WithContext(ctx), func() {
		cancel(nil)
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.running, id)
	}
}

// Stop ends all requests, those that are still to come among them. It does not
// wait for them.
func (s *Stopper) Stop() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stopped = true
	for _, cancel := range s.running {
		cancel(ErrStopping)
	}
}

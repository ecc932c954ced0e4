package engine

import (
	"context"
	"io"
	"slices"
	"sync"

	"tandem/internal/connector"
	"tandem/internal/kv"
)

// tokenChunk is how many tokens of a stream share one allocation.
const tokenChunk = 64

// A Stream delivers the outputs of one request. Next is for one reader; the
// other methods may be called from any goroutine.
type Stream struct {
	id kv.RequestID
	e  *Engine
	g  *group // of the loop

	wake chan struct{} // holds one token when there is news for the reader

	mu      sync.Mutex
	queue   []Output
	head    int // first unread output of queue
	limit   int
	lost    bool // an output found no room
	ended   bool // nothing is added any more
	quit    bool // the reader gave up
	lease   *connector.Handoff
	handled bool // the reader has the output with the lease

	chunk []kv.Token // of the loop
}

func newStream(e *Engine, id kv.RequestID, limit int) *Stream {
	return &Stream{id: id, e: e, limit: limit, wake: make(chan struct{}, 1)}
}

// ID returns the engine's name of the request.
func (s *Stream) ID() kv.RequestID { return s.id }

// Next waits for the next output. It returns io.EOF after the last one, and the
// cause of ctx when that ends first, or ErrStalled when the engine makes no
// progress; the request goes on then.
func (s *Stream) Next(ctx context.Context) (Output, error) {
	for {
		s.mu.Lock()
		if s.head < len(s.queue) {
			out := s.queue[s.head]
			s.queue[s.head] = Output{}
			if s.head++; s.head == len(s.queue) {
				s.queue, s.head = s.queue[:0], 0
			}
			s.handled = s.handled || out.Handoff != nil
			s.mu.Unlock()
			return out, nil
		}
		ended := s.ended
		s.mu.Unlock()
		if ended {
			return Output{}, io.EOF
		}
		select {
		case <-s.wake:
		case <-s.e.sign.raised():
			if !s.pending() {
				return Output{}, ErrStalled
			}
		case <-ctx.Done():
			return Output{}, context.Cause(ctx)
		}
	}
}

// pending reports whether Next has something to return at once.
func (s *Stream) pending() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ended || s.head < len(s.queue)
}

// Abort ends the request, in whatever state it is, within a step. A lease that
// was granted for it is revoked, also after the last output: call it when an
// answer could not be delivered. Reason is for the log.
func (s *Stream) Abort(reason string) {
	s.mu.Lock()
	over := s.quit || s.ended && s.lease == nil
	s.quit = true
	s.mu.Unlock()
	if !over {
		s.e.post(event{kind: evAbort, stream: s, reason: reason})
	}
}

// Stop ends one choice with reason "stop": the reader found a stop string in
// its text. Outputs that are under way may still arrive; the last of the choice
// has a Finish.
func (s *Stream) Stop(choice int) { s.e.post(event{kind: evStop, stream: s, choice: choice}) }

// Close says that the reader is done. It aborts a request that has not ended,
// or whose hand-off was not taken by Next.
func (s *Stream) Close() {
	s.mu.Lock()
	done := s.ended && (s.lease == nil || s.handled)
	s.mu.Unlock()
	if !done {
		s.Abort("closed")
	}
}

// push adds an output and reports whether there was room. Only the loop calls it,
// behind and end.
func (s *Stream) push(out Output) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.lost = s.lost || s.full(); s.lost {
		return false
	}
	s.add(out)
	return true
}

// behind reports whether the reader missed an output, or would miss the next one.
func (s *Stream) behind() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.lost || s.full()
}

// end adds the last output, whether there is room or not.
func (s *Stream) end(out Output) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ended = true
	s.add(out)
}

func (s *Stream) full() bool { return len(s.queue)-s.head >= s.limit }

func (s *Stream) add(out Output) {
	if s.head > 0 && len(s.queue) == cap(s.queue) {
		n := copy(s.queue, s.queue[s.head:])
		clear(s.queue[n:])
		s.queue, s.head = s.queue[:n], 0
	}
	s.queue = append(s.queue, out)
	if out.Handoff != nil {
		s.lease = out.Handoff
	}
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// takeLease returns the lease to revoke, once.
func (s *Stream) takeLease() *connector.Handoff {
	s.mu.Lock()
	defer s.mu.Unlock()
	h := s.lease
	s.lease = nil
	return h
}

// one returns a slice with t that the reader may keep.
func (s *Stream) one(t kv.Token) []kv.Token {
	if len(s.chunk) == cap(s.chunk) {
		s.chunk = make([]kv.Token, 0, tokenChunk)
	}
	n := len(s.chunk)
	s.chunk = append(s.chunk, t)
	return slices.Clip(s.chunk[n : n+1])
}

package openai

import (
	"bytes"
	"encoding/json"
	"net/http"
	"time"
)

// A Stream writes server-sent events: one JSON value for each, flushed at once,
// and "[DONE]" at the end. Every write has a deadline, so that a client that
// reads nothing holds a stream for that long and no longer. Headers go out with
// the first event, so until then the caller can still answer with an error.
type Stream struct {
	w        http.ResponseWriter
	rc       *http.ResponseController
	deadline time.Duration
	buf      bytes.Buffer
	enc      *json.Encoder
	begun    bool
	err      error
}

// NewStream returns a stream to w whose writes each take at most deadline;
// 0 means no limit.
func NewStream(w http.ResponseWriter, deadline time.Duration) *Stream {
	s := &Stream{w: w, rc: http.NewResponseController(w), deadline: deadline}
	s.enc = json.NewEncoder(&s.buf)
	s.enc.SetEscapeHTML(false)
	return s
}

// Begun reports whether anything was written.
func (s *Stream) Begun() bool { return s.begun }

// Send writes one event. After an error every call returns it.
func (s *Stream) Send(v any) error {
	s.buf.Reset()
	s.buf.WriteString("data: ")
	if err := s.enc.Encode(v); err != nil {
		return err
	}
	s.buf.WriteByte('\n')
	if err := s.write(); err != nil {
		return err
	}
	s.err = s.rc.Flush()
	return s.err
}

// Done writes the end mark. It leaves when the handler has returned: who has it
// finds the request counted.
func (s *Stream) Done() error {
	s.buf.Reset()
	s.buf.WriteString("data: [DONE]\n\n")
	return s.write()
}

func (s *Stream) write() error {
	if s.err != nil {
		return s.err
	}
	if !s.begun {
		s.begun = true
		h := s.w.Header()
		h.Set("Content-Type", "text/event-stream; charset=utf-8")
		h.Set("Cache-Control", "no-cache")
		h.Set("X-Accel-Buffering", "no")
		s.w.WriteHeader(http.StatusOK)
	}
	Arm(s.rc, s.deadline)
	_, s.err = s.w.Write(s.buf.Bytes())
	return s.err
}

// Arm sets the deadline of the next writes to d from now; 0 does nothing. A
// writer without deadlines, as in tests, has none.
func Arm(rc *http.ResponseController, d time.Duration) {
	if d > 0 {
		_ = rc.SetWriteDeadline(time.Now().Add(d)) // best effort: see above
	}
}

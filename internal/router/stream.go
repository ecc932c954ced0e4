package router

import (
	"bytes"
	"context"
	"errors"
	"io"
	"maps"
	"net/http"
	"strings"
	"time"

	"tandem/internal/backend"
	"tandem/internal/openai"
	"tandem/internal/router/flow"
)

// A recorder remembers what a handler answered, for the log and the metrics, and
// bounds each write to its client.
type recorder struct {
	http.ResponseWriter
	control *http.ResponseController
	limit   time.Duration // of one write
	status  int           // of the call: that of its error, where one ended a stream
	bytes   int64
	outcome string // "" is success
	tell    func() // of a call: its line in the log and its numbers, once
}

func (r *Router) recorder(w http.ResponseWriter) *recorder {
	return &recorder{ResponseWriter: w, control: http.NewResponseController(w), limit: r.cfg.WriteTimeout, tell: func() {}}
}

// Outcomes that no failure of an engine is.
const (
	clientGone = "client_gone" // the answer is not, or not wholly, delivered
	stopped    = "shutdown"
	dropped    = "dropped" // another prompt of the same list failed
)

// errSibling ends the flows of a list that has failed.
var errSibling = errors.New("router: another prompt of the list failed")

// left returns why a call, or a flow of one, ends before its answer: its client
// left, the router stops, or the call has failed. It is "" while nothing is so.
func left(ctx context.Context) string {
	switch {
	case ctx.Err() == nil:
		return ""
	case openai.Stopping(ctx):
		return stopped
	case errors.Is(context.Cause(ctx), errSibling):
		return dropped
	}
	return clientGone
}

// leave ends a call that has no answer yet and will have none.
func (r *recorder) leave(ctx context.Context) {
	if left(ctx) == stopped {
		shutdown().write(r)
		r.outcome = stopped
		return
	}
	hungUp().write(r)
	r.outcome = clientGone
}

// WriteHeader implements http.ResponseWriter.
func (r *recorder) WriteHeader(status int) {
	if r.status == 0 {
		r.status = status
	}
	openai.Arm(r.control, r.limit)
	r.ResponseWriter.WriteHeader(status)
}

// Write implements io.Writer.
func (r *recorder) Write(p []byte) (int, error) {
	if r.status == 0 {
		r.status = http.StatusOK
	}
	openai.Arm(r.control, r.limit)
	n, err := r.ResponseWriter.Write(p)
	r.bytes += int64(n)
	if err != nil {
		r.outcome = clientGone
	}
	return n, err
}

// Unwrap lets http.ResponseController reach the connection.
func (r *recorder) Unwrap() http.ResponseWriter { return r.ResponseWriter }

// An output writes a stream to one client, each piece at once.
type output struct {
	w    *recorder
	mid  bool // what was written ends in the middle of an event
	told bool // an engine's own error was passed on
}

// write sends p and flushes it. An error means that the client is gone or does
// not read.
func (o *output) write(p []byte) error {
	_, err := o.w.Write(p)
	if err == nil {
		o.mid = wholeEvents(p) < len(p)
		err = o.w.control.Flush()
	}
	if err != nil {
		o.w.outcome = clientGone
	}
	return err
}

// last is write for the end of a stream. The call is told of before, so that who
// has the end finds it counted.
func (o *output) last(p []byte) {
	o.w.bytes += int64(len(p))
	o.w.tell()
	_ = o.write(p) // the client may be gone
}

// note looks for an error in events as an engine sent them: where one has it, what
// was begun with 200 did not end so.
func (o *output) note(events []byte) {
	begin := []byte(`data: {"error"`)
	for at := bytes.Index(events, begin); at >= 0; at = bytes.Index(events, begin) {
		events = events[at:]
		if status, _ := errorEvent(events); status != 0 {
			o.w.outcome, o.w.status, o.told = flow.EngineError, status, true
			return
		}
		events = events[len(begin):]
	}
}

// abort ends a stream that has begun: one error event, then the end mark. A piece
// that was cut in the middle is closed first. Outcome is for the log. Where the
// engine has sent an error, that stays the only one, and the outcome.
func (o *output) abort(f *failure, outcome string) {
	var b bytes.Buffer
	if o.mid {
		b.WriteString("\n\n")
	}
	if !o.told {
		o.w.outcome, o.w.status = outcome, f.Status // what was begun with 200 did not end so
		b.WriteString("data: ")
		b.Write(f.json())
		b.WriteString("\n\n")
	}
	b.WriteString(mark + "\n\n")
	o.last(b.Bytes())
}

// leave is abort for a call that ends because of why: its client left, or the
// router stops.
func (o *output) leave(why string) {
	f := hungUp()
	if why == stopped {
		f = shutdown()
	}
	o.abort(f, why)
}

// head sets the header of an answer of one flow.
func (c *call) head(h http.Header, leg *begun) {
	c.describe(h, leg.flow)
	for _, k := range []string{"Content-Type", "Cache-Control"} {
		if v := leg.resp.Header.Get(k); v != "" {
			h.Set(k, v)
		}
	}
	if c.stream {
		h.Set(headerUnbuffered, "no")
	}
	for k, v := range leg.resp.Header {
		if strings.HasPrefix(k, "X-Tandem-") && h.Get(k) == "" {
			h[k] = v
		}
	}
	maps.Copy(h, transferHeader(leg.resp.Header))
	if !c.stream && leg.resp.ContentLength >= 0 {
		h.Set("Content-Length", leg.resp.Header.Get("Content-Length"))
	}
}

// serveOne answers a call of one flow.
func (c *call) serveOne(w *recorder, q *http.Request) {
	leg, fail := c.run(q.Context(), nil)
	if fail != nil {
		c.blame(w.Header(), fail)
		fail.write(w)
		return
	}
	if leg == nil {
		w.leave(q.Context())
		return
	}
	defer closeBody(leg.resp.Body)
	c.head(w.Header(), leg)
	w.WriteHeader(leg.resp.StatusCode)
	if c.stream {
		c.passStream(q.Context(), w, leg)
	} else {
		c.passPlain(q.Context(), w, leg)
	}
}

// passPlain passes a plain answer on. Its last byte follows when the answer is
// known to be whole and the call is told of.
func (c *call) passPlain(ctx context.Context, w *recorder, leg *begun) {
	pending := leg.first
	buf := make([]byte, 16<<10)
	for {
		n, err := leg.resp.Body.Read(buf)
		pending = append(pending, buf[:n]...)
		if err != nil && !errors.Is(err, io.EOF) {
			// It has no valid end; the client must see that it is broken.
			if w.outcome = left(ctx); w.outcome == "" {
				w.outcome, w.status = interrupted, http.StatusBadGateway
				leg.flow.Decode().Suspect()
			}
			panic(http.ErrAbortHandler)
		}
		k := len(pending) - 1
		if _, failed := w.Write(pending[:k]); failed != nil {
			return
		}
		if err != nil {
			w.bytes++
			w.tell()
			_, _ = w.Write(pending[k:]) // the client may be gone
			return
		}
		pending = append(pending[:0], pending[k])
	}
}

// passStream passes a decode engine's events on as they come, up to the end mark.
func (c *call) passStream(ctx context.Context, w *recorder, leg *begun) {
	out := &output{w: w}
	pending := leg.first // not yet passed on
	buf := make([]byte, 16<<10)
	var err error
	for {
		n := ripe(pending)
		end := throughMark(pending[:n])
		if end == 0 && err != nil && endMark(pending[n:]) {
			end = len(pending)
		}
		if end > 0 { // what becomes of the engine from here on is nothing to the client
			out.note(pending[:end])
			out.last(pending[:end])
			backend.Finish(leg.resp.Body)
			return
		}
		if n > 0 {
			out.note(pending[:n])
			if out.write(pending[:n]) != nil {
				return
			}
		}
		if err != nil {
			break
		}
		pending = pending[:copy(pending, pending[n:])]
		n, err = leg.resp.Body.Read(buf)
		pending = append(pending, buf[:n]...)
	}
	// What is left is the beginning of an event that nobody can use.
	if why := left(ctx); why != "" {
		out.leave(why)
		return
	}
	leg.flow.Decode().Suspect()
	out.abort(cut(leg.flow.Decode().Name()), interrupted)
}

// ripe returns how many bytes of a stream can be passed on: whole events, so that
// a client never meets the half of one.
func ripe(b []byte) int {
	if len(b) > maxEvent {
		return len(b)
	}
	return wholeEvents(b)
}

// wholeEvents returns the length of the events at the beginning of b that are
// complete: an empty line ends an event.
func wholeEvents(b []byte) int {
	for i := len(b); ; {
		i = bytes.LastIndexByte(b[:i], '\n')
		switch {
		case i <= 0:
			return 0
		case b[i-1] == '\n', b[i-1] == '\r' && i > 1 && b[i-2] == '\n':
			return i + 1
		}
	}
}

// mark is the event that ends a stream.
const mark = "data: [DONE]"

// throughMark returns the length of events up to the end mark and with it, 0 where
// they have none.
func throughMark(events []byte) int {
	for at := 0; ; {
		i := bytes.Index(events[at:], []byte(mark))
		if i < 0 {
			return 0
		}
		begin := at + i
		at = begin + len(mark)
		if begin > 0 && events[begin-1] != '\n' {
			continue
		}
		for _, empty := range []string{"\n\n", "\r\n\r\n"} {
			if bytes.HasPrefix(events[at:], []byte(empty)) {
				return at + len(empty)
			}
		}
	}
}

// endMark reports whether b is the end of a stream that lacks its empty line.
func endMark(b []byte) bool { return string(bytes.TrimSpace(b)) == mark }

const interrupted = "stream_interrupted"

// cut says that a decode engine stopped in the middle of a stream.
func cut(name string) *failure {
	return gateway(interrupted, "decode engine %s ended the stream before it was complete", name)
}

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

	"tandem/internal/openai"
	"tandem/internal/router/flow"
)

// A recorder remembers what a handler answered, for the log and the metrics.
type recorder struct {
	http.ResponseWriter
	status  int // of the call: that of its error, where one ended a stream
	bytes   int64
	outcome string // "" is success
}

// Outcomes that no failure of an engine is.
const (
	clientGone = "client_gone" // the answer is not, or not wholly, delivered
	stopped    = "shutdown"
)

// left returns why a call ends before its answer: its client left, or the router
// stops. It is "" while neither is so.
func left(ctx context.Context) string {
	switch {
	case ctx.Err() == nil:
		return ""
	case openai.Stopping(ctx):
		return stopped
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
	r.ResponseWriter.WriteHeader(status)
}

// Write implements io.Writer.
func (r *recorder) Write(p []byte) (int, error) {
	if r.status == 0 {
		r.status = http.StatusOK
	}
	n, err := r.ResponseWriter.Write(p)
	r.bytes += int64(n)
	if err != nil {
		r.outcome = clientGone
	}
	return n, err
}

// Unwrap lets http.ResponseController reach the connection.
func (r *recorder) Unwrap() http.ResponseWriter { return r.ResponseWriter }

// An output writes to one client, each piece at once and within a bound.
type output struct {
	w       *recorder
	control *http.ResponseController
	limit   time.Duration
	tail    []byte // the last bytes written, to know how a stream ended
}

func (c *call) output(w *recorder) *output {
	return &output{w: w, control: http.NewResponseController(w), limit: c.r.cfg.WriteTimeout}
}

// write sends p and flushes it. An error means that the client is gone or does
// not read.
func (o *output) write(p []byte) error {
	err := o.send(p)
	if err != nil {
		o.w.outcome = clientGone
	}
	return err
}

// pass is write for events as an engine sent them. Where one of them is an error,
// what was begun with 200 did not end so.
func (o *output) pass(events []byte) error {
	if at := bytes.Index(events, []byte(`data: {"error"`)); at >= 0 {
		if status, _ := errorEvent(events[at:]); status != 0 {
			o.w.outcome, o.w.status = flow.EngineError, status
		}
	}
	return o.write(events)
}

func (o *output) send(p []byte) error {
	if err := o.control.SetWriteDeadline(time.Now().Add(o.limit)); err != nil && !errors.Is(err, http.ErrNotSupported) {
		return err
	}
	if _, err := o.w.Write(p); err != nil {
		return err
	}
	const keep = 32
	o.tail = append(o.tail, p[max(0, len(p)-keep):]...)
	o.tail = o.tail[max(0, len(o.tail)-keep):]
	return o.control.Flush()
}

// whole reports whether the stream written so far ended as streams do.
func (o *output) whole() bool {
	return bytes.HasSuffix(bytes.TrimRight(o.tail, "\r\n"), []byte("data: [DONE]"))
}

// abort ends a stream that has begun: one error event, then the end marker. A
// piece that was cut in the middle is closed first.
func (o *output) abort(f *failure) {
	o.w.outcome, o.w.status = f.Kind, f.Status // what was begun with 200 did not end so
	var b bytes.Buffer
	if len(o.tail) > 0 && !bytes.HasSuffix(o.tail, []byte("\n\n")) {
		b.WriteString("\n\n")
	}
	b.WriteString("data: ")
	b.Write(f.json())
	b.WriteString("\n\ndata: [DONE]\n\n")
	_ = o.write(b.Bytes()) // the client may be gone as well
}

// head sets the header of an answer of one flow.
func (c *call) head(h http.Header, leg *begun) {
	c.describe(h, leg.flow)
	for _, k := range []string{"Content-Type", "Cache-Control"} {
		if v := leg.resp.Header.Get(k); v != "" {
			h.Set(k, v)
		}
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

// serveOne answers a call of one flow: the decode engine's bytes as they come.
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
	out := c.output(w)
	pending := leg.first // not yet passed on
	buf := make([]byte, 16<<10)
	for {
		if n := c.ripe(pending); n > 0 {
			if out.pass(pending[:n]) != nil {
				return
			}
			pending = pending[:copy(pending, pending[n:])]
		}
		n, err := leg.resp.Body.Read(buf)
		pending = append(pending, buf[:n]...)
		if err == nil {
			continue
		}
		// What is left is whole, or the beginning of an event that nobody can use.
		n = c.ripe(pending)
		if errors.Is(err, io.EOF) && endMark(pending[n:]) {
			n = len(pending)
		}
		if n > 0 && out.pass(pending[:n]) != nil {
			return
		}
		switch why := left(q.Context()); {
		case c.stream && out.whole(): // however the connection ended
		case !c.stream && errors.Is(err, io.EOF):
		case why == stopped && c.stream:
			out.abort(shutdown())
			w.outcome = stopped
		case why == clientGone && c.stream:
			out.abort(hungUp())
			w.outcome = clientGone
		case c.stream:
			leg.flow.Decode().Suspect()
			out.abort(cut(leg.flow.Decode().Name()))
		default:
			// A plain answer that was cut has no valid end; the client must
			// see that it is broken.
			if w.outcome = why; why == "" {
				w.outcome, w.status = interrupted, http.StatusBadGateway
				leg.flow.Decode().Suspect()
			}
			panic(http.ErrAbortHandler)
		}
		return
	}
}

// ripe returns how many bytes of b can be passed on: of a stream whole events, so
// that a client never meets the half of one.
func (c *call) ripe(b []byte) int {
	if !c.stream || len(b) > maxEvent {
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

// endMark reports whether b is the end of a stream that lacks its empty line.
func endMark(b []byte) bool { return string(bytes.TrimSpace(b)) == "data: [DONE]" }

const interrupted = "stream_interrupted"

// cut says that a decode engine stopped in the middle of a stream.
func cut(name string) *failure {
	return gateway(interrupted, "decode engine %s ended the stream before it was complete", name)
}

package router

import (
	"bytes"
	"errors"
	"io"
	"net/http"
	"time"
)

// A recorder remembers what a handler answered, for the log and the metrics.
type recorder struct {
	http.ResponseWriter
	status int
	bytes  int64
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
	return n, err
}

// Unwrap lets http.ResponseController reach the connection.
func (r *recorder) Unwrap() http.ResponseWriter { return r.ResponseWriter }

// An output writes to one client, each piece at once and within a bound.
type output struct {
	w       http.ResponseWriter
	control *http.ResponseController
	limit   time.Duration
	tail    []byte // the last bytes written, to know how a stream ended
}

func (c *call) output(w http.ResponseWriter) *output {
	return &output{w: w, control: http.NewResponseController(w), limit: c.r.cfg.WriteTimeout}
}

// write sends p and flushes it. An error means that the client is gone or does
// not read.
func (o *output) write(p []byte) error {
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
	var b bytes.Buffer
	if len(o.tail) > 0 && !bytes.HasSuffix(o.tail, []byte("\n\n")) {
		b.WriteString("\n\n")
	}
	b.WriteString("data: ")
	b.Write(f.json())
	b.WriteString("\n\ndata: [DONE]\n\n")
	_ = o.write(b.Bytes()) // the client may be gone as well
}

// serveOne answers a call of one flow: the decode engine's bytes as they come.
func (c *call) serveOne(w http.ResponseWriter, q *http.Request) {
	leg, fail := c.run(q.Context(), nil)
	if fail != nil {
		fail.write(w)
		return
	}
	if leg == nil {
		return // the client left
	}
	defer closeBody(leg.resp.Body)
	h := w.Header()
	c.describe(h, leg.flow)
	for _, k := range []string{"Content-Type", "Cache-Control"} {
		if v := leg.resp.Header.Get(k); v != "" {
			h.Set(k, v)
		}
	}
	for k, v := range leg.resp.Header {
		if len(k) > 9 && k[:9] == "X-Tandem-" && h.Get(k) == "" {
			h[k] = v
		}
	}
	if !c.stream && leg.resp.ContentLength >= 0 {
		h.Set("Content-Length", leg.resp.Header.Get("Content-Length"))
	}
	w.WriteHeader(leg.resp.StatusCode)
	out := c.output(w)
	if out.write(leg.first) != nil {
		return
	}
	buf := make([]byte, 16<<10)
	for {
		n, err := leg.resp.Body.Read(buf)
		if n > 0 && out.write(buf[:n]) != nil {
			return
		}
		switch {
		case err == nil:
			continue
		case q.Context().Err() != nil:
			return
		case c.stream && !out.whole():
			leg.flow.decode.Suspect()
			out.abort(cut(leg.flow.decode.Name()))
		case !errors.Is(err, io.EOF):
			// A plain answer that was cut has no valid end; the client must
			// see that it is broken.
			leg.flow.decode.Suspect()
			panic(http.ErrAbortHandler)
		}
		return
	}
}

// cut says that a decode engine stopped in the middle of a stream.
func cut(name string) *failure {
	return &failure{
		status: http.StatusBadGateway, kind: "stream_interrupted",
		message: "decode engine " + name + " ended the stream before it was complete",
	}
}

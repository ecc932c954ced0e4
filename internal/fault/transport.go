package fault

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"sync"
	"time"
)

// Transport returns rt with the faults of i. They hit POST requests, which are
// the legs of a flow and the releases of hand-offs; probes pass.
func Transport(rt http.RoundTripper, i *Injector) http.RoundTripper { return &transport{rt, i} }

type transport struct {
	inner http.RoundTripper
	in    *Injector
}

// maxDrained bounds what is read of an answer that nobody gets, in bytes.
const maxDrained = 64 << 20

// CloseIdleConnections passes the wish on.
func (t *transport) CloseIdleConnections() {
	if c, ok := t.inner.(interface{ CloseIdleConnections() }); ok {
		c.CloseIdleConnections()
	}
}

// RoundTrip implements http.RoundTripper.
func (t *transport) RoundTrip(req *http.Request) (*http.Response, error) {
	if req.Method != http.MethodPost {
		return t.inner.RoundTrip(req)
	}
	f, changed, hit := t.in.decide(HTTP, Subject{Request: req.Header.Get("X-Request-Id"), Peer: req.URL.Host})
	if !hit {
		return t.inner.RoundTrip(req)
	}
	switch f.Action {
	case Error:
		return answer(req, f), closeBody(req)
	case Blackhole:
		return nil, errors.Join(closeBody(req), lose(req.Context(), 0, changed, nil))
	case Delay:
		if _, err := pause(req.Context(), time.Duration(f.Delay), changed, nil, nil); err != nil {
			return nil, errors.Join(closeBody(req), err)
		}
	case Duplicate:
		return t.twice(req)
	default:
	}
	resp, err := t.inner.RoundTrip(req)
	if err != nil {
		return nil, err
	}
	switch f.Action {
	case Drop:
		if err := drain(resp); err != nil {
			return nil, err
		}
		return nil, lose(req.Context(), 0, changed, nil)
	case Stall, Cut:
		resp.Body = &shortBody{
			inner: resp.Body, left: f.Bytes, cut: f.Action == Cut, ctx: req.Context(), changed: changed, closed: make(chan struct{}),
		}
	default:
	}
	return resp, nil
}

func closeBody(req *http.Request) error {
	if req.Body == nil {
		return nil
	}
	return req.Body.Close()
}

// answer is what an engine says that has an error of its own.
func answer(req *http.Request, f Fault) *http.Response {
	code := f.Status
	if code == 0 {
		code = http.StatusInternalServerError
	}
	body := fmt.Sprintf(`{"error":{"message":"fault: injected","type":"server_error","param":null,"code":%d}}`, code)
	return &http.Response{
		Status: strconv.Itoa(code) + " " + http.StatusText(code), StatusCode: code, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		Header: http.Header{"Content-Type": {"application/json"}}, ContentLength: int64(len(body)),
		Body: io.NopCloser(bytes.NewReader([]byte(body))), Request: req,
	}
}

func drain(resp *http.Response) error {
	_, err := io.Copy(io.Discard, io.LimitReader(resp.Body, maxDrained))
	return errors.Join(err, resp.Body.Close())
}

// twice sends req two times, and returns the second answer.
func (t *transport) twice(req *http.Request) (*http.Response, error) {
	var body []byte
	if req.Body != nil {
		var err error
		if body, err = io.ReadAll(req.Body); err != nil {
			return nil, errors.Join(err, req.Body.Close())
		}
		if err := req.Body.Close(); err != nil {
			return nil, err
		}
	}
	send := func() (*http.Response, error) {
		r := req.Clone(req.Context())
		if req.Body != nil {
			r.Body = io.NopCloser(bytes.NewReader(body))
		}
		return t.inner.RoundTrip(r)
	}
	first, err := send()
	if err != nil {
		return nil, err
	}
	if err := drain(first); err != nil {
		return nil, err
	}
	return send()
}

// A shortBody is a body of which only so many bytes come.
type shortBody struct {
	inner   io.ReadCloser
	cut     bool
	ctx     context.Context //nolint:containedctx // of the request whose body it is
	changed <-chan struct{}
	closed  chan struct{}
	once    sync.Once
	left    int64 // of Read only
	whole   bool  // of Read only: a stall was let go
}

// Read implements io.Reader.
func (b *shortBody) Read(p []byte) (int, error) {
	if b.whole {
		return b.inner.Read(p)
	}
	if b.left > 0 {
		n, err := b.inner.Read(p[:min(int64(len(p)), b.left)])
		b.left -= int64(n)
		if errors.Is(err, io.EOF) { // the end is what is missing
			b.left, err = 0, nil
		}
		if n > 0 || err != nil || len(p) == 0 {
			return n, err
		}
	}
	if b.left > 0 {
		return 0, nil
	}
	if b.cut {
		return 0, errors.Join(io.ErrUnexpectedEOF, b.inner.Close())
	}
	select {
	case <-b.ctx.Done():
		return 0, context.Cause(b.ctx)
	case <-b.closed:
		return 0, http.ErrBodyReadAfterClose
	case <-b.changed:
		b.whole = true
		return b.inner.Read(p)
	}
}

// Close implements io.Closer.
func (b *shortBody) Close() error {
	b.once.Do(func() { close(b.closed) })
	return b.inner.Close()
}

package backend

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"sync/atomic"
	"time"
)

// Exchange sends one leg and returns its whole answer, of at most limit bytes,
// whatever its status. An error is a *TransportError, or ctx's.
//
// When ctx ends first the leg is not cut but half closed: the engine sees that
// its client has left and stops, and an answer that was already under way still
// arrives. So what an answer promises, a lease above all, is either revoked by
// the engine or known here, never lost between the two. The wait for that is
// bounded by Limits.Release. A half-closed connection must not serve another leg,
// so each exchange has its own.
func (b *Backend) Exchange(ctx context.Context, path string, header http.Header, body []byte, limit int64) (status int, out []byte, err error) {
	hard, cut := context.WithCancel(context.WithoutCancel(ctx))
	defer cut()
	var conn atomic.Pointer[net.Conn]
	hard = httptrace.WithClientTrace(hard, &httptrace.ClientTrace{GotConn: func(i httptrace.GotConnInfo) {
		conn.Store(&i.Conn)
		if ctx.Err() != nil {
			leave(i.Conn) // before the request is written
		}
	}})
	var late *time.Timer
	left := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(left)
		if c := conn.Load(); c == nil || !leave(*c) {
			cut()
		}
		late = time.AfterFunc(b.limits.Release, cut)
	})
	defer func() {
		if !stop() {
			<-left
			late.Stop()
		}
	}()

	req, err := http.NewRequestWithContext(hard, http.MethodPost, b.base+path, bytes.NewReader(body))
	if err != nil {
		return 0, nil, &TransportError{b.name, err}
	}
	req.Header = header
	resp, err := b.leg(b.alone, req, cut)
	if err != nil {
		return 0, nil, b.failed(ctx, err)
	}
	defer func() { _ = resp.Body.Close() }() // read to its end, or given up
	out, err = io.ReadAll(io.LimitReader(resp.Body, limit+1))
	switch {
	case err != nil:
		return 0, nil, b.failed(ctx, err)
	case int64(len(out)) > limit:
		return 0, nil, &TransportError{b.name, fmt.Errorf("the answer has more than %d bytes", limit)}
	}
	return resp.StatusCode, out, nil
}

// leave closes the sending half of a connection and reports whether it could.
func leave(c net.Conn) bool {
	half, ok := c.(interface{ CloseWrite() error })
	return ok && half.CloseWrite() == nil
}

// Package wiretest shows what a server has sent at any moment. Only tests import
// it.
package wiretest

import (
	"bufio"
	"bytes"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
)

// A Wire remembers what a server has sent since Clear, on all its connections.
// One exchange at a time makes sense of it.
type Wire struct {
	URL string

	mu   sync.Mutex
	sent []byte
}

// Serve starts a server that ends with t.
func Serve(t *testing.T, h http.Handler) *Wire {
	t.Helper()
	w := &Wire{}
	srv := httptest.NewUnstartedServer(h)
	srv.Listener = &listener{srv.Listener, w}
	srv.Start()
	t.Cleanup(srv.Close)
	w.URL = srv.URL
	return w
}

// Clear forgets what was sent.
func (w *Wire) Clear() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.sent = nil
}

// Whole reports whether what was sent is all that a client waits for: a whole
// answer, or a stream up to its end mark.
func (w *Wire) Whole() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if bytes.Contains(w.sent, []byte("data: [DONE]")) {
		return true
	}
	resp, err := http.ReadResponse(bufio.NewReader(bytes.NewReader(w.sent)), nil)
	if err != nil {
		return false
	}
	defer func() { _ = resp.Body.Close() }()
	_, err = io.Copy(io.Discard, resp.Body)
	return err == nil
}

type listener struct {
	net.Listener
	wire *Wire
}

// Accept implements net.Listener.
func (l *listener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return &conn{c, l.wire}, nil
}

type conn struct {
	net.Conn
	wire *Wire
}

// Write implements io.Writer. What a client has, the wire has.
func (c *conn) Write(p []byte) (int, error) {
	c.wire.mu.Lock()
	c.wire.sent = append(c.wire.sent, p...)
	c.wire.mu.Unlock()
	return c.Conn.Write(p)
}

package backend

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// A pipes is a listener whose connections are in memory.
type pipes chan net.Conn

// Accept implements net.Listener.
func (p pipes) Accept() (net.Conn, error) {
	c, ok := <-p
	if !ok {
		return nil, net.ErrClosed
	}
	return c, nil
}

// Close implements net.Listener.
func (p pipes) Close() error {
	close(p)
	return nil
}

// Addr implements net.Listener.
func (p pipes) Addr() net.Addr { return &net.TCPAddr{} }

func (p pipes) dial(context.Context, string, string) (net.Conn, error) {
	here, there := net.Pipe()
	p <- there
	return here, nil
}

// pipedBackend is testBackend for a synctest bubble.
func pipedBackend(t *testing.T, h http.HandlerFunc) *Backend {
	t.Helper()
	p := make(pipes)
	srv := &http.Server{Handler: h}
	done := make(chan error, 1)
	go func() { done <- srv.Serve(p) }()
	b, err := New("http://engine:1", Prefill, DefaultLimits(), nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []*http.Client{b.client, b.alone} {
		c.Transport.(*http.Transport).DialContext = p.dial
	}
	t.Cleanup(func() {
		b.client.CloseIdleConnections()
		_ = srv.Close()
		<-done
	})
	return b
}

// A leg that falls silent, before its status or in the middle of its answer, ends
// at its limit; the engine sees that, and no leg stays counted.
func TestLegThatFallsSilent(t *testing.T) {
	// Time passes only when everybody waits, so a request is there before its limit.
	synctest.Test(t, silentLegs)
}

func silentLegs(t *testing.T) {
	left := make(chan struct{}, 4)
	b := pipedBackend(t, func(w http.ResponseWriter, q *http.Request) {
		_, _ = io.Copy(io.Discard, q.Body)
		if q.URL.Path == "/half" {
			w.Header().Set("Content-Length", "100")
			_, _ = io.WriteString(w, "half")
			_ = http.NewResponseController(w).Flush()
		}
		<-q.Context().Done()
		left <- struct{}{}
	})
	const limit = 50 * time.Second
	// Only the wait that a path is to end in has a limit that can pass.
	expect := func(path string) string {
		if b.limits.Header, b.limits.Silence = limit, time.Hour; path == "/half" {
			b.limits.Header, b.limits.Silence = time.Hour, limit
		}
		return path
	}
	check := func(what string, err error) {
		t.Helper()
		if err == nil || !strings.Contains(err.Error(), "silent for 50s") {
			t.Errorf("%s: %v", what, err)
		}
		<-left
	}
	for _, path := range []string{"/none", "/half"} {
		_, _, err := b.Exchange(t.Context(), expect(path), http.Header{}, nil, 1000)
		if _, ok := errors.AsType[*TransportError](err); !ok {
			t.Errorf("%s: %v is no *TransportError", path, err)
		}
		check("exchange of "+path, err)
	}
	_, err := b.Post(t.Context(), expect("/none"), http.Header{}, nil)
	check("post", err)
	resp, err := b.Post(t.Context(), expect("/half"), http.Header{}, nil)
	if err != nil {
		t.Fatal(err)
	}
	out, err := io.ReadAll(resp.Body)
	check("body", err)
	if string(out) != "half" {
		t.Errorf("read %q", out)
	}
	if err := resp.Body.Close(); err != nil {
		t.Error(err)
	}
	if n := b.Legs(); n != 0 {
		t.Errorf("%d legs are counted", n)
	}
}

// Only silence counts: an answer may take as long as it likes while its bytes
// come, and so may the one who reads it.
func TestSlowAnswersAreNotSilent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, w := io.Pipe()
		var legs atomic.Int64
		legs.Add(1)
		l := &legBody{ReadCloser: r, legs: &legs, wait: newWait(func() { _ = r.CloseWithError(io.ErrClosedPipe) }), silence: 2 * time.Minute}
		go func() {
			for range 5 {
				time.Sleep(119 * time.Second)
				if _, err := w.Write([]byte("x")); err != nil {
					t.Error(err)
				}
			}
		}()
		buf := make([]byte, 1)
		for i := range 5 {
			if n, err := l.Read(buf); n != 1 || err != nil {
				t.Fatalf("read %d: %d %v", i, n, err)
			}
			time.Sleep(time.Hour)
		}
		start := time.Now()
		if _, err := l.Read(buf); err == nil || time.Since(start) != 2*time.Minute {
			t.Errorf("%v after %v", err, time.Since(start))
		}
		_ = l.Close() // again and again
		_ = l.Close()
		if legs.Load() != 0 {
			t.Errorf("%d legs", legs.Load())
		}
	})
}

package main

import (
	"bufio"
	"context"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"tandem/internal/backend"
)

// A pipeListener accepts what is sent to it.
type pipeListener chan net.Conn

func (l pipeListener) Accept() (net.Conn, error) {
	c, ok := <-l
	if !ok {
		return nil, net.ErrClosed
	}
	return c, nil
}

func (l pipeListener) Close() error   { close(l); return nil }
func (l pipeListener) Addr() net.Addr { return &net.TCPAddr{} }

// A client that stops in the middle of its body is cut, as is one that never
// comes to its end. Whose body is whole may wait for its answer as long as that
// takes.
func TestHalfARequestIsNotWaitedForForEver(t *testing.T) {
	for _, c := range []struct {
		name   string
		head   string
		every  time.Duration // between bytes of the body
		bytes  int           // that are sent
		took   time.Duration // until the handler has the body, or is told
		status string
	}{
		{"whole", "Content-Length: 2", 0, 2, 0, "200"},
		{"slow and whole", "Content-Length: 60", time.Second, 60, 59 * time.Second, "200"},
		{"stops", "Content-Length: 99", 0, 1, requestTime, "400"},
		{"stops, chunked", "Transfer-Encoding: chunked", 0, 1, requestTime, "400"},
		{"never ends", "Content-Length: 99", time.Second, 99, requestTime, "400"},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ln := make(pipeListener)
				begun := time.Now()
				h := http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
					_, err := io.ReadAll(q.Body)
					if took := time.Since(begun); took != c.took {
						t.Errorf("the body took %v, want %v (%v)", took, c.took, err)
					}
					if err != nil {
						w.WriteHeader(http.StatusBadRequest)
						return
					}
					<-time.After(time.Hour) // the answer takes its time
					if err := q.Context().Err(); err != nil {
						t.Errorf("while the answer was made: %v", err)
					}
				})
				ctx, cancel := context.WithCancel(t.Context())
				done := make(chan error, 1)
				go func() { done <- serveHTTP(ctx, ln, h, slog.New(slog.DiscardHandler), time.Hour, nil, func() {}) }()
				near, far := net.Pipe()
				ln <- far
				sent := make(chan struct{})
				go func() {
					defer close(sent)
					_, _ = near.Write([]byte("POST / HTTP/1.1\r\nHost: x\r\n" + c.head + "\r\n\r\n"))
					for i := range c.bytes {
						if i > 0 {
							<-time.After(c.every)
						}
						if _, err := near.Write([]byte("1")); err != nil {
							return // it was cut
						}
					}
				}()
				line, err := bufio.NewReader(near).ReadString('\n')
				if err != nil || !strings.Contains(line, c.status) {
					t.Errorf("answer %q, %v; want %s", line, err, c.status)
				}
				_ = near.Close()
				<-sent
				cancel()
				if err := <-done; err != nil {
					t.Error(err)
				}
			})
		})
	}
}

// H089: the last words reach a client also when they take as long as the router
// waits for an answer of a prefill engine that hangs.
func TestLastWordsMayWaitForAPrefillEngine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ln := make(pipeListener)
		running, stopped := make(chan struct{}), make(chan struct{})
		h := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			close(running)
			<-stopped
			<-time.After(backend.DefaultLimits().Release)
			w.WriteHeader(http.StatusServiceUnavailable)
		})
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() {
			done <- serveHTTP(ctx, ln, h, slog.New(slog.DiscardHandler), time.Second, nil, func() { close(stopped) })
		}()
		near, far := net.Pipe()
		defer near.Close()
		ln <- far
		go func() { _, _ = near.Write([]byte("GET / HTTP/1.1\r\nHost: x\r\n\r\n")) }()
		<-running
		cancel()
		if line, err := bufio.NewReader(near).ReadString('\n'); err != nil || !strings.Contains(line, "503") {
			t.Errorf("answer %q, %v; want 503", line, err)
		}
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

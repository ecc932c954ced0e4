package main

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"testing"
)

// H089: a server that stops does not wait for connections that were opened ahead
// of need, and touches none that carries a request.
func TestUnusedConnectionsEndSoon(t *testing.T) {
	var s silentConns
	unused, far := net.Pipe()
	used, near := net.Pipe()
	for _, c := range []net.Conn{unused, far, used, near} {
		defer c.Close()
	}
	s.note(unused, http.StateNew)
	s.note(used, http.StateNew)
	s.note(used, http.StateActive)
	s.hurry(0)
	if _, err := unused.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("the unused connection: %v, want its deadline", err)
	}
	go func() { _, _ = near.Write([]byte("x")) }()
	if _, err := used.Read(make([]byte, 1)); err != nil {
		t.Errorf("the connection in use: %v", err)
	}
	s.note(unused, http.StateClosed)
	if len(s.set) != 0 {
		t.Errorf("%d connections are still known", len(s.set))
	}
}

// H089: what still runs when the grace is over is told so before it is cut.
func TestRunningAnswersEndWithWords(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	stopped := make(chan struct{})
	h := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_ = http.NewResponseController(w).Flush()
		<-stopped
		_, _ = w.Write([]byte("the last words"))
	})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		done <- serveHTTP(ctx, ln, h, slog.New(slog.DiscardHandler), 0, nil, func() { close(stopped) })
	}()
	resp, err := http.Get("http://" + ln.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	cancel()
	if body, err := io.ReadAll(resp.Body); string(body) != "the last words" || err != nil {
		t.Errorf("%q %v", body, err)
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
}

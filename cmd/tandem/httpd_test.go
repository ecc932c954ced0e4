package main

import (
	"errors"
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

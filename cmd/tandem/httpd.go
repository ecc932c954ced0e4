package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/signal"
	"strconv"
	"sync"
	"syscall"
	"time"

	"tandem/internal/bystander"
)

// newLogger returns the process's logger: text lines on standard error.
// Nobody who logs waits for w: a terminal that was stopped holds up no request.
// The second result is to be closed at the end.
func newLogger(w io.Writer, level string) (*slog.Logger, *bystander.Logs, error) {
	var l slog.Level
	if err := l.UnmarshalText([]byte(level)); err != nil {
		return nil, nil, fmt.Errorf("--log-level %q: want debug, info, warn or error", level)
	}
	// Where the reader of a pipe ends, lines are lost; a signal would end the process.
	signal.Ignore(syscall.SIGPIPE)
	logs := bystander.NewLogs(slog.NewTextHandler(w, &slog.HandlerOptions{Level: l}))
	return slog.New(logs), logs, nil
}

// An announcement is what a child of `tandem up` tells it: where it listens.
type announcement struct {
	URL string `json:"url"`
}

// listen binds the HTTP address.
func listen(ctx context.Context, host string, port int) (net.Listener, error) {
	var lc net.ListenConfig
	ln, err := lc.Listen(ctx, "tcp", net.JoinHostPort(host, strconv.Itoa(port)))
	switch {
	case errors.Is(err, syscall.EADDRINUSE), errors.Is(err, syscall.EACCES):
		return nil, fmt.Errorf("listening for HTTP: %w; choose another --port, 0 for a free one", err)
	case err != nil:
		return nil, fmt.Errorf("listening for HTTP: %w; want an address of this host as --host, and a --port up to 65535", err)
	}
	return ln, nil
}

// listenerURL returns the URL under which a listener is reached on this host.
func listenerURL(ln net.Listener) string {
	addr, ok := ln.Addr().(*net.TCPAddr)
	if !ok {
		return "http://" + ln.Addr().String()
	}
	host := addr.IP.String()
	if addr.IP.IsUnspecified() {
		host = "127.0.0.1"
	}
	return "http://" + net.JoinHostPort(host, strconv.Itoa(addr.Port))
}

// announce writes where a child listens to the descriptor that its parent gave.
func announce(fd int, ln net.Listener) error {
	if fd == 0 {
		return nil
	}
	f := os.NewFile(uintptr(fd), "announce")
	err := json.NewEncoder(f).Encode(announcement{URL: listenerURL(ln)})
	return errors.Join(err, f.Close())
}

// serveHTTP serves h on ln until ctx ends. Then drain, which may be nil, is
// given as long as grace to finish what runs, after which stop ends it, and
// connections are closed when the clients have been told.
func serveHTTP(ctx context.Context, ln net.Listener, h http.Handler, log *slog.Logger, grace time.Duration, drain func(context.Context), stop func()) error {
	var silent silentConns
	srv := &http.Server{
		Handler: h, ConnState: silent.note, ReadHeaderTimeout: 10 * time.Second, ReadTimeout: requestTime, IdleTimeout: 2 * time.Minute, MaxHeaderBytes: 64 << 10,
		ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelDebug),
	}
	done := make(chan error, 1)
	go func() { done <- srv.Serve(ln) }()
	select {
	case err := <-done:
		return fmt.Errorf("serving HTTP: %w", err)
	case <-ctx.Done():
	}
	bound, cancel := context.WithTimeout(context.WithoutCancel(ctx), grace)
	defer cancel()
	if drain != nil {
		drain(bound)
	}
	silent.hurry(unusedGrace)
	err := srv.Shutdown(bound)
	if err != nil {
		stop()
		last, cancel := context.WithTimeout(context.WithoutCancel(ctx), tellGrace)
		defer cancel()
		if err = srv.Shutdown(last); err != nil {
			err = srv.Close()
		}
	}
	if ended := <-done; !errors.Is(ended, http.ErrServerClosed) {
		err = errors.Join(err, ended)
	}
	return err
}

// requestTime is the longest time that a client may take to send a request, its
// body included. Answers may take longer.
const requestTime = time.Minute

// tellGrace is what clients have to get the last words of a server that stops. A
// router that waits for a prefill engine says them only when it has given that
// up, backend.Limits.Release after the stop.
const tellGrace = 4 * time.Second

// lastGrace is what a process has, beyond its drain time, to end by itself.
const lastGrace = tellGrace + 2*time.Second

// unusedGrace is what a connection that has not yet sent a byte has left when
// its server stops. Clients open connections ahead of need and leave them unused;
// net/http would wait 5 s for each.
const unusedGrace = 200 * time.Millisecond

// silentConns are the connections of a server that have sent nothing yet.
type silentConns struct {
	mu  sync.Mutex
	set map[net.Conn]struct{}
}

// note is a http.Server's ConnState.
func (s *silentConns) note(c net.Conn, state http.ConnState) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if state != http.StateNew {
		delete(s.set, c)
		return
	}
	if s.set == nil {
		s.set = map[net.Conn]struct{}{}
	}
	s.set[c] = struct{}{}
}

// hurry ends the connections that send nothing within d. What is on its way is
// still read.
func (s *silentConns) hurry(d time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for c := range s.set {
		_ = c.SetReadDeadline(time.Now().Add(d)) // it may have ended
	}
}

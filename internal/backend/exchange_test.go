package backend

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"
)

func testBackend(t *testing.T, h http.HandlerFunc) *Backend {
	t.Helper()
	srv := httptest.NewServer(h)
	limits := DefaultLimits()
	limits.Release = time.Minute // no test waits for its end
	b, err := New(srv.URL, Prefill, limits, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		b.client.CloseIdleConnections()
		srv.Close()
	})
	return b
}

// H076: the engine learns that the client left, and what it answers all the same
// is known.
func TestExchangeTakesTheAnswerOfAClientThatLeft(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	b := testBackend(t, func(w http.ResponseWriter, q *http.Request) {
		_, _ = io.Copy(io.Discard, q.Body)
		if q.URL.Path == "/left" {
			cancel()
			<-q.Context().Done()
		}
		fmt.Fprint(w, "answer")
	})
	status, out, err := b.Exchange(ctx, "/left", http.Header{}, []byte("{}"), 100)
	if err != nil || status != http.StatusOK || string(out) != "answer" {
		t.Errorf("%d %q %v", status, out, err)
	}
	if _, _, err := b.Exchange(ctx, "/never", http.Header{}, []byte("{}"), 100); !errors.Is(err, context.Canceled) {
		t.Errorf("an exchange of a client that was gone before: %v", err)
	}
	if _, out, err := b.Exchange(t.Context(), "/next", http.Header{}, []byte("{}"), 100); err != nil || string(out) != "answer" {
		t.Errorf("the next exchange: %q %v", out, err)
	}
	if n := b.Legs(); n != 0 {
		t.Errorf("%d legs are counted", n)
	}
	var transport *TransportError
	if _, _, err := b.Exchange(t.Context(), "/long", http.Header{}, nil, 3); !errors.As(err, &transport) {
		t.Errorf("an answer past the limit: %v", err)
	}
}

// A client that leaves as its answer comes in takes no connection from another.
func TestExchangesThatEndHarmNoOthers(t *testing.T) {
	b := testBackend(t, func(w http.ResponseWriter, q *http.Request) {
		_, _ = io.Copy(io.Discard, q.Body)
		fmt.Fprint(w, "answer")
	})
	var wg sync.WaitGroup
	for w := range 8 {
		wg.Go(func() {
			for range 300 {
				ctx, cancel := context.WithCancel(t.Context())
				if w%2 == 0 {
					go cancel()
				}
				_, out, err := b.Exchange(ctx, "/", http.Header{}, []byte("{}"), 100)
				if w%2 == 1 && (err != nil || string(out) != "answer") {
					t.Errorf("%q %v", out, err)
				}
				cancel()
			}
		})
	}
	wg.Wait()
}

// A dial that is refused is told from an exchange that ended.
func TestUnreached(t *testing.T) {
	b := testBackend(t, func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) })
	ln, err := net.Listen("tcp", "127.0.0.3:0") // where nobody else listens meanwhile
	if err != nil {
		t.Fatal(err)
	}
	if err := ln.Close(); err != nil {
		t.Fatal(err)
	}
	nobody, err := New("http://"+ln.Addr().String(), Decode, DefaultLimits(), nil)
	if err != nil {
		t.Fatal(err)
	}
	for x, want := range map[*Backend]bool{b: false, nobody: true} {
		_, _, err := x.Exchange(t.Context(), "/", http.Header{}, nil, 100)
		e, ok := errors.AsType[*TransportError](err)
		if !ok || e.Unreached() != want {
			t.Errorf("exchange: unreached is not %v: %v", want, err)
		}
		resp, err := x.Post(t.Context(), "/", http.Header{}, nil)
		if err == nil {
			resp.Body.Close()
		}
		if e, ok = errors.AsType[*TransportError](err); !ok || e.Unreached() != want {
			t.Errorf("post: unreached is not %v: %v", want, err)
		}
	}
}

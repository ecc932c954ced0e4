package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"tandem/internal/backend"
	"tandem/internal/router"
)

// A router that drains goes on to probe its engines, and is not over before the
// hand-offs of what it ended are given back.
func TestRouterLivesUntilItsLastCallHasEnded(t *testing.T) {
	probed, held := make(chan struct{}), make(chan struct{}, 1)
	var released atomic.Int64
	engine := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		switch body, _ := io.ReadAll(q.Body); {
		case q.URL.Path == "/health":
			select {
			case probed <- struct{}{}:
			default:
			}
		case q.URL.Path == "/release_kv_handoff":
			released.Add(1)
		case strings.Contains(string(body), `"do_remote_decode":true`):
			fmt.Fprint(w, `{"kv_transfer_params":{"do_remote_prefill":true}}`)
		case q.Method == http.MethodPost:
			held <- struct{}{}
			<-q.Context().Done()
		default:
			w.WriteHeader(http.StatusNotFound)
		}
	}))
	defer engine.Close()

	said, say, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer said.Close()
	fd, err := syscall.Dup(int(say.Fd())) // route closes it
	if err != nil {
		t.Fatal(err)
	}
	if err := say.Close(); err != nil {
		t.Fatal(err)
	}
	limits := backend.DefaultLimits()
	limits.Every = time.Millisecond
	o := routeOptions{host: "127.0.0.1", level: "info", grace: time.Hour, announceFD: fd, cfg: router.Config{
		Prefill: []string{engine.URL}, Decode: []string{strings.Replace(engine.URL, "127.0.0.1", "localhost", 1)}, Backend: limits, WriteTimeout: time.Minute,
	}}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- route(ctx, &o, io.Discard) }()
	var at announcement
	if err := json.NewDecoder(said).Decode(&at); err != nil {
		t.Fatal(err)
	}
	for ready := false; !ready; {
		resp, err := http.Get(at.URL + "/health")
		if err != nil {
			t.Fatal(err)
		}
		ready = resp.StatusCode == http.StatusOK
		_ = resp.Body.Close()
	}
	left := make(chan struct{})
	call, leave := context.WithCancel(t.Context())
	defer leave()
	go func() {
		defer close(left)
		req, err := http.NewRequestWithContext(call, http.MethodPost, at.URL+"/v1/completions", strings.NewReader(`{"prompt":"a"}`))
		if err != nil {
			t.Error(err)
			return
		}
		if resp, err := http.DefaultClient.Do(req); err == nil {
			_ = resp.Body.Close()
		}
	}()
	<-held
	cancel()
	for range 5 { // of two engines; those that were on their way are fewer
		<-probed
	}
	leave()
	<-left
	if err := <-done; err != nil {
		t.Error(err)
	}
	if n := released.Load(); n != 1 {
		t.Errorf("%d hand-offs were given back before the router ended", n)
	}
	http.DefaultClient.CloseIdleConnections()
}

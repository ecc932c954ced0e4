package transfer

import (
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"tandem/internal/bystander/logtest"
)

func TestHTTPOnThePeerPortIsToldSo(t *testing.T) {
	var log logtest.Book
	h := startHost(t, HostConfig{Log: slog.New(slog.NewTextHandler(&log, nil))}, nil)
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	for i, method := range []string{http.MethodGet, http.MethodPost, http.MethodPut, http.MethodDelete, http.MethodOptions} {
		if i == 1 { // the next line is due when this test is over, however slow the machine
			h.quiet.mu.Lock()
			h.quiet.from["127.0.0.1"].until = time.Now().Add(time.Hour)
			h.quiet.mu.Unlock()
		}
		req, err := http.NewRequestWithContext(t.Context(), method, "http://"+h.Addr()+"/v1/completions", strings.NewReader(strings.Repeat("x", 20_000)))
		if err != nil {
			t.Fatal(err)
		}
		resp, err := client.Do(req)
		if err != nil {
			t.Fatalf("%s: %v", method, err)
		}
		body, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		if err != nil || resp.StatusCode != http.StatusBadRequest || !strings.Contains(string(body), "peer port") || strings.Count(string(body), "\n") != 1 {
			t.Errorf("%s: %d %q %v", method, resp.StatusCode, body, err)
		}
	}
	if n := strings.Count(log.String(), "refusing a connection"); n != 1 {
		t.Errorf("%d lines about one source:\n%s", n, log.String())
	}
	if n := h.Stats().BadFrames; n != 5 {
		t.Errorf("%d bad frames counted", n)
	}
}

func TestRefusalsOfOneSourceAreLoggedSeldom(t *testing.T) {
	var q quiet
	now := time.Unix(1, 0)
	said := func(source string, wantMissed int, want bool) {
		t.Helper()
		if missed, ok := q.speak(source, now); missed != wantMissed || ok != want {
			t.Errorf("%s: %d, %v, want %d, %v", source, missed, ok, wantMissed, want)
		}
	}
	said("a", 0, true)
	said("a", 0, false)
	said("a", 0, false)
	said("b", 0, true)
	now = now.Add(quietFor)
	said("a", 2, true)
	said("a", 0, false)
	for i := range 10 * maxQuiets {
		q.speak(fmt.Sprint(i), now)
	}
	if len(q.from) > maxQuiets+1 {
		t.Errorf("%d sources are remembered", len(q.from))
	}
	said("new", 0, false) // with the others that have no place
	now = now.Add(quietFor)
	said("new", 0, true)
}

// A listener that cannot accept, for want of descriptors say, is told of as seldom.
func TestFailuresToAcceptAreLoggedSeldom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log logtest.Book
		h := &Host{stop: make(chan struct{}), cfg: HostConfig{Log: slog.New(slog.NewTextHandler(&log, nil))}}
		var wg sync.WaitGroup
		wg.Go(func() { h.accept(failingListener{}) })
		<-time.After(2*quietFor + quietFor/2)
		close(h.stop)
		wg.Wait()
		if lines := log.Lines("accepting a peer", "too many open files"); len(lines) != 3 || !strings.Contains(lines[2], "unlogged_before=") {
			t.Errorf("%d lines: %s", len(lines), log.String())
		}
	})
}

type failingListener struct{ net.Listener }

func (failingListener) Accept() (net.Conn, error) { return nil, syscall.EMFILE }
func (failingListener) Addr() net.Addr            { return &net.UnixAddr{Name: "x"} }

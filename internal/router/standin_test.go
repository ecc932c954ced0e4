package router

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"tandem/internal/backend"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m)
}

// A standIn is an engine of vLLM's shape: it answers /health and the two
// generating endpoints, and remembers what it was sent.
type standIn struct {
	*httptest.Server
	name string

	mu       sync.Mutex
	bodies   [][]byte
	headers  []http.Header
	released [][]byte
	hooks    hooks
	seen     chan string // one word per exchange, for tests that wait
	conns    *connBook   // of one that moved
}

type hooks struct {
	prefill func(w http.ResponseWriter, q *http.Request, body []byte) bool // true: answered
	decode  func(w http.ResponseWriter, q *http.Request, body []byte) bool
}

func newStandIn(t *testing.T, name string) *standIn {
	t.Helper()
	s := &standIn{name: name, seen: make(chan string, 1000)}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /health", func(http.ResponseWriter, *http.Request) {})
	mux.HandleFunc("POST /release_kv_handoff", func(_ http.ResponseWriter, q *http.Request) {
		body, _ := io.ReadAll(q.Body)
		s.mu.Lock()
		s.released = append(s.released, body)
		s.mu.Unlock()
		s.seen <- "release"
	})
	mux.HandleFunc("POST /v1/", s.generate)
	mux.HandleFunc("GET /v1/models", func(w http.ResponseWriter, q *http.Request) {
		fmt.Fprintf(w, `{"asked_with":%q}`, q.Header.Get("Authorization"))
	})
	s.Server = httptest.NewServer(mux)
	t.Cleanup(s.Close)
	return s
}

// move makes the stand-in serve at addr instead.
func (s *standIn) move(t *testing.T, addr string) *standIn {
	t.Helper()
	ln, err := net.Listen("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	there := httptest.NewUnstartedServer(s.Config.Handler)
	if err := there.Listener.Close(); err != nil {
		t.Fatal(err)
	}
	there.Listener = ln
	s.conns = &connBook{}
	there.Config.ConnState = s.conns.note
	there.Start()
	t.Cleanup(there.Close)
	s.Close()
	s.Server = there
	return s
}

func (s *standIn) set(h hooks) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.hooks = h
}

func (s *standIn) generate(w http.ResponseWriter, q *http.Request) {
	body, _ := io.ReadAll(q.Body)
	s.mu.Lock()
	s.bodies = append(s.bodies, body)
	s.headers = append(s.headers, q.Header.Clone())
	n, h := len(s.bodies), s.hooks
	s.mu.Unlock()
	var b struct {
		Stream  bool            `json:"stream"`
		Prompt  json.RawMessage `json:"prompt"`
		Options struct {
			Usage bool `json:"include_usage"`
		} `json:"stream_options"`
		Params map[string]any `json:"kv_transfer_params"`
	}
	if err := json.Unmarshal(body, &b); err != nil {
		http.Error(w, `{"error":{"message":"bad JSON","code":400}}`, http.StatusBadRequest)
		return
	}
	if b.Params["do_remote_decode"] == true {
		s.seen <- "prefill"
		if h.prefill != nil && h.prefill(w, q, body) {
			return
		}
		fmt.Fprintf(w, `{"id":"p","choices":[{"index":0,"text":"x"}],"kv_transfer_params":%s}`, handoff(s.name, n))
		return
	}
	s.seen <- "decode"
	if h.decode != nil && h.decode(w, q, body) {
		return
	}
	text, _ := json.Marshal("echo of " + string(b.Prompt))
	if !b.Stream {
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprintf(w, `{"id":"d-%d","created":%d,"model":"m","choices":[{"index":0,"text":%s,"finish_reason":"stop"}],"usage":{"prompt_tokens":3,"completion_tokens":2,"total_tokens":5,"prompt_tokens_details":{"cached_tokens":1}}}`, n, n, text)
		return
	}
	w.Header().Set("Content-Type", "text/event-stream; charset=utf-8")
	fmt.Fprintf(w, "data: {\"id\":\"d-%d\",\"created\":%d,\"choices\":[{\"index\":0,\"text\":%s}]}\n\n", n, n, text)
	if b.Options.Usage {
		fmt.Fprintf(w, "data: {\"id\":\"d-%d\",\"choices\":[],\"usage\":{\"prompt_tokens\":3,\"completion_tokens\":2,\"total_tokens\":5}}\n\n", n)
	}
	fmt.Fprint(w, "data: [DONE]\n\n")
}

// handoff is a reference with an unknown key, odd spacing and a number that no
// float64 holds: it must arrive as it was made.
func handoff(name string, n int) string {
	return fmt.Sprintf(`{"do_remote_prefill":true, "do_remote_decode":false,"remote_block_ids":[[1,2,%d]],"remote_engine_id":%q,"future_key": {"x":18446744073709551615} }`, n, name)
}

func (s *standIn) got() (bodies [][]byte, released [][]byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([][]byte{}, s.bodies...), append([][]byte{}, s.released...)
}

// await returns when the stand-in has met word.
func (s *standIn) await(t *testing.T, word string) {
	t.Helper()
	timer := time.NewTimer(time.Minute)
	defer timer.Stop()
	for {
		select {
		case got := <-s.seen:
			if got == word {
				return
			}
		case <-timer.C:
			t.Fatalf("engine %s never met %q", s.name, word)
		}
	}
}

// front starts a router over the stand-ins and returns its URL.
func front(t *testing.T, cfg Config, p, d []*standIn) (*Router, string) {
	t.Helper()
	for _, s := range p {
		cfg.Prefill = append(cfg.Prefill, s.URL)
	}
	for _, s := range d {
		cfg.Decode = append(cfg.Decode, s.URL)
	}
	set := cfg.Backend
	cfg.Backend = backend.DefaultLimits()
	cfg.Backend.EveryDown = 5 * time.Millisecond
	cfg.Backend.Every = cmp.Or(set.Every, 5*time.Millisecond)
	cfg.Backend.Header = cmp.Or(set.Header, cfg.Backend.Header)
	cfg.Backend.Silence = cmp.Or(set.Silence, cfg.Backend.Silence)
	cfg.Backend.Probe = cmp.Or(set.Probe, time.Minute) // a busy machine is no engine that hangs
	cfg.Backend.Release = cmp.Or(set.Release, cfg.Backend.Release)
	known := make(chan struct{}, len(p)+len(d)) // the first states; nobody waits for later ones
	prev := cfg.Metrics.State
	cfg.Metrics.State = func(role, name string, ready bool) {
		if prev != nil {
			prev(role, name, ready)
		}
		select {
		case known <- struct{}{}:
		default:
		}
	}
	r, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); r.Run(ctx) }()
	srv := httptest.NewServer(r.Handler())
	t.Cleanup(func() {
		srv.Close()
		cancel()
		<-done
		http.DefaultClient.CloseIdleConnections()
	})
	for range len(p) + len(d) {
		<-known
	}
	return r, srv.URL
}

// ready reports whether a pair can serve.
func (r *Router) ready() bool { return r.unready() == nil }

func post(t *testing.T, url, body string) (int, http.Header, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("X-Request-Id", "client-label")
	return exchange(t, req)
}

// exchange sends a request and returns the whole answer.
func exchange(t *testing.T, req *http.Request) (status int, header http.Header, body string) {
	t.Helper()
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	out, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, resp.Header, string(out)
}

func pair(t *testing.T, cfg Config) (p, d *standIn, r *Router, url string) {
	t.Helper()
	p, d = newStandIn(t, "P"), newStandIn(t, "D")
	r, url = front(t, cfg, []*standIn{p}, []*standIn{d})
	return p, d, r, url
}

func contains(t *testing.T, body []byte, want string) {
	t.Helper()
	if !bytes.Contains(body, []byte(want)) {
		t.Errorf("%s\nlacks %s", body, want)
	}
}

// Package router is the HTTP front of a prefill/decode installation: it sends
// the prompt to a prefill engine, hands what comes back to a decode engine and
// passes the answer on.
//
// It drives engines that speak vLLM's kv_transfer_params, Tandem's or real
// vLLM's, and knows nothing that such an engine does not say over HTTP. A
// hand-off is opaque bytes to it, which it carries unchanged, never keeps, and
// releases on every path where no decode engine took it. Each client call is a
// flow, a value that decides; the handler's goroutine is its shell.
package router

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"slices"
	"sync"
	"time"

	"tandem/internal/backend"
	"tandem/internal/bystander"
	"tandem/internal/openai"
)

// Config is what a router is made from.
type Config struct {
	Prefill, Decode []string // base URLs
	// Decorate, when set, returns the transport to use in place of the given one,
	// which it wraps.
	Decorate func(http.RoundTripper) http.RoundTripper

	Backend      backend.Limits
	MaxBody      int64         // bytes of a request; 0: 32 MiB
	Retries      int           // per flow, before the first byte
	WriteTimeout time.Duration // one write to a client; 0: 30 s

	// SaltHeader names a request header that a trusted edge sets for each tenant;
	// "": none. Its value takes the place of the client's cache_salt on both legs.
	SaltHeader string

	Log            *slog.Logger
	Metrics        Metrics
	MetricsHandler http.Handler // serves /metrics; nil: 404
	Version        string

	// Chaos returns what GET /status says of faults on purpose; nil: nothing.
	Chaos func() string
}

// A Router serves clients. New starts nothing; Run probes the engines.
type Router struct {
	cfg      Config
	prefill  *backend.Pool
	decode   *backend.Pool
	started  time.Time
	releases sync.WaitGroup
	stopper  openai.Stopper
}

// New returns a router over the engines of cfg. A list may not be empty: a
// router without a prefill engine would serve every prompt on D unasked.
func New(cfg Config) (*Router, error) {
	if len(cfg.Prefill) == 0 || len(cfg.Decode) == 0 {
		return nil, errors.New("router: want at least one --prefill and one --decode URL")
	}
	if cfg.Backend == (backend.Limits{}) {
		cfg.Backend = backend.DefaultLimits()
	}
	if cfg.MaxBody == 0 {
		cfg.MaxBody = 32 << 20
	}
	if cfg.WriteTimeout == 0 {
		cfg.WriteTimeout = 30 * time.Second
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	cfg.Metrics.fill(bystander.NewHooks("router", cfg.Log))
	p, err := backend.NewPool(backend.Prefill, cfg.Prefill, cfg.Backend, cfg.Decorate)
	if err != nil {
		return nil, err
	}
	d, err := backend.NewPool(backend.Decode, cfg.Decode, cfg.Backend, cfg.Decorate)
	if err != nil {
		return nil, err
	}
	if len(p.All())+len(d.All()) == 2 {
		if why := misfit(p.All()[0], d.All()[0]); why != "" {
			return nil, errors.New("router: " + why)
		}
	}
	return &Router{cfg: cfg, prefill: p, decode: d, started: time.Now()}, nil
}

// Run probes the engines until ctx ends and returns when nothing of the router
// runs any more.
func (r *Router) Run(ctx context.Context) {
	changed := func(b *backend.Backend, from, to *backend.View) {
		r.cfg.Log.Info("backend changed", "role", string(b.Role()), "backend", b.Name(),
			"from", from.State.String(), "to", to.State.String(), "reason", to.Reason)
		r.cfg.Metrics.State(string(b.Role()), b.Name(), to.State == backend.Ready)
	}
	var wg sync.WaitGroup
	wg.Go(func() { r.prefill.Run(ctx, changed) })
	wg.Go(func() { r.decode.Run(ctx, changed) })
	wg.Wait()
	r.releases.Wait()
}

// Stop ends the calls that run, and those that still come: each client is told
// that the server is shutting down, in a stream with an error event and the end
// mark. It does not wait for them. It is for the end of a drain.
func (r *Router) Stop() { r.stopper.Stop() }

// Status is the answer of GET /status.
type Status struct {
	Role     string          `json:"role"`
	Version  string          `json:"version"`
	Ready    bool            `json:"ready"`
	Reason   string          `json:"reason,omitempty"` // why it is not ready
	UptimeS  float64         `json:"uptime_seconds"`
	Chaos    string          `json:"chaos,omitempty"` // what Config.Chaos says
	Backends []BackendStatus `json:"backends"`
}

// A BackendStatus is one engine as the router sees it.
type BackendStatus struct {
	Role    string          `json:"role"`
	URL     string          `json:"url"`
	State   string          `json:"state"`
	Reason  string          `json:"reason,omitempty"`
	Running int             `json:"running"` // legs
	Info    json.RawMessage `json:"server_info,omitempty"`
}

func (r *Router) status(w *recorder, q *http.Request) {
	s := Status{Role: "router", Version: r.cfg.Version, UptimeS: time.Since(r.started).Seconds()}
	if fail := r.unready(); fail != nil {
		s.Reason = fail.Message
	} else {
		s.Ready = true
	}
	if r.cfg.Chaos != nil {
		s.Chaos = r.cfg.Chaos()
	}
	all := slices.Concat(r.prefill.All(), r.decode.All())
	s.Backends = make([]BackendStatus, len(all))
	var wg sync.WaitGroup
	for i, b := range all {
		v := b.View()
		s.Backends[i] = BackendStatus{Role: string(b.Role()), URL: b.URL(), State: v.State.String(), Reason: v.Reason, Running: b.Legs(), Info: v.Info}
		if v.State != backend.Ready {
			continue
		}
		if why := r.partnerless(b); why != "" {
			s.Backends[i].State, s.Backends[i].Reason = "no partner", why
		}
		wg.Go(func() {
			if code, body, err := b.Fetch(q.Context(), "/server_info", nil, 1<<20); err == nil && code == http.StatusOK && json.Valid(body) {
				s.Backends[i].Info = body
			}
		})
	}
	wg.Wait()
	writeJSON(w, s)
}

// fromDecode answers a GET with what a decode engine says.
func (r *Router) fromDecode(w *recorder, q *http.Request) {
	b := r.decode.Pick()
	if b == nil {
		noBackend(backend.Decode).write(w)
		return
	}
	status, body, err := b.Fetch(q.Context(), q.URL.EscapedPath(), legHeader(q, openai.RequestID(q.Header)), 8<<20)
	passOn(w, status, body, err)
}

// toDecode passes a POST to a decode engine.
func (r *Router) toDecode(w *recorder, q *http.Request) {
	body, refused := openai.ReadBody(w, q, r.cfg.MaxBody)
	if refused != nil {
		as(refused).write(w)
		return
	}
	b := r.decode.Pick()
	if b == nil {
		noBackend(backend.Decode).write(w)
		return
	}
	status, out, err := b.Exchange(q.Context(), q.URL.Path, legHeader(q, openai.RequestID(q.Header)), body, maxPlain)
	passOn(w, status, out, err)
}

// passOn answers what an engine did, or that it gave no whole answer.
func passOn(w *recorder, status int, body []byte, err error) {
	if err != nil {
		unanswered(err, 1).write(w)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = w.Write(body) // the client may be gone
}

// passed are the client's headers that both legs see.
var passed = []string{"Authorization", "Traceparent", "Tracestate", "X-Session-Id"}

func legHeader(q *http.Request, id string) http.Header {
	h := make(http.Header, 4)
	h["Content-Type"] = []string{"application/json"}
	h["X-Request-Id"] = []string{id}
	for _, k := range passed {
		if v := q.Header[k]; len(v) > 0 {
			h[k] = v
		}
	}
	return h
}

func writeJSON(w http.ResponseWriter, v any) {
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(v) // the client may be gone
}

func closeBody(b io.Closer) { _ = b.Close() }

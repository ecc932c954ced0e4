package server

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"tandem/internal/bystander"
	"tandem/internal/chat"
	"tandem/internal/connector"
	"tandem/internal/engine"
	"tandem/internal/openai"
	"tandem/internal/tokenizer"
)

// An Engine is what the server uses of an *engine.Engine.
type Engine interface {
	Submit(context.Context, engine.Request) (*engine.Stream, error)
	Info() engine.ModelInfo
	Limit() int
	Err() error
	Status() engine.Status
}

// A Connector is what the server uses of a *connector.Connector: leases that
// end although no request ran.
type Connector interface {
	ReturnUnread(h *connector.Handoff)
	ReleaseByHandoff(raw []byte) error
}

var (
	_ Engine    = (*engine.Engine)(nil)
	_ Connector = (*connector.Connector)(nil)
)

// A Config says what a Server serves. Engine, Tokenizer and ModelNames are
// needed.
type Config struct {
	Engine    Engine
	Connector Connector // nil: no hand-offs
	Tokenizer *tokenizer.Tokenizer
	Template  *chat.Template // nil: chat requests are refused

	// ModelNames are the names that requests may use; answers carry the first.
	ModelNames []string
	Version    string // of /version

	// Info adds members to /server_info: role, peers, leases, command line. It is
	// called for each request and may be nil.
	Info func() map[string]any

	// MetricsHandler answers /metrics; nil: 404.
	MetricsHandler http.Handler

	// AllowRequestPolicy lets a request say by its header what happens when its
	// KV load fails. Else the header has no effect, and the answer says so.
	AllowRequestPolicy bool

	APIKey       string        // "": no key is asked for
	WriteTimeout time.Duration // of each write to a client; 30 s

	Metrics Metrics
	Log     *slog.Logger // nil: no logs
}

// Metrics receives copies of what happens; nil functions are not called. What a
// function does, its panic included, changes no answer.
type Metrics struct {
	// Request tells of an answered request. Status is openai.StatusClientGone
	// for one whose client left.
	Request func(path, method string, status int)

	// Params tells of the parameters of a prompt that was submitted.
	Params func(n, maxTokens int)
}

// fill makes every function safe to call.
func (m *Metrics) fill(h *bystander.Hooks) {
	m.Request = bystander.Safe3(h, m.Request)
	m.Params = bystander.Safe2(h, m.Params)
}

// A Server answers the HTTP requests of one engine. It is safe for concurrent
// use and holds no state besides the draining flag.
type Server struct {
	cfg      Config
	submit   func(context.Context, engine.Request) (stream, error)
	key      openai.Key
	started  time.Time
	draining atomic.Bool
	stopper  openai.Stopper
	widest   int // bytes of the longest token
	routes   map[string]route
}

// A stream is what a request uses of an *engine.Stream.
type stream interface {
	Next(context.Context) (engine.Output, error)
	Stop(choice int)
	Abort(reason string)
	Close()
}

type route struct {
	method string
	keyed  bool
	serve  func(http.ResponseWriter, *http.Request)
}

// New returns a server. It starts nothing.
func New(cfg Config) (*Server, error) {
	switch {
	case cfg.Engine == nil:
		return nil, errors.New("server: a Config needs an Engine")
	case cfg.Tokenizer == nil:
		return nil, errors.New("server: a Config needs a Tokenizer")
	case len(cfg.ModelNames) == 0 || cfg.ModelNames[0] == "":
		return nil, errors.New("server: a Config needs a model name")
	}
	if cfg.WriteTimeout <= 0 {
		cfg.WriteTimeout = 30 * time.Second
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	cfg.Metrics.fill(bystander.NewHooks("server", cfg.Log))
	s := &Server{widest: 1, cfg: cfg, key: openai.NewKey(cfg.APIKey), started: time.Now()}
	for id := range cfg.Tokenizer.Size() {
		s.widest = max(s.widest, len(cfg.Tokenizer.Piece(int32(id))))
	}
	s.submit = func(ctx context.Context, r engine.Request) (stream, error) {
		st, err := cfg.Engine.Submit(ctx, r)
		if err != nil {
			return nil, err
		}
		return st, nil
	}
	s.routes = map[string]route{
		"/v1/completions":      {http.MethodPost, true, s.completions},
		"/v1/chat/completions": {http.MethodPost, true, s.chat},
		"/v1/models":           {http.MethodGet, true, s.models},
		"/tokenize":            {http.MethodPost, true, s.tokenize},
		"/detokenize":          {http.MethodPost, true, s.detokenize},
		"/release_kv_handoff":  {http.MethodPost, false, s.release},
		"/health":              {http.MethodGet, false, s.health},
		"/health/ready":        {http.MethodGet, false, s.ready},
		"/ping":                {http.MethodGet, false, s.health},
		"/version":             {http.MethodGet, false, s.version},
		"/server_info":         {http.MethodGet, false, s.serverInfo},
		"/model_info":          {http.MethodGet, false, s.modelInfo},
		"/metrics":             {http.MethodGet, false, s.metrics},
	}
	return s, nil
}

// Drain makes new requests a 503 and /health/ready not ready. Running requests
// go on.
func (s *Server) Drain() { s.draining.Store(true) }

// Stop ends the generating requests that run, and those that still come: each
// client is told that the server is shutting down, in a stream with an error
// event and the end mark. It does not wait for them. It is for the end of a
// drain.
func (s *Server) Stop() { s.stopper.Stop() }

// Handler returns the handler of all paths.
func (s *Server) Handler() http.Handler { return s }

// ServeHTTP answers one request. Paths are compared, never cleaned or joined.
func (s *Server) ServeHTTP(w http.ResponseWriter, q *http.Request) {
	rec := &recorder{ResponseWriter: w}
	openai.Arm(http.NewResponseController(rec), s.cfg.WriteTimeout)
	rec.Header().Set("X-Request-Id", openai.RequestID(q.Header))
	label := q.URL.Path
	r, ok := s.routes[label]
	if id, is := strings.CutPrefix(label, "/v1/models/"); !ok && is {
		label = "/v1/models/{id}"
		r, ok = route{http.MethodGet, true, func(w http.ResponseWriter, _ *http.Request) { s.model(w, id) }}, true
	}
	switch {
	case !ok:
		label = "other"
		s.fail(rec, openai.NewError(http.StatusNotFound, "", "there is nothing at this path"))
	case q.Method != r.method && (r.method != http.MethodGet || q.Method != http.MethodHead):
		rec.Header().Set("Allow", r.method)
		s.fail(rec, openai.NewError(http.StatusMethodNotAllowed, "", "this path takes %s only", r.method))
	default:
		if r.keyed {
			if err := s.key.Check(rec.Header(), q); err != nil {
				s.fail(rec, err)
				break
			}
		}
		r.serve(rec, q)
	}
	s.cfg.Metrics.Request(label, method(q.Method), max(rec.status, http.StatusOK))
}

// method returns m when it is a known method: labels of metrics are bounded.
func method(m string) string {
	switch m {
	case http.MethodGet, http.MethodHead, http.MethodPost, http.MethodPut, http.MethodDelete, http.MethodOptions, http.MethodPatch:
		return m
	}
	return "other"
}

// read returns the body of q, at most openai.MaxBodyBytes.
func read(w http.ResponseWriter, q *http.Request) ([]byte, error) {
	raw, bad := openai.ReadBody(w, q, openai.MaxBodyBytes)
	if bad != nil {
		return nil, bad
	}
	return raw, nil
}

// named checks the model of a request; "" is the served one.
func (s *Server) named(model string) error {
	if model == "" || slices.Contains(s.cfg.ModelNames, model) {
		return nil
	}
	return openai.NewError(http.StatusNotFound, "model", "the model does not exist here; GET /v1/models lists what does")
}

// fail writes the error body of err and returns what the client sees.
func (s *Server) fail(w http.ResponseWriter, err error) {
	e := answerTo(err)
	// A load's failure was logged where it was met, and a storm of them is few lines
	// there. So was what makes an engine unavailable. The request's own line names
	// either.
	_, load := errors.AsType[*connector.LoadError](err)
	if e.Status >= 500 && e.Status != http.StatusServiceUnavailable && !load {
		s.cfg.Log.Error("request failed", "id", w.Header().Get("X-Request-Id"), "status", e.Status, "err", err)
	}
	s.answerError(w, e)
}

// answerError is fail for what is no news to the log.
func (s *Server) answerError(w http.ResponseWriter, e *openai.Error) {
	if e.Status == http.StatusServiceUnavailable || e.Status == http.StatusTooManyRequests {
		w.Header().Set("Retry-After", "1")
	}
	_ = s.write(w, e.Status, e) // a client that has gone needs no error
}

// write sends v as the whole answer. Its last byte leaves when the handler has
// returned: who has the answer finds it counted.
func (s *Server) write(w http.ResponseWriter, status int, v any) error {
	body, err := json.Marshal(v)
	if err != nil {
		return err
	}
	openai.Arm(http.NewResponseController(w), s.cfg.WriteTimeout)
	h := w.Header()
	h.Set("Content-Type", "application/json")
	h.Set("Content-Length", strconv.Itoa(len(body)))
	w.WriteHeader(status)
	last := len(body) - 1
	if _, err := w.Write(body[:last]); err != nil {
		return err
	}
	_, err = w.Write(body[last:]) // so little that net/http keeps it back
	return err
}

// A recorder notes the status of an answer.
type recorder struct {
	http.ResponseWriter
	status int
}

// WriteHeader notes the status and passes it on.
func (r *recorder) WriteHeader(status int) {
	if r.status == 0 {
		r.status = status
	}
	r.ResponseWriter.WriteHeader(status)
}

// Unwrap lets http.ResponseController reach the connection.
func (r *recorder) Unwrap() http.ResponseWriter { return r.ResponseWriter }

package router

import (
	"net/http"
	"strings"

	"tandem/internal/backend"
	"tandem/internal/openai"
)

// A route is what one path takes.
type route struct {
	method string
	serve  func(*recorder, *http.Request)
}

// Handler returns the HTTP front. Paths are compared, never cleaned or joined.
func (r *Router) Handler() http.Handler {
	routes := map[string]route{
		"/v1/completions":      {http.MethodPost, r.serve},
		"/v1/chat/completions": {http.MethodPost, r.serve},
		"/v1/models":           {http.MethodGet, r.fromDecode},
		"/tokenize":            {http.MethodPost, r.toDecode},
		"/detokenize":          {http.MethodPost, r.toDecode},
		"/health":              {http.MethodGet, r.health},
		"/health/ready":        {http.MethodGet, r.health},
		"/ping":                {http.MethodGet, r.health},
		"/status":              {http.MethodGet, r.status},
		"/version": {http.MethodGet, func(w *recorder, _ *http.Request) {
			writeJSON(w, map[string]string{"version": r.cfg.Version})
		}},
		"/server_info": {http.MethodGet, func(w *recorder, _ *http.Request) {
			// For a router that was given this URL as an engine's.
			writeJSON(w, map[string]any{"version": r.cfg.Version, "tandem": backend.Member{Role: "router"}})
		}},
	}
	if r.cfg.MetricsHandler != nil {
		routes["/metrics"] = route{http.MethodGet, func(w *recorder, q *http.Request) { r.cfg.MetricsHandler.ServeHTTP(w, q) }}
	}
	return http.HandlerFunc(func(plain http.ResponseWriter, q *http.Request) {
		w := r.recorder(plain)
		to, ok := routes[q.URL.Path]
		if id, is := strings.CutPrefix(q.URL.Path, "/v1/models/"); is && id != "" {
			to, ok = route{http.MethodGet, r.fromDecode}, true
		}
		switch {
		case !ok:
			as(openai.NewError(http.StatusNotFound, "", "there is nothing at this path")).write(w)
		case q.Method != to.method && (to.method != http.MethodGet || q.Method != http.MethodHead):
			w.Header().Set("Allow", to.method)
			as(openai.NewError(http.StatusMethodNotAllowed, "", "this path takes %s only", to.method)).write(w)
		default:
			to.serve(w, q)
		}
	})
}

// health answers as engines do: nothing where all is well, else an error.
func (r *Router) health(w *recorder, _ *http.Request) {
	if fail := r.unready(); fail != nil {
		fail.write(w)
		return
	}
	w.WriteHeader(http.StatusOK)
}

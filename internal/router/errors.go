package router

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"

	"tandem/internal/backend"
	"tandem/internal/openai"
)

// A failure is an answer that the router makes itself, or passes on from an
// engine when body is set.
type failure struct {
	status  int
	kind    string // error.type: as engines have it, or what only a router meets
	message string
	param   string
	body    []byte // an engine's own error body
	retry   int    // Retry-After in seconds, 0: none
	flow    *flow  // what was tried, or nil
}

// json returns the body to send.
func (f *failure) json() []byte {
	if f.body != nil {
		return f.body
	}
	out, err := json.Marshal(&openai.Error{Status: f.status, Type: f.kind, Param: f.param, Message: f.message})
	if err != nil {
		panic(err) // strings and numbers always marshal
	}
	return out
}

// write answers a request that has no byte yet.
func (f *failure) write(w http.ResponseWriter) {
	w.Header().Set("Content-Type", "application/json")
	if f.retry > 0 {
		w.Header().Set("Retry-After", strconv.Itoa(f.retry))
	}
	if r, ok := w.(*recorder); ok {
		r.outcome = f.kind
	}
	w.WriteHeader(f.status)
	// The client may be gone; there is nobody else to tell.
	_, _ = w.Write(f.json())
}

func bad(param, format string, args ...any) *failure {
	return as(openai.Bad(param, format, args...))
}

// as returns an answer that engines give as well.
func as(e *openai.Error) *failure {
	return &failure{status: e.Status, kind: e.Type, param: e.Param, message: e.Message}
}

// shutdown is what requests are told that the router cannot wait for.
func shutdown() *failure {
	f := as(openai.NewError(http.StatusServiceUnavailable, "", "%s", openai.ErrStopping))
	f.retry = 1
	return f
}

// noBackend says that no backend of a role can serve.
func noBackend(role backend.Role) *failure {
	return &failure{
		status: http.StatusServiceUnavailable, kind: "backend_unavailable", retry: 1,
		message: fmt.Sprintf("no %s engine is ready; see /status for the reason of each", role),
	}
}

// failure turns a leg's outcome into the answer the client gets.
func (o outcome) failure(f *flow) *failure {
	if o.refusal != "" {
		return &failure{status: http.StatusBadGateway, kind: "bad_hand_off", message: o.refusal}
	}
	if o.status != 0 {
		out := &failure{status: o.status, kind: "engine_error", body: o.body}
		if !json.Valid(o.body) {
			out.body = nil
			out.message = fmt.Sprintf("the engine answered status %d without a JSON body", o.status)
		}
		if o.status == http.StatusServiceUnavailable || o.status == http.StatusTooManyRequests {
			out.retry = 1
		}
		return out
	}
	var t *backend.TransportError
	leg := "an engine"
	if errors.As(o.err, &t) {
		leg = "engine " + t.Backend
	}
	return &failure{
		status: http.StatusBadGateway, kind: "backend_unavailable", retry: 1,
		message: fmt.Sprintf("%s ended the exchange without an answer (attempt %d)", leg, f.attempts),
	}
}

package router

import (
	"encoding/json"
	"maps"
	"net/http"
	"strconv"

	"tandem/internal/backend"
	"tandem/internal/openai"
	"tandem/internal/router/flow"
)

// A failure is an answer that the router makes itself, or passes on from an
// engine when body is set.
type failure struct {
	status  int
	kind    string // error.type: as engines have it, or what only a router meets
	message string
	param   string
	body    []byte // an engine's own error body
	header  http.Header
	retry   int       // Retry-After in seconds, 0: none
	flow    *flowCall // what was tried, or nil
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
	maps.Copy(w.Header(), f.header)
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

// flowCall is the core of a call over the engines of this router.
type flowCall = flow.Flow[*backend.Backend]

// ended returns the answer of a flow that failed.
func ended(f *flow.Failure) *failure {
	return &failure{status: f.Status, kind: f.Kind, message: f.Message, body: f.Body, header: f.Header, retry: f.Retry}
}

// noBackend says that no backend of a role can serve.
func noBackend(role backend.Role) *failure { return ended(flow.NoBackend(role)) }

// unanswered is what a client gets where an engine gave no answer to the try of
// number attempts.
func unanswered(err error, attempts int) *failure {
	return ended(flow.Outcome{Err: err}.Failure(attempts))
}

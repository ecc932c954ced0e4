package router

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"strconv"

	"tandem/internal/backend"
	"tandem/internal/openai"
	"tandem/internal/router/flow"
)

// A failure is an answer that the router makes itself, or passes on from an
// engine.
type failure struct {
	flow.Failure
	param string
	tried *flowCall // or nil
}

// json returns the body to send.
func (f *failure) json() []byte {
	if f.Body != nil {
		return f.Body
	}
	out, err := json.Marshal(&openai.Error{Status: f.Status, Type: f.Kind, Param: f.param, Message: f.Message})
	if err != nil {
		panic(err) // strings and numbers always marshal
	}
	return out
}

// write answers a request that has no byte yet.
func (f *failure) write(w *recorder) {
	maps.Copy(w.Header(), f.Header)
	w.Header().Set("Content-Type", "application/json")
	if f.Retry > 0 {
		w.Header().Set("Retry-After", strconv.Itoa(f.Retry))
	}
	w.outcome = f.Kind
	w.WriteHeader(f.Status)
	// The client may be gone; there is nobody else to tell.
	_, _ = w.Write(f.json())
}

func bad(param, format string, args ...any) *failure {
	return as(openai.Bad(param, format, args...))
}

// as returns an answer that engines give as well.
func as(e *openai.Error) *failure {
	return &failure{Failure: flow.Failure{Status: e.Status, Kind: e.Type, Message: e.Message}, param: e.Param}
}

// hungUp is what a client is told that has closed its half of the connection.
func hungUp() *failure {
	return as(openai.NewError(openai.StatusClientGone, "", "the client has gone"))
}

// shutdown is what requests are told that the router cannot wait for.
func shutdown() *failure {
	f := as(openai.NewError(http.StatusServiceUnavailable, "", "%s", openai.ErrStopping))
	f.Retry = 1
	return f
}

// flowCall is the core of a call over the engines of this router.
type flowCall = flow.Flow[*backend.Backend]

// ended returns the answer of a flow that failed.
func ended(f *flow.Failure) *failure { return &failure{Failure: *f} }

// gateway says that what an engine did is no answer.
func gateway(kind, format string, args ...any) *failure {
	return ended(&flow.Failure{Status: http.StatusBadGateway, Kind: kind, Message: fmt.Sprintf(format, args...)})
}

const badAnswer = "bad_answer"

// noBackend says that no backend of a role can serve.
func noBackend(role backend.Role) *failure { return ended(flow.NoBackend(role)) }

// unanswered is what a client gets where an engine gave no answer to the try of
// number attempts.
func unanswered(err error, attempts int) *failure {
	return ended(flow.Outcome{Err: err}.Failure(attempts))
}

package flow

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"tandem/internal/backend"
)

// Statuses of HTTP that decide something here.
const (
	tooManyRequests = 429
	notImplemented  = 501
	badGateway      = 502
	unavailable     = 503
)

// An Outcome is how a leg ended.
type Outcome struct {
	Status  int                 // of the engine's answer; 0: there was none
	Body    []byte              // of an answer that is no success
	Header  map[string][]string // of it: what the client shall have as well
	Handoff json.RawMessage     // of a prefill leg, "" where P gave none
	Err     error               // where there was no answer
	Message string              // what the engine says of its failure
	Param   string              // which field it blames
	Refusal string              // a refused hand-off, which is no fault of the client

	then string // why it was not tried again, where another try was due
}

// Answered is the outcome of a leg that was answered, but not with success.
func Answered(status int, body []byte) Outcome {
	var e struct {
		Error struct {
			Message string `json:"message"`
			Param   string `json:"param"`
		} `json:"error"`
	}
	_ = json.Unmarshal(body, &e) // what has another form says nothing
	return Outcome{Status: status, Body: body, Message: e.Error.Message, Param: e.Error.Param}
}

// Refuses reports whether the engine refuses what the router put into the leg.
// Clients cannot send kv_transfer_params, so P and D do not go together.
func (o Outcome) Refuses() bool {
	return o.Status/100 == 4 && strings.HasPrefix(o.Param, "kv_transfer_params")
}

// OK reports whether the leg did what it was for.
func (o Outcome) OK() bool { return o.Status/100 == 2 }

// Retryable reports whether another backend may do better: there was no
// answer, or the engine says that the fault is its own. What a client did wrong
// stays wrong elsewhere.
func (o Outcome) Retryable() bool {
	return o.Status == 0 || o.Refusal != "" || o.Status >= 500 && o.Status != notImplemented || o.Status == tooManyRequests
}

// A Failure is an answer that a flow ends with. Body is an engine's own where it
// is set; else the other fields say what to answer.
type Failure struct {
	Status  int
	Kind    string // error.type: as engines have it, or what only a router meets
	Message string
	Body    []byte
	Header  map[string][]string // of an engine's own answer
	Retry   int                 // Retry-After in seconds, 0: none
}

// NoBackend says that no backend of a role can serve.
func NoBackend(role backend.Role) *Failure {
	return &Failure{
		Status: unavailable, Kind: "backend_unavailable", Retry: 1,
		Message: fmt.Sprintf("no %s engine is ready; see /status for the reason of each", role),
	}
}

func badHandoff(message string) *Failure {
	return &Failure{Status: badGateway, Kind: "bad_hand_off", Message: message}
}

// EngineError is the kind of a failure that an engine told in its own words.
const EngineError = "engine_error"

// Failure turns the outcome of attempt number attempts into the answer that the
// client gets.
func (o Outcome) Failure(attempts int) *Failure {
	if o.Refusal != "" {
		return badHandoff(o.Refusal)
	}
	if o.Status != 0 {
		out := &Failure{Status: o.Status, Kind: EngineError, Body: o.Body, Header: o.Header}
		if !json.Valid(o.Body) {
			out.Body = nil
			out.Message = fmt.Sprintf("the engine answered status %d without a JSON body", o.Status)
		}
		if o.Status == unavailable || o.Status == tooManyRequests {
			out.Retry = 1
		}
		return out
	}
	leg, what := "an engine", "ended the exchange without an answer"
	if t, ok := errors.AsType[*backend.TransportError](o.Err); ok {
		leg = "engine " + t.Backend
		if t.Unreached() {
			what = "was not reached"
		}
	}
	if o.then != "" {
		what += "; " + o.then
	} else {
		what += fmt.Sprintf(" (attempt %d)", attempts)
	}
	return &Failure{Status: badGateway, Kind: "backend_unavailable", Retry: 1, Message: leg + " " + what}
}

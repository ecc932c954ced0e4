package server

import (
	"context"
	"errors"
	"net/http"
	"strings"

	"tandem/internal/chat"
	"tandem/internal/connector"
	"tandem/internal/engine"
	"tandem/internal/openai"
)

// A rule maps a decision of a lower layer to what the client sees.
type rule struct {
	err    error
	status int
	param  string
	text   string
}

// rules are tried in order, after the typed errors of answerTo.
var rules = []rule{
	{engine.ErrOverloaded, http.StatusTooManyRequests, "", "too many requests run and wait here; try again later"},
	{engine.ErrDraining, http.StatusServiceUnavailable, "", "the engine is shutting down and takes no new requests"},
	{openai.ErrStopping, http.StatusServiceUnavailable, "", "the server is shutting down"},
	{engine.ErrClosed, http.StatusServiceUnavailable, "", "the engine is not running"},
	{engine.ErrStalled, http.StatusServiceUnavailable, "", "the engine makes no progress"},
	{engine.ErrSlowReader, http.StatusRequestTimeout, "", "the answer was not read in time"},
	{engine.ErrAborted, openai.StatusClientGone, "", "the request was aborted"},
	{engine.ErrNoConnector, http.StatusBadRequest, fieldParams, "this engine has no KV connector, so it can neither offer nor read KV"},
	{connector.ErrRole, http.StatusBadRequest, fieldParams, "the role of this engine excludes this"},
	{connector.ErrMAC, http.StatusBadRequest, fieldParams, "the hand-off is not vouched for by the cluster token"},
	{connector.ErrStale, http.StatusConflict, fieldParams, "the hand-off belongs to another incarnation or epoch"},
	{connector.ErrLeaseGone, http.StatusGone, fieldParams, "the lease has ended"},
	{connector.ErrIncompatible, http.StatusInternalServerError, "", "the engines cannot share KV"},
	{connector.ErrClosed, http.StatusServiceUnavailable, "", "the KV connector is not running"},
	{context.Canceled, openai.StatusClientGone, "", "the client has gone"},
	{context.DeadlineExceeded, http.StatusGatewayTimeout, "", "the request took too long"},
}

const fieldParams = "kv_transfer_params"

// answerTo returns what a client sees of err. Texts of errors that are not the
// client's stay in the log: they may name files and addresses.
func answerTo(err error) *openai.Error {
	var (
		own     *openai.Error
		invalid *engine.InvalidError
		handoff *connector.HandoffError
		load    *connector.LoadError
		input   *chat.InputError
		render  *chat.RenderError
	)
	switch {
	case errors.As(err, &own):
		return own
	case errors.As(err, &handoff):
		return openai.Bad(fieldParams+"."+handoff.Field, "%s", clean(handoff.Reason))
	case errors.As(err, &load):
		e := openai.NewError(http.StatusInternalServerError, "", "loading the prompt's KV from another engine failed: %s", load.Class)
		e.Reason = "kv_load_" + string(load.Class)
		return e
	case errors.As(err, &invalid) && invalid.Limit > 0:
		e := openai.Bad(invalid.Field, "This model's maximum context length is %d tokens, prompt and answer together. However, the prompt has %d tokens and leaves no room for an answer.",
			invalid.Limit, invalid.Length)
		e.Reason = openai.ReasonContextLength
		return e
	case errors.As(err, &invalid):
		return openai.Bad(invalid.Field, "%s", clean(invalid.Msg))
	case errors.As(err, &input):
		return openai.Bad(input.Field, "%s", clean(input.Msg))
	case errors.As(err, &render):
		return openai.Bad("messages", "the chat template does not take these messages: %s", clean(render.Msg))
	}
	for _, r := range rules {
		if errors.Is(err, r.err) {
			return openai.NewError(r.status, r.param, "%s", r.text)
		}
	}
	return openai.NewError(http.StatusInternalServerError, "", "internal error; the log of the engine says more")
}

// clean returns at most 300 bytes of s, as plain text.
func clean(s string) string {
	s = strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f || r == '\uFFFD' {
			return ' '
		}
		return r
	}, s)
	if len(s) > 300 {
		s = strings.ToValidUTF8(s[:300], "") + "…"
	}
	return s
}

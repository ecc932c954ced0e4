package server

import (
	"context"
	"errors"
	"net/http"
	"time"

	"tandem/internal/openai"
)

// A goneError says that the answer could not be delivered.
type goneError struct{ err error }

// Error returns the cause.
func (e *goneError) Error() string { return "server: writing an answer: " + e.err.Error() }

// Unwrap returns the cause.
func (e *goneError) Unwrap() error { return e.err }

// end answers an error, ends all streams and logs the request.
func (c *call) end(begun time.Time, err error) {
	var gone *goneError
	left := errors.As(err, &gone)
	if err != nil && !left && c.q.Context().Err() != nil {
		// A request that is refused is so whether its client waits or not: what broke
		// off in the middle of its body looks gone.
		_, refused := errors.AsType[*openai.Error](err)
		if openai.Stopping(c.q.Context()) {
			err = openai.ErrStopping
		} else {
			left = !refused
		}
	}
	for _, j := range c.jobs {
		switch {
		case j.stream == nil:
		case left || err != nil:
			j.stream.Abort("answer not delivered")
		default:
			j.stream.Close()
		}
	}
	outcome, status := "ok", http.StatusOK
	switch {
	case left:
		outcome, status = "client_gone", openai.StatusClientGone
		if gone == nil { // it may have closed its half of the connection and read on
			_ = c.fail(context.Canceled)
		}
	case err != nil:
		e := c.fail(err)
		outcome, status = e.Type, e.Status
		if errors.Is(err, openai.ErrStopping) {
			outcome = "shutdown"
		}
	}
	if r, ok := c.w.(*recorder); ok {
		r.status = status // a stream that failed was begun with 200
	}
	c.log(begun, outcome, status, err)
}

// fail tells the client of err: with a status, or with an event once the answer
// has begun.
func (c *call) fail(err error) *openai.Error {
	e := answerTo(err)
	switch {
	case c.sse == nil || !c.sse.Begun():
		tellFailure(c.w.Header(), err)
		c.s.fail(c.w, err)
	case c.sse.Send(e) == nil:
		_ = c.sse.Done() // the client may have gone
	}
	return e
}

func (c *call) log(begun time.Time, outcome string, status int, err error) {
	if len(c.jobs) == 0 && err != nil && status < 500 {
		c.s.cfg.Log.Info("request refused", "id", c.id, "status", status, "err", answerTo(err).Error())
		return
	}
	u := c.total()
	args := []any{
		"id", c.id, "outcome", outcome, "status", status, "prompts", len(c.jobs),
		"prompt_tokens", u.PromptTokens, "cached", u.Details.Cached, "loaded", u.KVTransfer.Loaded,
		"recomputed", u.KVTransfer.Recomputed, "completion_tokens", u.CompletionTokens,
		"total", time.Since(begun).Round(10 * time.Microsecond),
	}
	if !c.first.IsZero() {
		args = append(args, "first", c.first.Sub(begun).Round(10*time.Microsecond))
	}
	if len(c.jobs) > 0 {
		args = append(args, "finish", string(c.jobs[0].finish), "handoff", c.jobs[0].handoff != nil)
	}
	if f := u.KVTransfer.Failure; f != "" {
		args = append(args, "load_failure", f)
	}
	if err != nil {
		args = append(args, "err", err)
	}
	c.s.cfg.Log.Info("request", args...)
}

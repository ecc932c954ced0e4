package router

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"strconv"
	"time"

	"tandem/internal/backend"
	"tandem/internal/router/flow"
)

// prefillLeg runs the whole prefill leg.
func (c *call) prefillLeg(ctx context.Context, f *flowCall, prompt json.RawMessage) (o flow.Outcome) {
	defer c.timed(ctx, f.Prefill(), &o)()
	// A client that leaves may leave while P's answer is under way: the answer is
	// taken all the same, so that its lease can be released.
	status, body, err := f.Prefill().Exchange(ctx, c.path, c.header, c.prefillBody(prompt), 32<<20)
	if err != nil {
		return flow.Outcome{Err: err}
	}
	if status/100 != 2 {
		return flow.Answered(status, body)
	}
	var answer struct {
		Params json.RawMessage `json:"kv_transfer_params"`
	}
	if err := json.Unmarshal(body, &answer); err != nil {
		return flow.Outcome{Status: http.StatusBadGateway,
			Body: gateway("bad_hand_off", "prefill engine %s answered what is no JSON", f.Prefill().Name()).json()}
	}
	if len(answer.Params) > 0 && answer.Params[0] == '{' && !empty(answer.Params) {
		o.Handoff = answer.Params
	}
	o.Status = status
	return o
}

// maxPlain is how much of a plain answer is held until its end, in bytes. What is
// longer is passed on as it comes.
const maxPlain = 64 << 20

// decodeLeg starts the decode leg and holds the answer until its first bytes
// are there, so that a failure before the first content keeps its status; a
// plain answer until it is whole, since one that breaks off is no answer.
func (c *call) decodeLeg(ctx context.Context, f *flowCall, prompt json.RawMessage) (leg *begun, o flow.Outcome) {
	defer c.timed(ctx, f.Decode(), &o)()
	resp, err := f.Decode().Post(ctx, c.path, c.decodeHeader(), c.decodeBody(prompt, f.Handoff()))
	if err != nil {
		return nil, flow.Outcome{Err: err}
	}
	if resp.StatusCode/100 != 2 {
		defer closeBody(resp.Body)
		body, err := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
		if err != nil {
			body = nil // the status alone says enough
		}
		o = flow.Answered(resp.StatusCode, body)
		o.Header = transferHeader(resp.Header)
		return nil, o
	}
	first, err := c.begin(resp.Body)
	if err != nil {
		closeBody(resp.Body)
		if ctx.Err() == nil {
			f.Decode().Suspect()
		}
		return nil, flow.Outcome{Err: &backend.TransportError{Backend: f.Decode().Name(), Err: err}}
	}
	if status, body := errorEvent(first); status != 0 {
		closeBody(resp.Body)
		return nil, flow.Answered(status, body)
	}
	return &begun{resp: resp, first: first, flow: f}, flow.Outcome{Status: resp.StatusCode}
}

// begin reads what must be there before the client gets anything.
func (c *call) begin(body io.Reader) ([]byte, error) {
	if !c.stream {
		first, err := io.ReadAll(io.LimitReader(body, maxPlain))
		if err == nil && len(first) == 0 {
			err = io.ErrUnexpectedEOF
		}
		return first, err
	}
	var first []byte
	buf := make([]byte, 16<<10)
	for ripe(first) == 0 {
		n, err := body.Read(buf)
		first = append(first, buf[:n]...)
		switch {
		case err == nil || ripe(first) > 0:
		case errors.Is(err, io.EOF):
			return nil, io.ErrUnexpectedEOF
		default:
			return nil, err
		}
	}
	return first, nil
}

// errorEvent recognises a stream that begins with an error, which is a failed
// request with a status of 200.
func errorEvent(first []byte) (status int, body []byte) {
	data, ok := bytes.CutPrefix(first, []byte("data: "))
	if !ok {
		return 0, nil
	}
	line, _, _ := bytes.Cut(data, []byte("\n"))
	return errorStatus(line), bytes.Clone(line)
}

// errorStatus returns the status that an event's error says, or 0 where it has
// none.
func errorStatus(event []byte) int {
	var e struct {
		Error *struct {
			Code int `json:"code"`
		} `json:"error"`
	}
	if json.Unmarshal(event, &e) != nil || e.Error == nil {
		return 0
	}
	if e.Error.Code < 400 || e.Error.Code > 599 {
		return http.StatusInternalServerError
	}
	return e.Error.Code
}

// timed reports a leg to the metrics and the log when it ends.
func (c *call) timed(ctx context.Context, b *backend.Backend, o *flow.Outcome) func() {
	began := time.Now()
	return func() {
		took := time.Since(began)
		m := c.r.cfg.Metrics
		why := left(ctx)
		result := "ok"
		switch {
		case o.OK():
		case why != "":
			result = why
		case o.Err != nil:
			result = "no_answer"
		default:
			result = strconv.Itoa(o.Status)
		}
		m.Leg(string(b.Role()), b.Name(), result, took.Seconds())
		if o.OK() {
			return
		}
		if why == "" && (o.Retryable() || o.Refuses()) {
			m.Retry(string(b.Role()), result)
		}
		args := []any{"id", c.id, "role", string(b.Role()), "backend", b.Name(), "outcome", result, "total", rounded(took)}
		switch {
		case why != "":
			c.r.cfg.Log.Debug("leg ended", args...)
			return
		case o.Err != nil:
			args = append(args, "err", o.Err)
		case o.Message != "":
			args = append(args, "err", o.Message)
		}
		level := slog.LevelWarn
		switch {
		case o.Refuses():
			level = slog.LevelError
			args = append(args, "param", o.Param)
		case o.Status == http.StatusServiceUnavailable, o.Status == http.StatusTooManyRequests:
			level = slog.LevelInfo // it shuts down or is full: another is asked, or the client is told
		case o.Status/100 == 4:
			level = slog.LevelDebug // the client's doing, and it is told
		}
		c.r.cfg.Log.Log(ctx, level, "leg failed", args...)
	}
}

// release tells P that nobody will read a hand-off. The client may be gone and
// the flow's context dead; using it would cancel the one call that frees P's
// memory. The attempt is bounded and may be lost: the lease is the backstop.
func (c *call) release(ctx context.Context, e flow.Effect[*backend.Backend]) {
	ctx = context.WithoutCancel(ctx)
	c.r.releases.Go(func() {
		result := releaseOK
		if err := e.From.Release(ctx, c.header, e.Handoff); err != nil {
			result = releaseLost
			c.r.cfg.Log.Warn("hand-off not released; its lease will end it", "id", c.id, "backend", e.From.Name(), "err", err)
		}
		c.r.cfg.Metrics.Release(result)
	})
}

package router

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strconv"
	"time"

	"tandem/internal/backend"
)

// prefillLeg runs the whole prefill leg.
func (c *call) prefillLeg(ctx context.Context, f *flow, prompt json.RawMessage) (o outcome) {
	defer c.timed(ctx, f.prefill, &o)()
	// A client that leaves may leave while P's answer is under way: the answer is
	// taken all the same, so that its lease can be released.
	status, body, err := f.prefill.Exchange(ctx, c.path, c.header, c.prefillBody(prompt), 32<<20)
	if err != nil {
		return outcome{err: err}
	}
	if status/100 != 2 {
		return answered(status, body)
	}
	var answer struct {
		Params json.RawMessage `json:"kv_transfer_params"`
	}
	if err := json.Unmarshal(body, &answer); err != nil {
		return outcome{status: http.StatusBadGateway, body: (&failure{status: http.StatusBadGateway, kind: "bad_hand_off",
			message: fmt.Sprintf("prefill engine %s answered what is no JSON", f.prefill.Name())}).json()}
	}
	if len(answer.Params) > 0 && answer.Params[0] == '{' && !empty(answer.Params) {
		o.handoff = answer.Params
	}
	o.status = status
	return o
}

// decodeLeg starts the decode leg and holds the answer until its first bytes
// are there, so that a failure before the first content keeps its status.
func (c *call) decodeLeg(ctx context.Context, f *flow, prompt json.RawMessage) (leg *begun, o outcome) {
	defer c.timed(ctx, f.decode, &o)()
	resp, err := f.decode.Post(ctx, c.path, c.header, c.decodeBody(prompt, f.handoff))
	if err != nil {
		return nil, outcome{err: err}
	}
	if resp.StatusCode/100 != 2 {
		defer closeBody(resp.Body)
		body, err := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
		if err != nil {
			body = nil // the status alone says enough
		}
		return nil, answered(resp.StatusCode, body)
	}
	buf := make([]byte, 16<<10)
	n, err := io.ReadAtLeast(resp.Body, buf, 1)
	if n == 0 {
		closeBody(resp.Body)
		if errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
		f.decode.Suspect()
		return nil, outcome{err: &backend.TransportError{Backend: f.decode.Name(), Err: err}}
	}
	if status, body := errorEvent(buf[:n]); status != 0 {
		closeBody(resp.Body)
		return nil, answered(status, body)
	}
	return &begun{resp: resp, first: buf[:n], flow: f}, outcome{status: resp.StatusCode}
}

// errorEvent recognises a stream that begins with an error, which is a failed
// request with a status of 200.
func errorEvent(first []byte) (status int, body []byte) {
	data, ok := bytes.CutPrefix(first, []byte("data: "))
	if !ok {
		return 0, nil
	}
	line, _, _ := bytes.Cut(data, []byte("\n"))
	var e struct {
		Error *struct {
			Code int `json:"code"`
		} `json:"error"`
	}
	if json.Unmarshal(line, &e) != nil || e.Error == nil {
		return 0, nil
	}
	if e.Error.Code < 400 || e.Error.Code > 599 {
		e.Error.Code = http.StatusInternalServerError
	}
	return e.Error.Code, bytes.Clone(line)
}

// timed reports a leg to the metrics and the log when it ends.
func (c *call) timed(ctx context.Context, b *backend.Backend, o *outcome) func() {
	began := time.Now()
	return func() {
		took := time.Since(began)
		m := c.r.cfg.Metrics
		why := left(ctx)
		result := "ok"
		switch {
		case o.ok():
		case why != "":
			result = why
		case o.err != nil:
			result = "no_answer"
		default:
			result = strconv.Itoa(o.status)
		}
		if m.Leg != nil {
			m.Leg(string(b.Role()), b.Name(), result, took.Seconds())
		}
		if o.ok() {
			return
		}
		if m.Retry != nil && why == "" && (o.retryable() || o.refuses()) {
			m.Retry(string(b.Role()), result)
		}
		args := []any{"id", c.id, "role", string(b.Role()), "backend", b.Name(), "outcome", result, "total", rounded(took)}
		switch {
		case why != "":
			c.r.cfg.Log.Debug("leg ended", args...)
			return
		case o.err != nil:
			args = append(args, "err", o.err)
		case o.message != "":
			args = append(args, "err", o.message)
		}
		level := slog.LevelWarn
		switch {
		case o.refuses():
			level = slog.LevelError
			args = append(args, "param", o.param)
		case o.status/100 == 4:
			level = slog.LevelDebug // the client's doing, and it is told
		}
		c.r.cfg.Log.Log(ctx, level, "leg failed", args...)
	}
}

// release tells P that nobody will read a hand-off. The client may be gone and
// the flow's context dead; using it would cancel the one call that frees P's
// memory. The attempt is bounded and may be lost: the lease is the backstop.
func (c *call) release(ctx context.Context, e effect) {
	ctx = context.WithoutCancel(ctx)
	c.r.releases.Go(func() {
		result := "ok"
		if err := e.release.Release(ctx, c.header, e.handoff); err != nil {
			result = "lost"
			c.r.cfg.Log.Warn("hand-off not released; its lease will end it", "id", c.id, "backend", e.release.Name(), "err", err)
		}
		if c.r.cfg.Metrics.Release != nil {
			c.r.cfg.Metrics.Release(result)
		}
	})
}

package router

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"tandem/internal/backend"
	"tandem/internal/openai"
	"tandem/internal/router/flow"
)

// Response headers that say what the router did.
const (
	headerPrefill = "X-Tandem-Prefill"
	headerDecode  = "X-Tandem-Decode"
	headerRoute   = "X-Tandem-Route"
)

// headerUnbuffered keeps a proxy in front of the router from holding events back.
const headerUnbuffered = "X-Accel-Buffering"

// A call is one client request, read and checked.
type call struct {
	r      *Router
	path   string
	body   *openai.Body
	raw    []byte
	header http.Header // of both legs
	policy []string    // the client's load failure policy, for D
	id     string
	whole  string // why the request runs on D alone, or ""
	stream bool
	usage  bool // stream_options.include_usage
	n      int
	list   []json.RawMessage // prompts, where there are several
}

// serve answers the two generating endpoints.
func (r *Router) serve(w *recorder, q *http.Request) {
	began := time.Now()
	q, done := r.stopper.Bind(q)
	defer done()
	c, fail := r.parse(w, q)
	w.Header().Set("X-Request-Id", c.id)
	w.tell = sync.OnceFunc(func() { c.log(w, time.Since(began)) })
	defer w.tell() // of an answer that is cut as well
	switch {
	case fail != nil:
		fail.write(w)
	case len(c.list) > 1:
		c.serveList(w, q)
	default:
		c.serveOne(w, q)
	}
}

// log tells the metrics and the log of an answered call.
func (c *call) log(rec *recorder, took time.Duration) {
	cfg, h := &c.r.cfg, rec.Header()
	outcome := rec.outcome
	switch outcome {
	case "":
		outcome = "ok"
	case clientGone:
		rec.status = openai.StatusClientGone
	}
	cfg.Metrics.Request(c.path, routeLabel(h.Get(headerRoute)), rec.status, took.Seconds())
	cfg.Log.Info("request", "id", c.id, "outcome", outcome, "status", rec.status, "path", c.path, "route", h.Get(headerRoute),
		"prefill", h.Get(headerPrefill), "decode", h.Get(headerDecode), "bytes", rec.bytes, "total", rounded(took))
}

func rounded(d time.Duration) time.Duration { return d.Round(10 * time.Microsecond) }

// routeLabel is the bounded part of a route header.
func routeLabel(h string) string {
	name, _, _ := strings.Cut(h, ";")
	if name == "" {
		return "none"
	}
	return name
}

// parse reads what the router must know of a request. The returned call has at
// least its id and path.
func (r *Router) parse(w http.ResponseWriter, q *http.Request) (*call, *failure) {
	c := &call{r: r, path: q.URL.Path, id: openai.RequestID(q.Header), n: 1}
	c.header = legHeader(q, c.id)
	c.policy = q.Header[headerPolicy]
	raw, refused := openai.ReadBody(w, q, r.cfg.MaxBody)
	if refused != nil {
		return c, as(refused)
	}
	body, err := openai.ParseBody(raw)
	if err != nil {
		return c, notObject(raw, err)
	}
	c.body, c.raw = body, raw
	if v, ok := body.Get("kv_transfer_params"); ok && !empty(v) {
		return c, bad("kv_transfer_params", "kv_transfer_params are made by engines and carried by the router; a client may not send them")
	}
	if fail := c.salt(q); fail != nil {
		return c, fail
	}
	c.stream = c.flag("stream")
	if v, ok := body.Get("stream_options"); ok {
		var o struct {
			IncludeUsage bool `json:"include_usage"`
		}
		// What is wrong with it is for the engine to say.
		_ = json.Unmarshal(v, &o)
		c.usage = o.IncludeUsage
	}
	if v, ok := body.Get("n"); ok {
		if n, ok := openai.Whole(v); ok && n > 0 && n <= openai.MaxChoices {
			c.n = int(n)
		}
	}
	switch {
	case c.flag("echo"):
		c.whole = "echo"
	case c.present("prompt_logprobs"):
		c.whole = "prompt_logprobs"
	}
	if strings.HasSuffix(c.path, "/v1/completions") {
		c.list = prompts(body)
		if len(c.list) > openai.MaxPrompts {
			return c, bad("prompt", "%d prompts in one request; the limit is %d", len(c.list), openai.MaxPrompts)
		}
	}
	return c, nil
}

// notObject says what is wrong with a body.
func notObject(raw []byte, err error) *failure {
	var syntax *json.SyntaxError
	switch {
	case len(bytes.TrimSpace(raw)) == 0:
		return bad("", "the body is empty: a JSON object is needed")
	case errors.As(err, &syntax):
		return bad("", "the body is not a JSON object: %s at byte %d", syntax, syntax.Offset)
	}
	return bad("", "the body is not a JSON object")
}

// salt puts the edge's cache salt into the body, whatever the client wrote.
func (c *call) salt(q *http.Request) *failure {
	if c.r.cfg.SaltHeader == "" {
		return nil
	}
	v := q.Header.Get(c.r.cfg.SaltHeader)
	if v == "" {
		return bad("cache_salt", "the edge in front of this router did not set %s", c.r.cfg.SaltHeader)
	}
	value, err := json.Marshal(v)
	if err != nil {
		return bad("cache_salt", "the header %s is no text", c.r.cfg.SaltHeader)
	}
	raw := c.body.Edit(openai.Edit{Key: "cache_salt", Value: value})
	body, err := openai.ParseBody(raw)
	if err != nil {
		return bad("", "the body cannot be edited")
	}
	c.raw, c.body = raw, body
	return nil
}

// flag reports whether a key is true.
func (c *call) flag(key string) bool {
	v, ok := c.body.Get(key)
	return ok && string(v) == "true"
}

// present reports whether a key stands and is not null.
func (c *call) present(key string) bool {
	v, ok := c.body.Get(key)
	return ok && string(v) != "null"
}

// empty reports whether raw is null or an object without members.
func empty(raw json.RawMessage) bool {
	if string(raw) == "null" {
		return true
	}
	return len(raw) >= 2 && raw[0] == '{' && len(bytes.TrimSpace(raw[1:len(raw)-1])) == 0
}

// prompts returns the prompts of a list of texts or of token-id lists; nil
// where there is one prompt.
func prompts(b *openai.Body) []json.RawMessage {
	v, _ := b.Get("prompt")
	list := openai.Elements(v)
	for _, p := range list {
		if p[0] != '"' && p[0] != '[' {
			return nil // token ids, or something for the engine to refuse
		}
	}
	return list
}

// prefillBody is the body of the prefill leg: one token, one choice, no stream,
// and nothing that only decides what comes after the prompt.
func (c *call) prefillBody(prompt json.RawMessage) []byte {
	edits := []openai.Edit{
		{Key: "stream", Value: json.RawMessage("false")},
		{Key: "max_tokens", Value: json.RawMessage("1")},
		{Key: "kv_transfer_params", Value: json.RawMessage(`{"do_remote_decode":true,"do_remote_prefill":false,"remote_engine_id":null,"remote_block_ids":null,"remote_host":null,"remote_port":null}`)},
	}
	if c.present("max_completion_tokens") {
		edits = append(edits, openai.Edit{Key: "max_completion_tokens", Value: json.RawMessage("1")})
	}
	for _, k := range []string{
		"stream_options", "min_tokens", "min_completion_tokens", "n", "best_of", "logprobs", "top_logprobs",
		"prompt_logprobs", "echo", "stop", "stop_token_ids", "return_token_ids", "ignore_eos",
	} {
		edits = append(edits, openai.Edit{Key: k})
	}
	if prompt != nil {
		edits = append(edits, openai.Edit{Key: "prompt", Value: prompt})
	}
	return c.body.Edit(edits...)
}

// decodeBody is the client's own body with the hand-off put in, byte for byte
// as P made it.
func (c *call) decodeBody(prompt, handoff json.RawMessage) []byte {
	var edits []openai.Edit
	if prompt != nil {
		edits = append(edits, openai.Edit{Key: "prompt", Value: prompt})
	}
	if handoff != nil {
		edits = append(edits, openai.Edit{Key: "kv_transfer_params", Value: handoff})
	}
	if edits == nil {
		return c.raw
	}
	return c.body.Edit(edits...)
}

// A begun is a decode leg that began well.
type begun struct {
	resp  *http.Response
	first []byte // bytes already read from it
	flow  *flowCall
}

// run carries a flow's effects out until a decode leg began or the flow failed.
// Both are nil when the call ended first, as left says.
func (c *call) run(ctx context.Context, prompt json.RawMessage) (*begun, *failure) {
	f := flow.New[*backend.Backend](c.whole != "", c.r.cfg.Retries)
	due := f.Start()
	if c.r.decode.Ready() == 0 {
		return nil, noBackend(backend.Decode) // before P works for nobody
	}
	var leg *begun
	for len(due) > 0 {
		e := due[0]
		due = due[1:]
		if ctx.Err() != nil && e.Act != flow.Release {
			due = f.Gone()
			continue
		}
		switch e.Act {
		case flow.Pick:
			pool := c.r.decode
			if e.Role == backend.Prefill {
				pool = c.r.prefill
			}
			not := slices.Concat(e.Not, c.r.unfit(e.Role, f.Prefill()))
			due = append(due, f.Picked(e.Role, pool.Pick(not...))...)
		case flow.RunPrefill:
			due = append(due, f.Prefilled(c.prefillLeg(ctx, f, prompt))...)
		case flow.RunDecode:
			var o flow.Outcome
			leg, o = c.decodeLeg(ctx, f, prompt)
			due = append(due, f.Decoded(o)...)
		case flow.Release:
			c.release(ctx, e)
		case flow.Stream:
			return leg, nil
		case flow.Answer:
			fail := ended(e.Fail)
			fail.tried = f
			return nil, fail
		}
	}
	if leg != nil {
		closeBody(leg.resp.Body) // the call ended as it began
	}
	return nil, nil
}

// describe sets the response headers that say who did what.
func (c *call) describe(h http.Header, f *flowCall) {
	if f.Prefill() != nil {
		h.Set(headerPrefill, f.Prefill().Name())
	}
	if f.Decode() != nil {
		h.Set(headerDecode, f.Decode().Name())
	}
	route := "pd"
	if c.whole != "" {
		route = "decode-only; reason=" + c.whole
	}
	if f.Attempts() > 1 {
		route += "; attempts=" + strconv.Itoa(f.Attempts())
	}
	h.Set(headerRoute, route)
}

// blame is describe for a flow that failed, where any engine was asked.
func (c *call) blame(h http.Header, fail *failure) {
	if f := fail.tried; f != nil && (f.Prefill() != nil || f.Decode() != nil) {
		c.describe(h, f)
	}
}

package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"time"
)

// hang is when a request counts as never answered.
const hang = time.Minute

var client = &http.Client{Timeout: hang, Transport: &http.Transport{MaxIdleConnsPerHost: 64, IdleConnTimeout: 5 * time.Second}}

// An ask is one completion.
type ask struct {
	url    string
	id     string // X-Request-Id; "": none
	prompt []int
	tokens int
	stream bool
	policy string          // asked for by header; "": the engine's own
	params json.RawMessage // kv_transfer_params
	ctx    context.Context //nolint:containedctx // of a client that leaves; nil: it does not
}

// A reply is what a client got.
type reply struct {
	status int   // 0: no answer
	err    error // of the connection, or of an answer that has no end
	ids    []int
	finish string
	reason string // of an error: its reason, else its type
	param  string
	params json.RawMessage
	class  string        // of the KV load that failed, whatever came of it
	kv     account       // of an answer that was not an error
	took   time.Duration // less the lateness of the harness
}

// An account says where the KV of a prompt came from, in tokens.
type account struct {
	Prompt     int    `json:"prompt_tokens"`
	Loaded     int    `json:"loaded_tokens"`
	Local      int    `json:"local_tokens"`
	Recomputed int    `json:"recomputed_tokens"`
	Computed   int    `json:"computed_tokens"`
	Failure    string `json:"failure"`
}

type errorBody struct {
	Message string `json:"message"`
	Type    string `json:"type"`
	Param   string `json:"param"`
	Reason  string `json:"reason"`
}

type chunk struct {
	Choices []struct {
		IDs    []int  `json:"token_ids"`
		Finish string `json:"finish_reason"`
	} `json:"choices"`
	Usage *struct {
		KV *account `json:"kv_transfer"`
	} `json:"usage"`
	Params json.RawMessage `json:"kv_transfer_params"`
	Error  *errorBody      `json:"error"`
}

func (r *reply) add(data []byte) error {
	var c chunk
	if err := json.Unmarshal(data, &c); err != nil {
		return fmt.Errorf("%.200q: %w", data, err)
	}
	if c.Params != nil {
		r.params = c.Params
	}
	for _, ch := range c.Choices {
		r.ids = append(r.ids, ch.IDs...)
		if ch.Finish != "" {
			r.finish = ch.Finish
		}
	}
	if c.Usage != nil && c.Usage.KV != nil {
		r.kv = *c.Usage.KV
		if r.class == "" {
			r.class = r.kv.Failure
		}
	}
	if c.Error != nil {
		r.reason, r.param = c.Error.Reason, c.Error.Param
		if r.reason == "" {
			r.reason = c.Error.Type
		}
		if c.Error.Message == "" || r.reason == "" {
			return fmt.Errorf("an error without words: %.200q", data)
		}
	}
	return nil
}

// send asks and waits for the whole answer.
func (c *campaign) send(a ask) (r reply) {
	w := c.pulse.start()
	defer func() { r.took = w.took() }()
	body := map[string]any{
		"prompt": a.prompt, "max_tokens": a.tokens, "temperature": 0, "stream": a.stream, "return_token_ids": true, "ignore_eos": true,
	}
	if a.stream {
		body["stream_options"] = map[string]any{"include_usage": true}
	}
	if a.params != nil {
		body["kv_transfer_params"] = a.params
	}
	raw, err := json.Marshal(body)
	if err != nil {
		return reply{err: err}
	}
	ctx := a.ctx
	if ctx == nil {
		ctx = context.Background()
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, a.url+"/v1/completions", bytes.NewReader(raw))
	if err != nil {
		return reply{err: err}
	}
	req.Header.Set("Content-Type", "application/json")
	if a.id != "" {
		req.Header.Set("X-Request-Id", a.id)
	}
	if a.policy != "" {
		req.Header.Set("X-KV-Load-Failure-Policy", a.policy)
	}
	resp, err := client.Do(req)
	if err != nil {
		return reply{err: err}
	}
	defer resp.Body.Close()
	r.status, r.class = resp.StatusCode, resp.Header.Get("X-KV-Load-Failure")
	if !a.stream || resp.StatusCode != http.StatusOK {
		out, err := io.ReadAll(resp.Body)
		if err == nil {
			err = r.add(out)
		}
		r.err = err
		return r
	}
	s := bufio.NewScanner(resp.Body)
	s.Buffer(nil, 1<<20)
	done := false
	for s.Scan() {
		data, ok := bytes.CutPrefix(s.Bytes(), []byte("data: "))
		switch {
		case !ok:
		case string(data) == "[DONE]":
			done = true
		case done:
			r.err = errors.New("an event behind the end mark")
		default:
			r.err = errors.Join(r.err, r.add(data))
		}
	}
	if !done {
		r.err = errors.Join(r.err, fmt.Errorf("the stream has no end mark: %w", s.Err()))
	}
	return r
}

// The ways in which a request may end.
const (
	right   = "right"
	refused = "error"      // typed, and nothing in it is false
	wrong   = "WRONG"      // other tokens than one engine's
	broken  = "UNANSWERED" // no answer, or one without form
)

// judge compares a reply with the tokens of one engine.
func (r *reply) judge(want []int) string {
	switch {
	case r.status == 0 || r.err != nil:
		return broken
	case r.reason != "":
		if r.finish != "" || len(r.ids) > len(want) || !slices.Equal(r.ids, want[:len(r.ids)]) {
			return wrong
		}
		return refused
	case r.status != http.StatusOK:
		return broken
	case !slices.Equal(r.ids, want):
		return wrong
	case r.kv.Loaded+r.kv.Local+r.kv.Recomputed+r.kv.Computed != r.kv.Prompt || r.kv.Failure != r.class:
		return wrong // what the answer says of itself is a part of it
	}
	return right
}

// String tells what came.
func (r *reply) String() string {
	return fmt.Sprintf("status %d %s %s, class %q, %d tokens %q, %+v, %v, %.3f s",
		r.status, r.reason, r.param, r.class, len(r.ids), r.finish, r.kv, r.err, r.took.Seconds())
}

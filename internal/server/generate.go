package server

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strings"
	"sync"
	"time"

	"tandem/internal/connector"
	"tandem/internal/engine"
	"tandem/internal/kv"
	"tandem/internal/openai"
	"tandem/internal/sample"
)

// maxChoices bounds prompts times n of one request.
const maxChoices = 1024

// Response headers.
const (
	headerHandoff = "X-Tandem-Handoff" // returned-unread: the prompt is computed here as a whole
	headerIgnored = "X-Tandem-Ignored" // unknown fields of the request, with commas between
)

// A form writes answers of one endpoint.
type form interface {
	// open returns the event that begins a choice, or nil.
	open(c *call, j *job, ch *choice) any
	// event returns the event of a piece.
	event(c *call, j *job, ch *choice, p piece, u *openai.Usage) any
	// tail returns the event with nothing but the usage.
	tail(c *call, u *openai.Usage) any
	// body returns the whole answer.
	body(c *call, u *openai.Usage) any
	// blame returns a refusal of the engine with the endpoint's field names.
	blame(err error) error
}

// A job is one prompt of a call.
type job struct {
	index   int
	text    string // echoed
	req     engine.Request
	stream  stream
	choices []*choice
	usage   engine.Usage           // the prompt's counts, once known
	prompt  []sample.TokenLogprobs // prompt log-probabilities, once known
	handoff *connector.Handoff     // granted
	finish  engine.FinishReason    // of the choice that ended last
}

// A call is one request to generate. It lives in its handler's goroutine.
type call struct {
	s       *Server
	w       http.ResponseWriter
	q       *http.Request
	form    form
	common  *openai.Common
	id      string
	created int64
	jobs    []*job
	first   time.Time // of the first output
	sse     *openai.Stream
}

// generate runs a call that was prepared by prepare, which must not have submitted
// anything. Whatever happens, a genuine hand-off of the body is read, or goes
// back.
func (s *Server) generate(w http.ResponseWriter, q *http.Request, prefix string, prepare func(c *call, raw []byte) error) {
	begun := time.Now()
	q, done := s.stopper.Bind(q)
	defer done()
	c := &call{s: s, w: w, q: q, id: prefix + w.Header().Get("X-Request-Id"), created: begun.Unix()}
	raw, err := read(w, q)
	if err == nil {
		err = c.admit(raw, prepare)
	}
	if err == nil {
		if c.common.Stream {
			err = c.serveStream()
		} else {
			err = c.serveBody()
		}
	}
	c.end(begun, err)
}

// admit prepares and submits. Nothing runs after an error.
func (c *call) admit(raw []byte, prepare func(c *call, raw []byte) error) error {
	err := prepare(c, raw)
	if err == nil && c.s.draining.Load() {
		err = engine.ErrDraining
	}
	var params connector.Params
	if err == nil {
		params, err = connector.ParseParams(c.common.KVTransferParams)
	}
	var policy engine.FailPolicy
	if err == nil {
		policy, err = c.policy()
	}
	if err != nil {
		c.s.giveBack(raw)
		return err
	}
	if n := len(c.common.Ignored); n > 0 {
		c.s.cfg.Log.Warn("unknown fields ignored", "id", c.id, "fields", c.common.Ignored)
		c.w.Header().Set(headerIgnored, strings.Join(c.common.Ignored, ","))
	}
	if params.Handoff != nil && c.jobs[0].req.PromptLogprobs >= 0 {
		c.w.Header().Set(headerHandoff, "returned-unread")
	}
	for _, j := range c.jobs {
		j.req.RemoteDecode, j.req.Handoff, j.req.Policy = params.RemoteDecode, params.Handoff, policy
		if params.RemoteDecode {
			j.req.PromptLogprobs, j.choices = -1, j.choices[:1]
		}
		if j.stream, err = c.s.submit(c.q.Context(), j.req); err != nil {
			return c.form.blame(err)
		}
		c.s.cfg.Metrics.Params(j.req.N, j.req.Params.MaxTokens)
	}
	return nil
}

// giveBack returns the hand-off of a body that is refused, when it has one.
func (s *Server) giveBack(raw []byte) {
	if s.cfg.Connector == nil {
		return
	}
	body, err := openai.ParseBody(raw)
	if err != nil {
		return
	}
	v, ok := body.Get(fieldParams)
	if !ok {
		return
	}
	if p, err := connector.ParseParams(v); err == nil && p.Handoff != nil {
		s.cfg.Connector.ReturnUnread(p.Handoff)
	}
}

// serveBody gathers everything and writes one answer.
func (c *call) serveBody() error {
	err := c.outputs(func(j *job, out *engine.Output) error {
		if ch := j.take(out); ch != nil && ch.push(out) {
			j.stream.Stop(ch.index)
		}
		return nil
	})
	if err != nil {
		return err
	}
	if err := c.q.Context().Err(); err != nil {
		return err
	}
	u := c.total()
	tellTransfer(c.w.Header(), u.KVTransfer)
	if err := c.s.write(c.w, http.StatusOK, c.form.body(c, u)); err != nil {
		return &goneError{err}
	}
	return nil
}

// serveStream writes events as outputs come.
func (c *call) serveStream() error {
	c.sse = openai.NewStream(c.w, c.s.cfg.WriteTimeout)
	send := func(v any) error {
		if err := c.sse.Send(v); err != nil {
			return &goneError{err}
		}
		return nil
	}
	err := c.outputs(func(j *job, out *engine.Output) error {
		ch := j.take(out)
		if ch == nil || ch.over {
			return nil
		}
		if !c.sse.Begun() && len(c.jobs) == 1 {
			// Of several prompts only the first that begins is known by now.
			tellTransfer(c.w.Header(), c.total().KVTransfer)
		}
		if ch.push(out) {
			j.stream.Stop(ch.index)
		}
		if !ch.begun {
			if v := c.form.open(c, j, ch); v != nil {
				if err := send(v); err != nil {
					return err
				}
			}
		}
		if !ch.ready() && (ch.begun || !c.echoes(j)) {
			return nil
		}
		var u *openai.Usage
		if c.common.ContinuousUsage {
			n := len(j.req.Prompt)
			u = &openai.Usage{PromptTokens: n, CompletionTokens: ch.count, TotalTokens: n + ch.count}
		}
		v := c.form.event(c, j, ch, ch.take(), u)
		ch.begun = true
		return send(v)
	})
	if err != nil {
		return err
	}
	if c.common.IncludeUsage {
		if err := send(c.form.tail(c, c.total())); err != nil {
			return err
		}
	}
	if err := c.sse.Done(); err != nil {
		return &goneError{err}
	}
	return nil
}

func (c *call) echoes(j *job) bool { return j.text != "" }

// take notes what belongs to the job and returns the choice of out, nil for one
// that nobody expects.
func (j *job) take(out *engine.Output) *choice {
	if out.PromptLogprobs != nil {
		j.prompt = out.PromptLogprobs
	}
	if out.Handoff != nil {
		j.handoff = out.Handoff
	}
	if out.Finish != "" {
		j.finish = out.Finish
	}
	if out.Choice == 0 && out.Usage.Prompt > 0 {
		j.usage = out.Usage
	}
	if out.Choice < 0 || out.Choice >= len(j.choices) {
		return nil
	}
	return j.choices[out.Choice]
}

// outputs calls f for each output of all jobs, in this goroutine, until all have
// ended. The error is that of the engine, of f, or of a client that left.
func (c *call) outputs(f func(j *job, out *engine.Output) error) error {
	ctx := c.q.Context()
	one := func(j *job, out *engine.Output, err error) error {
		if err == nil && out.Err != nil {
			err = out.Err
		}
		if err != nil {
			return err
		}
		if c.first.IsZero() {
			c.first = time.Now()
		}
		return f(j, out)
	}
	if len(c.jobs) == 1 {
		for j := c.jobs[0]; ; {
			out, err := j.stream.Next(ctx)
			if errors.Is(err, io.EOF) {
				return nil
			}
			if err := one(j, &out, err); err != nil {
				return err
			}
		}
	}
	return c.fanIn(ctx, one)
}

// fanIn reads all jobs at once: one reading goroutine for each, which ends with
// its stream or with fanIn.
func (c *call) fanIn(ctx context.Context, f func(j *job, out *engine.Output, err error) error) error {
	type item struct {
		j   *job
		out engine.Output
		err error
	}
	ctx, cancel := context.WithCancel(ctx)
	items := make(chan item)
	var readers sync.WaitGroup
	for _, j := range c.jobs {
		readers.Go(func() {
			for {
				out, err := j.stream.Next(ctx)
				if errors.Is(err, io.EOF) {
					return
				}
				select {
				case items <- item{j, out, err}:
				case <-ctx.Done():
					return
				}
				if err != nil {
					return
				}
			}
		})
	}
	ended := make(chan struct{})
	go func() { // ends with the readers
		readers.Wait()
		close(ended)
	}()
	defer func() { cancel(); <-ended }()
	for {
		select {
		case it := <-items:
			if err := f(it.j, &it.out, it.err); err != nil {
				return err
			}
		case <-ended:
			return context.Cause(ctx)
		}
	}
}

// total returns the usage of all jobs.
func (c *call) total() *openai.Usage {
	u := &openai.Usage{Details: &openai.PromptDetails{}, KVTransfer: &openai.KVTransfer{}}
	for _, j := range c.jobs {
		u.PromptTokens += len(j.req.Prompt)
		for _, ch := range j.choices {
			u.CompletionTokens += ch.count
		}
		u.Details.Cached += j.usage.Cached()
		addTransfer(u.KVTransfer, &j.usage)
	}
	u.TotalTokens = u.PromptTokens + u.CompletionTokens
	return u
}

// params returns the hand-off of the answer as JSON, or nil.
func (j *job) params() json.RawMessage {
	if j.handoff == nil {
		return nil
	}
	raw, err := json.Marshal(j.handoff)
	if err != nil {
		return nil // a granted hand-off always marshals
	}
	return raw
}

// job adds a prompt with its choices to the call.
func (c *call) job(tokens []kv.Token, params sample.Params, promptLogprobs int) *job {
	r := c.common
	j := &job{index: len(c.jobs), req: engine.Request{
		ClientID: c.id, Prompt: tokens, Params: params, N: r.N, Priority: r.Priority, Salt: r.CacheSalt,
		PromptLogprobs: promptLogprobs,
	}}
	for i := range r.N {
		j.choices = append(j.choices, &choice{
			index: i, dec: c.s.cfg.Tokenizer.NewDecoder(!r.SkipSpecial), minTokens: params.MinTokens,
			scan: scanner{stops: r.Stop, include: r.IncludeStop},
		})
	}
	c.jobs = append(c.jobs, j)
	return j
}

// params returns the sampling parameters of r: the one place of defaults.
func params(r *openai.Sampling, maxTokens, logprobs int) sample.Params {
	p := sample.Default()
	p.Seed, p.LogitBias, p.StopTokenIDs, p.IgnoreEOS = r.Seed, r.LogitBias, r.StopTokenIDs, r.IgnoreEOS
	p.MaxTokens, p.Logprobs = maxTokens, logprobs
	set(&p.Temperature, r.Temperature)
	set(&p.TopP, r.TopP)
	set(&p.MinP, r.MinP)
	set(&p.RepetitionPenalty, r.RepetitionPenalty)
	set(&p.PresencePenalty, r.PresencePenalty)
	set(&p.FrequencyPenalty, r.FrequencyPenalty)
	set(&p.TopK, r.TopK)
	set(&p.MaxTokens, r.MaxTokens)
	set(&p.MinTokens, r.MinTokens)
	return p
}

func set[T any](to *T, from *T) {
	if from != nil {
		*to = *from
	}
}

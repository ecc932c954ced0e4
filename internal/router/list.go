package router

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"io"
	"maps"
	"net/http"
	"strconv"
	"sync"

	"tandem/internal/backend"
	"tandem/internal/openai"
	"tandem/internal/router/flow"
)

// parallel is how many flows of one list run at once.
const parallel = 8

// maxEvent bounds one event of a stream that is taken apart.
const maxEvent = 16 << 20

// headerIgnored is an engine's: fields of the request that had no effect.
const headerIgnored = "X-Tandem-Ignored"

// A piece is one event of one flow of a list, or the flow's end.
type piece struct {
	flow int
	leg  *begun // of the flow's first piece
	data []byte // JSON of an event, or the whole answer
	fail *failure
	end  bool
}

// serveList answers a list of prompts: one flow each, merged by index. The
// first failure ends all: the client gets one defined error.
func (c *call) serveList(w *recorder, q *http.Request) {
	ctx, cancel := context.WithCancelCause(q.Context())
	pieces := make(chan piece)
	var wg sync.WaitGroup
	slots := make(chan struct{}, parallel)
	wg.Go(func() {
		defer close(pieces)
		var flows sync.WaitGroup
		for i, prompt := range c.list {
			select {
			case slots <- struct{}{}:
			case <-ctx.Done():
			}
			if ctx.Err() != nil {
				break
			}
			flows.Go(func() {
				defer func() { <-slots }()
				c.listFlow(ctx, prompt, func(p piece) bool {
					p.flow = i
					select {
					case pieces <- p:
						return true
					case <-ctx.Done():
						return false
					}
				})
			})
		}
		flows.Wait()
	})
	defer wg.Wait()
	defer cancel(nil)
	m := &merge{call: c, w: w, quit: cancel, answers: make([][]byte, len(c.list)), headers: make([]http.Header, len(c.list))}
	for p := range pieces {
		if !m.add(p) {
			return
		}
	}
	switch why := left(q.Context()); {
	case why == "":
		m.finish()
	case m.out == nil:
		w.leave(q.Context())
	default:
		m.out.leave(why)
	}
}

// listFlow runs one flow of a list and sends its pieces until send says no.
func (c *call) listFlow(ctx context.Context, prompt json.RawMessage, send func(piece) bool) {
	leg, fail := c.run(ctx, prompt)
	if fail != nil {
		send(piece{fail: fail})
		return
	}
	if leg == nil {
		return
	}
	defer closeBody(leg.resp.Body)
	body := io.MultiReader(bytes.NewReader(leg.first), leg.resp.Body)
	if !c.stream {
		data, err := io.ReadAll(io.LimitReader(body, maxPlain))
		if ctx.Err() != nil {
			return
		}
		if err != nil {
			send(piece{fail: unanswered(&backend.TransportError{Backend: leg.flow.Decode().Name(), Err: err}, leg.flow.Attempts())})
			return
		}
		send(piece{leg: leg, data: data, end: true})
		return
	}
	s := bufio.NewScanner(body)
	s.Buffer(nil, maxEvent)
	s.Split(wholeLines)
	for s.Scan() {
		data, ok := bytes.CutPrefix(s.Bytes(), []byte("data: "))
		if !ok {
			continue
		}
		if string(data) == "[DONE]" {
			send(piece{leg: leg, end: true})
			backend.Finish(leg.resp.Body)
			return
		}
		if !send(piece{leg: leg, data: bytes.Clone(data)}) {
			return
		}
	}
	if ctx.Err() != nil {
		return
	}
	leg.flow.Decode().Suspect()
	send(piece{fail: cut(leg.flow.Decode().Name())})
}

// wholeLines is bufio.ScanLines without the part of a line that a broken stream
// ends with, which is no event; a whole end mark is one.
func wholeLines(data []byte, atEOF bool) (advance int, line []byte, err error) {
	if atEOF && bytes.IndexByte(data, '\n') < 0 && !endMark(data) {
		return len(data), nil, nil
	}
	return bufio.ScanLines(data, atEOF)
}

// A merge puts the answers of a list's flows together.
type merge struct {
	call    *call
	w       *recorder
	quit    context.CancelCauseFunc // of the flows
	out     *output                 // of a stream that has begun
	id      json.RawMessage
	created json.RawMessage
	usage   map[string]any
	last    []byte // a usage event, the form of the merged one
	answers [][]byte
	headers []http.Header // of the answers, as far as they tell of KV
	flows   int
}

// add takes one piece and reports whether more are wanted.
func (m *merge) add(p piece) bool {
	if p.fail != nil {
		m.fail(p.fail, p.fail.Kind)
		return false
	}
	if !m.call.stream {
		if m.flows == 0 {
			m.call.describeList(m.w.Header(), p.leg)
		}
		m.flows++
		m.answers[p.flow], m.headers[p.flow] = p.data, transferHeader(p.leg.resp.Header)
		return true
	}
	if p.end {
		return true
	}
	if m.out == nil {
		h := m.w.Header()
		m.call.describeList(h, p.leg)
		h.Set("Content-Type", "text/event-stream; charset=utf-8")
		h.Set("Cache-Control", "no-cache")
		h.Set(headerUnbuffered, "no")
		m.w.WriteHeader(http.StatusOK)
		m.out = &output{w: m.w}
	}
	body, err := openai.ParseBody(p.data)
	if err != nil {
		m.fail(gateway(badAnswer, "a decode engine sent an event that is no JSON object"), badAnswer)
		return false
	}
	if status := errorStatus(p.data); status != 0 {
		m.fail(ended(flow.Answered(status, p.data).Failure(1)), flow.EngineError)
		return false
	}
	choices, _ := body.Get("choices")
	if len(openai.Elements(choices)) == 0 {
		if u, ok := body.Get("usage"); ok && string(u) != "null" {
			m.addUsage(u)
			m.last = p.data
			return true
		}
	}
	return m.out.write(append(append([]byte("data: "), m.rewrite(body, p.flow)...), '\n', '\n')) == nil
}

// fail ends the call with an error. The other flows are ended first: none begins a
// leg for a client that has its answer. Outcome is for the log.
func (m *merge) fail(f *failure, outcome string) {
	m.quit(errSibling)
	if m.out != nil {
		m.out.abort(f, outcome)
		return
	}
	m.call.blame(m.w.Header(), f)
	f.write(m.w)
	m.w.tell()
	_ = m.w.control.Flush() // the other flows may take a while to end
}

// rewrite gives an event or answer of flow i the indexes and the identity of
// the merged answer.
func (m *merge) rewrite(body *openai.Body, i int) []byte {
	if m.id == nil {
		m.id, _ = body.Get("id")
		m.created, _ = body.Get("created")
	}
	var edits []openai.Edit
	if m.id != nil {
		edits = append(edits, openai.Edit{Key: "id", Value: m.id})
	}
	if m.created != nil {
		edits = append(edits, openai.Edit{Key: "created", Value: m.created})
	}
	return body.Edit(append(edits, openai.Edit{Key: "choices", Value: m.choices(body, i)})...)
}

// choices returns flow i's choices with their indexes in the whole list.
func (m *merge) choices(body *openai.Body, i int) json.RawMessage {
	raw, _ := body.Get("choices")
	out := []byte{'['}
	for k, e := range openai.Elements(raw) {
		if k > 0 {
			out = append(out, ',')
		}
		choice, err := openai.ParseBody(e)
		if err != nil {
			out = append(out, e...)
			continue
		}
		index := 0
		if v, ok := choice.Get("index"); ok {
			index, _ = strconv.Atoi(string(v))
		}
		out = append(out, choice.Edit(openai.Edit{Key: "index", Value: json.RawMessage(strconv.Itoa(i*m.call.n + index))})...)
	}
	return append(out, ']')
}

// finish sends what only the end of all flows shows.
func (m *merge) finish() {
	if m.call.stream {
		if m.out == nil {
			gateway(badAnswer, "the decode engines sent no event").write(m.w)
			return
		}
		var end []byte
		if m.last != nil {
			if body, err := openai.ParseBody(m.last); err == nil {
				end = append(append([]byte("data: "), m.sum(body, body.Edit)...), '\n', '\n')
			}
		}
		m.out.last(append(end, mark+"\n\n"...))
		return
	}
	var all []byte
	var first *openai.Body
	for i, a := range m.answers {
		body, err := openai.ParseBody(a)
		if err != nil {
			gateway(badAnswer, "the answer to prompt %d is no JSON object", i).write(m.w)
			return
		}
		if first == nil {
			first = body
		}
		if u, ok := body.Get("usage"); ok {
			m.addUsage(u)
		}
		c := m.choices(body, i)
		if i > 0 && len(c) > 2 {
			all = append(all, ',')
		}
		all = append(all, c[1:len(c)-1]...)
	}
	choices := append(append([]byte{'['}, all...), ']')
	out := m.sum(first, func(e ...openai.Edit) []byte {
		return first.Edit(append(e, openai.Edit{Key: "choices", Value: choices})...)
	})
	maps.Copy(m.w.Header(), sumHeaders(m.headers))
	m.w.Header().Set("Content-Type", "application/json")
	m.w.WriteHeader(http.StatusOK)
	_, _ = m.w.Write(out) // the client may be gone
}

// sum edits a body so that its usage is that of all flows.
func (m *merge) sum(body *openai.Body, edit func(...openai.Edit) []byte) []byte {
	var edits []openai.Edit
	if m.usage != nil {
		if u, err := json.Marshal(m.usage); err == nil {
			edits = append(edits, openai.Edit{Key: "usage", Value: u})
		}
	}
	if _, has := body.Get("id"); has && m.id != nil {
		edits = append(edits, openai.Edit{Key: "id", Value: m.id})
	}
	return edit(edits...)
}

// addUsage adds the numbers of one flow's usage.
func (m *merge) addUsage(raw json.RawMessage) {
	var u map[string]any
	if json.Unmarshal(raw, &u) != nil || u == nil {
		return
	}
	if m.usage == nil {
		m.usage = u
		return
	}
	addNumbers(m.usage, u)
}

func addNumbers(to, from map[string]any) {
	for k, v := range from {
		switch v := v.(type) {
		case float64:
			have, _ := to[k].(float64)
			to[k] = have + v
		case map[string]any:
			have, ok := to[k].(map[string]any)
			if !ok {
				to[k] = v
				continue
			}
			addNumbers(have, v)
		default:
			if _, there := to[k]; !there {
				to[k] = v
			}
		}
	}
}

// describeList is describe for a list: the engines named are those of the flow
// that answered first.
func (c *call) describeList(h http.Header, leg *begun) {
	f := leg.flow
	c.describe(h, f)
	if v := leg.resp.Header.Get(headerIgnored); v != "" {
		h.Set(headerIgnored, v)
	}
	h.Set(headerRoute, h.Get(headerRoute)+"; prompts="+strconv.Itoa(len(c.list)))
}

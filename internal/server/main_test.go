package server

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"unicode/utf8"

	"go.uber.org/goleak"

	"tandem/internal/chat"
	"tandem/internal/engine"
	"tandem/internal/sim"
	"tandem/internal/tokenizer"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const template = `{% for m in messages %}<s>{{ m.role }}: {{ m.content }}
{% endfor %}{% if add_generation_prompt %}assistant: {% endif %}`

// A rig is a server over a real engine with synthetic tokens.
type rig struct {
	t      *testing.T
	engine *engine.Engine
	server *Server
	url    string
	client *http.Client
}

func start(t *testing.T, mc sim.Config, ec engine.Config, sc Config) *rig {
	t.Helper()
	model, err := sim.New(mc)
	if err != nil {
		t.Fatal(err)
	}
	return startModel(t, model, ec, sc)
}

func startModel(t *testing.T, model engine.Model, ec engine.Config, sc Config) *rig {
	t.Helper()
	ec.Model = model
	e, err := engine.New(ec)
	if err != nil {
		t.Fatal(err)
	}
	tmpl, err := chat.Parse(template, chat.Specials{BOS: "<s>", EOS: "</s>"})
	if err != nil {
		t.Fatal(err)
	}
	sc.Engine, sc.Tokenizer, sc.Template = e, tokenizer.Bytes(), tmpl
	if sc.ModelNames == nil {
		sc.ModelNames = []string{"sim"}
	}
	sc.Version = "test"
	s, err := New(sc)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- e.Run(ctx) }()
	web := httptest.NewUnstartedServer(s.Handler())
	// Small buffers, so that a reader that stops is felt at once.
	web.Config.ConnContext = func(ctx context.Context, c net.Conn) context.Context {
		if err := c.(*net.TCPConn).SetWriteBuffer(4 << 10); err != nil {
			t.Error(err)
		}
		return ctx
	}
	web.Start()
	r := &rig{t: t, engine: e, server: s, url: web.URL, client: web.Client()}
	r.client.Transport.(*http.Transport).DialContext = func(ctx context.Context, network, addr string) (net.Conn, error) {
		c, err := new(net.Dialer).DialContext(ctx, network, addr)
		if err == nil {
			err = c.(*net.TCPConn).SetReadBuffer(4 << 10)
		}
		return c, err
	}
	t.Cleanup(func() {
		r.client.CloseIdleConnections()
		web.Close()
		cancel()
		if err := <-done; err != nil {
			t.Errorf("engine: %v", err)
		}
		if err := model.Close(); err != nil {
			t.Error(err)
		}
	})
	return r
}

type answer struct {
	status int
	header http.Header
	raw    []byte
	m      map[string]any
}

// do sends a body and checks what holds for every answer: UTF-8 and, unless it
// is empty or a stream, JSON; errors in vLLM's form.
func (r *rig) do(method, path string, body []byte, header ...string) answer {
	r.t.Helper()
	q, err := http.NewRequest(method, r.url+path, bytes.NewReader(body))
	if err != nil {
		r.t.Fatal(err)
	}
	for i := 0; i+1 < len(header); i += 2 {
		q.Header.Set(header[i], header[i+1])
	}
	resp, err := r.client.Do(q)
	if err != nil {
		r.t.Fatal(err)
	}
	raw, err := io.ReadAll(resp.Body)
	if err != nil {
		r.t.Fatal(err)
	}
	if err := resp.Body.Close(); err != nil {
		r.t.Fatal(err)
	}
	a := answer{status: resp.StatusCode, header: resp.Header, raw: raw}
	if !utf8.Valid(raw) {
		r.t.Fatalf("%s: not UTF-8: %q", path, raw)
	}
	if strings.HasPrefix(resp.Header.Get("Content-Type"), "application/json") {
		if err := json.Unmarshal(raw, &a.m); err != nil {
			r.t.Fatalf("%s: %v: %q", path, err, raw)
		}
	}
	if a.status >= 400 {
		e, ok := a.m["error"].(map[string]any)
		if !ok || e["message"] == "" || e["type"] == "" || e["code"] != float64(a.status) {
			r.t.Fatalf("%s: error form: %s", path, raw)
		}
	}
	return a
}

func (r *rig) post(path, body string) answer {
	r.t.Helper()
	return r.do(http.MethodPost, path, []byte(body))
}

func (a answer) param() string {
	e, _ := a.m["error"].(map[string]any)
	p, _ := e["param"].(string)
	return p
}

// events returns the events of a stream, which must end with [DONE].
func (a answer) events(t *testing.T) []map[string]any {
	t.Helper()
	if !strings.HasPrefix(a.header.Get("Content-Type"), "text/event-stream") {
		t.Fatalf("no stream: %d %s", a.status, a.raw)
	}
	parts := strings.Split(string(a.raw), "\n\n")
	if n := len(parts); n < 2 || parts[n-1] != "" || parts[n-2] != "data: [DONE]" {
		t.Fatalf("stream does not end with [DONE]: %q", a.raw)
	}
	var out []map[string]any
	for _, p := range parts[:len(parts)-2] {
		line, ok := strings.CutPrefix(p, "data: ")
		var m map[string]any
		if !ok || strings.Contains(line, "\n") || json.Unmarshal([]byte(line), &m) != nil {
			t.Fatalf("bad event %q", p)
		}
		out = append(out, m)
	}
	return out
}

// A whole is what a client has in the end of one choice.
type whole struct {
	Text     string
	Finish   string
	Stop     any
	Logprobs map[string][]any
	Tokens   []any
	Prompt   []any
}

func (w *whole) add(t *testing.T, c map[string]any) {
	t.Helper()
	if s, ok := c["text"].(string); ok {
		w.Text += s
	}
	for _, k := range []string{"delta", "message"} {
		if d, ok := c[k].(map[string]any); ok {
			s, _ := d["content"].(string)
			w.Text += s
		}
	}
	if f, ok := c["finish_reason"].(string); ok {
		if w.Finish != "" {
			t.Error("two finish reasons")
		}
		w.Finish, w.Stop = f, c["stop_reason"]
	}
	if l, ok := c["logprobs"].(map[string]any); ok {
		if w.Logprobs == nil {
			w.Logprobs = map[string][]any{}
		}
		for k, v := range l {
			w.Logprobs[k] = append(w.Logprobs[k], v.([]any)...)
		}
	}
	if l, ok := c["token_ids"].([]any); ok {
		w.Tokens = append(w.Tokens, l...)
	}
	if l, ok := c["prompt_token_ids"].([]any); ok {
		w.Prompt = append(w.Prompt, l...)
	}
}

// gather returns the choices by index and the usage of a whole answer or of a
// stream, and how many events had a usage.
func gather(t *testing.T, events []map[string]any) (map[int]*whole, map[string]any, int) {
	t.Helper()
	out, usages := map[int]*whole{}, 0
	var usage map[string]any
	for _, e := range events {
		if e["error"] != nil {
			t.Fatalf("error event %v", e)
		}
		if u, ok := e["usage"].(map[string]any); ok {
			usage = u
			usages++
		}
		for _, c := range e["choices"].([]any) {
			m := c.(map[string]any)
			i := int(m["index"].(float64))
			if out[i] == nil {
				out[i] = &whole{}
			}
			out[i].add(t, m)
		}
	}
	return out, usage, usages
}

// object returns a JSON object made of pairs of name and JSON text.
func object(pairs ...string) string {
	var b strings.Builder
	for i := 0; i+1 < len(pairs); i += 2 {
		b.WriteString(map[bool]string{true: "{", false: ","}[i == 0])
		b.WriteString(`"` + pairs[i] + `":` + pairs[i+1])
	}
	return b.String() + "}"
}

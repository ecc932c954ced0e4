package server

import (
	"bytes"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"testing"

	"tandem/internal/engine"
	"tandem/internal/openai/wiretest"
	"tandem/internal/sim"
)

// A watch is a log that asks the wire at each line about a request.
type watch struct {
	wire  *wiretest.Wire
	lines chan bool // whether the client had all of its answer
}

func (w *watch) Write(p []byte) (int, error) {
	if bytes.Contains(p, []byte(`"msg":"request`)) {
		w.lines <- w.wire.Whole()
	}
	return len(p), nil
}

// Who has the whole answer, or a stream's end mark, finds the request counted and
// logged.
func TestNumbersComeBeforeTheEndOfAnAnswer(t *testing.T) {
	see, counted := &watch{lines: make(chan bool, 10)}, make(chan bool, 10)
	r := start(t, sim.Config{EOSEvery: -1, MaxLen: 1 << 10}, engine.Config{}, Config{
		Log:     slog.New(slog.NewJSONHandler(see, nil)),
		Metrics: Metrics{Request: func(string, string, int) { counted <- see.wire.Whole() }},
	})
	see.wire = wiretest.Serve(t, r.server.Handler())
	r.url = see.wire.URL
	for _, c := range []struct {
		method, path, body string
		logged             bool
	}{
		{http.MethodPost, "/v1/completions", `{"prompt":"a","max_tokens":2`, true},
		{http.MethodPost, "/v1/completions", `{"prompt":"a","max_tokens":200,"logprobs":20`, true},
		{http.MethodPost, "/v1/completions", `{"prompt":["a","b"],"max_tokens":2`, true},
		{http.MethodPost, "/v1/chat/completions", `{"messages":[{"role":"user","content":"a"}],"max_tokens":2`, true},
		{http.MethodPost, "/v1/completions", `{"prompt":"a","max_tokens":-2`, true},
		{http.MethodPost, "/tokenize", `{"prompt":"` + strings.Repeat("x", 5000) + `"`, false},
		{http.MethodGet, "/v1/models", "", false},
		{http.MethodGet, "/health", "", false},
		{http.MethodGet, "/nothing", "", false},
	} {
		for _, stream := range []bool{false, true} {
			body := c.body
			if body != "" {
				body += fmt.Sprintf(`,"stream":%t}`, stream && c.logged)
			}
			see.wire.Clear()
			r.do(c.method, c.path, []byte(body))
			if !see.wire.Whole() {
				t.Fatalf("%s %.60s: the answer was not seen", c.path, body)
			}
			if <-counted {
				t.Errorf("%s %.60s: the client had it all before it was counted", c.path, body)
			}
			if c.logged && <-see.lines {
				t.Errorf("%s %.60s: the client had it all before it was logged", c.path, body)
			}
		}
	}
	r.client.CloseIdleConnections() // before the server waits for them
}

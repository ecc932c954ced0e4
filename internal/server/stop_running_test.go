package server

import (
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"runtime"
	"strings"
	"testing"

	"tandem/internal/bystander/logtest"
	"tandem/internal/engine"
	"tandem/internal/sim"
)

// At the end of a drain every request that still runs is told so: a stream with
// one error event and the end mark, one without a byte with a status.
func TestStopTellsEveryRequest(t *testing.T) {
	b := &logtest.Book{}
	m, err := sim.New(sim.Config{EOSEvery: -1})
	if err != nil {
		t.Fatal(err)
	}
	h := &held{Model: m, entered: make(chan struct{}, 1), steps: make(chan struct{}, 100)}
	r := startModel(t, h, engine.Config{}, Config{Log: slog.New(slog.NewJSONHandler(b, nil))})
	h.steps <- struct{}{} // one token, then nothing
	resp, err := r.client.Post(r.url+"/v1/completions", "application/json", strings.NewReader(`{"prompt":"a","max_tokens":50,"stream":true}`))
	if err != nil {
		t.Fatal(err)
	}
	answers := make(chan answer)
	for _, body := range []string{`{"prompt":"b"}`, `{"prompt":["b","c"],"stream":true}`} {
		go func() { answers <- r.post("/v1/completions", body) }()
	}
	for r.engine.Status().Live < 4 {
		if t.Context().Err() != nil {
			t.Fatal("not running")
		}
		runtime.Gosched()
	}
	r.server.Stop()
	raw, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	if err := resp.Body.Close(); err != nil {
		t.Fatal(err)
	}
	events := answer{header: resp.Header, raw: raw}.events(t)
	last, err := json.Marshal(events[len(events)-1])
	if err != nil || len(events) < 2 || !strings.Contains(string(last), "the server is shutting down") {
		t.Errorf("%s %v", raw, err)
	}
	for range 2 {
		if a := <-answers; a.status != http.StatusServiceUnavailable || !strings.Contains(string(a.raw), "the server is shutting down") {
			t.Errorf("%d %s", a.status, a.raw)
		}
	}
	if a := r.post("/v1/completions", `{"prompt":"late"}`); a.status != http.StatusServiceUnavailable {
		t.Errorf("a late request: %d %s", a.status, a.raw)
	}
	close(h.steps)
	lines := b.Records(t, "request") // each was written before the end of its answer
	if len(lines) != 4 {
		t.Errorf("%d lines: %s", len(lines), b)
	}
	for _, l := range lines {
		if l["outcome"] != "shutdown" || l["status"] != 503.0 {
			t.Errorf("%v", l)
		}
	}
}

// A client learns which of its fields had no effect.
func TestIgnoredFieldsAreSaid(t *testing.T) {
	r := start(t, sim.Config{}, engine.Config{}, Config{})
	for _, stream := range []string{"false", "true"} {
		for path, prompt := range map[string]string{"/v1/completions": `"prompt":"a"`, "/v1/chat/completions": `"messages":[{"role":"user","content":"a"}]`} {
			a := r.post(path, fmt.Sprintf(`{%s,"max_tokens":2,"tools":[],"bad_words":[],"response_format":{"type":"json_object"},"stream":%s}`, prompt, stream))
			if a.status != http.StatusOK || a.header.Get("X-Tandem-Ignored") != "tools,response_format" {
				t.Errorf("%s: %d %v", path, a.status, a.header)
			}
			if a = r.post(path, fmt.Sprintf(`{%s,"max_tokens":2,"stream":%s}`, prompt, stream)); a.header.Get("X-Tandem-Ignored") != "" {
				t.Errorf("nothing is ignored, but %q is said", a.header.Get("X-Tandem-Ignored"))
			}
		}
	}
}

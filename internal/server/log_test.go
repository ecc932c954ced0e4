package server

import (
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"testing"

	"tandem/internal/bystander/logtest"
	"tandem/internal/engine"
	"tandem/internal/sim"
)

func TestOneLogLinePerRequest(t *testing.T) {
	b := &logtest.Book{}
	answered := make(chan struct{}, 3) // the line is written before this
	r := start(t, sim.Config{EOSEvery: -1}, engine.Config{}, Config{
		Log:     slog.New(slog.NewJSONHandler(b, nil)),
		Metrics: Metrics{Request: func(string, string, int) { answered <- struct{}{} }},
	})
	for _, stream := range []string{"false", "true"} {
		r.do(http.MethodPost, "/v1/completions", []byte(`{"prompt":["ab","cd"],"n":2,"max_tokens":3,"tools":[],"y":1,"stream":`+stream+`}`), "X-Request-Id", "s"+stream)
	}
	r.post("/v1/completions", `{"prompt":"ab","n":0}`)
	for range 3 {
		<-answered
	}
	lines := b.Records(t, "request")
	if len(lines) != 2 {
		t.Fatalf("%d lines: %s", len(lines), b.String())
	}
	for _, l := range lines {
		if l["outcome"] != "ok" || l["prompt_tokens"] != 4.0 || l["completion_tokens"] != 12.0 || l["finish"] != "length" || l["first"] == nil {
			t.Errorf("%v", l)
		}
	}
	if l := b.Records(t, "request refused"); len(l) != 1 || l[0]["status"] != 400.0 {
		t.Errorf("refusals: %v", l)
	}
	if l := b.Records(t, "unknown fields ignored"); len(l) != 2 || fmt.Sprint(l[0]["fields"]) != "[tools y]" {
		t.Errorf("warnings: %v", l)
	}
}

// H087: mistakes of clients are 4xx and change nothing.
func TestFiftyMistakesChangeNothing(t *testing.T) {
	r := start(t, sim.Config{MaxLen: 64}, engine.Config{}, Config{})
	for i := range 50 {
		body := `{"prompt":[9999]}`
		if i%2 == 0 {
			body = `{"prompt":"` + strings.Repeat("x", 100) + `"}`
		}
		if a := r.post("/v1/completions", body); a.status != 400 {
			t.Fatalf("%d %s", a.status, a.raw)
		}
	}
	if a := r.do(http.MethodGet, "/health/ready", nil); a.status != 200 {
		t.Errorf("not ready: %d", a.status)
	}
	if st := r.engine.Status(); st.Live != 0 || st.Stats.Prompt != 0 {
		t.Errorf("%+v", st)
	}
	r.live()
}

// H060
func TestASeedOwnsItsOutput(t *testing.T) {
	r := start(t, sim.Config{Blocks: 24, EOSEvery: -1}, engine.Config{MaxBatchedTokens: 48}, Config{})
	seeded := `{"prompt":"seeded","seed":42,"temperature":0.8,"max_tokens":30}`
	text := func() string {
		a := r.post("/v1/completions", seeded)
		got, _, _ := gather(t, []map[string]any{a.m})
		return got[0].Text
	}
	want := text()
	var wg sync.WaitGroup
	for i := range 20 {
		wg.Go(func() {
			if i%2 == 0 {
				r.post("/v1/completions", fmt.Sprintf(`{"prompt":"company %d","temperature":1,"max_tokens":40,"n":2}`, i))
				return
			}
			if got := text(); got != want {
				t.Errorf("%q in company, %q alone", got, want)
			}
		})
	}
	wg.Wait()
}

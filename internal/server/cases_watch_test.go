package server

import (
	"net/http"
	"runtime"
	"strings"
	"testing"
	"time"

	"tandem/internal/engine"
	"tandem/internal/kv"
	"tandem/internal/sim"
)

// A held model computes a step when the test lets it.
type held struct {
	*sim.Model
	entered, steps chan struct{}
}

func (h *held) Step(b *kv.Batch) ([][]float32, error) {
	select {
	case h.entered <- struct{}{}:
	default:
	}
	<-h.steps
	return h.Model.Step(b)
}

// H042: while the loop is frozen, liveness is red, the status tells for how
// long, and every client has its answer; all is green when the loop goes on.
func TestFrozenLoopTurnsHealthRed(t *testing.T) {
	m, err := sim.New(sim.Config{EOSEvery: -1})
	if err != nil {
		t.Fatal(err)
	}
	h := &held{Model: m, entered: make(chan struct{}, 1), steps: make(chan struct{})}
	r := startModel(t, h, engine.Config{StallLimit: 2 * time.Second}, Config{})
	answers := make(chan answer)
	for _, body := range []string{`{"prompt":"a","max_tokens":4}`, `{"prompt":"b","max_tokens":4,"stream":true}`, `{"prompt":["c","d"],"max_tokens":4}`} {
		go func() { answers <- r.post("/v1/completions", body) }()
	}
	<-h.entered
	for range 3 {
		if a := <-answers; a.status != http.StatusServiceUnavailable || a.header.Get("Retry-After") == "" {
			t.Errorf("a client of the frozen loop: %d %s", a.status, a.raw)
		}
	}
	for _, path := range []string{"/health", "/health/ready"} {
		if a := r.do(http.MethodGet, path, nil); a.status != http.StatusServiceUnavailable || !strings.Contains(string(a.raw), "no progress") {
			t.Errorf("%s: %d %s", path, a.status, a.raw)
		}
	}
	if a := r.post("/v1/completions", `{"prompt":"new"}`); a.status != http.StatusServiceUnavailable {
		t.Errorf("a new request: %d", a.status)
	}
	seconds := func() float64 {
		v, _ := r.do(http.MethodGet, "/server_info", nil).m["stalled_seconds"].(float64)
		return v
	}
	if v := seconds(); v < 2 {
		t.Errorf("seconds without progress: %v", v)
	}
	close(h.steps)
	for r.engine.Status().Hung || r.engine.Status().Live > 0 {
		runtime.Gosched()
	}
	if a := r.do(http.MethodGet, "/health", nil); a.status != http.StatusOK {
		t.Errorf("health after the freeze: %d", a.status)
	}
	if a := r.post("/v1/completions", `{"prompt":"again","max_tokens":4}`); a.status != http.StatusOK {
		t.Errorf("a request after the freeze: %d %s", a.status, a.raw)
	}
	for seconds() != 0 { // the loop rests a moment after its answer
		runtime.Gosched()
	}
}

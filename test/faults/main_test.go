package main

import (
	"bytes"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
)

// What the campaign concludes from an answer.
func TestAnswersAreJudged(t *testing.T) {
	want := []int{5, 6, 7, 8}
	choices := func(ids, finish string) string {
		return `{"choices":[{"token_ids":[` + ids + `],"finish_reason":"` + finish + `"}]`
	}
	for _, c := range []struct {
		name, body string
		status     int
		stream     bool
		want       string
	}{
		{"whole", choices("5,6,7,8", "length") + "}", 200, false, right},
		{"another token", choices("5,6,7,9", "length") + "}", 200, false, wrong},
		{"a token less", choices("5,6,7", "length") + "}", 200, false, wrong},
		{"numbers that do not add up", choices("5,6,7,8", "length") + `,"usage":{"kv_transfer":{"prompt_tokens":9,"loaded_tokens":7,"computed_tokens":1}}}`, 200, false, wrong},
		{"numbers that add up", choices("5,6,7,8", "length") + `,"usage":{"kv_transfer":{"prompt_tokens":9,"loaded_tokens":8,"computed_tokens":1}}}`, 200, false, right},
		{"typed error", `{"error":{"message":"m","type":"t","reason":"kv_load_sum"}}`, 500, false, refused},
		{"error without words", `{"error":{}}`, 500, false, broken},
		{"status alone", `{}`, 503, false, broken},
		{"no JSON", "upstream connect error", 502, false, broken},
		{"stream", "data: " + choices("5,6", "") + "}\n\ndata: " + choices("7,8", "length") + "}\n\ndata: [DONE]\n\n", 200, true, right},
		{"stream without end", "data: " + choices("5,6,7,8", "length") + "}\n\n", 200, true, broken},
		{"stream that fails", "data: " + choices("5,6", "") + "}\n\ndata: {\"error\":{\"message\":\"m\",\"type\":\"t\"}}\n\ndata: [DONE]\n\n", 200, true, refused},
		{"stream that fails after it finished", "data: " + choices("5,6", "stop") + "}\n\ndata: {\"error\":{\"message\":\"m\",\"type\":\"t\"}}\n\ndata: [DONE]\n\n", 200, true, wrong},
		{"stream that fails after a wrong token", "data: " + choices("5,7", "") + "}\n\ndata: {\"error\":{\"message\":\"m\",\"type\":\"t\"}}\n\ndata: [DONE]\n\n", 200, true, wrong},
		{"event behind the end", "data: " + choices("5,6,7,8", "length") + "}\n\ndata: [DONE]\n\ndata: {}\n\n", 200, true, broken},
	} {
		srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(c.status)
			_, _ = io.WriteString(w, c.body) // the client tells
		}))
		rep := (&campaign{pulse: &pulse{}}).send(ask{url: srv.URL, prompt: []int{1}, tokens: 4, stream: c.stream})
		if got := rep.judge(want); got != c.want {
			t.Errorf("%s: %s, want %s: %s", c.name, got, c.want, &rep)
		}
		srv.Close()
	}
	if got := (&reply{err: errors.New("reset")}).judge(want); got != broken {
		t.Errorf("no answer: %s", got)
	}
}

// A line that is late, wrong or never came about is in the table and ends the
// program with an error.
func TestMissedLinesFailTheCampaign(t *testing.T) {
	for name, spoil := range map[string]func(r *row){
		"":             func(*row) {},
		"late":         func(r *row) { r.took(1501*time.Millisecond, 1500*time.Millisecond) },
		"not returned": func(r *row) { r.returned(1001*time.Millisecond, time.Second) },
		"wrong":        func(r *row) { note(r, &reply{status: 200, ids: []int{1}}, []int{2}, time.Second) },
		"not answered": func(r *row) { note(r, &reply{}, []int{2}, time.Second) },
		"said so":      func(r *row) { r.wrong("because") },
	} {
		var out bytes.Buffer
		r := row{what: "a line"}
		r.took(time.Second, 1500*time.Millisecond)
		r.returned(time.Second, time.Second)
		note(&r, &reply{status: 200, ids: []int{2}}, []int{2}, time.Second)
		spoil(&r)
		missed := (&table{rows: []row{r}}).print(&out)
		if want := min(len(name), 1); missed != want || strings.Contains(out.String(), "MISSED") != (want == 1) {
			t.Errorf("%q: %d lines missed, want %d:\n%s", name, missed, want, out.String())
		}
	}
	saved := sections
	defer func() { sections = saved }()
	sections = sections[:0]
	c := &campaign{pulse: &pulse{}, log: io.Discard}
	if err := run(c, "", io.Discard); err == nil {
		t.Error("a campaign without a line is met")
	}
	sections = append(saved[:0:0], saved[0])
	sections[0].name, sections[0].run = "bad", func(*campaign, testing.TB) error { return errors.New("no start") }
	if err := run(c, "", io.Discard); err == nil || len(c.table.rows) != 1 {
		t.Errorf("a section that did not run: %v, %+v", err, c.table.rows)
	}
}

// What engines are given grows with patience, to a degree; what a line may take
// grows with it in any case.
func TestLimitsGrowWithPatience(t *testing.T) {
	defer func(p time.Duration) { patience = p }(patience)
	for p, want := range map[time.Duration]string{1: "0.4", 2: "0.8", 3: "1.2", 8: "1.2"} {
		patience = p
		if got := matrixHandshake.flag("handshake_timeout"); got != extra+"handshake_timeout="+want {
			t.Errorf("patience %d: %s", p, got)
		}
		var r row
		r.took(p*time.Second, time.Second)
		r.returned(p*time.Second, time.Second)
		if len(r.missed) > 0 {
			t.Errorf("patience %d: %v", p, r.missed)
		}
	}
}

// The time in which the harness could not run is taken off, and no more.
func TestWatchTakesLatenessOff(t *testing.T) {
	p := &pulse{}
	w := p.start()
	w.begun = w.begun.Add(-time.Hour)
	p.sum.Add(int64(20 * time.Minute))
	if got := w.took(); got < 40*time.Minute || got > 41*time.Minute {
		t.Errorf("%v, want 40 minutes", got)
	}
	p.sum.Add(int64(2 * time.Hour))
	if got := w.took(); got != 0 {
		t.Errorf("%v, want 0", got)
	}
}

// A section that does not exist is an error before the others run.
func TestUnknownSection(t *testing.T) {
	for _, only := range []string{"nosuch", "adversary,nosuch", "adversary,"} {
		err := run(&campaign{log: io.Discard, pulse: &pulse{}}, only, io.Discard)
		if err == nil || !strings.Contains(err.Error(), "there are adversary, peers,") {
			t.Errorf("%s: %v", only, err)
		}
	}
}

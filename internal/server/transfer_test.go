package server

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"tandem/internal/bystander/logtest"
	"tandem/internal/engine"
	"tandem/internal/kv"
	"tandem/internal/openai"
	"tandem/internal/sim"
)

// offer returns the fields of a request for 40 tokens whose hand-off does not
// load.
func offer(t *testing.T, l *link, id int) string {
	t.Helper()
	tokens := make([]kv.Token, 40)
	for i := range tokens {
		tokens[i] = kv.Token(id)
	}
	list, err := json.Marshal(tokens)
	if err != nil {
		t.Fatal(err)
	}
	h, err := json.Marshal(l.handoff(tokens, byte(id), []kv.BlockID{1, 2, 3}))
	if err != nil {
		t.Fatal(err)
	}
	return `"prompt":` + string(list) + `,"max_tokens":3,"temperature":0,"kv_transfer_params":` + string(h)
}

// A request chooses its policy where the engine lets it; elsewhere the header
// has no effect and the answer says so.
func TestRequestsChooseTheirPolicy(t *testing.T) {
	const field = "X-KV-Load-Failure-Policy"
	for _, own := range []bool{false, true} {
		for _, policy := range []engine.FailPolicy{engine.PolicyFail, engine.PolicyRecompute} {
			l := newLink()
			r := start(t, sim.Config{}, engine.Config{Connector: l, Policy: policy, NoPrefixCache: true},
				Config{Connector: l, AllowRequestPolicy: own})
			for i, value := range []string{"", "fail", "recompute", "FAIL", "abort", "fail,recompute"} {
				body := "{" + offer(t, l, i+1) + "}"
				var header []string
				if value != "" {
					header = []string{field, value}
				}
				a := r.do(http.MethodPost, "/v1/completions", []byte(body), header...)
				name := fmt.Sprintf("allowed %t, engine %s, request %q", own, policy, value)
				rules := policy
				if own && value != "" {
					rules = engine.FailPolicy(value)
				}
				want := map[engine.FailPolicy]int{engine.PolicyFail: 500, engine.PolicyRecompute: 200}[rules]
				if want == 0 {
					if a.status != 400 || a.param() != field || len(l.back()) != 1 {
						t.Errorf("%s: %d %s", name, a.status, a.raw)
					}
					continue
				}
				if a.status != want || a.header.Get("X-KV-Load-Failure") != "handshake" {
					t.Errorf("%s: %d, want %d: %v", name, a.status, want, a.header)
				}
				if said := a.header.Get("X-Tandem-Ignored"); (said == field) != (!own && value != "") {
					t.Errorf("%s: ignored %q", name, said)
				}
			}
			// One word twice is as unclear as two words.
			q, err := http.NewRequest(http.MethodPost, r.url+"/v1/completions", strings.NewReader("{"+offer(t, l, 99)+"}"))
			if err != nil {
				t.Fatal(err)
			}
			q.Header[http.CanonicalHeaderKey(field)] = []string{"fail", "recompute"}
			resp, err := r.client.Do(q)
			if err != nil {
				t.Fatal(err)
			}
			_ = resp.Body.Close()
			if (resp.StatusCode == http.StatusBadRequest) != own {
				t.Errorf("allowed %t: two values: %d", own, resp.StatusCode)
			}
		}
	}
}

// transferOf returns what a usage says of the KV, and checks that it adds up.
func transferOf(t *testing.T, name string, usage any) openai.KVTransfer {
	t.Helper()
	raw, err := json.Marshal(usage)
	if err != nil {
		t.Fatal(err)
	}
	var u openai.Usage
	if err := json.Unmarshal(raw, &u); err != nil || u.KVTransfer == nil {
		t.Fatalf("%s: usage %s: %v", name, raw, err)
	}
	k := *u.KVTransfer
	if k.Prompt != u.PromptTokens || k.Loaded+k.Local+k.Recomputed+k.Computed != k.Prompt {
		t.Errorf("%s: %s does not add up", name, raw)
	}
	return k
}

func told(h http.Header) string {
	var out []string
	for _, k := range []string{"Prompt-Tokens", "Loaded-Tokens", "Local-Tokens", "Recomputed-Tokens", "Computed-Tokens", "Load-Failure"} {
		out = append(out, h.Get("X-KV-"+k))
	}
	return strings.Join(out, " ")
}

// Headers and usage say where the prompt's KV came from; in streams the headers
// leave with the first byte.
func TestAnswersSayWhereTheKVCameFrom(t *testing.T) {
	l := newLink()
	r := start(t, sim.Config{}, engine.Config{Connector: l, Policy: engine.PolicyRecompute}, Config{Connector: l})
	const streamed = `,"stream":true,"stream_options":{"include_usage":true}`
	chat := `{"messages":[{"role":"user","content":"` + strings.Repeat("c", 60) + `"}],"max_tokens":2`
	n := 0
	for _, c := range []struct{ what, path, body, header string }{
		{"nothing known", "/v1/completions", `{"prompt":"` + strings.Repeat("a", 50) + `","max_tokens":2`, "50 0 0 0 50 "},
		{"cached", "/v1/completions", `{"prompt":"` + strings.Repeat("a", 50) + `","max_tokens":2`, "50 0 48 0 2 "},
		{"cached, three choices", "/v1/completions", `{"prompt":"` + strings.Repeat("a", 50) + `","max_tokens":2,"n":3`, "50 0 48 0 2 "},
		{"failed load", "/v1/completions", "", "40 0 0 39 1 handshake"},
		{"chat", "/v1/chat/completions", chat, ""},
		{"several prompts", "/v1/completions", `{"max_tokens":2,"prompt":["` + strings.Repeat("a", 50) + `","` + strings.Repeat("a", 33) + `"]`, "83 0 80 0 3 "},
	} {
		for _, stream := range []bool{false, true} {
			body := c.body
			if body == "" {
				n++
				body = "{" + offer(t, l, n)
			}
			name := fmt.Sprintf("%s, stream %t", c.what, stream)
			var usage any
			var a answer
			if !stream {
				a = r.post(c.path, body+"}")
				usage = a.m["usage"]
			} else {
				a = r.post(c.path, body+streamed+"}")
				if a.status == 200 {
					events := a.events(t)
					usage = events[len(events)-1]["usage"]
				}
			}
			if a.status != 200 {
				t.Fatalf("%s: %d %s", name, a.status, a.raw)
			}
			k := transferOf(t, name, usage)
			want := fmt.Sprintf("%d %d %d %d %d %s", k.Prompt, k.Loaded, k.Local, k.Recomputed, k.Computed, k.Failure)
			if c.header != "" && want != c.header && (c.what != "nothing known" || !stream) {
				t.Errorf("%s: usage says %q, want %q", name, want, c.header)
			}
			if stream && c.what == "several prompts" {
				want = "     " // not known when the headers leave
			}
			if got := told(a.header); got != want {
				t.Errorf("%s: headers %q, usage %q", name, got, want)
			}
		}
	}
}

// Metrics that panic change no answer.
func TestMetricsThatPanicChangeNothing(t *testing.T) {
	var calls atomic.Int64
	boom := func() {
		calls.Add(1)
		panic("metrics")
	}
	quiet := start(t, sim.Config{}, engine.Config{}, Config{})
	r := start(t, sim.Config{}, engine.Config{}, Config{Metrics: Metrics{
		Request: func(string, string, int) { boom() }, Params: func(int, int) { boom() },
	}})
	for _, stream := range []string{"false", "true"} {
		body := object("prompt", `"abcdef"`, "temperature", "0", "max_tokens", "5", "stream", stream)
		text := func(r *rig) string {
			a := r.post("/v1/completions", body)
			if a.status != http.StatusOK {
				t.Fatalf("%d %s", a.status, a.raw)
			}
			all := []map[string]any{a.m}
			if stream == "true" {
				all = a.events(t)
			}
			got, _, _ := gather(t, all)
			return fmt.Sprint(got[0])
		}
		if got, want := text(r), text(quiet); got != want {
			t.Errorf("stream %s: %s, want %s", stream, got, want)
		}
	}
	if a := r.post("/v1/completions", "{"); a.status != http.StatusBadRequest {
		t.Errorf("%d %s", a.status, a.raw)
	}
	if n := calls.Load(); n < 4 {
		t.Errorf("%d calls panicked", n)
	}
}

// A load that failed is told by the connector; of the request there is its one
// line, which names the class.
func TestFailedLoadIsOneLineOfTheServer(t *testing.T) {
	var log logtest.Book
	answered := make(chan struct{}, 2) // the line is written before this
	l := newLink()
	r := start(t, sim.Config{}, engine.Config{Connector: l, Policy: engine.PolicyFail},
		Config{
			Connector: l, AllowRequestPolicy: true, Log: slog.New(slog.NewJSONHandler(&log, nil)),
			Metrics: Metrics{Request: func(string, string, int) { answered <- struct{}{} }},
		})
	if a := r.post("/v1/completions", "{"+offer(t, l, 1)+"}"); a.status != 500 {
		t.Fatalf("%d %s", a.status, a.raw)
	}
	if a := r.do(http.MethodPost, "/v1/completions", []byte("{"+offer(t, l, 2)+"}"), "X-KV-Load-Failure-Policy", "recompute"); a.status != 200 {
		t.Fatalf("%d %s", a.status, a.raw)
	}
	<-answered
	<-answered
	lines := log.Records(t, "request")
	if len(lines) != 2 || len(log.Records(t, "request failed")) != 0 {
		t.Fatalf("%v", lines)
	}
	if !strings.Contains(fmt.Sprint(lines[0]["err"]), "handshake") || lines[1]["load_failure"] != "handshake" || lines[1]["recomputed"] != 39.0 {
		t.Errorf("%v", lines)
	}
}

package server

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"tandem/internal/engine"
	"tandem/internal/sim"
)

// both runs one request as a whole answer and as a stream and returns the
// choices, which must be equal, with the usage.
func (r *rig) both(path string, pairs ...string) (map[int]*whole, map[string]any) {
	r.t.Helper()
	a := r.post(path, object(pairs...))
	if a.status != http.StatusOK {
		r.t.Fatalf("%s: %d %s", object(pairs...), a.status, a.raw)
	}
	one, usage, _ := gather(r.t, []map[string]any{a.m})
	b := r.post(path, object(append(pairs, "stream", "true", "stream_options", `{"include_usage":true}`)...))
	if b.status != http.StatusOK {
		r.t.Fatalf("stream: %d %s", b.status, b.raw)
	}
	events := b.events(r.t)
	two, streamed, n := gather(r.t, events)
	if last := events[len(events)-1]; n != 1 || last["usage"] == nil || len(last["choices"].([]any)) != 0 {
		r.t.Fatalf("usage must come once, in the last event: %d times, last %v", n, last)
	}
	if d := cmp.Diff(one, two); d != "" {
		r.t.Fatalf("%s: whole and stream differ:\n%s", object(pairs...), d)
	}
	for _, k := range []string{"prompt_tokens", "completion_tokens", "total_tokens"} {
		if usage[k] != streamed[k] {
			r.t.Fatalf("%s: %s is %v whole and %v streamed", object(pairs...), k, usage[k], streamed[k])
		}
	}
	return one, usage
}

func TestStreamsEqualWholeAnswers(t *testing.T) {
	r := start(t, sim.Config{EOSEvery: 40}, engine.Config{}, Config{})
	base := r.post("/v1/completions", `{"prompt":"alpha beta","max_tokens":60,"temperature":0,"ignore_eos":true}`)
	one, _, _ := gather(t, []map[string]any{base.m})
	text := one[0].Text
	variants := [][]string{
		{},
		{"n", "3", "temperature", "0.9", "seed", "-9223372036854775808"},
		{"n", "2", "temperature", "1", "seed", "7", "logprobs", "3", "echo", "true"},
		{"stop", fmt.Sprintf("[%q,%q]", text[10:14], text[12:13])},
		{"stop", fmt.Sprintf("%q", text[5:9]), "include_stop_str_in_output", "true", "return_token_ids", "true"},
		{"stop", `["never, ever"]`, "logprobs", "0"},
		{"stop", fmt.Sprintf("%q", text[3:6]), "min_tokens", "20"},
		{"echo", "true", "return_token_ids", "true"},
		{"ignore_eos", "true", "logprobs", "5"},
		{"stop_token_ids", fmt.Sprintf("[%d]", text[8]), "return_token_ids", "true"},
		{"max_tokens", "1"}, {"max_tokens", "2"}, {"max_tokens", "3"},
		{"skip_special_tokens", "false", "include_stop_str_in_output", "true"},
		{"return_tokens_as_token_ids", "true", "logprobs", "2"},
	}
	for i, v := range variants {
		for _, prompt := range []string{`"alpha beta"`, `[256,97,98,99]`, `["one","two","one"]`} {
			pairs := append([]string{"prompt", prompt}, v...)
			if !strings.Contains(strings.Join(v, " "), "temperature") {
				pairs = append(pairs, "temperature", "0")
			}
			if !strings.Contains(strings.Join(v, " "), "max_tokens") {
				pairs = append(pairs, "max_tokens", "40")
			}
			got, _ := r.both("/v1/completions", pairs...)
			n := 1
			if strings.HasPrefix(prompt, `["`) {
				n = 3
				if d := cmp.Diff(got[0], got[2*len(got)/3]); d != "" && len(v) == 0 {
					t.Errorf("equal prompts differ: %s", d)
				}
			}
			if len(got)%n != 0 || len(got) < n {
				t.Errorf("variant %d: %d choices", i, len(got))
			}
		}
	}
}

func TestChatStreamsEqualWholeAnswers(t *testing.T) {
	r := start(t, sim.Config{}, engine.Config{}, Config{})
	messages := `[{"role":"system","content":"be brief"},{"role":"user","content":[{"type":"text","text":"a"},{"type":"text","text":"b"}]}]`
	for _, v := range [][]string{
		{}, {"logprobs", "true"}, {"logprobs", "true", "top_logprobs", "4"}, {"n", "3", "temperature", "0.7", "seed", "1"},
		{"return_token_ids", "true"}, {"max_completion_tokens", "2"},
	} {
		pairs := append([]string{"messages", messages, "max_tokens", "12", "user", `"u"`}, v...)
		if len(v) < 4 || v[2] != "temperature" {
			pairs = append(pairs, "temperature", "0")
		}
		got, usage := r.both("/v1/chat/completions", pairs...)
		if len(v) == 2 && v[0] == "max_completion_tokens" && usage["completion_tokens"] != 2.0 {
			t.Errorf("max_completion_tokens 2: %v", usage)
		}
		if len(v) == 4 && v[2] == "top_logprobs" {
			for _, c := range got[0].Logprobs["content"] {
				if n := len(c.(map[string]any)["top_logprobs"].([]any)); n != 4 {
					t.Fatalf("%d alternatives", n)
				}
			}
		}
	}
	joined := r.post("/v1/chat/completions", `{"messages":[{"role":"user","content":"a\nb"}],"max_tokens":5,"return_token_ids":true}`)
	parts := r.post("/v1/chat/completions", `{"messages":[{"role":"user","content":[{"type":"text","text":"a"},{"type":"text","text":"b"}]}],"max_tokens":5,"return_token_ids":true}`)
	if d := cmp.Diff(joined.m["prompt_token_ids"], parts.m["prompt_token_ids"]); d != "" || joined.m["prompt_token_ids"] == nil {
		t.Errorf("parts are not joined with a line feed: %s", d)
	}
	events := r.post("/v1/chat/completions", object("messages", messages, "stream", "true", "max_tokens", "3")).events(t)
	first := events[0]["choices"].([]any)[0].(map[string]any)["delta"].(map[string]any)
	if first["role"] != "assistant" || events[0]["object"] != "chat.completion.chunk" {
		t.Errorf("first event %v", events[0])
	}
}

// H050
func TestEchoWithoutTokens(t *testing.T) {
	r := start(t, sim.Config{}, engine.Config{}, Config{})
	for _, logprobs := range []string{"null", "2"} {
		got, usage := r.both("/v1/completions", "prompt", `"hello"`, "echo", "true", "max_tokens", "0", "logprobs", logprobs)
		w := got[0]
		if w.Text != "hello" || w.Finish != "length" || usage["completion_tokens"] != 0.0 || usage["prompt_tokens"] == 0.0 {
			t.Errorf("logprobs %s: %+v %v", logprobs, w, usage)
		}
		if l := w.Logprobs["token_logprobs"]; logprobs == "2" && (len(l) != int(usage["prompt_tokens"].(float64)) || l[0] != nil || l[1] == nil) {
			t.Errorf("prompt log-probabilities %v", l)
		}
	}
	if a := r.post("/v1/completions", `{"prompt":"x","max_tokens":0}`); a.status != 400 || a.param() != "max_tokens" {
		t.Errorf("max_tokens 0 without echo: %d %s", a.status, a.raw)
	}
}

// H051
func TestTokenIDsOutsideTheVocabulary(t *testing.T) {
	r := start(t, sim.Config{}, engine.Config{}, Config{})
	before := r.engine.Status().Stats.Prompt
	for prompt, param := range map[string]string{
		"[999999]": "prompt[0]", "[-1]": "prompt[0]", "[259]": "prompt[0]", "[1,2,259]": "prompt[2]",
		"[1,2.0]": "prompt[1]", "[1,1.5]": "prompt[1]", `[1,"2"]`: "prompt[1]", "[1,null]": "prompt[1]",
		"[9223372036854775808]": "prompt[0]", "[4294967297]": "prompt[0]", "[[1],[2,300]]": "prompt[1][1]",
		`["a",[1,-5]]`: "prompt[1][1]", "[true]": "prompt[0]", "[]": "prompt", "[[]]": "prompt[0]", "{}": "prompt",
		"[[[1]]]": "prompt[0][0]", "[1e2]": "prompt[0]",
	} {
		if a := r.post("/v1/completions", object("prompt", prompt)); a.status != 400 || a.param() != param {
			t.Errorf("%s: %d %q, want %s", prompt, a.status, a.raw, param)
		}
	}
	if after := r.engine.Status().Stats.Prompt; after != before {
		t.Errorf("prompt tokens computed: %d", after-before)
	}
}

// H052
func TestEndTokenFirst(t *testing.T) {
	r := start(t, sim.Config{EOSEvery: 1}, engine.Config{}, Config{})
	got, usage := r.both("/v1/completions", "prompt", `"x"`, "temperature", "0", "max_tokens", "5")
	if w := got[0]; w.Text != "" || w.Finish != "stop" || w.Stop != nil || usage["completion_tokens"] != 1.0 {
		t.Errorf("%+v %v", w, usage)
	}
	got, usage = r.both("/v1/completions", "prompt", `"x"`, "temperature", "0", "max_tokens", "5", "ignore_eos", "true")
	if w := got[0]; w.Finish != "length" || usage["completion_tokens"] != 5.0 {
		t.Errorf("ignore_eos: %+v %v", w, usage)
	}
}

func TestStopTokensAreNoText(t *testing.T) {
	r := start(t, sim.Config{EOSEvery: -1}, engine.Config{}, Config{})
	plain, _ := r.both("/v1/completions", "prompt", `"x"`, "temperature", "0", "max_tokens", "1")
	letter := plain[0].Text
	for include, want := range map[string]string{"false": "", "true": letter} {
		got, usage := r.both("/v1/completions", "prompt", `"x"`, "temperature", "0", "max_tokens", "9",
			"stop_token_ids", fmt.Sprintf("[%d]", letter[0]), "include_stop_str_in_output", include)
		if w := got[0]; w.Text != want || w.Finish != "stop" || w.Stop != float64(letter[0]) || usage["completion_tokens"] != 1.0 {
			t.Errorf("include %s: %+v %v", include, w, usage)
		}
	}
}

// H055
func TestUsageOnlyWhenAsked(t *testing.T) {
	r := start(t, sim.Config{EOSEvery: -1}, engine.Config{}, Config{})
	for i, options := range []string{"null", "{}", `{"include_usage":false}`, `{"include_usage":true}`,
		`{"include_usage":true,"continuous_usage_stats":true}`, `{"continuous_usage_stats":true}`} {
		a := r.post("/v1/completions", object("prompt", `"count me"`, "stream", "true", "max_tokens", "7", "stream_options", options))
		events := a.events(t)
		_, usage, n := gather(t, events)
		want := []int{0, 0, 0, 1, len(events), len(events)}[i]
		if n != want {
			t.Errorf("%s: %d usages in %d events", options, n, len(events))
		}
		if n > 0 && (usage["completion_tokens"] != 7.0 || usage["prompt_tokens"] != 8.0) {
			t.Errorf("%s: %v", options, usage)
		}
	}
	a := r.post("/v1/completions", object("prompt", `"`+strings.Repeat("long ", 20)+`"`))
	b := r.post("/v1/completions", object("prompt", `"`+strings.Repeat("long ", 20)+`"`))
	cached := func(a answer) float64 {
		return a.m["usage"].(map[string]any)["prompt_tokens_details"].(map[string]any)["cached_tokens"].(float64)
	}
	if cached(a) != 0 || cached(b) != 96 || b.header.Get("X-KV-Local-Tokens") != "96" {
		t.Errorf("cached %v, then %v, header %q", cached(a), cached(b), b.header.Get("X-KV-Local-Tokens"))
	}
}

// H056, H057
func TestExtremeSamplingIsRefusedOrFinite(t *testing.T) {
	r := start(t, sim.Config{}, engine.Config{}, Config{})
	grid := map[string][]string{
		"temperature":        {"0", "1e-6", "1e-300", "1e6", "1e308", "!-1", "!1e400", `!"NaN"`},
		"top_p":              {"1", "1e-9", "!0", "!-1", "!2", `!"NaN"`, "!true"},
		"top_k":              {"-1", "0", "1", "1000000", "!-2", "!1.5"},
		"min_p":              {"0", "1", "!-0.1", "!1.1"},
		"repetition_penalty": {"1", "1e9", "1e-9", "!0", "!-1"},
		"presence_penalty":   {"-2", "2", "!-2.1", "!1e9"},
		"frequency_penalty":  {"-2", "2", "!2.5", "!1e9"},
		"min_tokens":         {"0", "4", "!5", "!-1"},
		"logit_bias":         {"{}", `{"65":100}`, `{"65":-100,"66":1e3}`, `!{"300":1}`, `!{"x":1}`, `!{"1":"a"}`, "![]"},
		"seed":               {"0", "-1", "9223372036854775807", "!1.5", `!"a"`},
		"stop_token_ids":     {"[]", "[1,2]", "![300]", "![-1]", "!5"},
	}
	for field, values := range grid {
		for _, v := range values {
			v, bad := strings.CutPrefix(v, "!")
			a := r.post("/v1/completions", object("prompt", `"x"`, "max_tokens", "4", "logprobs", "5", field, v))
			if bad {
				if p := a.param(); a.status != 400 || !strings.HasPrefix(p, field) {
					t.Errorf("%s %s: %d %s", field, v, a.status, a.raw)
				}
				continue
			}
			if a.status != 200 {
				t.Errorf("%s %s: %d %s", field, v, a.status, a.raw)
				continue
			}
			got, _, _ := gather(t, []map[string]any{a.m})
			for _, x := range got[0].Logprobs["token_logprobs"] {
				if x := x.(float64); x > 0 || x < -9999 {
					t.Errorf("%s %s: log-probability %v", field, v, x)
				}
			}
		}
	}
}

// H062
func TestContextLimit(t *testing.T) {
	r := start(t, sim.Config{MaxLen: 64, EOSEvery: -1}, engine.Config{}, Config{})
	ids := func(n int) string { return "[" + strings.Repeat("65,", n-1) + "65]" }
	got, usage := r.both("/v1/completions", "prompt", ids(63), "max_tokens", "100", "temperature", "0")
	if got[0].Finish != "length" || usage["completion_tokens"] != 1.0 {
		t.Errorf("limit - 1: %+v %v", got[0], usage)
	}
	for _, n := range []int{64, 65} {
		a := r.post("/v1/completions", object("prompt", ids(n)))
		s := string(a.raw)
		if a.status != 400 || a.param() != "prompt" || !strings.Contains(s, "context_length_exceeded") ||
			!strings.Contains(s, "64 tokens") || !strings.Contains(s, fmt.Sprintf("%d tokens and", n)) {
			t.Errorf("%d: %d %s", n, a.status, a.raw)
		}
	}
	long := `[{"role":"user","content":"` + strings.Repeat("x", 100) + `"}]`
	if a := r.post("/v1/chat/completions", object("messages", long)); a.status != 400 || a.param() != "messages" {
		t.Errorf("chat: %d %s", a.status, a.raw)
	}
	if a := r.post("/v1/completions", object("prompt", `"`+strings.Repeat("x", 1<<20)+`"`)); a.status != 400 || a.param() != "prompt" {
		t.Errorf("1 MiB of text: %d", a.status)
	}
}

func TestPromptLogprobs(t *testing.T) {
	r := start(t, sim.Config{}, engine.Config{}, Config{})
	a := r.post("/v1/completions", object("prompt", `"abc"`, "prompt_logprobs", "2", "max_tokens", "2"))
	l := a.m["choices"].([]any)[0].(map[string]any)["prompt_logprobs"].([]any)
	if len(l) != 3 || l[0] != nil {
		t.Fatalf("%v", l)
	}
	if own, ok := l[1].(map[string]any)["98"].(map[string]any); !ok || own["decoded_token"] != "b" || own["rank"].(float64) < 1 {
		t.Errorf("entry of the first letter: %v", l[1])
	}
	if a := r.post("/v1/completions", object("prompt", `"abc"`, "prompt_logprobs", "2", "stream", "true")); a.status != 400 || a.param() != "prompt_logprobs" {
		t.Errorf("stream: %d %s", a.status, a.raw)
	}
}

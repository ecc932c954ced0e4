package e2e

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"tandem/test/cluster"
)

// A reply is what a client has in the end, whole or streamed: choices by index,
// and the counts that must not depend on how it was served.
type reply struct {
	Status  int
	Error   any
	Choices map[int]map[string]any
	Usage   map[string]any
	route   string
	cached  any
}

// send posts body and gathers the reply.
func send(t *testing.T, url, path, body string) reply {
	t.Helper()
	resp, err := http.Post(url+path, "application/json", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	raw, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	r := reply{Status: resp.StatusCode, Choices: map[int]map[string]any{}, route: resp.Header.Get("X-Tandem-Route")}
	if !strings.HasPrefix(resp.Header.Get("Content-Type"), "text/event-stream") {
		r.add(t, raw)
		return r
	}
	events := strings.Split(string(raw), "\n\n")
	if n := len(events); n < 2 || events[n-1] != "" || events[n-2] != "data: [DONE]" {
		t.Fatalf("%s: the stream does not end: %s", body, raw)
	}
	for _, e := range events[:len(events)-2] {
		r.add(t, []byte(strings.TrimPrefix(e, "data: ")))
	}
	return r
}

// add takes a whole answer or an event. JSON with a number that is not finite
// does not parse.
func (r *reply) add(t *testing.T, raw []byte) {
	t.Helper()
	var v struct {
		Error   any              `json:"error"`
		Choices []map[string]any `json:"choices"`
		Usage   map[string]any   `json:"usage"`
	}
	if err := json.Unmarshal(raw, &v); err != nil {
		t.Fatalf("%s: %v", raw, err)
	}
	r.Error = v.Error
	if v.Usage != nil {
		if details, ok := v.Usage["prompt_tokens_details"].(map[string]any); ok {
			r.cached = details["cached_tokens"]
		}
		delete(v.Usage, "prompt_tokens_details")
		delete(v.Usage, "kv_transfer") // says where the prompt came from, which differs
		r.Usage = v.Usage
	}
	for _, c := range v.Choices {
		i := int(c["index"].(float64))
		if d, ok := c["delta"].(map[string]any); ok {
			c["message"] = d
			delete(c, "delta")
		}
		if r.Choices[i] == nil {
			r.Choices[i] = map[string]any{}
		}
		merge(r.Choices[i], c)
	}
}

// merge joins texts and lists of the pieces of a choice; of other values the
// last that is not null stays.
func merge(to, from map[string]any) {
	for k, v := range from {
		switch v := v.(type) {
		case string:
			have, _ := to[k].(string)
			if k == "role" || k == "finish_reason" {
				have = ""
			}
			to[k] = have + v
		case []any:
			have, _ := to[k].([]any)
			to[k] = append(have, v...)
		case map[string]any:
			have, _ := to[k].(map[string]any)
			if have == nil || k == "top_logprobs" {
				have = map[string]any{}
			}
			merge(have, v)
			to[k] = have
		case nil:
		default:
			to[k] = v
		}
	}
}

// endFirst returns a prompt whose first greedy token is the end token.
func endFirst(t *testing.T, url string) string {
	t.Helper()
	for round := range 40 {
		var list []string
		for i := range 200 {
			list = append(list, fmt.Sprintf("[%d,%d,%d]", 97+round%26, 65+i%60, 97+i%26))
		}
		r := send(t, url, "/v1/completions", `{"prompt":[`+strings.Join(list, ",")+`],"max_tokens":1,"temperature":0}`)
		for i := range list {
			if r.Choices[i]["finish_reason"] == "stop" {
				return list[i]
			}
		}
	}
	t.Fatal("no prompt begins with the end token")
	return ""
}

// What a client gets through router, P and D is what one engine gives, field by
// field: H050 H052 H053 H054 H055 H056 H058 H059 H060 H062 over processes.
func TestRouterAnswersAsOneEngine(t *testing.T) {
	engine := []string{"--sim", "--max-model-len", "256", "--num-gpu-blocks-override", "1024"}
	one := cluster.Start(t, "one", append([]string{"serve", "--port", "0"}, engine...)...).Ready(t)
	set := cluster.StartSet(t, engine, nil, nil)
	ids := func(n int) string { return "[" + strings.Repeat("66,", n-1) + "66]" }
	long := `"` + strings.Repeat("a long prompt ", 10) + `"`
	text, _ := send(t, one.URL, "/v1/completions", `{"prompt":"stop here","max_tokens":60,"temperature":0,"ignore_eos":true}`).Choices[0]["text"].(string)
	if len(text) < 40 {
		t.Fatalf("text %q", text)
	}
	chat := `"messages":[{"role":"system","content":"be brief"},{"role":"user","content":"what is a tandem?"}]`
	for _, c := range []struct{ id, path, body, route string }{
		{"H050", "", `"prompt":"hello there","echo":true,"max_tokens":0`, "decode-only; reason=echo"},
		{"H050", "", `"prompt":"hello there","echo":true,"max_tokens":0,"logprobs":2`, "decode-only; reason=echo"},
		{"H050", "", `"prompt":"hello there","echo":true,"max_tokens":3,"logprobs":1`, "decode-only; reason=echo"},
		{"H052", "", `"prompt":` + endFirst(t, one.URL) + `,"max_tokens":5`, "pd"},
		{"H052", "", `"prompt":` + endFirst(t, one.URL) + `,"max_tokens":5,"ignore_eos":true`, "pd"},
		{"H053", "", `"prompt":` + long + `,"max_tokens":1`, "pd"},
		{"H053", "", `"prompt":` + long + `,"max_tokens":2`, "pd"},
		{"H053", "", `"prompt":` + long + `,"max_tokens":3`, "pd"},
		{"H054", "", fmt.Sprintf(`"prompt":"stop here","max_tokens":60,"ignore_eos":true,"stop":[%q,"never, ever"]`, text[20:24]), "pd"},
		{"H054", "", fmt.Sprintf(`"prompt":"stop here","max_tokens":60,"ignore_eos":true,"stop":[%q,%q],"include_stop_str_in_output":true`, text[8:10], text[30:33]), "pd"},
		{"H056", "", `"prompt":"finite","max_tokens":8,"logprobs":5,"temperature":1e-6,"top_k":1,"seed":3`, "pd"},
		{"H056", "", `"prompt":"finite","max_tokens":8,"logprobs":5,"logit_bias":{"65":-100,"66":100}`, "pd"},
		{"H058", "", `"prompt":["one",` + long + `,"one"],"max_tokens":6`, "pd; prompts=3"},
		{"H058", "", `"prompt":[[65,66],[67]],"max_tokens":6,"n":2,"seed":1,"temperature":0.9`, "pd; prompts=2"},
		{"H059", "", `"prompt":` + long + `,"max_tokens":5,"logprobs":5`, "pd"},
		{"H059", "", `"prompt":` + long + `,"max_tokens":5,"logprobs":0`, "pd"},
		{"H059", "/v1/chat/completions", chat + `,"max_tokens":5,"logprobs":true,"top_logprobs":5`, "pd"},
		{"H059", "/v1/chat/completions", chat + `,"max_tokens":5,"logprobs":true,"n":2,"temperature":0.8,"seed":11`, "pd"},
		{"H060", "", `"prompt":` + long + `,"max_tokens":30,"temperature":0.8,"seed":42`, "pd"},
		{"H062", "", `"prompt":` + ids(255) + `,"max_tokens":100`, "pd"},
		{"H062", "", `"prompt":` + ids(256), ""},
		{"H062", "", `"prompt":` + ids(257), ""},
	} {
		path := c.path
		if path == "" {
			path = "/v1/completions"
		}
		body := "{" + c.body
		if !strings.Contains(body, "temperature") {
			body += `,"temperature":0`
		}
		for _, end := range []string{`}`, `,"stream":true,"stream_options":{"include_usage":true}}`} {
			want, got := send(t, one.URL, path, body+end), send(t, set.Router.URL, path, body+end)
			if d := cmp.Diff(want, got, cmp.AllowUnexported(reply{}), cmp.FilterPath(func(p cmp.Path) bool {
				return slices.Contains([]string{".route", ".cached"}, p.Last().String())
			}, cmp.Ignore())); d != "" {
				t.Errorf("%s %s:\n%s", c.id, body+end, d)
			}
			if !strings.HasPrefix(got.route, strings.SplitN(c.route, ";", 2)[0]) || c.route != "" && got.Status != http.StatusOK {
				t.Errorf("%s %s: route %q, status %d", c.id, body+end, got.route, got.Status)
			}
			if c.route == "" && (got.Status != http.StatusBadRequest || !strings.Contains(fmt.Sprint(got.Error), "context_length_exceeded")) {
				t.Errorf("%s %s: %d %v", c.id, body+end, got.Status, got.Error)
			}
		}
		if c.id == "H053" {
			n := c.body[len(c.body)-1] - '0'
			if r := send(t, set.Router.URL, path, body+"}"); r.Usage["completion_tokens"] != float64(n) {
				t.Errorf("H053 %s: %v", body, r.Usage)
			}
		}
	}
	// H059: log-probabilities of the prompt come from D alone, which says so.
	whole := `{"prompt":"every token of it","prompt_logprobs":2,"max_tokens":2,"temperature":0}`
	want, got := send(t, one.URL, "/v1/completions", whole), send(t, set.Router.URL, "/v1/completions", whole)
	if d := cmp.Diff(want.Choices, got.Choices); d != "" || got.route != "decode-only; reason=prompt_logprobs" || got.Choices[0]["prompt_logprobs"] == nil {
		t.Errorf("H059: route %q, status %d\n%s", got.route, got.Status, d)
	}
	// H055: usage comes when asked only, and with P's tokens in it.
	for options, want := range map[string]bool{"null": false, "{}": false, `{"include_usage":false}`: false, `{"include_usage":true}`: true} {
		r := send(t, set.Router.URL, "/v1/completions", `{"prompt":"a prompt of its own","max_tokens":3,"temperature":0,"stream":true,"stream_options":`+options+`}`)
		if got := r.Usage != nil; got != want || r.Choices[0]["finish_reason"] == nil {
			t.Errorf("H055 %s: usage %v", options, r.Usage)
		}
	}
	if r := send(t, set.Router.URL, "/v1/completions", `{"prompt":"nobody had this prompt before","max_tokens":1}`); r.cached != 28.0 {
		t.Errorf("H055: %v cached tokens, want the 28 that P computed", r.cached)
	}
	set.P.AllFree(t)
	set.D.AllFree(t)
}

// H051, H061: what is wrong in itself is refused before any engine works.
func TestRefusalsCostNothing(t *testing.T) {
	set := cluster.StartSet(t, []string{"--sim", "--num-gpu-blocks-override", "64"}, nil, nil)
	tokens := func() float64 {
		return set.P.Metric(t, "vllm:prompt_tokens_total") + set.D.Metric(t, "vllm:prompt_tokens_total")
	}
	if r := send(t, set.Router.URL, "/v1/completions", `{"prompt":"count me","max_tokens":1}`); r.Status != http.StatusOK || tokens() == 0 {
		t.Fatalf("%+v, %v tokens counted", r, tokens())
	}
	before := tokens()
	for _, prompt := range []string{
		"[999999]", "[-1]", "[259]", "[1,2,259]", "[1,1.5]", `[1,"2"]`, "[1,null]", "[9223372036854775808]", "[]", "[[]]", "{}", "true",
	} {
		r := send(t, set.Router.URL, "/v1/completions", `{"prompt":`+prompt+`,"max_tokens":2}`)
		if r.Status != http.StatusBadRequest || !strings.Contains(fmt.Sprint(r.Error), "prompt") {
			t.Errorf("%s: %d %v", prompt, r.Status, r.Error)
		}
	}
	if after := tokens(); after != before {
		t.Errorf("%v prompt tokens were computed for bad prompts", after-before)
	}
	for _, body := range []string{
		`{"prompt":"x","temperature":-1}`, `{"prompt":"x","n":0}`, `{"prompt":"x","logprobs":1000}`, `{"prompt":"x","top_p":0}`, `{"prompt":"x","stop":5}`,
		`{"prompt":[[1],[2,300]]}`, // the first prompt of the list is sound
	} {
		if r := send(t, set.Router.URL, "/v1/completions", body); r.Status != http.StatusBadRequest {
			t.Errorf("%s: %d", body, r.Status)
		}
	}
	// Some of these P cannot see: it has computed the prompt when D refuses, and
	// must have its blocks back.
	set.P.AllFree(t)
	set.D.AllFree(t)
}

// H044: D reads from P what it lacks, no more, and P's blocks come back even
// when nothing is left to read.
func TestOnlyWhatIsMissingIsRead(t *testing.T) {
	set := cluster.StartSet(t, []string{"--sim", "--num-gpu-blocks-override", "256"}, nil, nil)
	prompt := func(n int, tail byte) string {
		return string(bytes.Repeat([]byte("abcdefgh"), n/8+1)[:n-1]) + string(tail)
	}
	for i, c := range []struct {
		prompt string
		loaded float64
	}{
		{prompt(161, 'A'), 160}, // all
		{prompt(161, 'B'), 0},   // nothing: ten blocks are there
		{prompt(100, 'C'), 3},   // six blocks are there
		{prompt(321, 'D'), 160}, // half
	} {
		before := decodeCounts(t, set.D).external
		r := send(t, set.Router.URL, "/v1/completions", fmt.Sprintf(`{"prompt":%q,"max_tokens":1}`, c.prompt))
		if r.Status != http.StatusOK || r.route != "pd" {
			t.Fatalf("%+v", r)
		}
		if got := decodeCounts(t, set.D).external - before; got != c.loaded {
			t.Errorf("prompt %d: %v tokens read from P, want %v", i, got, c.loaded)
		}
		set.P.AllFree(t)
	}
}

package openai

import (
	"encoding/json"
	"math"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestCompletionDefaultsAndValues(t *testing.T) {
	r, err := ParseCompletion([]byte(`{"prompt":"p"}`))
	if err != nil {
		t.Fatal(err)
	}
	want := &CompletionRequest{Common: Common{N: 1, SkipSpecial: true, AddSpecial: true}, Prompts: []Prompt{{Text: "p"}}, ParseSpecial: true}
	if d := cmp.Diff(want, r); d != "" {
		t.Errorf("defaults: %s", d)
	}
	r, err = ParseCompletion([]byte(`{"prompt":[[1,2],"b"],"seed":-9223372036854775808,"max_tokens":1e2,"n":2.0,"stop":"s",
		"logit_bias":{"5":-1.5},"stream":true,"stream_options":{"include_usage":true},"x":1,"x":2,"bad/name":3,"temperature":0,"min_p":null}`))
	if err != nil {
		t.Fatal(err)
	}
	switch {
	case *r.Seed != math.MinInt64, *r.MaxTokens != 100, r.N != 2, r.MinP != nil, *r.Temperature != 0, !r.IncludeUsage, r.ContinuousUsage:
		t.Errorf("values: %+v", r)
	}
	if d := cmp.Diff([]string{"x", "(unprintable)"}, r.Ignored); d != "" {
		t.Errorf("ignored: %s", d)
	}
	if d := cmp.Diff([]Prompt{{IDs: true, Tokens: []int32{1, 2}}, {Text: "b"}}, r.Prompts); d != "" {
		t.Errorf("prompts: %s", d)
	}
	if d := cmp.Diff(map[int32]float64{5: -1.5}, r.LogitBias); d != "" {
		t.Errorf("bias: %s", d)
	}
}

func TestMistakesNameTheirField(t *testing.T) {
	for body, param := range map[string]string{
		`{}`: "prompt", `{"prompt":5}`: "prompt", `{"prompt":"p","stop":["a",""]}`: "stop[1]", `{"prompt":"p","stop":["a",5]}`: "stop[1]",
		`{"prompt":"p","stream":true,"stream_options":{"include_usage":1}}`: "stream_options.include_usage",
		`{"prompt":"p","stream_options":{}}`:                                "stream_options",
		`{"prompt":"p","seed":9223372036854775807.5}`:                       "seed", `{"prompt":"p","suffix":"x"}`: "suffix",
		`{"prompt":"p","cache_salt":""}`: "cache_salt", `{"prompt":"p","n":0}`: "n", `{"prompt":"p","n":129}`: "n",
		`{"prompt":"p","logprobs":21}`: "logprobs", `{"prompt":"p","stop_token_ids":[1,"2"]}`: "stop_token_ids[1]",
		`{"prompt":["a","b"],"kv_transfer_params":{"do_remote_decode":true}}`: "kv_transfer_params",
		`{"prompt":"p","truncate_prompt_tokens":5}`:                           "truncate_prompt_tokens",
	} {
		if _, err := ParseCompletion([]byte(body)); err == nil || err.Param != param || err.Status != 400 {
			t.Errorf("%s: %v, want %s", body, err, param)
		}
	}
	for messages, param := range map[string]string{
		`[]`: "messages", `5`: "messages", `[5]`: "messages[0]", `[{"role":""}]`: "messages[0].role", `[{"role":"u"},{"content":"x"}]`: "messages[1].role",
		`[{"role":"u","content":5}]`: "messages[0].content", `[{"role":"u","content":[{"type":"image_url"}]}]`: "messages[0].content[0].type",
		`[{"role":"u","content":["a",{"type":"text"}]}]`: "messages[0].content[1].text", `[{"role":"u","content":[5]}]`: "messages[0].content[0]",
	} {
		if _, err := ParseChat([]byte(`{"messages":` + messages + `}`)); err == nil || err.Param != param {
			t.Errorf("%s: %v, want %s", messages, err, param)
		}
	}
}

func TestLogprobObjectsAreOrderedAndStrict(t *testing.T) {
	raw, err := json.Marshal(LogprobOf{{"b", -1}, {"a", -2}, {"b", -3}, {"\"\n", -9999}})
	if err != nil || string(raw) != `{"b":-1,"a":-2,"\"\n":-9999}` {
		t.Errorf("%s %v", raw, err)
	}
}

func TestErrorForm(t *testing.T) {
	raw, err := json.Marshal(Bad("n", "must be %d", 1))
	if err != nil || string(raw) != `{"error":{"message":"n: must be 1","type":"BadRequestError","param":"n","code":400}}` {
		t.Errorf("%s %v", raw, err)
	}
	raw, err = json.Marshal(NewError(503, "", "x"))
	if err != nil || string(raw) != `{"error":{"message":"x","type":"ServiceUnavailableError","param":null,"code":503}}` {
		t.Errorf("%s %v", raw, err)
	}
}

func TestStreamWritesEvents(t *testing.T) {
	w := httptest.NewRecorder()
	s := NewStream(w, time.Second)
	if s.Begun() || w.Header().Get("Content-Type") != "" {
		t.Error("a stream has begun before its first event")
	}
	if err := s.Send(map[string]string{"a": "<b>\n"}); err != nil {
		t.Fatal(err)
	}
	if err := s.Done(); err != nil {
		t.Fatal(err)
	}
	if got := w.Body.String(); got != "data: {\"a\":\"<b>\\n\"}\n\ndata: [DONE]\n\n" || !w.Flushed || !s.Begun() {
		t.Errorf("%q", got)
	}
	if ct := w.Header().Get("Content-Type"); !strings.HasPrefix(ct, "text/event-stream") {
		t.Errorf("content type %q", ct)
	}
}

// FuzzParse feeds every parser: no panic, and an error is a 400.
func FuzzParse(f *testing.F) {
	for _, s := range []string{`{"prompt":"p","stop":["a"],"logit_bias":{"1":2}}`, `{"prompt":[[1],[2]]}`, `{"messages":[{"role":"u","content":[{"type":"text","text":"x"}]}]}`,
		`{"tokens":[1,2]}`, `{"prompt":"p","stream":true,"stream_options":{"include_usage":true}}`, `{`, `[]`, `{"a":{},"a":[ ],"":null}`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		_, a := ParseCompletion(raw)
		_, b := ParseChat(raw)
		_, c := ParseTokenize(raw)
		_, d := ParseDetokenize(raw)
		for _, err := range []*Error{a, b, c, d} {
			if err != nil && err.Status != 400 {
				t.Errorf("%v", err)
			}
		}
	})
}

func TestRequestIDsAreTheClientsWhereTheyAreUsable(t *testing.T) {
	for id, kept := range map[string]bool{
		"a": true, "a-1!~": true, strings.Repeat("x", 256): true,
		"": false, strings.Repeat("x", 257): false, "a b": false, "a\x7f": false, "a\tb": false, "é": false,
	} {
		got := RequestID(http.Header{"X-Request-Id": {id}})
		if kept != (got == id) || got == "" {
			t.Errorf("%q became %q", id, got)
		}
	}
	if one, other := RequestID(http.Header{}), RequestID(http.Header{}); one == other {
		t.Error("two requests have one id")
	}
}

// BenchmarkRefusal prints what refusing half a million stop strings costs
// against finding the end of the JSON, which nothing can save.
func BenchmarkRefusal(b *testing.B) {
	raw := []byte(`{"prompt":"x","stop":[` + strings.Repeat(`"a",`, 499_999) + `"a"]}`)
	var parse, scan time.Duration
	for b.Loop() {
		start := time.Now()
		if _, err := ParseCompletion(raw); err == nil {
			b.Fatal("taken")
		}
		parse += time.Since(start)
		start = time.Now()
		if !json.Valid(raw) {
			b.Fatal("not JSON")
		}
		scan += time.Since(start)
	}
	b.ReportMetric(float64(parse)/float64(scan), "parse/scan")
}

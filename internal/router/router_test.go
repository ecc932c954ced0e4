package router

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"reflect"
	"strings"
	"testing"
)

// H079: the reference that D gets is P's, byte for byte; everything else of the
// body is the client's.
func TestHandoffArrivesAsItWasMade(t *testing.T) {
	p, d, _, url := pair(t, Config{})
	client := `{ "prompt":"hi" , "seed":18446744073709551615,"max_tokens":7,"stream":false,"unknown":[1, 2]}`
	status, h, _ := post(t, url+"/v1/completions", client)
	if status != http.StatusOK {
		t.Fatal(status)
	}
	pb, _ := p.got()
	db, _ := d.got()
	want := strings.TrimSuffix(client, "}") + `,"kv_transfer_params":` + strings.TrimSpace(handoff("P", 1)) + "}"
	if string(db[0]) != want {
		t.Errorf("D got\n%s\nwant\n%s", db[0], want)
	}
	contains(t, pb[0], `"max_tokens":1,`)
	contains(t, pb[0], `"do_remote_decode":true`)
	for _, s := range []*standIn{p, d} {
		if got := s.headers[0].Get("X-Request-Id"); got != "client-label" {
			t.Errorf("%s saw request id %q", s.name, got)
		}
	}
	if h.Get("X-Request-Id") != "client-label" || h.Get(headerRoute) != "pd" || h.Get(headerPrefill) == "" || h.Get(headerDecode) == "" {
		t.Errorf("response headers %v", h)
	}
}

// H080: whatever a client asks for, P gets a body that asks for one token of
// one choice, and D the client's values.
func TestPrefillBodyAsksForOneToken(t *testing.T) {
	p, d, _, url := pair(t, Config{})
	var bodies []string
	for _, extra := range []string{
		"", `,"n":3`, `,"best_of":4`, `,"logprobs":5`, `,"min_tokens":9`, `,"stop":["x"]`, `,"stop_token_ids":[1]`,
		`,"ignore_eos":true`, `,"return_token_ids":true`, `,"seed":1`, `,"temperature":0.5`, `,"max_tokens":null`, `,"max_tokens":100`,
		`,"stream_options":{"include_usage":true},"stream":true`, `,"stream":true`,
	} {
		bodies = append(bodies, `{"prompt":"a"`+extra+`}`, `{"messages":[{"role":"user","content":"a"}],"max_completion_tokens":12,"tools":[],"top_logprobs":2`+extra+`}`)
	}
	if len(bodies) < 30 {
		t.Fatalf("%d bodies", len(bodies))
	}
	for i, b := range bodies {
		path := "/v1/completions"
		if strings.Contains(b, "messages") {
			path = "/v1/chat/completions"
		}
		if status, _, out := post(t, url+path, b); status != http.StatusOK {
			t.Fatalf("%s: %d %s", b, status, out)
		}
		pb, _ := p.got()
		db, _ := d.got()
		var leg, sent, got map[string]any
		if err := json.Unmarshal(pb[i], &leg); err != nil {
			t.Fatal(err)
		}
		if leg["max_tokens"] != 1.0 || leg["stream"] != false {
			t.Errorf("%s: P got %s", b, pb[i])
		}
		if _, has := leg["max_completion_tokens"]; has && leg["max_completion_tokens"] != 1.0 {
			t.Errorf("%s: P got %s", b, pb[i])
		}
		for _, k := range []string{"n", "best_of", "logprobs", "top_logprobs", "min_tokens", "stream_options", "stop", "stop_token_ids", "ignore_eos"} {
			if _, has := leg[k]; has {
				t.Errorf("%s: P got %s", b, k)
			}
		}
		_ = json.Unmarshal([]byte(b), &sent)
		_ = json.Unmarshal(db[i], &got)
		delete(got, "kv_transfer_params")
		if !reflect.DeepEqual(sent, got) {
			t.Errorf("D got %s for %s", db[i], b)
		}
	}
}

// H095: what only an engine may make is refused at the edge.
func TestClientParametersAreRefused(t *testing.T) {
	p, d, _, url := pair(t, Config{})
	for _, v := range []string{`{"do_remote_prefill":true,"remote_host":"127.0.0.1"}`, `[]`, `"x"`, `1`, `true`} {
		status, _, body := post(t, url+"/v1/completions", `{"prompt":"a","kv_transfer_params":`+v+`}`)
		if status != http.StatusBadRequest || !strings.Contains(body, `"param":"kv_transfer_params"`) {
			t.Errorf("%s: %d %s", v, status, body)
		}
	}
	if b, _ := p.got(); len(b) != 0 {
		t.Errorf("P saw %d of them", len(b))
	}
	for _, v := range []string{`null`, `{}`, `{ }`} {
		if status, _, _ := post(t, url+"/v1/completions", `{"prompt":"a","kv_transfer_params":`+v+`}`); status != http.StatusOK {
			t.Errorf("%s: %d", v, status)
		}
	}
	b, _ := d.got()
	contains(t, b[0], `"remote_engine_id":"P"`)
}

// H078: in P/D mode an answer of P without a reference is an error.
func TestMissingHandoffIsAnError(t *testing.T) {
	p, d, _, url := pair(t, Config{})
	for _, answer := range []string{`{"choices":[]}`, `{"kv_transfer_params":null}`, `{"kv_transfer_params":{}}`, `{"kv_transfer_params":[]}`, `nonsense`} {
		p.set(hooks{prefill: func(w http.ResponseWriter, _ *http.Request, _ []byte) bool {
			_, _ = io.WriteString(w, answer)
			return true
		}})
		if status, _, body := post(t, url+"/v1/completions", `{"prompt":"a"}`); status != http.StatusBadGateway {
			t.Errorf("%s: %d %s", answer, status, body)
		}
	}
	if b, _ := d.got(); len(b) != 0 {
		t.Errorf("D saw %d requests", len(b))
	}
}

// H087: what a client did wrong passes through and does not count against the
// engine; the next request is served by it.
func TestClientMistakesPassThrough(t *testing.T) {
	p, _, r, url := pair(t, Config{Retries: 1})
	p.set(hooks{prefill: func(w http.ResponseWriter, _ *http.Request, _ []byte) bool {
		w.WriteHeader(http.StatusBadRequest)
		fmt.Fprint(w, `{"error":{"message":"prompt is too long","type":"BadRequestError","param":"prompt","code":400}}`)
		return true
	}})
	for range 50 {
		status, _, body := post(t, url+"/v1/completions", `{"prompt":"a"}`)
		if status != http.StatusBadRequest || !strings.Contains(body, "too long") {
			t.Fatalf("%d %s", status, body)
		}
	}
	if b, _ := p.got(); len(b) != 50 {
		t.Errorf("P saw %d requests, want 50: mistakes are not retried", len(b))
	}
	p.set(hooks{})
	if status, _, _ := post(t, url+"/v1/completions", `{"prompt":"a"}`); status != http.StatusOK || !r.ready() {
		t.Errorf("a good request got %d", status)
	}
}

func streamed(k int) hooks {
	return hooks{decode: func(w http.ResponseWriter, _ *http.Request, _ []byte) bool {
		w.Header().Set("Content-Type", "text/event-stream")
		for i := range k {
			fmt.Fprintf(w, "data: {\"choices\":[{\"index\":0,\"text\":\"t%d\"}]}\n\n", i)
			_ = http.NewResponseController(w).Flush()
		}
		panic(http.ErrAbortHandler)
	}}
}

// H088: before the first token a failure has its status; after k tokens there
// is one error event and an end, never a replay.
func TestFailureOfD(t *testing.T) {
	for _, k := range []int{0, 1, 10} {
		t.Run(fmt.Sprint(k), func(t *testing.T) {
			_, d, _, url := pair(t, Config{Retries: 1})
			d.set(streamed(k))
			status, _, body := post(t, url+"/v1/completions", `{"prompt":"a","stream":true}`)
			if k == 0 {
				if status != http.StatusBadGateway {
					t.Errorf("%d %s", status, body)
				}
				return
			}
			if status != http.StatusOK || strings.Count(body, `"error"`) != 1 || !strings.HasSuffix(body, "data: [DONE]\n\n") {
				t.Errorf("%d %s", status, body)
			}
			for i := range k {
				if strings.Count(body, fmt.Sprintf(`"t%d"`, i)) != 1 {
					t.Errorf("token %d is not there once: %s", i, body)
				}
			}
			if b, _ := d.got(); len(b) != 1 {
				t.Errorf("D saw %d requests", len(b))
			}
		})
	}
}

// A stream that begins with an error event is a failed request.
func TestStreamThatBeginsWithAnError(t *testing.T) {
	p, d, _, url := pair(t, Config{})
	d.set(hooks{decode: func(w http.ResponseWriter, _ *http.Request, _ []byte) bool {
		fmt.Fprint(w, "data: {\"error\":{\"message\":\"lost\",\"code\":500}}\n\ndata: [DONE]\n\n")
		return true
	}})
	status, _, body := post(t, url+"/v1/completions", `{"prompt":"a","stream":true}`)
	if status != http.StatusInternalServerError || !strings.Contains(body, "lost") {
		t.Errorf("%d %s", status, body)
	}
	p.await(t, "release")
}

// A failed leg is tried once elsewhere; another D begins with a new prefill and
// the old hand-off is released.
func TestOneRetryOnAnotherBackend(t *testing.T) {
	p1, p2, d1, d2 := newStandIn(t, "P1"), newStandIn(t, "P2"), newStandIn(t, "D1"), newStandIn(t, "D2")
	_, url := front(t, Config{Retries: 1}, []*standIn{p1, p2}, []*standIn{d1, d2})
	fail := hooks{decode: func(w http.ResponseWriter, _ *http.Request, _ []byte) bool {
		http.Error(w, `{"error":{"message":"boom","code":500}}`, http.StatusInternalServerError)
		return true
	}}
	d1.set(fail)
	for range 4 {
		status, h, body := post(t, url+"/v1/completions", `{"prompt":"a"}`)
		if status != http.StatusOK || h.Get(headerDecode) != strings.TrimPrefix(d2.URL, "http://") {
			t.Fatalf("%d %s by %s", status, body, h.Get(headerDecode))
		}
	}
	b1, _ := d1.got()
	prefills := 0
	for _, p := range []*standIn{p1, p2} {
		b, _ := p.got()
		prefills += len(b)
	}
	if len(b1) == 0 || prefills != 4+len(b1) {
		t.Errorf("%d failures, %d prefills", len(b1), prefills)
	}
	d2.set(fail)
	if status, _, body := post(t, url+"/v1/completions", `{"prompt":"a"}`); status != http.StatusInternalServerError || !strings.Contains(body, "boom") {
		t.Errorf("%d %s: want the engine's own error", status, body)
	}
	for range b1 {
		select {
		case w := <-p1.seen:
			if w != "release" {
				continue
			}
		case w := <-p2.seen:
			if w != "release" {
				continue
			}
		}
	}
}

// H076: wherever the client leaves between P's answer and D's, P hears of it.
func TestHandoffIsReleasedWhenTheClientLeaves(t *testing.T) {
	p, d, _, url := pair(t, Config{})
	for _, point := range []string{"as P answers", "D has the request", "D broke off", "D refused", "D is draining", "D sent nothing"} {
		t.Run(point, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			p.set(hooks{})
			d.set(hooks{})
			switch point {
			case "as P answers":
				// The answer is made, and P learns only then that nobody waits.
				p.set(hooks{prefill: func(w http.ResponseWriter, q *http.Request, _ []byte) bool {
					cancel()
					<-q.Context().Done()
					fmt.Fprintf(w, `{"kv_transfer_params":%s}`, handoff("P", 9))
					return true
				}})
			case "D has the request":
				d.set(hooks{decode: func(_ http.ResponseWriter, q *http.Request, _ []byte) bool {
					cancel()
					<-q.Context().Done()
					return true
				}})
			case "D broke off":
				d.set(streamed(0))
			case "D refused":
				d.set(hooks{decode: func(w http.ResponseWriter, _ *http.Request, _ []byte) bool {
					w.WriteHeader(http.StatusBadRequest)
					return true
				}})
			case "D is draining":
				d.set(hooks{decode: func(w http.ResponseWriter, _ *http.Request, _ []byte) bool {
					w.WriteHeader(http.StatusServiceUnavailable)
					return true
				}})
			case "D sent nothing":
				d.set(hooks{decode: func(w http.ResponseWriter, _ *http.Request, _ []byte) bool {
					w.Header().Set("Content-Type", "text/event-stream")
					return true
				}})
			}
			req, err := http.NewRequestWithContext(ctx, http.MethodPost, url+"/v1/completions", strings.NewReader(`{"prompt":"a","stream":true}`))
			if err != nil {
				t.Fatal(err)
			}
			if resp, err := http.DefaultClient.Do(req); err == nil {
				resp.Body.Close()
			}
			p.await(t, "release")
			_, released := p.got()
			contains(t, released[len(released)-1], `"future_key": {"x":18446744073709551615}`)
		})
	}
}

// H083: each chunk reaches the client before the engine makes the next.
func TestChunksAreNotHeldBack(t *testing.T) {
	_, d, _, url := pair(t, Config{})
	next := make(chan struct{})
	d.set(hooks{decode: func(w http.ResponseWriter, q *http.Request, _ []byte) bool {
		w.Header().Set("Content-Type", "text/event-stream")
		for i := range 50 {
			fmt.Fprintf(w, "data: %d\n\n", i)
			_ = http.NewResponseController(w).Flush()
			select {
			case <-next:
			case <-q.Context().Done():
			}
		}
		fmt.Fprint(w, "data: [DONE]\n\n")
		return true
	}})
	resp, err := http.Post(url+"/v1/completions", "application/json", strings.NewReader(`{"prompt":"a","stream":true}`))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	r := bufio.NewReader(resp.Body)
	for i := range 50 {
		line, err := r.ReadString('\n')
		if err != nil || line != fmt.Sprintf("data: %d\n", i) {
			t.Fatalf("chunk %d: %q %v", i, line, err)
		}
		if _, err := r.ReadString('\n'); err != nil {
			t.Fatal(err)
		}
		next <- struct{}{}
	}
}

// H058: each prompt of a list is a flow of its own; answers keep their places
// and usage is the sum.
func TestListsAreSplitAndMerged(t *testing.T) {
	p, d, _, url := pair(t, Config{})
	for _, n := range []int{1, 2, 3, 16} {
		var list []string
		for i := range n {
			list = append(list, fmt.Sprintf(`"prompt %d"`, i%2))
		}
		prompt := "[" + strings.Join(list, ",") + "]"
		before, _ := d.got()
		status, _, body := post(t, url+"/v1/completions", `{"prompt":`+prompt+`}`)
		if status != http.StatusOK {
			t.Fatalf("%d %s", status, body)
		}
		var out struct {
			Choices []struct {
				Index int
				Text  string
			}
			Usage struct {
				Prompt  int `json:"prompt_tokens"`
				Details struct {
					Cached int `json:"cached_tokens"`
				} `json:"prompt_tokens_details"`
			}
		}
		if err := json.Unmarshal([]byte(body), &out); err != nil {
			t.Fatal(err)
		}
		want := n
		if len(out.Choices) != n || out.Usage.Prompt != 3*want || out.Usage.Details.Cached != want {
			t.Errorf("%d prompts: %s", n, body)
		}
		for i, c := range out.Choices {
			text := "echo of " + list[i]
			if n == 1 {
				text = "echo of " + prompt
			}
			if c.Index != i || c.Text != text {
				t.Errorf("%d prompts: choice %d is %+v", n, i, c)
			}
		}
		after, _ := d.got()
		for _, b := range after[len(before):] {
			contains(t, b, `"remote_engine_id":"P"`)
		}
		status, _, body = post(t, url+"/v1/completions", `{"prompt":`+prompt+`,"stream":true,"stream_options":{"include_usage":true}}`)
		if status != http.StatusOK || strings.Count(body, "data: [DONE]") != 1 || strings.Count(body, `"usage"`) != 1 {
			t.Errorf("%d prompts streamed: %d %s", n, status, body)
		}
		for i := range n {
			if !strings.Contains(body, fmt.Sprintf(`"index":%d,`, i)) {
				t.Errorf("%d prompts streamed: no index %d: %s", n, i, body)
			}
		}
	}
	if pb, _ := p.got(); len(pb) != 2*(1+2+3+16) {
		t.Errorf("P saw %d prompts", len(pb))
	}
	d.set(hooks{decode: func(w http.ResponseWriter, _ *http.Request, body []byte) bool {
		if strings.Contains(string(body), `"bad"`) {
			w.WriteHeader(http.StatusBadRequest)
			fmt.Fprint(w, `{"error":{"message":"no","code":400}}`)
			return true
		}
		return false
	}})
	if status, _, body := post(t, url+"/v1/completions", `{"prompt":["good","bad","good"]}`); status != http.StatusBadRequest || !strings.Contains(body, `"no"`) {
		t.Errorf("one failing prompt: %d %s", status, body)
	}
}

// What needs every prompt position's logits runs on D alone and says so.
func TestWholeRequestsSkipP(t *testing.T) {
	p, d, _, url := pair(t, Config{})
	for _, extra := range []string{`"echo":true`, `"prompt_logprobs":0`} {
		status, h, _ := post(t, url+"/v1/completions", `{"prompt":"a",`+extra+`}`)
		if status != http.StatusOK || !strings.HasPrefix(h.Get(headerRoute), "decode-only; reason=") {
			t.Errorf("%s: %d %q", extra, status, h.Get(headerRoute))
		}
	}
	if b, _ := p.got(); len(b) != 0 {
		t.Error("P was asked")
	}
	b, _ := d.got()
	if string(b[0]) != `{"prompt":"a","echo":true}` {
		t.Errorf("D got %s", b[0])
	}
}

// H077: without a usable P there is no answer, and health says so.
func TestNoBackend(t *testing.T) {
	p, _, r, url := pair(t, Config{})
	p.Close()
	for r.ready() {
		post(t, url+"/v1/completions", `{"prompt":"a"}`)
	}
	status, h, body := post(t, url+"/v1/completions", `{"prompt":"a"}`)
	if status != http.StatusServiceUnavailable || h.Get("Retry-After") == "" || !strings.Contains(body, "prefill") {
		t.Errorf("%d %s", status, body)
	}
	resp, err := http.Get(url + "/health")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusServiceUnavailable {
		t.Errorf("health says %d", resp.StatusCode)
	}
}

func TestBrokenBodies(t *testing.T) {
	_, _, _, url := pair(t, Config{MaxBody: 1000})
	for body, want := range map[string]int{"": 400, "{": 400, "[]": 400, "null": 400, `"x"`: 400, `{"prompt":"` + strings.Repeat("x", 2000) + `"}`: 413} {
		if status, _, out := post(t, url+"/v1/completions", body); status != want || !json.Valid([]byte(out)) {
			t.Errorf("%.20q: %d %s", body, status, out)
		}
	}
	if status, _, _ := post(t, url+"/sleep", "{}"); status != http.StatusNotFound {
		t.Errorf("an engine's admin path answers %d", status)
	}
}

package router

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
)

// telling answers as an engine that says where the KV came from. The prompt "b"
// lost a load.
func telling(w http.ResponseWriter, _ *http.Request, body []byte) bool {
	h := w.Header()
	h.Set("X-KV-Prompt-Tokens", "10")
	h.Set("X-KV-Loaded-Tokens", "7")
	if strings.Contains(string(body), `"prompt":"b"`) {
		h.Set("X-KV-Loaded-Tokens", "3")
		h.Set("X-KV-Load-Failure", "sum")
	}
	return false
}

func TestKVHeadersReachTheClient(t *testing.T) {
	_, d, _, url := pair(t, Config{})
	d.set(hooks{decode: telling})
	for body, want := range map[string]string{
		`{"prompt":"a"}`:                     "10 7 ",
		`{"prompt":"a","stream":true}`:       "10 7 ",
		`{"prompt":"b"}`:                     "10 3 sum",
		`{"prompt":["a","b"]}`:               "20 10 sum",
		`{"prompt":["a","b"],"stream":true}`: "  ", // the first byte leaves before all prompts are known
	} {
		status, h, out := post(t, url+"/v1/completions", body)
		got := h.Get("X-KV-Prompt-Tokens") + " " + h.Get("X-KV-Loaded-Tokens") + " " + h.Get("X-KV-Load-Failure")
		if status != http.StatusOK || got != want {
			t.Errorf("%s: %d, %q, want %q: %s", body, status, got, want, out)
		}
	}
	// Of an engine that says nothing nothing is said, in a list neither.
	d.set(hooks{decode: func(w http.ResponseWriter, q *http.Request, body []byte) bool {
		return strings.Contains(string(body), `"prompt":"a"`) && telling(w, q, body)
	}})
	if _, h, _ := post(t, url+"/v1/completions", `{"prompt":["a","b"]}`); h.Get("X-KV-Prompt-Tokens") != "" {
		t.Errorf("a sum of one of two: %v", h)
	}
}

// lost answers as an engine with policy fail whose load failed.
func lost(w http.ResponseWriter) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("X-KV-Load-Failure", "timeout")
	w.WriteHeader(http.StatusInternalServerError)
	fmt.Fprint(w, `{"error":{"message":"loading failed","type":"InternalServerError","param":null,"code":500,"reason":"kv_load_timeout"}}`)
}

func TestFailedLoadReachesTheClient(t *testing.T) {
	p, d, _, url := pair(t, Config{})
	d.set(hooks{decode: func(w http.ResponseWriter, _ *http.Request, _ []byte) bool {
		lost(w)
		return true
	}})
	for _, body := range []string{`{"prompt":"a"}`, `{"prompt":"a","stream":true}`, `{"prompt":["a","b"]}`, `{"prompt":["a","b"],"stream":true}`} {
		status, h, out := post(t, url+"/v1/completions", body)
		if status != 500 || h.Get("X-KV-Load-Failure") != "timeout" || !strings.Contains(out, `"reason":"kv_load_timeout"`) {
			t.Errorf("%s: %d %v %s", body, status, h, out)
		}
		p.await(t, "release")
	}
}

// A list whose second prompt loses its load after the first was streamed: one
// error event, then the end mark, and nothing that looks like an end.
func TestFailedLoadInsideAStream(t *testing.T) {
	_, d, _, url := pair(t, Config{})
	read := make(chan struct{})
	d.set(hooks{decode: func(w http.ResponseWriter, q *http.Request, body []byte) bool {
		if strings.Contains(string(body), `"prompt":"b"`) {
			select {
			case <-read:
			case <-q.Context().Done():
			}
			lost(w)
			return true
		}
		w.Header().Set("Content-Type", "text/event-stream")
		fmt.Fprint(w, "data: {\"choices\":[{\"index\":0,\"text\":\"one\",\"finish_reason\":null}]}\n\n")
		_ = http.NewResponseController(w).Flush()
		<-q.Context().Done()
		return true
	}})
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url+"/v1/completions", strings.NewReader(`{"prompt":["a","b"],"stream":true}`))
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	buf := make([]byte, 1000)
	n, err := resp.Body.Read(buf)
	if err != nil || !strings.Contains(string(buf[:n]), `"one"`) {
		t.Fatalf("%v: %s", err, buf[:n])
	}
	close(read)
	rest, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	all := string(rest)
	if strings.Count(all, "data: ") != 2 || !strings.Contains(all, `"reason":"kv_load_timeout"`) ||
		!strings.HasSuffix(all, "\n\ndata: [DONE]\n\n") || strings.Contains(all, `"finish_reason":"`) {
		t.Errorf("after the failure: %q", all)
	}
}

// The client's policy is for D alone, word by word, on every kind of leg.
func TestPolicyGoesToD(t *testing.T) {
	p, d, _, url := pair(t, Config{})
	for i, body := range []string{`{"prompt":"a"}`, `{"prompt":["a","b"]}`, `{"prompt":"a","echo":true}`} {
		value := fmt.Sprintf("word %d", i)
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url+"/v1/completions", strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("X-KV-Load-Failure-Policy", value)
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
		d.mu.Lock()
		for _, h := range d.headers {
			if got := h.Values("X-KV-Load-Failure-Policy"); len(got) != 1 || got[0] != value {
				t.Errorf("%s: D has %q, want %q", body, got, value)
			}
		}
		d.headers = nil
		d.mu.Unlock()
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, h := range p.headers {
		if got := h.Get("X-KV-Load-Failure-Policy"); got != "" {
			t.Errorf("P has %q", got)
		}
	}
	if len(p.headers) != 3 {
		t.Errorf("P saw %d legs", len(p.headers))
	}
}

// Metrics that panic change no answer.
func TestMetricsThatPanicChangeNothing(t *testing.T) {
	var calls [4]atomic.Int64
	boom := func(i int) {
		calls[i].Add(1)
		panic("metrics")
	}
	p, d, _, url := pair(t, Config{Metrics: Metrics{
		Request: func(string, string, int, float64) { boom(0) }, Leg: func(string, string, string, float64) { boom(1) },
		Retry: func(string, string) { boom(2) }, Release: func(string) { boom(3) },
	}})
	for _, body := range []string{`{"prompt":"a"}`, `{"prompt":["a","b"]}`, `{"prompt":"a","stream":true}`} {
		if status, _, out := post(t, url+"/v1/completions", body); status != http.StatusOK || !strings.Contains(out, "echo of") {
			t.Errorf("%s: %d %s", body, status, out)
		}
	}
	d.set(hooks{decode: func(w http.ResponseWriter, _ *http.Request, _ []byte) bool {
		lost(w)
		return true
	}})
	if status, _, out := post(t, url+"/v1/completions", `{"prompt":"a"}`); status != 500 {
		t.Errorf("%d %s", status, out)
	}
	p.await(t, "release")
	for i := range calls[:3] {
		if calls[i].Load() == 0 {
			t.Errorf("hook %d did not panic", i)
		}
	}
}

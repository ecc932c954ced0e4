package e2e

import (
	"bytes"
	"encoding/json"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync"
	"testing"

	"tandem/test/cluster"
)

// toyProxy does what vLLM's example proxy for prefill and decode does, and no
// more: the client's body goes to P with one token, no stream and
// do_remote_decode; the kv_transfer_params of P's answer go into the client's own
// body for D as they came; D's answer is passed back as it comes. Both legs carry
// one X-Request-Id. It releases nothing and retries nothing.
type toyProxy struct {
	p, d string
	mu   sync.Mutex
	ids  map[string]int // legs by X-Request-Id
}

func (x *toyProxy) ServeHTTP(w http.ResponseWriter, q *http.Request) {
	fail := func(err error) { http.Error(w, err.Error(), http.StatusBadGateway) }
	var body map[string]json.RawMessage
	if err := json.NewDecoder(q.Body).Decode(&body); err != nil {
		fail(err)
		return
	}
	id := q.Header.Get("X-Request-Id")
	leg := func(url string, body map[string]json.RawMessage) (*http.Response, error) {
		raw, err := json.Marshal(body)
		if err != nil {
			return nil, err
		}
		req, err := http.NewRequestWithContext(q.Context(), http.MethodPost, url+q.URL.Path, bytes.NewReader(raw))
		if err != nil {
			return nil, err
		}
		req.Header.Set("Content-Type", "application/json")
		req.Header.Set("X-Request-Id", id)
		x.mu.Lock()
		x.ids[id]++
		x.mu.Unlock()
		return http.DefaultClient.Do(req)
	}
	first := maps.Clone(body)
	first["kv_transfer_params"] = json.RawMessage(`{"do_remote_decode":true,"do_remote_prefill":false,"remote_engine_id":null,"remote_block_ids":null,"remote_host":null,"remote_port":null}`)
	first["stream"], first["max_tokens"] = json.RawMessage("false"), json.RawMessage("1")
	delete(first, "stream_options")
	if _, there := first["max_completion_tokens"]; there {
		first["max_completion_tokens"] = json.RawMessage("1")
	}
	resp, err := leg(x.p, first)
	if err != nil {
		fail(err)
		return
	}
	var answer struct {
		Params json.RawMessage `json:"kv_transfer_params"`
	}
	err = json.NewDecoder(resp.Body).Decode(&answer)
	resp.Body.Close()
	if err != nil {
		fail(err)
		return
	}
	if len(answer.Params) > 0 {
		body["kv_transfer_params"] = answer.Params
	}
	if resp, err = leg(x.d, body); err != nil {
		fail(err)
		return
	}
	defer resp.Body.Close()
	w.Header().Set("Content-Type", resp.Header.Get("Content-Type"))
	w.WriteHeader(resp.StatusCode)
	buf := make([]byte, 4096)
	for {
		n, err := resp.Body.Read(buf)
		if _, werr := w.Write(buf[:n]); err != nil || werr != nil {
			return
		}
		_ = http.NewResponseController(w).Flush()
	}
}

// Our engines are driven by what drives vLLM's: the answers are one engine's, and
// D's metrics show that their prompts came from P.
func TestToyProxyDrivesTheEngines(t *testing.T) {
	one := cluster.Start(t, "one", append([]string{"serve", "--port", "0"}, sim...)...).Ready(t)
	token := cluster.Token(t)
	p := cluster.Engine(t, "P", "kv_producer", token, sim...).Ready(t)
	d := cluster.Engine(t, "D", "kv_consumer", token, append(slices.Clone(sim), "--no-enable-prefix-caching")...).Ready(t)
	x := &toyProxy{p: p.URL, d: d.URL, ids: map[string]int{}}
	front := httptest.NewServer(x)
	defer front.Close()
	g := &rig{one: one, r: newRand()}
	prompts, tokens := 0, 0
	var wg sync.WaitGroup
	for i, n := range []int{1, 2, 15, 16, 17, 32, 33, 100, 128, 500, 1000, 1700} {
		for _, stream := range []bool{false, true} {
			prompt := g.prompt(n)
			want := g.want(t, prompt, 10)
			id := "toy-" + string(rune('a'+2*i))
			if stream {
				id += "-stream"
			}
			prompts, tokens = prompts+1, tokens+n
			wg.Go(func() {
				resp, err := begin(t.Context(), front.URL, request(prompt, stream, 10), id)
				if err != nil {
					t.Error(err)
					return
				}
				defer resp.Body.Close()
				raw, err := io.ReadAll(resp.Body)
				if err != nil || resp.StatusCode != http.StatusOK {
					t.Errorf("%d %s: %v", resp.StatusCode, raw, err)
					return
				}
				var ids []int
				for line := range bytes.Lines(raw) {
					line, _ = bytes.CutPrefix(bytes.TrimSpace(line), []byte("data: "))
					var c chunk
					if json.Unmarshal(line, &c) == nil {
						for _, ch := range c.Choices {
							ids = append(ids, ch.IDs...)
						}
					}
				}
				if !slices.Equal(ids, want) {
					t.Errorf("%d tokens, stream %v: got %v, want %v", n, stream, ids, want)
				}
			})
		}
	}
	wg.Wait()
	if got, want := decodeCounts(t, d), float64(tokens-prompts); got.external != want || got.local != 0 || got.computed != float64(prompts) {
		t.Errorf("%+v, want %v tokens from P and one computed for each of %d prompts", got, want, prompts)
	}
	for id, legs := range x.ids {
		if legs != 2 {
			t.Errorf("%s: %d legs", id, legs)
		}
	}
	p.AllFree(t)
	d.AllFree(t)

	// Chat, and the official field of newer clients.
	chat := `{"messages":[{"role":"user","content":"Which number follows nine?"}],"max_completion_tokens":7,"temperature":0}`
	text := func(url string) string {
		t.Helper()
		status, out := post(t, url+"/v1/chat/completions", []byte(chat))
		var a struct {
			Choices []struct {
				Message struct{ Content string }
			}
		}
		if err := json.Unmarshal(out, &a); err != nil || status != http.StatusOK || len(a.Choices) != 1 {
			t.Fatalf("%d %s: %v", status, out, err)
		}
		return a.Choices[0].Message.Content
	}
	before := decodeCounts(t, d).external
	if got, want := text(front.URL), text(one.URL); got != want {
		t.Errorf("chat: got %q, want %q", got, want)
	}
	if decodeCounts(t, d).external == before {
		t.Error("the chat's prompt did not come from P")
	}
	p.AllFree(t)
}

// Package e2e runs whole clusters of real processes.
package e2e

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"

	"tandem/test/cluster"
)

// An answer is what a client gets.
type answer struct {
	ids    []int
	text   string
	finish string
	prompt int
	output int
	route  string
	loaded string // X-KV-Loaded-Tokens
}

type chunk struct {
	Choices []struct {
		Text   string `json:"text"`
		IDs    []int  `json:"token_ids"`
		Finish string `json:"finish_reason"`
	} `json:"choices"`
	Usage *struct {
		Prompt int `json:"prompt_tokens"`
		Output int `json:"completion_tokens"`
	} `json:"usage"`
	Error json.RawMessage `json:"error"`
}

// ask sends one completion.
func ask(url string, body map[string]any) (answer, error) {
	var a answer
	raw, err := json.Marshal(body)
	if err != nil {
		return a, err
	}
	resp, err := http.Post(url+"/v1/completions", "application/json", bytes.NewReader(raw))
	if err != nil {
		return a, err
	}
	defer resp.Body.Close()
	a.route, a.loaded = resp.Header.Get("X-Tandem-Route"), resp.Header.Get("X-KV-Loaded-Tokens")
	if resp.StatusCode != http.StatusOK {
		out, _ := io.ReadAll(resp.Body)
		return a, fmt.Errorf("status %d: %s", resp.StatusCode, out)
	}
	add := func(data []byte) error {
		var c chunk
		if err := json.Unmarshal(data, &c); err != nil {
			return fmt.Errorf("%q: %w", data, err)
		}
		if c.Error != nil {
			return fmt.Errorf("error in a stream: %s", c.Error)
		}
		for _, ch := range c.Choices {
			a.text += ch.Text
			a.ids = append(a.ids, ch.IDs...)
			if ch.Finish != "" {
				a.finish = ch.Finish
			}
		}
		if c.Usage != nil {
			a.prompt, a.output = c.Usage.Prompt, c.Usage.Output
		}
		return nil
	}
	if body["stream"] != true {
		out, err := io.ReadAll(resp.Body)
		if err != nil {
			return a, err
		}
		return a, add(out)
	}
	s := bufio.NewScanner(resp.Body)
	s.Buffer(nil, 1<<20)
	done := false
	for s.Scan() {
		data, ok := bytes.CutPrefix(s.Bytes(), []byte("data: "))
		switch {
		case !ok:
		case string(data) == "[DONE]":
			done = true
		default:
			if err := add(data); err != nil {
				return a, err
			}
		}
	}
	if !done {
		return a, fmt.Errorf("the stream has no end: %w", s.Err())
	}
	return a, nil
}

// lengths of the prompts: around every tile and block border, up to 1,700.
func promptLengths() []int {
	out := []int{5, 7, 15, 16, 17, 18, 31, 32, 33, 34, 47, 48, 49, 63, 64, 65, 66, 100, 127, 128, 129, 160, 200, 255, 256, 257, 300, 320, 333, 400, 480, 511, 512, 513, 600, 700, 800, 1000, 1024, 1700}
	return out
}

// prompts returns 40 token-id prompts: text-like ids, every third one sharing
// its beginning with the one before.
func prompts(vocab int) [][]int {
	r := rand.New(rand.NewPCG(1, 2))
	var out [][]int
	for i, n := range promptLengths() {
		p := make([]int, n)
		for k := range p {
			p[k] = 17 + r.IntN(vocab-17)
		}
		if i%3 == 2 {
			copy(p, out[i-1])
			p[n-1] = 17 + (out[i-1][len(out[i-1])-1]+1)%(vocab-17)
		}
		out = append(out, p)
	}
	return out
}

func request(prompt []int, stream bool, tokens int) map[string]any {
	body := map[string]any{"prompt": prompt, "max_tokens": tokens, "temperature": 0, "stream": stream, "return_token_ids": true, "ignore_eos": true}
	if stream {
		body["stream_options"] = map[string]any{"include_usage": true}
	}
	return body
}

type counts struct{ external, local, computed float64 }

func decodeCounts(t *testing.T, d *cluster.Proc) counts {
	t.Helper()
	get := func(source string) float64 {
		return d.Metric(t, "vllm:prompt_tokens_by_source_total", `source="`+source+`"`)
	}
	return counts{get("external_kv_transfer"), get("local_cache_hit"), get("local_compute")}
}

// pd compares 40 prompts over P, D and router with one engine: alone and all at
// once, streamed and not. Tokens loaded from P are prompt tokens less one, less
// D's own prefix hits, exactly.
func pd(t *testing.T, engine, prefill, decode []string, vocab, tokens int) {
	one := cluster.Start(t, "one", append([]string{"serve", "--port", "0"}, engine...)...).Ready(t)
	set := cluster.StartSet(t, engine, prefill, decode)
	all := prompts(vocab)
	want := make([]answer, len(all))
	for i, p := range all {
		a, err := ask(one.URL, request(p, false, tokens))
		if err != nil {
			t.Fatal(err)
		}
		if len(a.ids) != tokens {
			t.Fatalf("prompt %d: %d tokens from one engine, want %d", i, len(a.ids), tokens)
		}
		want[i] = a
	}
	one.Stop()
	check := func(i int, stream bool) error {
		a, err := ask(set.Router.URL, request(all[i], stream, tokens))
		switch {
		case err != nil:
			return fmt.Errorf("prompt %d (%d tokens, stream %v): %w", i, len(all[i]), stream, err)
		case !slices.Equal(a.ids, want[i].ids) || a.text != want[i].text || a.finish != want[i].finish:
			return fmt.Errorf("prompt %d (%d tokens, stream %v):\n got %v %q\nwant %v %q", i, len(all[i]), stream, a.ids, a.finish, want[i].ids, want[i].finish)
		case a.prompt != len(all[i]) || a.output != tokens:
			return fmt.Errorf("prompt %d: usage %d + %d, want %d + %d", i, a.prompt, a.output, len(all[i]), tokens)
		case a.route != "pd":
			return fmt.Errorf("prompt %d took the route %q", i, a.route)
		}
		return nil
	}
	for i := range all {
		before := decodeCounts(t, set.D)
		if err := check(i, i%2 == 1); err != nil {
			t.Fatal(err)
		}
		after := decodeCounts(t, set.D)
		external, local, computed := after.external-before.external, after.local-before.local, after.computed-before.computed
		n := float64(len(all[i]))
		if external != n-1-local {
			t.Errorf("prompt %d: %v tokens loaded, want %v - 1 - %v", i, external, n, local)
		}
		if external+local+computed != n {
			t.Errorf("prompt %d: %v loaded + %v local + %v computed, want %v", i, external, local, computed, n)
		}
	}
	if got := decodeCounts(t, set.D); got.external == 0 {
		t.Fatal("nothing was loaded from P")
	}
	for _, stream := range []bool{false, true} {
		before := decodeCounts(t, set.D)
		var wg sync.WaitGroup
		errs := make([]error, len(all))
		for i := range all {
			wg.Go(func() { errs[i] = check(i, stream) })
		}
		wg.Wait()
		for _, err := range errs {
			if err != nil {
				t.Error(err)
			}
		}
		after := decodeCounts(t, set.D)
		total := 0.0
		for _, p := range all {
			total += float64(len(p))
		}
		got := after.external - before.external + after.local - before.local + after.computed - before.computed
		if got != total {
			t.Errorf("all at once (stream %v): %v prompt tokens accounted for, want %v", stream, got, total)
		}
	}
	set.P.AllFree(t)
	set.D.AllFree(t)
	for _, p := range []*cluster.Proc{set.P, set.D} {
		if strings.Contains(p.Log(), "level=ERROR") {
			t.Errorf("%s logged an error", p.Name)
		}
	}
}

func TestPrefillAndDecodeEqualOneEngine(t *testing.T) {
	pd(t, []string{cluster.Model(t), "--max-model-len", "2048"}, nil, nil, 49152, 8)
}

func TestSim(t *testing.T) {
	for _, c := range []struct {
		name            string
		prefill, decode []string
	}{
		{"equal", nil, nil},
		{"P with larger blocks", []string{"--block-size", "64"}, []string{"--block-size", "16"}},
		{"D with larger blocks and tensor parallel", []string{"--block-size", "16"}, []string{"--block-size", "32", "--tensor-parallel-size", "2"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			pd(t, []string{"--sim", "--max-model-len", "2048"}, c.prefill, c.decode, 256, 8)
		})
	}
}

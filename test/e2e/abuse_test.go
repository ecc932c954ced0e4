package e2e

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/url"
	"os"
	"slices"
	"testing"

	"tandem/test/cluster"
)

// A rig is a set under abuse beside one engine that tells what is right.
type rig struct {
	*cluster.Set
	one *cluster.Proc
	r   *rand.Rand
}

// sim are the arguments of every engine of a rig.
var sim = []string{"--sim", "--max-model-len", "2048"}

func newRig(t *testing.T, prefill, decode []string) *rig {
	t.Helper()
	return &rig{
		one: cluster.Start(t, "one", append([]string{"serve", "--port", "0"}, sim...)...).Ready(t),
		Set: cluster.StartSet(t, sim, prefill, decode),
		r:   newRand(),
	}
}

func newRand() *rand.Rand { return rand.New(rand.NewPCG(3, 4)) }

// recompute makes a decode engine compute what it could not load.
const recompute = "--kv-transfer-config.kv_load_failure_policy=recompute"

// prompt returns n random tokens.
func (g *rig) prompt(n int) []int {
	p := make([]int, n)
	for i := range p {
		p[i] = 17 + g.r.IntN(239)
	}
	return p
}

// want returns what one engine answers.
func (g *rig) want(t *testing.T, prompt []int, tokens int) []int {
	t.Helper()
	a, err := ask(g.one.URL, request(prompt, false, tokens))
	if err != nil {
		t.Fatal(err)
	}
	return a.ids
}

// same asks url and compares the tokens with those of one engine.
func (g *rig) same(t *testing.T, url string, prompt []int, stream bool, tokens int) answer {
	t.Helper()
	a, err := ask(url, request(prompt, stream, tokens))
	if err != nil {
		t.Error(err)
	} else if w := g.want(t, prompt, tokens); !slices.Equal(a.ids, w) {
		t.Errorf("%d tokens: got %v, want %v", len(prompt), a.ids, w)
	}
	return a
}

// unharmed checks that a control request through P and D is right, and that no
// block, lease or request is left.
func (g *rig) unharmed(t *testing.T) {
	t.Helper()
	// The answer's own number: one that left before may still be counted by D.
	if a := g.same(t, g.Router.URL, g.prompt(70), false, 8); a.loaded != "69" {
		t.Errorf("the control request loaded %q tokens from P, want 69", a.loaded)
	}
	g.P.AllFree(t)
	g.D.AllFree(t)
	for _, p := range []*cluster.Proc{g.P, g.D, g.Router} {
		select {
		case <-p.Done():
			t.Errorf("%s ended:\n%s", p.Name, p.Log())
		default:
		}
	}
}

// handoff runs a prefill leg on p and returns its kv_transfer_params. The prompt is
// token ids or a text.
func handoff[P []int | string](t *testing.T, p *cluster.Proc, prompt P) map[string]json.RawMessage {
	t.Helper()
	body, err := json.Marshal(map[string]any{"prompt": prompt, "max_tokens": 1, "kv_transfer_params": map[string]any{"do_remote_decode": true}})
	if err != nil {
		t.Fatal(err)
	}
	status, out := post(t, p.URL+"/v1/completions", body)
	var a struct {
		Params map[string]json.RawMessage `json:"kv_transfer_params"`
	}
	if err := json.Unmarshal(out, &a); err != nil || status != http.StatusOK || a.Params == nil {
		t.Fatalf("prefill leg: %d %s (%v)", status, out, err)
	}
	return a.Params
}

func post(t *testing.T, url string, body []byte) (status int, out []byte) {
	t.Helper()
	resp, err := http.Post(url, "application/json", bytes.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	out, err = io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, out
}

// release gives a hand-off back as a router does.
func release(t *testing.T, p *cluster.Proc, h map[string]json.RawMessage) {
	t.Helper()
	raw, err := json.Marshal(h)
	if err != nil {
		t.Fatal(err)
	}
	if status, out := post(t, p.URL+"/release_kv_handoff", raw); status != http.StatusOK {
		t.Fatalf("release: %d %s", status, out)
	}
}

// decode sends a decode leg to d and returns the status and the tokens.
func decode(t *testing.T, d *cluster.Proc, prompt []int, h any, tokens int) (status int, ids []int, reason string) {
	t.Helper()
	r := request(prompt, false, tokens)
	r["kv_transfer_params"] = h
	body, err := json.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	status, out := post(t, d.URL+"/v1/completions", body)
	var a struct {
		Choices []struct {
			IDs []int `json:"token_ids"`
		} `json:"choices"`
		Error struct {
			Param  string `json:"param"`
			Reason string `json:"reason"`
		} `json:"error"`
	}
	if err := json.Unmarshal(out, &a); err != nil {
		t.Fatalf("%s: %v", out, err)
	}
	if len(a.Choices) > 0 {
		ids = a.Choices[0].IDs
	}
	return status, ids, a.Error.Param + a.Error.Reason
}

// descriptors counts the open descriptors of a process.
func descriptors(t *testing.T, p *cluster.Proc) int {
	t.Helper()
	list, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", p.PID))
	if err != nil {
		t.Fatal(err)
	}
	return len(list)
}

// hostPort returns the address of a process.
func hostPort(t *testing.T, p *cluster.Proc) (addr, port string) {
	t.Helper()
	u, err := url.Parse(p.URL)
	if err != nil {
		t.Fatal(err)
	}
	return u.Host, u.Port()
}

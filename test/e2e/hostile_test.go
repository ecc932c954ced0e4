package e2e

import (
	"bytes"
	"encoding/json"
	"maps"
	"math/rand/v2"
	"net"
	"net/http"
	"slices"
	"strings"
	"testing"

	"tandem/test/cluster"
)

// both are the two load failure policies with a decode engine for each.
func both(t *testing.T, g *rig) map[string]*cluster.Proc {
	t.Helper()
	return map[string]*cluster.Proc{
		"fail":      g.D,
		"recompute": cluster.Engine(t, "D2", "kv_consumer", cluster.Token(t), append(slices.Clone(sim), recompute)...).Ready(t),
	}
}

// H009, H096: a damaged reference is refused, and nothing is parked. Where a
// change means nothing (what others made of host and port), the answer is right.
func TestDamagedHandoffs(t *testing.T) {
	g := newRig(t, nil, nil)
	for policy, d := range both(t, g) {
		t.Run(policy, func(t *testing.T) {
			prompt := g.prompt(100)
			want := g.want(t, prompt, 4)
			first := handoff(t, g.P, prompt)
			release(t, g.P, first)
			refused := 0
			for _, key := range slices.Sorted(maps.Keys(first)) {
				for _, v := range []string{
					"", "null", "-1", "0", "2147483648", "18446744073709551616", "1.5", `""`, `"x"`, `"` + strings.Repeat("0", 64) + `"`,
					"[]", "[[-1]]", "[[1000000000]]", "{}", `"127.0.0.1:1"`, "[[" + strings.Repeat("1,", 99999) + "1]]",
				} {
					h := handoff(t, g.P, prompt)
					damaged := maps.Clone(h)
					if damaged[key] = json.RawMessage(v); v == "" {
						delete(damaged, key)
					}
					status, ids, why := decode(t, d, prompt, damaged, 4)
					switch {
					case status == http.StatusBadRequest && why != "":
						refused++
					case status == http.StatusOK && slices.Equal(ids, want):
					default:
						t.Errorf("%s = %.30s: %d %v %s, want 400 or %v", key, v, status, ids, why, want)
					}
					release(t, g.P, h)
				}
			}
			if refused < 150 {
				t.Errorf("%d of the references were refused, want at least 150", refused)
			}
			d.AllFree(t)
			g.unharmed(t)
		})
	}
}

// H008, H009: a genuine reference that was used, or that is another prompt's,
// gives the right tokens or the policy's error.
func TestHandoffsForOthersAndTwice(t *testing.T) {
	g := newRig(t, []string{"--num-gpu-blocks-override", "40"}, []string{"--no-enable-prefix-caching"})
	for policy, d := range both(t, g) {
		t.Run(policy, func(t *testing.T) {
			a, b := g.prompt(100), g.prompt(100)
			cases := map[string]struct {
				prompt []int
				again  bool
			}{
				"used twice": {a, true}, "another prompt": {b, false}, "a shorter prompt": {a[:50], false},
				"a longer prompt": {append(slices.Clone(a), b...), false},
			}
			failed := 0
			for name, c := range cases {
				h := handoff(t, g.P, a)
				if c.again {
					if status, _, _ := decode(t, d, a, h, 4); status != http.StatusOK {
						t.Errorf("%s: first use: %d", name, status)
					}
				}
				switch status, ids, why := decode(t, d, c.prompt, h, 4); {
				case status == http.StatusOK && slices.Equal(ids, g.want(t, c.prompt, 4)):
				case status == http.StatusInternalServerError && policy == "fail" && strings.HasPrefix(why, "kv_load_"):
					failed++
				default:
					t.Errorf("%s: %d %v %s", name, status, ids, why)
				}
				release(t, g.P, h)
			}
			if policy == "fail" && failed < 3 {
				t.Errorf("%d loads failed, want at least 3", failed)
			}
			g.unharmed(t)
		})
	}
}

// H008: D comes after P's lease has ended and P's blocks hold other prompts.
func TestExpiredLeases(t *testing.T) {
	g := newRig(t, []string{"--num-gpu-blocks-override", "16", "--kv-transfer-config.kv_connector_extra_config.kv_lease_duration=0.05"}, nil)
	ds := both(t, g)
	const tries = 5
	for policy, d := range ds {
		for range tries {
			prompt := g.prompt(100)
			h := handoff(t, g.P, prompt)
			cluster.Eventually(t, "the lease has ended", func() bool { return g.P.Info(t).Leases == 0 })
			g.same(t, g.P.URL, g.prompt(240), false, 1)
			status, ids, why := decode(t, d, prompt, h, 4)
			switch policy {
			case "fail":
				if status != http.StatusInternalServerError || why != "kv_load_gone" {
					t.Errorf("%d %v %s, want 500 kv_load_gone", status, ids, why)
				}
			default:
				if status != http.StatusOK || !slices.Equal(ids, g.want(t, prompt, 4)) {
					t.Errorf("%d %v %s, want the right tokens", status, ids, why)
				}
			}
		}
		if n := d.Metric(t, "tandem_kv_load_failures_total", `class="gone"`); n != tries {
			t.Errorf("%s: %v loads failed because the lease was gone, want %v", policy, n, tries)
		}
	}
	cluster.Eventually(t, "all blocks are free", func() bool { i := g.P.Info(t); return i.BlocksFree == i.Blocks })
	if n := g.P.Metric(t, "vllm:nixl_num_kv_expired_reqs_total"); n != 2*tries {
		t.Errorf("%v leases expired, want %v", n, 2*tries)
	}
	p := g.prompt(33)
	g.same(t, g.P.URL, p, true, 8)
}

// A client's words about another address are never acted on: see H095. What does
// not parse, or comes without a token, closes its own connection only.
func TestGarbageOnEveryPort(t *testing.T) {
	g := newRig(t, nil, nil)
	var peers []string
	for _, p := range []*cluster.Proc{g.P, g.D} {
		var info struct {
			Tandem struct {
				Addr string `json:"peer_address"`
			} `json:"tandem"`
		}
		if err := json.Unmarshal(p.Get(t, "/server_info"), &info); err != nil {
			t.Fatal(err)
		}
		peers = append(peers, info.Tandem.Addr)
	}
	for _, p := range []*cluster.Proc{g.P, g.D, g.Router} {
		addr, _ := hostPort(t, p)
		peers = append(peers, addr)
	}
	r := rand.New(rand.NewPCG(5, 6))
	for _, addr := range peers {
		for i := range 100 {
			c, err := net.Dial("tcp", addr)
			if err != nil {
				t.Fatal(err)
			}
			b := make([]byte, []int{0, 1, 3, 4, 12, 64, 4096}[i%7])
			for k := range b {
				b[k] = byte(r.Uint32())
			}
			if i%3 == 0 {
				b = append([]byte("POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 9999999999\r\n\r\n{"), b...)
			}
			_, _ = c.Write(b) // it may be closed already
			c.Close()
		}
	}
	g.unharmed(t)
}

// H061, H098: a body that is wrong costs its sender a 4xx, on every process.
func TestHostileBodies(t *testing.T) {
	g := newRig(t, nil, nil)
	big := strings.Repeat
	for _, body := range []string{
		"", "{", "null", "[]", "\xff\xfe", `{"prompt":"` + "\xff" + `"}`, `{"prompt":` + big("[", 20000) + big("]", 20000) + `}`,
		`{"prompt":"a","x":` + big(`{"a":`, 20000) + "1" + big("}", 20000) + `}`, `{"prompt":[[1],2]}`, `{"prompt":[99999999999999999999]}`,
		`{"prompt":"a","n":5000000}`, `{"prompt":"a","max_tokens":1e12}`, `{"prompt":"a","stop":[` + big(`"x",`, 500000) + `"x"]}`,
		`{"prompt":"a","logprobs":1000000000}`, `{"prompt":"a","temperature":NaN}`, `{"prompt":"a","kv_transfer_params":[]}`,
		`{"prompt":"a","kv_transfer_params":null,"kv_transfer_params":{"do_remote_prefill":true}}`,
		`{"prompt":"a","kv\u005ftransfer_params":{"do_remote_prefill":true}}`, `{"prompt":"` + big("a", 1<<21) + `"}`,
		`{"prompt":[` + big(`"a",`, 5000) + `"a"]}`,
	} {
		for _, p := range []*cluster.Proc{g.P, g.D, g.Router} {
			status, out := post(t, p.URL+"/v1/completions", []byte(body))
			if status/100 != 4 || !json.Valid(out) || bytes.Contains(out, []byte(".go:")) {
				t.Errorf("%s: %.60s: %d %.200s", p.Name, body, status, out)
			}
		}
	}
	g.unharmed(t)
}

// H110: engines of different models or KV types do not exchange KV, and say what
// differs.
func TestEnginesThatDoNotFit(t *testing.T) {
	model := []string{cluster.Model(t), "--kv-cache-memory", "64MiB"}
	token := cluster.Token(t)
	d := cluster.Engine(t, "D", "kv_consumer", token, model...).Ready(t)
	prompt := []int{100, 101, 102, 103, 104, 105, 106, 107, 108, 109, 110, 111, 112, 113, 114, 115, 116, 117}
	for factor, args := range map[string][]string{
		"model_content": sim,
		"kv_type":       append(slices.Clone(model), "--kv-cache-dtype", "f32"),
	} {
		p := cluster.Engine(t, "P of another "+factor, "kv_producer", token, args...).Ready(t)
		h := handoff(t, p, prompt)
		if status, ids, why := decode(t, d, prompt, h, 2); status != http.StatusInternalServerError || why != "kv_load_incompatible" {
			t.Errorf("%s: %d %v %s", factor, status, ids, why)
		}
		// The log comes through a pipe, later than the answer.
		cluster.Eventually(t, "the log names "+factor, func() bool {
			return strings.Contains(d.Log(), "comparing engines: "+factor+" is")
		})
		release(t, p, h)
		p.AllFree(t)
	}
	d.AllFree(t)
	if n := d.Metric(t, "vllm:prompt_tokens_by_source_total", `source="external_kv_transfer"`); n != 0 {
		t.Errorf("%v tokens were loaded", n)
	}
}

// H041: one request that fills the pool of P, of D, or of both ends with length.
func TestOneRequestFillsThePool(t *testing.T) {
	g := newRig(t, []string{"--num-gpu-blocks-override", "8"}, []string{"--num-gpu-blocks-override", "8"})
	for _, n := range []int{1, 16, 64, 100, 126, 127} {
		prompt := g.prompt(n)
		a, err := ask(g.Router.URL, request(prompt, n%2 == 0, 100000))
		if err != nil {
			t.Error(err)
			continue
		}
		if want := g.want(t, prompt, len(a.ids)); a.finish != "length" || !slices.Equal(a.ids, want) || n+len(a.ids) < 8*16 {
			t.Errorf("%d tokens: finish %q after %d tokens", n, a.finish, len(a.ids))
		}
	}
	if _, err := ask(g.Router.URL, request(g.prompt(129), false, 1)); err == nil || !strings.Contains(err.Error(), "status 400") {
		t.Errorf("a prompt that never fits: %v, want 400", err)
	}
	g.unharmed(t)
}

// H003, H113: a listener that cannot start ends the process with its address.
func TestTakenPorts(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	addr := ln.Addr().String()
	_, port, _ := net.SplitHostPort(addr)
	transfer := `{"kv_connector":"NixlConnector","kv_role":"kv_both"}`
	for name, args := range map[string][]string{
		"serve, HTTP":  {"serve", "--sim", "--port", port},
		"serve, peers": {"serve", "--sim", "--port", "0", "--kv-transfer-config", transfer, "--cluster-token-file", cluster.Token(t), "--peer-listen", addr},
		"route":        {"route", "--port", port, "--prefill", "http://127.0.0.1:1", "--decode", "http://127.0.0.1:2"},
		"up":           {"up", "--sim", "--port", port},
		"up, child":    {"up", "--sim", "--port", "0", "--decode-arg=--peer-listen", "--decode-arg=" + addr},
	} {
		code, log := cluster.Run(t, args...)
		if code == 0 || !strings.Contains(log, addr) || strings.Contains(log, "goroutine ") {
			t.Errorf("%s: exit %d without naming %s:\n%s", name, code, addr, log)
		}
	}
	// Port 0 is a free one, and the real one is advertised.
	token := cluster.Token(t)
	p := cluster.Engine(t, "P", "kv_producer", token, sim...).Ready(t)
	d := cluster.Engine(t, "D", "kv_consumer", token, sim...).Ready(t)
	prompt := []int{65, 66, 67, 68}
	if status, ids, why := decode(t, d, prompt, handoff(t, p, prompt), 2); status != http.StatusOK || len(ids) != 2 {
		t.Error(status, ids, why)
	}
	if n := decodeCounts(t, d).external; n != 3 {
		t.Errorf("%v tokens loaded, want 3", n)
	}
}

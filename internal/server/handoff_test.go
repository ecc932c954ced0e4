package server

import (
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"tandem/internal/connector"
	"tandem/internal/engine"
	"tandem/internal/kv"
	"tandem/internal/sim"
)

// A link is a connector without a network: it grants signed hand-offs, verifies
// them with its token, and fails every load.
type link struct {
	token   []byte
	class   connector.LoadClass // of the failures
	reports chan connector.LoadReport
	freed   chan []kv.BlockID

	mu       sync.Mutex
	granted  int
	returned []connector.LeaseID
	released int
	revoked  int
}

func newLink() *link {
	return &link{token: []byte("0123456789abcdef"), class: connector.ClassHandshake, reports: make(chan connector.LoadReport, 100), freed: make(chan []kv.BlockID, 100)}
}

func (l *link) handoff(tokens []kv.Token, id byte, blocks []kv.BlockID) *connector.Handoff {
	h := &connector.Handoff{
		EngineID: "p", RequestID: "r", Incarnation: connector.Incarnation{1}, Lease: connector.LeaseID{id}, Epoch: 1, TP: 1,
		BlockTokens: 16, Tokens: len(tokens), Digest: connector.TokenDigest(tokens), Blocks: blocks, Addr: "127.0.0.1:1",
		Version: connector.HandoffVersion, Host: "127.0.0.1", Port: 1,
	}
	h.Sign(l.token)
	return h
}

func (l *link) Verify(h *connector.Handoff, _ []kv.Token) error {
	if !h.Vouched(l.token) {
		return &connector.HandoffError{Field: connector.FieldMAC, Reason: "is wrong", Err: connector.ErrMAC}
	}
	return nil
}
func (l *link) Track(*connector.Handoff)   {}
func (l *link) Untrack(*connector.Handoff) {}
func (l *link) Load(s connector.LoadSpec) {
	r := connector.LoadReport{ID: s.ID, From: s.FromTile, To: s.ToTile, Err: &connector.LoadError{Peer: "p", Class: l.class}}
	for i := s.FromTile; i < s.ToTile; i++ {
		r.Invalid = append(r.Invalid, i)
	}
	r.Err.Tiles = r.Invalid
	l.reports <- r
}
func (l *link) CancelLoad(kv.RequestID)              {}
func (l *link) Reports() <-chan connector.LoadReport { return l.reports }
func (l *link) Grant(s connector.LeaseSpec) *connector.Handoff {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.granted++
	l.freed <- s.Blocks // read at once, as it were
	return l.handoff(s.Tokens, byte(l.granted), s.Blocks)
}
func (l *link) Freed() <-chan []kv.BlockID { return l.freed }
func (l *link) Revoke(*connector.Handoff) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.revoked++
}
func (l *link) ReturnUnread(h *connector.Handoff) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if h.Vouched(l.token) {
		l.returned = append(l.returned, h.Lease)
	}
}
func (l *link) ReleaseByHandoff([]byte) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.released++
	return nil
}

// back returns the leases that came back since the last call.
func (l *link) back() []connector.LeaseID {
	l.mu.Lock()
	defer l.mu.Unlock()
	out := l.returned
	l.returned = nil
	return out
}

const decodeFlag = `{"do_remote_decode":true,"do_remote_prefill":false,"remote_engine_id":null,"remote_block_ids":null,"remote_host":null,"remote_port":null}`

func TestPrefillLegAnswersWithAHandoff(t *testing.T) {
	l := newLink()
	r := start(t, sim.Config{}, engine.Config{Connector: l}, Config{Connector: l})
	prompt := strings.Repeat("x", 40)
	for path, field := range map[string]string{
		"/v1/completions": `"prompt":"` + prompt + `"`, "/v1/chat/completions": `"messages":[{"role":"user","content":"` + prompt + `"}]`,
	} {
		for _, stream := range []string{"false", "true"} {
			a := r.post(path, "{"+field+`,"max_tokens":9,"min_tokens":1,"n":2,"ignore_eos":true,"stream":`+stream+`,"kv_transfer_params":`+decodeFlag+"}")
			events := []map[string]any{a.m}
			if stream == "true" {
				events = a.events(t)
			}
			last := events[len(events)-1]
			p, _ := last["kv_transfer_params"].(map[string]any)
			if a.status != 200 || p["do_remote_prefill"] != true || p["remote_engine_id"] != "p" {
				t.Fatalf("%s stream %s: %d %s", path, stream, a.status, a.raw)
			}
			got, usage, _ := gather(t, events)
			if len(got) != 1 || usage != nil && usage["completion_tokens"] != 1.0 {
				t.Errorf("a prefill leg made %d choices, usage %v", len(got), usage)
			}
			raw, err := json.Marshal(p)
			if err != nil {
				t.Fatal(err)
			}
			if h, err := connector.ParseHandoff(raw); err != nil || h.Tokens < 40 || !h.Vouched(l.token) {
				t.Errorf("hand-off %+v: %v", h, err)
			}
			if rel := r.post("/release_kv_handoff", string(raw)); rel.status != 200 {
				t.Errorf("release: %d %s", rel.status, rel.raw)
			}
		}
	}
	if a := r.post("/release_kv_handoff", `{"do_remote_prefill":false}`); a.status != 400 {
		t.Errorf("releasing nothing: %d", a.status)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.granted != 4 || l.released != 4 || l.revoked != 0 {
		t.Errorf("granted %d, released %d, revoked %d", l.granted, l.released, l.revoked)
	}
}

// A refused request with a genuine hand-off gives its lease back, exactly once.
func TestRefusedHandoffsGoBack(t *testing.T) {
	l := newLink()
	r := start(t, sim.Config{MaxLen: 100}, engine.Config{Connector: l}, Config{Connector: l})
	tokens := make([]kv.Token, 40)
	list, err := json.Marshal(tokens)
	if err != nil {
		t.Fatal(err)
	}
	send := func(id byte, prompt string, more ...string) answer {
		raw, err := json.Marshal(l.handoff(tokens, id, []kv.BlockID{1, 2, 3}))
		if err != nil {
			t.Fatal(err)
		}
		return r.post("/v1/completions", object(append([]string{"prompt", prompt, "kv_transfer_params", string(raw)}, more...)...))
	}
	for i, c := range []struct {
		prompt, field, value, param string
		status                      int
	}{
		{string(list), "temperature", "-1", "temperature", 400},
		{string(list), "model", `"nope"`, "model", 404},
		{string(list), "stop_token_ids", "[999]", "stop_token_ids", 400},
		{`"` + strings.Repeat("x", 200) + `"`, "n", "1", "prompt", 400},
		{"[999]", "n", "1", "prompt[0]", 400},
		{`["a","b"]`, "n", "1", "kv_transfer_params", 400},
	} {
		a := send(byte(i+1), c.prompt, c.field, c.value)
		if a.status != c.status || a.param() != c.param {
			t.Errorf("%s: %d %s", c.param, a.status, a.raw)
		}
		if d := cmp.Diff([]connector.LeaseID{{byte(i + 1)}}, l.back()); d != "" {
			t.Errorf("%s: leases given back: %s", c.param, d)
		}
	}
	a := send(50, string(list), "prompt_logprobs", "0", "max_tokens", "2")
	if a.status != 200 || a.header.Get("X-Tandem-Handoff") != "returned-unread" || len(l.back()) != 1 {
		t.Errorf("prompt_logprobs: %d %q %s", a.status, a.header.Get("X-Tandem-Handoff"), a.raw)
	}
	r.server.Stop()
	if a := send(55, string(list)); a.status != 503 || len(l.back()) != 1 {
		t.Errorf("stopped: %d", a.status)
	}
	r.server.Drain()
	if a := send(60, string(list)); a.status != 503 || len(l.back()) != 1 {
		t.Errorf("draining: %d", a.status)
	}
}

func TestDamagedHandoffsAreTyped400s(t *testing.T) {
	l := newLink()
	r := start(t, sim.Config{}, engine.Config{Connector: l}, Config{Connector: l})
	raw, err := json.Marshal(l.handoff([]kv.Token{1, 2, 3}, 1, []kv.BlockID{1}))
	if err != nil {
		t.Fatal(err)
	}
	for field, value := range map[string]any{
		"remote_block_ids": []any{-1}, "tp_size": "x", "remote_num_tokens": -5, "remote_lease": nil, "remote_mac": strings.Repeat("00", 32),
		"remote_version": 99, "remote_addr": 7, "remote_incarnation": "zz", "remote_engine_id": nil, "do_remote_prefill": "yes",
	} {
		var m map[string]any
		if err := json.Unmarshal(raw, &m); err != nil {
			t.Fatal(err)
		}
		m[field] = value
		bad, err := json.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		a := r.post("/v1/completions", object("prompt", "[1,2,3,4]", "kv_transfer_params", string(bad)))
		if a.status != 400 || !strings.HasPrefix(a.param(), "kv_transfer_params.") {
			t.Errorf("%s: %d %s", field, a.status, a.raw)
		}
	}
	if n := r.engine.Status().Stats.Prompt; n != 0 {
		t.Errorf("%d prompt tokens were computed", n)
	}
	for _, p := range []string{"null", "{}", `{"do_remote_prefill":false,"do_remote_decode":false}`, `{"unknown":1}`} {
		if a := r.post("/v1/completions", object("prompt", "[1]", "max_tokens", "1", "kv_transfer_params", p)); a.status != 200 {
			t.Errorf("%s: %d %s", p, a.status, a.raw)
		}
	}
	alone := start(t, sim.Config{}, engine.Config{}, Config{})
	if a := alone.post("/v1/completions", object("prompt", "[1]", "kv_transfer_params", decodeFlag)); a.status != 400 || a.param() != "kv_transfer_params" {
		t.Errorf("without a connector: %d %s", a.status, a.raw)
	}
}

// H016, the engine's part
func TestFailedLoadsFollowThePolicy(t *testing.T) {
	for _, class := range connector.LoadClasses() {
		for _, policy := range []engine.FailPolicy{engine.PolicyFail, engine.PolicyRecompute} {
			for i, stream := range []string{"false", "true"} {
				t.Run(fmt.Sprintf("%s, %s, stream %s", class, policy, stream), func(t *testing.T) {
					failedLoad(t, class, policy, byte(i+1), stream)
				})
			}
		}
	}
}

func failedLoad(t *testing.T, class connector.LoadClass, policy engine.FailPolicy, id byte, stream string) {
	tokens := make([]kv.Token, 40)
	list, err := json.Marshal(tokens)
	if err != nil {
		t.Fatal(err)
	}
	l := newLink()
	l.class = class
	r := start(t, sim.Config{}, engine.Config{Connector: l, Policy: policy}, Config{Connector: l})
	raw, err := json.Marshal(l.handoff(tokens, id, []kv.BlockID{1, 2, 3}))
	if err != nil {
		t.Fatal(err)
	}
	plain := object("prompt", string(list), "temperature", "0", "max_tokens", "5", "stream", stream)
	a := r.post("/v1/completions", plain[:len(plain)-1]+`,"kv_transfer_params":`+string(raw)+"}")
	if a.header.Get("X-KV-Load-Failure") != string(class) {
		t.Errorf("%v", a.header)
	}
	if policy == engine.PolicyFail {
		if e, _ := a.m["error"].(map[string]any); a.status != 500 || e["reason"] != "kv_load_"+string(class) ||
			a.header.Get("X-KV-Prompt-Tokens") != "" || strings.Contains(string(a.raw), "finish_reason") {
			t.Errorf("%d %v %s", a.status, a.header, a.raw)
		}
		return
	}
	events := func(a answer) []map[string]any {
		if stream == "true" {
			return a.events(t)
		}
		return []map[string]any{a.m}
	}
	got, _, _ := gather(t, events(a))
	fresh := start(t, sim.Config{}, engine.Config{}, Config{})
	want, usage, _ := gather(t, events(fresh.post("/v1/completions", plain)))
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
	if stream == "false" && usage == nil || a.header.Get("X-KV-Recomputed-Tokens") != "39" {
		t.Errorf("%v", a.header)
	}
}

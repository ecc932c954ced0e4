package router

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
)

// H099: where the edge names the tenant, its salt is on both legs and the
// client's is nowhere.
func TestEdgeSetsTheSalt(t *testing.T) {
	p, d, _, url := pair(t, Config{SaltHeader: "X-Request-Id"}) // a header that post sends
	for _, body := range []string{
		`{"prompt":"a","cache_salt":"somebody else"}`, `{"prompt":"a"}`, `{"cache_salt":null,"prompt":["a","b"],"stream":true}`,
		`{"prompt":"a","echo":true,"cache_salt":"somebody else"}`,
	} {
		if status, _, out := post(t, url+"/v1/completions", body); status != http.StatusOK {
			t.Fatalf("%s: %d %s", body, status, out)
		}
	}
	pb, _ := p.got()
	db, _ := d.got()
	if len(pb) != 4 || len(db) != 5 {
		t.Fatalf("%d and %d legs", len(pb), len(db))
	}
	for _, b := range append(pb, db...) {
		var v struct {
			Salt string `json:"cache_salt"`
		}
		if err := json.Unmarshal(b, &v); err != nil || v.Salt != "client-label" || strings.Count(string(b), "cache_salt") != 1 {
			t.Errorf("%s: %v", b, err)
		}
	}
	_, _, _, url = pair(t, Config{SaltHeader: "X-Tenant"})
	if status, _, body := post(t, url+"/v1/completions", `{"prompt":"a","cache_salt":"x"}`); status != http.StatusBadRequest || !strings.Contains(body, "X-Tenant") {
		t.Errorf("without the header: %d %s", status, body)
	}
}

// H090: a P that comes back at its address is a new one: the reference that D
// gets is from its own answer, at once, and nothing of the old one is kept.
func TestRestartedPrefillEngineAtOneAddress(t *testing.T) {
	d := newStandIn(t, "D")
	first := newStandIn(t, "P-0").tell("kv_producer", "a").move(t, "127.0.0.2:0") // nobody else takes its ports meanwhile
	r, url := front(t, Config{}, []*standIn{first}, []*standIn{d})
	addr, p := first.Listener.Addr().String(), first
	for round := range 10 {
		name := fmt.Sprintf("P-%d", round)
		if status, _, body := post(t, url+"/v1/completions", `{"prompt":"a"}`); status != http.StatusOK {
			t.Fatalf("round %d: %d %s", round, status, body)
		}
		bodies, _ := d.got()
		if len(bodies) != round+1 || !strings.Contains(string(bodies[round]), fmt.Sprintf(`"remote_engine_id":%q`, name)) {
			t.Fatalf("round %d: D got %s", round, bodies[len(bodies)-1])
		}
		p.CloseClientConnections()
		p.Close()
		for r.ready() { // seen as gone, by a request that fails or by a probe
			post(t, url+"/v1/completions", `{"prompt":"a"}`)
		}
		p = newStandIn(t, fmt.Sprintf("P-%d", round+1)).tell("kv_producer", "a").move(t, addr)
		for !r.ready() {
			get(t, url+"/health")
		}
	}
}

// H061: whatever the body is, the router answers in one form and lives.
func TestEveryFieldOfAnyTypePassesOrIsRefused(t *testing.T) {
	_, _, _, url := pair(t, Config{})
	fields := []string{"model", "prompt", "messages", "max_tokens", "max_completion_tokens", "stream", "stream_options", "n", "echo",
		"prompt_logprobs", "kv_transfer_params", "logprobs", "stop", "no_such_field"}
	refused := 0
	for _, f := range fields {
		for _, v := range []string{"null", "true", "0", "-1", "1.5", "1e999", `""`, "[]", "[[]]", "[null]", "{}", `{"x":null}`, "99999999999999999999"} {
			for _, path := range []string{"/v1/completions", "/v1/chat/completions"} {
				body := fmt.Sprintf(`{"prompt":"p","messages":[],%q:%s}`, f, v)
				status, _, out := post(t, url+path, body)
				if status != http.StatusOK && status != http.StatusBadRequest {
					t.Errorf("%s %s: %d %s", path, body, status, out)
				}
				if status == http.StatusBadRequest {
					refused++
					if !strings.Contains(out, `"message"`) {
						t.Errorf("%s %s: %s", path, body, out)
					}
				}
			}
		}
	}
	if refused < 10 {
		t.Errorf("only %d refusals", refused)
	}
	if status, _, body := post(t, url+"/v1/completions", `{"prompt":"alive"}`); status != http.StatusOK {
		t.Errorf("%d %s", status, body)
	}
}

package e2e

import (
	"encoding/json"
	"net"
	"net/http"
	"strconv"
	"sync/atomic"
	"testing"

	"tandem/test/cluster"
)

// trap listens on a free port and counts who connects.
func trap(t *testing.T) (host string, port int, met *atomic.Int64) {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	met = &atomic.Int64{}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			met.Add(1)
			_ = c.Close()
		}
	}()
	t.Cleanup(func() {
		_ = ln.Close()
		<-done
	})
	a := ln.Addr().(*net.TCPAddr)
	return a.IP.String(), a.Port, met
}

// H095: a client makes nobody dial an address: the router refuses its
// parameters, D those that no engine vouched for; and the address that is free
// for foreign tools to rewrite is not used.
func TestNoClientMakesAnEngineDial(t *testing.T) {
	host, port, met := trap(t)
	set := cluster.StartSet(t, []string{"--sim", "--num-gpu-blocks-override", "64"}, nil, nil)
	const prompt = "a prompt that is longer than one block"
	ask := func(url string, params any) reply {
		raw, err := json.Marshal(map[string]any{"prompt": prompt, "max_tokens": 2, "temperature": 0, "kv_transfer_params": params})
		if err != nil {
			t.Fatal(err)
		}
		return send(t, url, "/v1/completions", string(raw))
	}
	addr := net.JoinHostPort(host, strconv.Itoa(port))
	bent := handoff(t, set.P, prompt)
	own := bent["remote_addr"]
	bent["remote_addr"] = json.RawMessage(strconv.Quote(addr))
	made := map[string]any{"do_remote_prefill": true, "remote_host": host, "remote_port": port, "remote_engine_id": "P", "remote_block_ids": []int{0}}
	for _, params := range []any{bent, made} {
		for _, url := range []string{set.Router.URL, set.D.URL} {
			if r := ask(url, params); r.Status != http.StatusBadRequest {
				t.Errorf("%v: %d %v", params, r.Status, r.Error)
			}
		}
	}
	rewritten := handoff(t, set.P, prompt)
	rewritten["remote_host"], rewritten["remote_port"] = json.RawMessage(strconv.Quote(host)), json.RawMessage(strconv.Itoa(port))
	before := decodeCounts(t, set.D).external
	if r := ask(set.D.URL, rewritten); r.Status != http.StatusOK {
		t.Errorf("with another remote_host: %d %v", r.Status, r.Error)
	}
	if n := decodeCounts(t, set.D).external - before; n != float64(len(prompt)-1) {
		t.Errorf("%v tokens came from P", n)
	}
	if n := met.Load(); n != 0 {
		t.Errorf("%d connections to the address of a client", n)
	}
	// Nobody read the one that was bent: its lease is still P's to end.
	bent["remote_addr"] = own
	raw, err := json.Marshal(bent)
	if err != nil {
		t.Fatal(err)
	}
	if r := send(t, set.P.URL, "/release_kv_handoff", string(raw)); r.Status != http.StatusOK {
		t.Errorf("release: %d %v", r.Status, r.Error)
	}
	set.P.AllFree(t)
	set.D.AllFree(t)
}

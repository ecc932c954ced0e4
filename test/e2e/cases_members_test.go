package e2e

import (
	"encoding/json"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"

	"tandem/test/cluster"
)

// H112: a router over real engines that cannot work together is not ready, and
// its status says which member is wrong and why.
func TestRouterNamesWrongMembers(t *testing.T) {
	token := cluster.Token(t)
	small := []string{"--sim", "--num-gpu-blocks-override", "32"}
	p := cluster.Engine(t, "P", "kv_producer", token, small...)
	p2 := cluster.Engine(t, "P2", "kv_producer", token, small...)
	d := cluster.Engine(t, "D", "kv_consumer", token, small...)
	wide := cluster.Engine(t, "D of another type", "kv_consumer", token, append([]string{"--kv-cache-dtype", "f32"}, small...)...)
	alone := cluster.Start(t, "one without connector", append([]string{"serve", "--port", "0"}, small...)...)
	for _, e := range []*cluster.Proc{p, p2, d, wide, alone} {
		e.Ready(t)
	}
	var info struct {
		Tandem struct {
			Fingerprint string `json:"fingerprint"`
			Address     string `json:"peer_address"`
		} `json:"tandem"`
	}
	if err := json.Unmarshal(p.Get(t, "/server_info"), &info); err != nil || info.Tandem.Fingerprint == "" || info.Tandem.Address == "" {
		t.Fatalf("%+v %v", info, err)
	}
	peerPort := "http://" + info.Tandem.Address
	for name, c := range map[string]struct {
		prefill, decode, wrong string
		want                   []string
	}{
		"swapped roles":     {d.URL, p.URL, d.URL, []string{"kv_role is kv_consumer", "--decode"}},
		"decode is a P":     {p.URL, p2.URL, p2.URL, []string{"kv_role is kv_producer", "--prefill"}},
		"no connector":      {p.URL, alone.URL, alone.URL, []string{"--kv-transfer-config"}},
		"the peer port":     {peerPort, d.URL, peerPort, []string{"is not ready", "peer port"}},
		"a port of nobody":  {p.URL, "http://127.0.0.1:1", "http://127.0.0.1:1", []string{"is down", "refused"}},
		"another KV type":   {p.URL, wide.URL, wide.URL, []string{"kv_type is f16 on " + strings.TrimPrefix(p.URL, "http://") + " and f32 on " + strings.TrimPrefix(wide.URL, "http://")}},
		"everything is new": {p.URL, d.URL, "", nil},
	} {
		r := cluster.Start(t, "router", "route", "--port", "0", "--prefill", c.prefill, "--decode", c.decode)
		if c.wrong == "" {
			r.Ready(t)
			continue
		}
		says := append(c.want, strings.TrimPrefix(c.wrong, "http://"))
		var why string
		t.Cleanup(func() {
			if t.Failed() {
				t.Logf("%s: %s", name, why)
			}
		})
		cluster.Eventually(t, name+": both say "+strings.Join(says, ", "), func() bool { // a member may be slow to answer
			resp, err := http.Get(r.URL + "/health")
			if err != nil {
				return false
			}
			defer resp.Body.Close()
			body, err := io.ReadAll(resp.Body)
			if err != nil || resp.StatusCode != http.StatusServiceUnavailable {
				t.Fatalf("%s: /health says %d %s %v", name, resp.StatusCode, body, err)
			}
			var status struct {
				Ready  bool   `json:"ready"`
				Reason string `json:"reason"`
			}
			if err := json.Unmarshal(r.Get(t, "/status"), &status); err != nil || status.Ready {
				t.Fatalf("%s: %+v, %v", name, status, err)
			}
			why = string(body)
			return !slices.ContainsFunc(says, func(s string) bool { return !strings.Contains(why, s) || !strings.Contains(status.Reason, s) })
		})
		r.Stop()
	}
}

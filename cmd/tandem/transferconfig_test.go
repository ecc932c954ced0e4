package main

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func TestParseTransfer(t *testing.T) {
	file := filepath.Join(t.TempDir(), "c.json")
	if err := os.WriteFile(file, []byte(`{"kv_connector":"NixlConnector","kv_role":"kv_both"}`), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name, text string
		dotted     map[string]string
		want       string // of the error; "" none
	}{
		{"vLLM's own", `{"kv_connector":"NixlConnector","kv_role":"kv_producer","kv_buffer_device":"cpu","kv_connector_extra_config":{"num_threads":4,"backends":["UCX"]}}`, nil, ""},
		{"a file", "@" + file, nil, ""},
		{"only dotted", "", map[string]string{"kv_connector": "TandemConnector", "kv_role": "kv_consumer", "kv_connector_extra_config.kv_lease_duration": "12.5"}, ""},
		{"unknown key", `{"kv_connector":"NixlConnector","kv_role":"kv_producer","kv_rol":1}`, nil, `"kv_rol"; there are kv_connector, kv_role, engine_id`},
		{"unknown key of vLLM's extras", `{"kv_connector":"NixlConnector","kv_role":"kv_producer","kv_connector_extra_config":{"load_timout":1}}`, nil, "handshake_timeout, load_timeout, no_progress_timeout"},
		{"unknown connector", `{"kv_connector":"LMCacheConnector","kv_role":"kv_producer"}`, nil, "LMCacheConnector"},
		{"role", `{"kv_connector":"NixlConnector","kv_role":"producer"}`, nil, "kv_role"},
		{"policy", `{"kv_connector":"NixlConnector","kv_role":"kv_both","kv_load_failure_policy":"ignore"}`, nil, "ignore"},
		{"compat", `{"kv_connector":"NixlConnector","kv_role":"kv_both","kv_connector_extra_config":{"enforce_handshake_compat":false}}`, nil, "enforce_handshake_compat"},
		{"range", `{"kv_connector":"NixlConnector","kv_role":"kv_both"}`, map[string]string{"kv_connector_extra_config.load_timeout": "-1"}, "load_timeout"},
		{"too short", `{"kv_connector":"NixlConnector","kv_role":"kv_both"}`, map[string]string{"kv_connector_extra_config.kv_lease_duration": "1e-9"}, "kv_lease_duration 1e-09: want seconds from 0.001 to 86400"},
		{"the default", `{"kv_connector":"NixlConnector","kv_role":"kv_both"}`, map[string]string{"kv_connector_extra_config.kv_lease_duration": "0"}, ""},
		{"a path", "", map[string]string{"kv_connector": "TandemConnector", "kv_role": "kv_both", "kv_connector_extra_config.transfer_paths": `["tcp"]`}, ""},
		{"unknown path", "", map[string]string{"kv_connector": "TandemConnector", "kv_role": "kv_both", "kv_connector_extra_config.transfer_paths": `["memfd","rdma"]`}, "rdma"},
		{"no JSON", `kv_role`, nil, "JSON"},
		{"null", `null`, map[string]string{"kv_role": "kv_both"}, "null, or more than one value: want a JSON object"},
		{"two objects", `{"kv_connector":"NixlConnector"} {"kv_role":"kv_both"}`, nil, "more than one value: want a JSON object"},
		{"a key and a key in it", "", map[string]string{"kv_connector_extra_config": "7", "kv_connector_extra_config.num_threads": "2"}, `"kv_connector_extra_config" is not an object`},
		{"a file without @", file, nil, "or @FILE with one"},
		{"seconds with a unit", `{"kv_connector":"NixlConnector","kv_role":"kv_both","kv_connector_extra_config":{"load_timeout":"30s"}}`, nil,
			"kv_connector_extra_config.load_timeout: want a number of seconds, got a JSON string"},
		{"a text as list", `{"kv_connector":"NixlConnector","kv_role":"kv_both","kv_connector_extra_config":{"transfer_paths":"tcp"}}`, nil, "transfer_paths: want a list of texts"},
		{"a fraction", `{"kv_connector":"NixlConnector","kv_role":"kv_both","kv_connector_extra_config":{"num_threads":1.5}}`, nil, "num_threads: want a whole number"},
		{"a text as switch", `{"kv_connector":"NixlConnector","kv_role":"kv_both","enable_permute_local_kv":"no"}`, nil, "enable_permute_local_kv: want true or false"},
		{"a text as object", `{"kv_connector":"NixlConnector","kv_role":"kv_both","kv_connector_extra_config":"x"}`, nil, "kv_connector_extra_config: want an object"},
		{"a number as text", `{"kv_connector":"NixlConnector","kv_role":7}`, nil, "kv_role: want a text"},
		{"through a value", `{"kv_connector":"x"}`, map[string]string{"kv_connector.a": "1"}, "not an object"},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := parseTransfer(c.text, c.dotted)
			if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
				t.Errorf("got %v, want %q in it", err, c.want)
			}
		})
	}
	if _, err := parseTransfer("", nil); !errors.Is(err, errNoTransfer) {
		t.Errorf("nothing given: %v", err)
	}
	c, err := parseTransfer(`{"kv_connector":"NixlConnector","kv_role":"kv_both"}`, map[string]string{"engine_id": "7", "kv_connector_extra_config.kv_lease_duration": "2"})
	if err == nil || !strings.Contains(err.Error(), "engine_id") {
		t.Errorf("a number as engine_id: %+v %v", c, err)
	}
}

func TestDottedArgs(t *testing.T) {
	rest, dotted, err := dottedArgs([]string{"serve", "--kv-transfer-config.a.b=1", "--port", "0", "--kv-transfer-config.c", "x", "m"})
	if err != nil || !slices.Equal(rest, []string{"serve", "--port", "0", "m"}) || dotted["a.b"] != "1" || dotted["c"] != "x" {
		t.Errorf("%v %v %v", rest, dotted, err)
	}
	for _, bad := range [][]string{{"--kv-transfer-config.a"}, {"--kv-transfer-config.=1"}, {"--kv-transfer-config.a..b=1"}} {
		if _, _, err := dottedArgs(bad); err == nil {
			t.Errorf("%v is taken", bad)
		}
	}
}

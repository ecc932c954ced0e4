package telemetry

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"tandem/internal/connector"
	"tandem/internal/engine"
)

// scrape returns the text of /metrics.
func scrape(t *testing.T, m *Engine) string {
	t.Helper()
	w := httptest.NewRecorder()
	m.Handler.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	if w.Code != 200 {
		t.Fatalf("status %d", w.Code)
	}
	return w.Body.String()
}

func TestEngineMetricsHaveVLLMsNamesAndBuckets(t *testing.T) {
	m := NewEngine(EngineConfig{Model: "m", Version: "v", MaxModelLen: 1000, BlockTokens: 16, Blocks: 8})
	m.Watch(func() engine.Status {
		s := engine.Status{}
		s.Stats.Blocks, s.Stats.Free, s.Stats.Loading = 8, 6, 3
		return s
	},
		func() connector.LeaseStats { return connector.LeaseStats{Live: 5, Claimed: 2} })
	m.Engine.Admitted(engine.Usage{Prompt: 100, LocalHit: 32, Loaded: 60, Computed: 8})
	m.Engine.Finished(engine.RequestStats{Finish: engine.FinishStop, N: 1, Usage: engine.Usage{Prompt: 100, Completion: 7}, Decode: 600 * time.Millisecond})
	m.Engine.LoadFailed(connector.ClassSum)
	m.Engine.FirstToken(30 * time.Millisecond)
	m.Connector.Transfer(connector.Transfer{Peer: "P1", Bytes: 4000, Tiles: 3, Pieces: 12, Duration: time.Millisecond})
	m.Connector.Expired()
	m.Server.Params(3, 50)
	m.Server.Request("/v1/completions", "POST", 200)
	text := scrape(t, m)
	l := `{engine="0",model_name="m"`
	for _, want := range []string{
		`vllm:prompt_tokens_total` + l + `} 100`,
		`vllm:prompt_tokens_cached_total` + l + `} 92`,
		`vllm:prefix_cache_hits_total` + l + `} 32`,
		`vllm:external_prefix_cache_hits_total` + l + `} 60`,
		`vllm:external_prefix_cache_queries_total` + l + `} 68`,
		`vllm:prompt_tokens_by_source_total` + l + `,source="external_kv_transfer"} 60`,
		`vllm:prompt_tokens_by_source_total` + l + `,source="local_compute"} 8`,
		`vllm:request_success_total{engine="0",finished_reason="stop",model_name="m"} 1`,
		`vllm:request_success_total{engine="0",finished_reason="length",model_name="m"} 0`,
		`vllm:generation_tokens_total` + l + `} 7`,
		`vllm:request_time_per_output_token_seconds_bucket` + l + `,le="0.1"} 1`,
		`vllm:request_time_per_output_token_seconds_bucket` + l + `,le="0.075"} 0`,
		`vllm:time_to_first_token_seconds_bucket` + l + `,le="0.04"} 1`,
		`vllm:time_to_first_token_seconds_bucket` + l + `,le="2560"} 1`,
		`vllm:nixl_bytes_transferred_bucket` + l + `,le="2048"} 0`,
		`vllm:nixl_bytes_transferred_bucket` + l + `,le="8.589934592e+09"} 1`,
		`vllm:nixl_num_descriptors_bucket` + l + `,le="20"} 1`,
		`vllm:nixl_num_kv_expired_reqs_total` + l + `} 1`,
		`vllm:nixl_num_failed_transfers_total` + l + `} 0`,
		`vllm:request_prompt_tokens_bucket` + l + `,le="1000"} 1`,
		`vllm:request_params_n_sum` + l + `} 3`,
		`vllm:num_requests_waiting` + l + `} 3`,
		`vllm:num_requests_waiting_by_reason{engine="0",model_name="m",reason="deferred"} 3`,
		`vllm:kv_cache_usage_perc` + l + `} 0.25`,
		`vllm:cache_config_info{block_size="16",engine="0",model_name="m",num_gpu_blocks="8"} 1`,
		`tandem_kv_load_failures_total{class="sum",engine="0",model_name="m"} 1`,
		`tandem_leases{engine="0",model_name="m",state="unclaimed"} 3`,
		`http_requests_total{handler="/v1/completions",method="POST",status="200"} 1`,
	} {
		if !strings.Contains(text, want+"\n") {
			t.Errorf("no line %s", want)
		}
	}
}

package telemetry

import (
	"context"
	"fmt"
	"log/slog"
	"math"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"tandem/internal/bystander/logtest"
	"tandem/internal/connector"
	"tandem/internal/engine"
	"tandem/internal/kv"
)

func engineMetrics() *Engine {
	return NewEngine(EngineConfig{Model: "m", Version: "v", MaxModelLen: 1000, BlockTokens: 16, Blocks: 8})
}

// bucketsOf returns the upper bounds of a histogram.
func bucketsOf(text, name string) (out []float64) {
	for _, m := range regexp.MustCompile(regexp.QuoteMeta(name)+`_bucket\{[^}]*le="([^"]+)"`).FindAllStringSubmatch(text, -1) {
		v, err := strconv.ParseFloat(m[1], 64)
		if err != nil || math.IsInf(v, 1) {
			continue
		}
		out = append(out, v)
	}
	return out
}

// valueOf returns the value of a series, "" when there is none.
func valueOf(text, series string) string {
	for l := range strings.Lines(text) {
		if v, ok := strings.CutPrefix(l, series+" "); ok {
			return strings.TrimSpace(v)
		}
	}
	return ""
}

func TestNixlMetricsAreVLLMs(t *testing.T) {
	m := engineMetrics()
	text := scrape(t, m)
	for name, want := range map[string][]float64{
		"vllm:nixl_xfer_time_seconds":      {.005, .01, .025, .05, .075, .1, .2, .3, .5, .75, 1, 5},
		"vllm:nixl_post_time_seconds":      {.001, .005, .01, .025, .05, .075, .1, .2, .3, .5, .75, 1, 5},
		"vllm:nixl_bytes_transferred":      {1 << 11, 1 << 13, 1 << 15, 1 << 17, 1 << 19, 1 << 21, 1 << 23, 1 << 25, 1 << 27, 1 << 29, 1 << 31, 1 << 33},
		"vllm:nixl_num_descriptors":        {10, 20, 30, 50, 75, 100, 200, 400, 1000, 2000, 4000, 10000, 20000, 50000},
		"vllm:time_to_first_token_seconds": firstTokenSeconds,
	} {
		if got := bucketsOf(text, name); fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("%s has buckets %v, want %v", name, got, want)
		}
	}
	m.Connector.Transfer(connector.Transfer{Peer: "P1", Bytes: 3 << 20, Tiles: 4, Pieces: 120, Duration: 20 * time.Millisecond, Post: 2 * time.Millisecond})
	for range 3 {
		m.Connector.Failed("P1", connector.ClassSum)
	}
	m.Connector.ReturnFailed("P1")
	m.Connector.Expired()
	text = scrape(t, m)
	const l = `{engine="0",model_name="m"}`
	for series, want := range map[string]string{
		"vllm:nixl_xfer_time_seconds_sum" + l: "0.02", "vllm:nixl_xfer_time_seconds_count" + l: "1",
		"vllm:nixl_post_time_seconds_sum" + l: "0.002", "vllm:nixl_bytes_transferred_sum" + l: "3.145728e+06",
		"vllm:nixl_num_descriptors_sum" + l: "120", "vllm:nixl_num_failed_transfers_total" + l: "3",
		"vllm:nixl_num_failed_notifications_total" + l: "1", "vllm:nixl_num_kv_expired_reqs_total" + l: "1",
		`tandem_peer_load_failures_total{class="sum",engine="0",model_name="m",peer="P1"}`: "3",
		`tandem_peer_loaded_bytes_total{engine="0",model_name="m",peer="P1"}`:              "3.145728e+06",
		`tandem_peer_failed_returns_total{engine="0",model_name="m",peer="P1"}`:            "1",
	} {
		if got := valueOf(text, series); got != want {
			t.Errorf("%s is %q, want %q", series, got, want)
		}
	}
}

// Tokens by source add up to the prompt tokens, whatever happened to loads.
func TestTokensBySourceAddUp(t *testing.T) {
	m := engineMetrics()
	for _, u := range []engine.Usage{
		{Prompt: 100, Computed: 100},
		{Prompt: 50, LocalHit: 32, Loaded: 17, Computed: 1},
		{Prompt: 40, Loaded: 16, Recomputed: 23, Computed: 1, Failure: connector.ClassSum},
	} {
		m.Engine.Admitted(u)
	}
	text := scrape(t, m)
	sum := 0
	for source, want := range map[string]int{"local_compute": 125, "local_cache_hit": 32, "external_kv_transfer": 33} {
		got, _ := strconv.Atoi(valueOf(text, `vllm:prompt_tokens_by_source_total{engine="0",model_name="m",source="`+source+`"}`))
		if got != want {
			t.Errorf("%s: %d, want %d", source, got, want)
		}
		sum += got
	}
	own := 0
	for source, want := range map[string]int{"loaded": 33, "local": 32, "recomputed": 23, "computed": 102} {
		got, _ := strconv.Atoi(valueOf(text, `tandem_prompt_tokens_by_source_total{engine="0",model_name="m",source="`+source+`"}`))
		if got != want {
			t.Errorf("%s: %d, want %d", source, got, want)
		}
		own += got
	}
	if own != sum {
		t.Errorf("ours add up to %d, vLLM's to %d", own, sum)
	}
	if all := valueOf(text, `vllm:prompt_tokens_total{engine="0",model_name="m"}`); all != strconv.Itoa(sum) || sum != 190 {
		t.Errorf("%s prompt tokens, by source %d", all, sum)
	}
}

// Labels stay few while peers come and go, and sums never fall.
func TestPeersInLabelsAreBounded(t *testing.T) {
	m := engineMetrics()
	series := regexp.MustCompile(`tandem_peer_load_failures_total\{class="([a-z]+)",[^}]*peer="([^"]*)"\} (\d+)`)
	last := 0
	for i := range 200 {
		m.Connector.Failed(kv.EngineID(fmt.Sprintf("P%d", i)), connector.ClassRead)
		m.Connector.Failed(kv.EngineID(fmt.Sprintf("P%d", i)), connector.ClassSum)
		m.Connector.Failed("steady", connector.ClassGone)
		sum, peers := 0, map[string]bool{}
		for _, x := range series.FindAllStringSubmatch(scrape(t, m), -1) {
			n, _ := strconv.Atoi(x[3])
			sum += n
			peers[x[2]] = true
		}
		if sum != last+3 || len(peers) > maxPeers+1 || !peers["steady"] {
			t.Fatalf("after %d peers: sum %d, before %d; %d peers are told apart", i+1, sum, last, len(peers))
		}
		last = sum
	}
	text := scrape(t, m)
	if got := valueOf(text, `tandem_peer_load_failures_total{class="gone",engine="0",model_name="m",peer="steady"}`); got != "200" {
		t.Errorf("the steady peer has %s", got)
	}
	if got := valueOf(text, `tandem_peer_load_failures_total{class="read",engine="0",model_name="m",peer="(others)"}`); got != strconv.Itoa(200-(maxPeers-1)) {
		t.Errorf("others have %s", got)
	}
	// Names are for the cluster to choose, but not to break /metrics with.
	m.Connector.Failed("\xff\"\n(others)", connector.ClassGone)
	m.Connector.Failed(otherPeers, connector.ClassGone)
	scrape(t, m)
}

func TestIntervalLineOfVLLM(t *testing.T) {
	var v interval
	if v.line() != "" {
		t.Error("a line about nothing")
	}
	for i := 1; i <= 10; i++ {
		v.transferred(&connector.Transfer{
			Bytes: i << 20, Pieces: 10 * i, Duration: time.Duration(i) * 10 * time.Millisecond, Post: time.Duration(i) * time.Millisecond,
		})
	}
	const want = "KV Transfer metrics: Num successful transfers=10, Avg xfer time (ms)=55, P90 xfer time (ms)=91, " +
		"Avg post time (ms)=5.5, P90 post time (ms)=9.1, Avg MB per transfer=5.5, Throughput (MB/s)=100, " +
		"Avg number of descriptors=55, Num failed transfers=0"
	if got := v.line(); got != want {
		t.Errorf("%s\nwant\n%s", got, want)
	}
	v.loadFailed()
	v.loadFailed()
	const failures = "KV Transfer metrics: Num successful transfers=0, Avg xfer time (ms)=0, P90 xfer time (ms)=0, " +
		"Avg post time (ms)=0, P90 post time (ms)=0, Avg MB per transfer=0, Throughput (MB/s)=0, " +
		"Avg number of descriptors=0, Num failed transfers=2"
	if got := v.line(); got != failures {
		t.Errorf("%s\nwant\n%s", got, failures)
	}
	if got := v.line(); got != "" {
		t.Errorf("the same is told twice: %s", got)
	}
	// More transfers than are kept: mean of all, percentile of an even choice.
	const n = 10 * maxSamples
	for i := range n {
		v.transferred(&connector.Transfer{Duration: time.Duration(i+1) * time.Microsecond})
	}
	var avg, p90 float64
	var count int
	if _, err := fmt.Sscanf(v.line(), "KV Transfer metrics: Num successful transfers=%d, Avg xfer time (ms)=%f, P90 xfer time (ms)=%f,", &count, &avg, &p90); err != nil {
		t.Fatal(err)
	}
	if count != n || avg < 20.4 || avg > 20.5 || p90 < 0.88*n/1000 || p90 > 0.92*n/1000 {
		t.Errorf("%d transfers, mean %v ms, 90 %% below %v ms", count, avg, p90)
	}
}

// The line comes every ten seconds in which something happened, and at the end.
func TestIntervalLineComesWhenSomethingHappened(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := engineMetrics()
		var out logtest.Book
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() {
			defer close(done)
			m.Run(ctx, slog.New(slog.NewTextHandler(&out, nil)))
		}()
		expect := func(n int, word string) {
			t.Helper()
			synctest.Wait()
			if got := out.Lines(); len(got) != n || !strings.Contains(strings.Join(got, ""), word) {
				t.Errorf("after %d lines: %q, want %q", n, got, word)
			}
		}
		<-time.After(3 * intervalEvery)
		expect(0, "")
		m.Connector.Transfer(connector.Transfer{Bytes: 1 << 20, Duration: time.Second})
		m.Connector.Failed("P1", connector.ClassRead)
		expect(0, "")
		<-time.After(intervalEvery)
		expect(1, "transfers=1, ")
		<-time.After(2 * intervalEvery)
		m.Connector.Failed("P1", connector.ClassRead)
		<-time.After(intervalEvery)
		expect(2, "Num failed transfers=1")
		m.Connector.Transfer(connector.Transfer{Bytes: 1 << 20, Duration: time.Second})
		m.Connector.Transfer(connector.Transfer{Bytes: 1 << 20, Duration: time.Second})
		cancel()
		<-done
		expect(3, "transfers=2, ")
	})
}

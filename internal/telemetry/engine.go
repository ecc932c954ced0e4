package telemetry

import (
	"maps"
	"math"
	"net/http"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"tandem/internal/connector"
	"tandem/internal/engine"
	"tandem/internal/kv"
	"tandem/internal/server"
)

// An EngineConfig says what the metrics of an engine are about.
type EngineConfig struct {
	Model       string // label model_name
	Version     string
	MaxModelLen int
	BlockTokens int
	Blocks      int

	// LostLines tells how many log lines were never written; it may be nil.
	LostLines func() uint64
}

// An Engine holds the metrics of one engine, with vLLM's names, labels and
// buckets where vLLM has them and names beginning with tandem_ elsewhere. Engine
// index is always "0": a process has one engine.
type Engine struct {
	Engine    engine.Metrics
	Connector connector.Metrics
	Server    server.Metrics
	Handler   http.Handler // of /metrics

	reg      *prometheus.Registry
	labels   prometheus.Labels
	interval interval
}

// Buckets of vLLM's histograms.
var (
	firstTokenSeconds = []float64{.001, .005, .01, .02, .04, .06, .08, .1, .25, .5, .75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160, 640, 2560}
	perTokenSeconds   = []float64{.01, .025, .05, .075, .1, .15, .2, .3, .4, .5, .75, 1, 2.5, 5, 7.5, 10, 20, 40, 80}
	requestSeconds    = []float64{.3, .5, .8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680}
	transferSeconds   = []float64{.005, .01, .025, .05, .075, .1, .2, .3, .5, .75, 1, 5}
	postSeconds       = []float64{.001, .005, .01, .025, .05, .075, .1, .2, .3, .5, .75, 1, 5}
	descriptors       = []float64{10, 20, 30, 50, 75, 100, 200, 400, 1000, 2000, 4000, 10000, 20000, 50000}
	choices           = []float64{1, 2, 5, 10, 20}
)

// oneTwoFive returns vLLM's buckets 1, 2, 5, 10, … up to limit.
func oneTwoFive(limit int) []float64 {
	var out []float64
	for e := 0; ; e++ {
		for _, m := range []float64{1, 2, 5} {
			v := m * math.Pow10(e)
			if v > float64(limit) {
				return out
			}
			out = append(out, v)
		}
	}
}

func powersOfTwo(from, to, step int) []float64 {
	var out []float64
	for e := from; e <= to; e += step {
		out = append(out, math.Ldexp(1, e))
	}
	return out
}

// NewEngine returns the metrics of an engine.
func NewEngine(cfg EngineConfig) *Engine {
	t := &Engine{reg: prometheus.NewRegistry(), labels: prometheus.Labels{"model_name": cfg.Model, "engine": "0"}}
	t.reg.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	t.Handler = promhttp.HandlerFor(t.reg, promhttp.HandlerOpts{EnableOpenMetrics: true})
	t.constant("tandem_build_info", "Always 1; the label tells the version.", prometheus.Labels{"version": cfg.Version})
	t.constant("vllm:cache_config_info", "Always 1; the labels tell the tokens of a block and the number of blocks.", prometheus.Labels{
		"block_size": strconv.Itoa(cfg.BlockTokens), "num_gpu_blocks": strconv.Itoa(cfg.Blocks),
	})
	if lost := cfg.LostLines; lost != nil {
		t.reg.MustRegister(prometheus.NewCounterFunc(prometheus.CounterOpts{
			Name: "tandem_log_lines_lost_total", ConstLabels: t.labels, Help: "Log lines that were not written, since whatever takes the log did not take them, or not in time.",
		}, func() float64 { return float64(lost()) }))
	}
	t.engineMetrics(cfg)
	t.connectorMetrics()
	t.serverMetrics(cfg)
	return t
}

func (t *Engine) constant(name, help string, labels prometheus.Labels) {
	t.reg.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help, ConstLabels: t.with(labels)}, func() float64 { return 1 }))
}

// with returns the labels of t and more.
func (t *Engine) with(more prometheus.Labels) prometheus.Labels {
	all := maps.Clone(t.labels)
	maps.Copy(all, more)
	return all
}

func (t *Engine) counter(name, help string) prometheus.Counter {
	c := prometheus.NewCounter(prometheus.CounterOpts{Name: name + "_total", Help: help, ConstLabels: t.labels})
	t.reg.MustRegister(c)
	return c
}

func (t *Engine) counters(name, help string, label string, values ...string) *prometheus.CounterVec {
	c := prometheus.NewCounterVec(prometheus.CounterOpts{Name: name + "_total", Help: help, ConstLabels: t.labels}, []string{label})
	t.reg.MustRegister(c)
	for _, v := range values {
		c.WithLabelValues(v) // visible before the first event
	}
	return c
}

func (t *Engine) histogram(name, help string, buckets []float64) prometheus.Histogram {
	h := prometheus.NewHistogram(prometheus.HistogramOpts{Name: name, Help: help, ConstLabels: t.labels, Buckets: buckets})
	t.reg.MustRegister(h)
	return h
}

func (t *Engine) engineMetrics(cfg EngineConfig) {
	tokens := oneTwoFive(cfg.MaxModelLen)
	first := t.histogram("vllm:time_to_first_token_seconds", "Seconds from a request's arrival in the engine to its first token: queue, KV load and prefill.", firstTokenSeconds)
	inter := t.histogram("vllm:inter_token_latency_seconds", "Seconds between two tokens of a choice.", perTokenSeconds)
	perToken := t.histogram("vllm:request_time_per_output_token_seconds", "Mean seconds per token after the first, one value for each request.", perTokenSeconds)
	step := t.histogram("vllm:iteration_tokens_total", "Tokens computed in one step, of prompts and of answers.", powersOfTwo(0, 14, 1))
	preempted := t.counter("vllm:num_preemptions", "Running requests that lost their blocks to others and are computed again later.")
	queries := t.counter("vllm:prefix_cache_queries", "Prompt tokens looked up in the prefix cache.")
	hits := t.counter("vllm:prefix_cache_hits", "Prompt tokens found in the prefix cache.")
	extQueries := t.counter("vllm:external_prefix_cache_queries", "Prompt tokens not found in the prefix cache, which another engine could have offered.")
	extHits := t.counter("vllm:external_prefix_cache_hits", "Prompt tokens read from another engine and verified.")
	prompt := t.counter("vllm:prompt_tokens", "Prompt tokens of requests that reached their first token.")
	cached := t.counter("vllm:prompt_tokens_cached", "Prompt tokens that were not computed here: found in the prefix cache or read from another engine.")
	generated := t.counter("vllm:generation_tokens", "Tokens generated, counted when their request ends.")
	source := t.counters("vllm:prompt_tokens_by_source", "Prompt tokens by the source of their KV, with vLLM's names of sources.", "source",
		"local_compute", "local_cache_hit", "external_kv_transfer")
	own := t.counters("tandem_prompt_tokens_by_source", "Prompt tokens by the source of their KV: loaded from P, found locally, promised by P but recomputed here, computed. They add up to vllm:prompt_tokens_total.", "source",
		"loaded", "local", "recomputed", "computed")
	success := t.counters("vllm:request_success", "Requests that ended, by reason; error and abort are no success, whatever the name says.", "finished_reason", "stop", "length", "abort", "error")
	loads := make([]string, 0, 8)
	for _, c := range connector.LoadClasses() {
		loads = append(loads, string(c))
	}
	failed := t.counters("tandem_kv_load_failures", "KV loads that did not bring all their tiles, by class.", "class", loads...)
	recovered := t.counter("tandem_kv_load_recovered_requests", "Requests whose missing KV was computed here after a failed load.")
	recomputed := t.counter("tandem_kv_load_recomputed_tokens", "Tokens computed here after a failed load.")
	e2e := t.histogram("vllm:e2e_request_latency_seconds", "Seconds from a request's arrival in the engine to its end.", requestSeconds)
	queue := t.histogram("vllm:request_queue_time_seconds", "Seconds from a request's arrival in the engine to its first step, its KV load included.", requestSeconds)
	inference := t.histogram("vllm:request_inference_time_seconds", "Seconds from the first step to the end.", requestSeconds)
	prefill := t.histogram("vllm:request_prefill_time_seconds", "Seconds from the first step to the first token.", requestSeconds)
	decode := t.histogram("vllm:request_decode_time_seconds", "Seconds from the first token to the end.", requestSeconds)
	promptSize := t.histogram("vllm:request_prompt_tokens", "Prompt tokens of a request.", tokens)
	outSize := t.histogram("vllm:request_generation_tokens", "Generated tokens of a request.", tokens)
	maxOut := t.histogram("vllm:request_max_num_generation_tokens", "Tokens that a choice of a request may have at most.", tokens)
	computed := t.histogram("vllm:request_prefill_kv_computed_tokens", "Prompt tokens of a request that were computed here.", tokens)

	t.Engine = engine.Metrics{
		Step:       func(n, _ int, _ time.Duration) { step.Observe(float64(n)) },
		FirstToken: func(d time.Duration) { first.Observe(d.Seconds()) },
		InterToken: func(d time.Duration) { inter.Observe(d.Seconds()) },
		Preempted:  func(n int) { preempted.Add(float64(n)) },
		Admitted: func(u engine.Usage) {
			prompt.Add(float64(u.Prompt))
			queries.Add(float64(u.Prompt))
			hits.Add(float64(u.LocalHit))
			extQueries.Add(float64(u.Prompt - u.LocalHit))
			extHits.Add(float64(u.Loaded))
			cached.Add(float64(u.Cached()))
			source.WithLabelValues("local_cache_hit").Add(float64(u.LocalHit))
			source.WithLabelValues("external_kv_transfer").Add(float64(u.Loaded))
			source.WithLabelValues("local_compute").Add(float64(u.Prompt - u.Cached()))
			own.WithLabelValues("loaded").Add(float64(u.Loaded))
			own.WithLabelValues("local").Add(float64(u.LocalHit))
			own.WithLabelValues("recomputed").Add(float64(u.Recomputed))
			own.WithLabelValues("computed").Add(float64(u.Computed))
		},
		LoadFailed: func(c connector.LoadClass) { failed.WithLabelValues(string(c)).Inc() },
		Recovered: func(requests, n int) {
			recovered.Add(float64(requests))
			recomputed.Add(float64(n))
		},
		Finished: func(r engine.RequestStats) {
			why := r.Finish
			if r.Err != nil && why == "" {
				why = engine.FinishError
			}
			success.WithLabelValues(string(why)).Inc()
			generated.Add(float64(r.Usage.Completion))
			e2e.Observe(r.Total.Seconds())
			queue.Observe(r.Queue.Seconds())
			inference.Observe((r.Prefill + r.Decode).Seconds())
			prefill.Observe(r.Prefill.Seconds())
			decode.Observe(r.Decode.Seconds())
			if n := r.Usage.Completion/max(r.N, 1) - 1; n > 0 {
				perToken.Observe(r.Decode.Seconds() / float64(n))
			}
			promptSize.Observe(float64(r.Usage.Prompt))
			outSize.Observe(float64(r.Usage.Completion))
			maxOut.Observe(float64(r.Max))
			computed.Observe(float64(r.Usage.Prompt - r.Usage.Cached()))
		},
	}
}

func (t *Engine) connectorMetrics() {
	seconds := t.histogram("vllm:nixl_xfer_time_seconds", "Seconds of a read from one rank of a peer, all tiles valid.", transferSeconds)
	post := t.histogram("vllm:nixl_post_time_seconds", "Seconds of handing a read to the transfer agent.", postSeconds)
	size := t.histogram("vllm:nixl_bytes_transferred", "Bytes of a read from one rank of a peer.", powersOfTwo(11, 33, 2))
	pieces := t.histogram("vllm:nixl_num_descriptors", "Contiguous ranges of memory in a read.", descriptors)
	failed := t.counter("vllm:nixl_num_failed_transfers", "KV loads that did not bring all their tiles, as tandem_kv_load_failures_total.")
	notices := t.counter("vllm:nixl_num_failed_notifications", "Returns of leases that were never acknowledged.")
	expired := t.counter("vllm:nixl_num_kv_expired_reqs", "Leases that ran out unread: counted by P when it ends one, by D when it meets one that had ended.")
	handshakes := t.counters("tandem_peer_handshakes", "Handshakes with peers, by outcome.", "outcome", "ok", "failed")
	shake := t.histogram("tandem_peer_handshake_seconds", "Seconds of a handshake, failed ones included.", postSeconds)
	load := t.histogram("tandem_kv_load_seconds", "Seconds from the start of a load to its report, all tiles valid.", postSeconds)
	byPeer := t.peerCounter("tandem_peer_load_failures", "KV loads that did not bring all their tiles, by peer and class.", "class")
	bytesOf := t.peerCounter("tandem_peer_loaded_bytes", "Bytes of reads that brought all their tiles, by peer.", "")
	returnsTo := t.peerCounter("tandem_peer_failed_returns", "Returns of leases that were never acknowledged, by peer.", "")
	t.Connector = connector.Metrics{
		Transfer: func(x connector.Transfer) {
			t.interval.transferred(&x)
			bytesOf.add(x.Peer, "", float64(x.Bytes))
			seconds.Observe(x.Duration.Seconds())
			post.Observe(x.Post.Seconds())
			size.Observe(float64(x.Bytes))
			pieces.Observe(float64(x.Pieces))
		},
		Failed: func(peer kv.EngineID, c connector.LoadClass) {
			t.interval.loadFailed()
			failed.Inc()
			byPeer.add(peer, string(c), 1)
		},
		Expired: func() { expired.Inc() },
		ReturnFailed: func(peer kv.EngineID) {
			notices.Inc()
			returnsTo.add(peer, "", 1)
		},
		Handshake: func(ok bool, d time.Duration) {
			outcome := "failed"
			if ok {
				outcome = "ok"
			}
			handshakes.WithLabelValues(outcome).Inc()
			shake.Observe(d.Seconds())
		},
		Loaded: func(_ int, d time.Duration) { load.Observe(d.Seconds()) },
	}
}

func (t *Engine) serverMetrics(cfg EngineConfig) {
	requests := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "http_requests_total", Help: "HTTP requests by path, method and status.",
	}, []string{"handler", "method", "status"})
	t.reg.MustRegister(requests)
	n := t.histogram("vllm:request_params_n", "Choices that a request asked for (n).", choices)
	maxTokens := t.histogram("vllm:request_params_max_tokens", "max_tokens of a request that set it.", oneTwoFive(cfg.MaxModelLen))
	t.Server = server.Metrics{
		Request: func(path, method string, status int) {
			requests.WithLabelValues(path, method, statusClass(status)).Inc()
		},
		Params: func(choices, most int) {
			n.Observe(float64(choices))
			if most > 0 {
				maxTokens.Observe(float64(most))
			}
		},
	}
}

// Watch adds the gauges of a running engine, and of its connector when leases is
// not nil. Call it once, after the engine exists.
func (t *Engine) Watch(status func() engine.Status, leases func() connector.LeaseStats) {
	gauge := func(name, help string, labels prometheus.Labels, f func(engine.Status) float64) {
		t.reg.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help, ConstLabels: t.with(labels)},
			func() float64 { return f(status()) }))
	}
	const (
		byReason     = "vllm:num_requests_waiting_by_reason"
		byReasonHelp = "Requests that wait, by reason: for blocks or a place in the batch (capacity), for the KV of another engine (deferred)."
		leasesHelp   = "Leases of this engine, by state: nobody reads yet (unclaimed), a decode engine reads now (claimed)."
	)
	gauge("vllm:num_requests_running", "Requests that run: they have blocks and take part in steps.", nil, func(s engine.Status) float64 { return float64(s.Stats.Running) })
	gauge("vllm:num_requests_waiting", "Requests that wait, for blocks or for the KV of another engine.", nil,
		func(s engine.Status) float64 { return float64(s.Stats.Waiting + s.Stats.Loading) })
	gauge(byReason, byReasonHelp, prometheus.Labels{"reason": "capacity"},
		func(s engine.Status) float64 { return float64(s.Stats.Waiting) })
	gauge(byReason, byReasonHelp, prometheus.Labels{"reason": "deferred"},
		func(s engine.Status) float64 { return float64(s.Stats.Loading) })
	gauge("vllm:kv_cache_usage_perc", "Share of the KV blocks in use, from 0 to 1; blocks that only the prefix cache holds are free.", nil, func(s engine.Status) float64 {
		if s.Stats.Blocks == 0 {
			return 0
		}
		return 1 - float64(s.Stats.Free)/float64(s.Stats.Blocks)
	})
	gauge("vllm:engine_sleep_state", "1 for the state that the engine is in; it is always awake.", prometheus.Labels{"sleep_state": "awake"},
		func(engine.Status) float64 { return 1 })
	gauge("tandem_engine_stalled_seconds", "Seconds that the present turn of the step loop has taken; 0 when there is nothing to do.", nil,
		func(s engine.Status) float64 { return s.Stalled.Seconds() })
	if leases == nil {
		return
	}
	gauge("tandem_leases", leasesHelp, prometheus.Labels{"state": "unclaimed"},
		func(engine.Status) float64 { l := leases(); return float64(l.Live - l.Claimed) })
	gauge("tandem_leases", leasesHelp, prometheus.Labels{"state": "claimed"},
		func(engine.Status) float64 { return float64(leases().Claimed) })
}

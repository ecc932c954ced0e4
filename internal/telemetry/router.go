package telemetry

import (
	"net/http"
	"strconv"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"tandem/internal/router"
)

// Router returns the metrics of a router and the handler of its /metrics.
func Router(version string) (router.Metrics, http.Handler) {
	reg, m := routerMetrics(version)
	return m, promhttp.HandlerFor(reg, promhttp.HandlerOpts{EnableOpenMetrics: true})
}

func routerMetrics(version string) (*prometheus.Registry, router.Metrics) {
	reg := prometheus.NewRegistry()
	reg.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	seconds := []float64{.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 120}
	requests := prometheus.NewCounterVec(prometheus.CounterOpts{Name: "tandem_router_requests_total", Help: "Client calls by path, route and status."}, []string{"path", "route", "status"})
	request := prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "tandem_router_request_seconds", Help: "Seconds from the request to the last byte of its answer.", Buckets: seconds}, []string{"path", "route"})
	leg := prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "tandem_router_leg_seconds", Help: "Seconds of one exchange with an engine; of a decode leg whose answer is a stream, until the first content.", Buckets: seconds}, []string{"role", "backend", "outcome"})
	failed := prometheus.NewCounterVec(prometheus.CounterOpts{Name: "tandem_router_failed_legs_total", Help: "Legs that failed in a way that another engine might not: each led to a retry or to an error."}, []string{"role", "outcome"})
	releases := prometheus.NewCounterVec(prometheus.CounterOpts{Name: "tandem_router_releases_total", Help: "Hand-offs that no decode engine took and the router gave back to P: P took it (ok), or did not answer (lost)."}, []string{"outcome"})
	ready := prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "tandem_router_backend_ready", Help: "1 when the engine can serve, 0 when it cannot."}, []string{"role", "backend"})
	info := prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "tandem_build_info", Help: "Always 1; the label tells the version."}, []string{"version"})
	info.WithLabelValues(version).Set(1)
	reg.MustRegister(requests, request, leg, failed, releases, ready, info)
	for _, outcome := range router.ReleaseOutcomes() {
		releases.WithLabelValues(outcome) // visible before the first event
	}
	return reg, router.Metrics{
		Request: func(path, route string, status int, s float64) {
			requests.WithLabelValues(path, route, statusClass(status)).Inc()
			request.WithLabelValues(path, route).Observe(s)
		},
		Leg:     func(role, name, outcome string, s float64) { leg.WithLabelValues(role, name, outcome).Observe(s) },
		Retry:   func(role, reason string) { failed.WithLabelValues(role, reason).Inc() },
		Release: func(outcome string) { releases.WithLabelValues(outcome).Inc() },
		State: func(role, name string, ok bool) {
			v := 0.0
			if ok {
				v = 1
			}
			ready.WithLabelValues(role, name).Set(v)
		},
	}
}

// statusClass keeps the label bounded: the statuses in use, "0" where the
// client left before one was sent.
func statusClass(status int) string {
	if t := http.StatusText(status); t != "" {
		return strconv.Itoa(status)
	}
	return "0"
}

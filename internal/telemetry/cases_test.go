package telemetry

import (
	"strings"
	"testing"
	"time"

	"tandem/internal/engine"
)

// H042: the seconds without progress are a metric.
func TestSecondsWithoutProgressAreAMetric(t *testing.T) {
	m := NewEngine(EngineConfig{Model: "m", Version: "v"})
	stalled := 90 * time.Second
	m.Watch(func() engine.Status { return engine.Status{Stalled: stalled, Hung: stalled > 0} }, nil)
	for _, want := range []string{"} 90\n", "} 0\n"} {
		_, line, found := strings.Cut(scrape(t, m), "\ntandem_engine_stalled_seconds{")
		if end := strings.Index(line, "\n"); !found || !strings.HasSuffix(line[:end+1], want) {
			t.Errorf("%q, want %q", line[:end+1], want)
		}
		stalled = 0
	}
}

package telemetry

import (
	"context"
	"fmt"
	"log/slog"
	"math"
	"slices"
	"sync"
	"time"

	"tandem/internal/connector"
)

// intervalEvery is how often the sums of transfers are logged, as in vLLM.
const intervalEvery = 10 * time.Second

// maxSamples is how many transfers of an interval its percentiles come from; of
// more, an even choice.
const maxSamples = 4096

// An interval sums up the transfers since the last line.
type interval struct {
	mu     sync.Mutex
	n      int // transfers that brought all their tiles
	failed int // loads that did not
	xfer   samples
	post   samples
	bytes  float64
	pieces float64
}

// samples are durations in seconds.
type samples struct {
	n    uint64
	sum  float64
	some []float64
}

func (s *samples) add(d time.Duration) {
	s.sum += d.Seconds()
	if len(s.some) < maxSamples {
		s.some = append(s.some, d.Seconds())
	} else if i := mix(s.n) % (s.n + 1); i < maxSamples {
		s.some[i] = d.Seconds()
	}
	s.n++
}

// mix spreads the bits of x (splitmix64): an even choice that repeats itself.
func mix(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// p90 returns the 90th percentile, between two samples in proportion.
func (s *samples) p90() float64 {
	if len(s.some) == 0 {
		return 0
	}
	slices.Sort(s.some)
	at := 0.9 * float64(len(s.some)-1)
	i := int(at)
	if i+1 == len(s.some) {
		return s.some[i]
	}
	return s.some[i] + (at-float64(i))*(s.some[i+1]-s.some[i])
}

func (v *interval) transferred(x *connector.Transfer) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.n++
	v.xfer.add(x.Duration)
	v.post.add(x.Post)
	v.bytes += float64(x.Bytes)
	v.pieces += float64(x.Pieces)
}

func (v *interval) loadFailed() {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.failed++
}

// line returns what is to be logged of the interval and begins the next one; ""
// when nothing happened. Times are of each transfer; the throughput is that of
// the transfers' own time, as vLLM's is.
func (v *interval) line() string {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.n == 0 && v.failed == 0 {
		return ""
	}
	const mib = 1 << 20
	per := func(sum float64) float64 { return sum / float64(max(v.n, 1)) }
	rate := 0.0
	if v.xfer.sum > 0 {
		rate = v.bytes / mib / v.xfer.sum
	}
	line := fmt.Sprintf("KV Transfer metrics: Num successful transfers=%d, Avg xfer time (ms)=%v, P90 xfer time (ms)=%v, "+
		"Avg post time (ms)=%v, P90 post time (ms)=%v, Avg MB per transfer=%v, Throughput (MB/s)=%v, "+
		"Avg number of descriptors=%v, Num failed transfers=%d",
		v.n, round(per(v.xfer.sum)*1e3, 3), round(v.xfer.p90()*1e3, 3), round(per(v.post.sum)*1e3, 3), round(v.post.p90()*1e3, 3),
		round(per(v.bytes)/mib, 3), round(rate, 3), round(per(v.pieces), 1), v.failed)
	v.n, v.failed, v.bytes, v.pieces = 0, 0, 0, 0
	v.xfer, v.post = samples{some: v.xfer.some[:0]}, samples{some: v.post.some[:0]}
	return line
}

func round(v float64, digits int) float64 {
	p := math.Pow10(digits)
	return math.Round(v*p) / p
}

// Run logs the sums of transfers every ten seconds in which there were any, and
// what is left when ctx ends.
func (t *Engine) Run(ctx context.Context, log *slog.Logger) {
	tick := time.NewTicker(intervalEvery)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			t.tellInterval(log)
		case <-ctx.Done():
			t.tellInterval(log)
			return
		}
	}
}

func (t *Engine) tellInterval(log *slog.Logger) {
	if line := t.interval.line(); line != "" {
		log.Info(line) //nolint:sloglint // vLLM's line, which people search for as it is
	}
}

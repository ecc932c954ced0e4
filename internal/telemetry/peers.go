package telemetry

import (
	"container/list"
	"strings"
	"sync"

	"github.com/prometheus/client_golang/prometheus"

	"tandem/internal/kv"
)

// maxPeers is how many peers are told apart in labels. Peers come and go, each
// restart under a new name: what those seen longest ago counted goes to
// otherPeers, so that sums never fall.
const (
	maxPeers   = 32
	otherPeers = "(others)"
)

// A peerCounter is a counter by peer, and by another label where it has one. It
// implements prometheus.Collector.
type peerCounter struct {
	desc *prometheus.Desc

	mu     sync.Mutex
	counts map[string]map[string]float64 // by peer, then by value of the other label
	order  *list.List                    // of peers, the one seen last in front
	place  map[string]*list.Element
}

// peerCounter registers a counter. label is that of the second dimension, "" for
// none.
func (t *Engine) peerCounter(name, help, label string) *peerCounter {
	labels := []string{"peer"}
	if label != "" {
		labels = append(labels, label)
	}
	c := &peerCounter{
		desc:   prometheus.NewDesc(name+"_total", help, labels, t.labels),
		counts: map[string]map[string]float64{}, order: list.New(), place: map[string]*list.Element{},
	}
	t.reg.MustRegister(c)
	return c
}

// add counts n for a peer.
func (c *peerCounter) add(peer kv.EngineID, value string, n float64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	name := strings.ToValidUTF8(string(peer), "?")
	if e := c.place[name]; e != nil {
		c.order.MoveToFront(e)
	} else if name != otherPeers {
		c.place[name] = c.order.PushFront(name)
	}
	c.countLocked(name, value, n)
	for c.order.Len() > maxPeers {
		old := c.order.Remove(c.order.Back()).(string)
		delete(c.place, old)
		for v, n := range c.counts[old] {
			c.countLocked(otherPeers, v, n)
		}
		delete(c.counts, old)
	}
}

func (c *peerCounter) countLocked(peer, value string, n float64) {
	if c.counts[peer] == nil {
		c.counts[peer] = map[string]float64{}
	}
	c.counts[peer][value] += n
}

// Describe implements prometheus.Collector.
func (c *peerCounter) Describe(to chan<- *prometheus.Desc) { to <- c.desc }

// Collect implements prometheus.Collector.
func (c *peerCounter) Collect(to chan<- prometheus.Metric) {
	var all []prometheus.Metric
	c.mu.Lock()
	for peer, values := range c.counts {
		for v, n := range values {
			labels := []string{peer}
			if v != "" {
				labels = append(labels, v)
			}
			all = append(all, prometheus.MustNewConstMetric(c.desc, prometheus.CounterValue, n, labels...))
		}
	}
	c.mu.Unlock()
	for _, m := range all {
		to <- m
	}
}

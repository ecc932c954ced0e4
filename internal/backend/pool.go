package backend

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
)

// A Pool is the backends of one role.
type Pool struct {
	all  []*Backend
	next atomic.Uint64
}

// NewPool returns a pool of the engines at urls. Decorate is as for New.
func NewPool(role Role, urls []string, limits Limits, decorate func(http.RoundTripper) http.RoundTripper) (*Pool, error) {
	p := &Pool{}
	seen := map[string]bool{}
	for _, u := range urls {
		b, err := New(u, role, limits, decorate)
		if err != nil {
			return nil, err
		}
		if seen[b.base] {
			return nil, fmt.Errorf("backend: %s URL %s is given twice", role, b.base)
		}
		seen[b.base] = true
		p.all = append(p.all, b)
	}
	return p, nil
}

// Run probes every backend until ctx ends.
func (p *Pool) Run(ctx context.Context, changed func(b *Backend, from, to *View)) {
	var wg sync.WaitGroup
	for _, b := range p.all {
		wg.Go(func() {
			b.Run(ctx, func(from, to *View) { changed(b, from, to) })
		})
	}
	wg.Wait()
}

// All returns the members in the order given.
func (p *Pool) All() []*Backend { return p.all }

// Pick returns a ready backend, the members taking turns, or nil. Backends in
// not are left out: a retry goes elsewhere.
func (p *Pool) Pick(not ...*Backend) *Backend {
	n := uint64(len(p.all))
	start := p.next.Add(1) - 1
	for i := range n {
		if b := p.all[(start+i)%n]; b.View().State == Ready && !slices.Contains(not, b) {
			return b
		}
	}
	return nil
}

// Ready returns the number of members that can serve.
func (p *Pool) Ready() int {
	n := 0
	for _, b := range p.all {
		if b.View().State == Ready {
			n++
		}
	}
	return n
}

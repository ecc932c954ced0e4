package connector

import (
	"context"
	"slices"
	"sync"
	"time"

	"tandem/internal/connector/core"
	"tandem/internal/kv"
)

// A leaseLoop owns the lease table. It answers without waiting for the step
// loop, and gives blocks back through freed; what the step loop has not taken
// yet waits in a list that the live leases bound.
type leaseLoop struct {
	calls   chan leaseCall
	freed   chan []kv.BlockID
	closed  chan struct{}
	metrics Metrics

	// sums reads the sums of tiles [from, to) of a claimed lease. The loop calls it
	// itself, so that the lease cannot end, nor its blocks be written, meanwhile.
	sums func(blocks []kv.BlockID, from, to int) []uint64

	mu     sync.Mutex
	claims map[LeaseID]core.Running // what the serving side may read; their blocks are sorted
	stats  LeaseStats
}

type leaseCall struct {
	event any
	reply chan leaseAnswer // its reader waits for nothing else
}

// A leaseAnswer is what the table decided about an event.
type leaseAnswer struct {
	core.LeaseEffects

	sums []uint64 // of the tiles of a claim that was granted
}

// LeaseStats counts leases.
type LeaseStats struct {
	Live, Claimed                       int    // held at this moment
	Granted, Returned, Revoked, Expired uint64 // since the start
}

func newLeaseLoop(m Metrics, sums func([]kv.BlockID, int, int) []uint64) *leaseLoop {
	return &leaseLoop{
		sums:  sums,
		calls: make(chan leaseCall), freed: make(chan []kv.BlockID, 64), closed: make(chan struct{}),
		metrics: m, claims: map[LeaseID]core.Running{},
	}
}

// run serves until ctx ends. Leases that are still held end with the engine.
func (l *leaseLoop) run(ctx context.Context, table *core.LeaseTable) {
	defer close(l.closed)
	timer := time.NewTimer(time.Hour) // it is set as soon as there is something to wait for
	var pending [][]kv.BlockID
	for {
		if at, ok := table.Next(); ok {
			timer.Reset(time.Until(at))
		}
		var out chan<- []kv.BlockID
		var first []kv.BlockID
		if len(pending) > 0 {
			out, first = l.freed, pending[0]
		}
		var e leaseAnswer
		select {
		case <-ctx.Done():
			return
		case out <- first:
			pending = slices.Delete(pending, 0, 1)
		case c := <-l.calls:
			e.LeaseEffects = table.Handle(c.event, time.Now())
			l.publish(c.event, e.LeaseEffects, table)
			if e.Claimed != nil {
				ev, _ := c.event.(core.ClaimEvent) // no other event begins a claim
				e.sums = l.sums(e.Claimed.Blocks, ev.Claim.From, ev.To)
			}
			c.reply <- e
		case <-timer.C:
			e.LeaseEffects = table.Handle(core.TickEvent{}, time.Now())
			l.publish(core.TickEvent{}, e.LeaseEffects, table)
		}
		for _, end := range e.Ended {
			pending = append(pending, end.Blocks)
			if end.Why == core.EndExpired {
				l.metrics.Expired()
			}
		}
	}
}

// publish makes claims and counts visible before the answer leaves.
func (l *leaseLoop) publish(event any, e core.LeaseEffects, table *core.LeaseTable) {
	var claim core.Running
	if e.Claimed != nil {
		claim = *e.Claimed
		claim.Blocks = slices.Sorted(slices.Values(claim.Blocks))
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if e.Claimed != nil {
		l.claims[claim.ID] = claim
	}
	for _, id := range e.Unclaim {
		delete(l.claims, id)
	}
	if _, ok := event.(core.GrantEvent); ok {
		l.stats.Granted++
	}
	for _, end := range e.Ended {
		switch end.Why {
		case core.EndReturned:
			l.stats.Returned++
		case core.EndRevoked:
			l.stats.Revoked++
		case core.EndExpired:
			l.stats.Expired++
		}
	}
	l.stats.Live, l.stats.Claimed = table.Len(), len(l.claims)
}

// handle gives an event to the table and waits for what it decides. It fails
// with ErrClosed once the loop has ended.
func (l *leaseLoop) handle(ctx context.Context, event any) (leaseAnswer, error) {
	c := leaseCall{event, make(chan leaseAnswer)}
	select {
	case l.calls <- c:
		return <-c.reply, nil
	case <-l.closed:
		return leaseAnswer{}, ErrClosed
	case <-ctx.Done():
		return leaseAnswer{}, ctx.Err()
	}
}

func (l *leaseLoop) statistics() LeaseStats {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.stats
}

// authorize says whether a connection may read tiles under a lease right now.
func (l *leaseLoop) authorize(from CallerID, epoch kv.Epoch, id LeaseID, tiles []int32, blockTiles int) error {
	l.mu.Lock()
	c, ok := l.claims[id]
	l.mu.Unlock()
	switch {
	case !ok || c.From != from:
		return ErrLeaseGone
	case c.Epoch != epoch:
		return ErrStale
	}
	for _, t := range tiles {
		if _, ok := slices.BinarySearch(c.Blocks, kv.BlockID(int(t)/blockTiles)); !ok {
			return ErrLeaseGone
		}
	}
	return nil
}

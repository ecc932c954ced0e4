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
	claims map[LeaseID]core.Running // what the serving side may read
	stats  LeaseStats
}

type leaseCall struct {
	event any
	reply chan leaseAnswer // buffered
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
	timer := time.NewTimer(0)
	defer timer.Stop()
	var pending [][]kv.BlockID
	for {
		if at, ok := table.Next(); ok {
			timer.Reset(time.Until(at))
		} else {
			timer.Stop()
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
			continue
		case c := <-l.calls:
			e.LeaseEffects = table.Handle(c.event, time.Now())
			l.publish(c.event, e.LeaseEffects, table)
			if ev, ok := c.event.(core.ClaimEvent); ok && e.Claimed != nil {
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
	l.mu.Lock()
	defer l.mu.Unlock()
	if c := e.Claimed; c != nil {
		l.claims[c.ID] = *c
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
	c := leaseCall{event, make(chan leaseAnswer, 1)}
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
	// Requests list tiles in the order of the sequence, so the block of the last
	// hit is nearly always the block of the next one or its neighbour.
	at := 0
	for _, t := range tiles {
		b := kv.BlockID(int(t) / blockTiles)
		if c.Blocks[at] != b {
			if at+1 < len(c.Blocks) && c.Blocks[at+1] == b {
				at++
			} else if at = slices.Index(c.Blocks, b); at < 0 {
				return ErrLeaseGone
			}
		}
	}
	return nil
}

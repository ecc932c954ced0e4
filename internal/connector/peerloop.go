package connector

import (
	"context"
	"sync"
	"time"

	"tandem/internal/connector/core"
)

// A peerLoop owns the peer table and runs its handshakes.
type peerLoop struct {
	calls  chan peerCall
	closed chan struct{}
	shake  func(context.Context, core.PeerKey) (*view, error)
	limit  time.Duration // of one handshake

	handshakes sync.WaitGroup
	metrics    Metrics

	mu     sync.Mutex
	status []PeerStatus
}

// A peerCall carries an event, and for a want the channel of its answer.
type peerCall struct {
	event  any
	answer chan core.PeerAnswer[*view] // buffered; the loop numbers the waiter
	leave  chan core.PeerAnswer[*view] // the answer channel of a want that is taken back
	done   chan struct{}               // closed when the event was handled; may be nil
}

func newPeerLoop(shake func(context.Context, core.PeerKey) (*view, error), limit time.Duration, m Metrics) *peerLoop {
	return &peerLoop{
		calls: make(chan peerCall), closed: make(chan struct{}), shake: shake, limit: limit, metrics: m,
	}
}

// run serves until ctx ends, then ends the handshakes and gives all snapshots up.
func (p *peerLoop) run(ctx context.Context, table *core.PeerTable[*view]) {
	waiters := map[uint64]chan core.PeerAnswer[*view]{}
	numbers := map[chan core.PeerAnswer[*view]]core.WantEvent{}
	var last uint64
	timer := time.NewTimer(0)
	defer timer.Stop()
	for ctx.Err() == nil {
		if at, ok := table.Next(); ok {
			timer.Reset(time.Until(at))
		} else {
			timer.Stop()
		}
		var c peerCall
		select {
		case <-ctx.Done():
			continue
		case c = <-p.calls:
		case <-timer.C:
			c.event = core.PeerTickEvent{}
		}
		if want, ok := c.event.(core.WantEvent); ok && c.answer != nil {
			last++
			want.Waiter = last
			waiters[last], numbers[c.answer] = c.answer, want
			c.event = want
		}
		if c.leave != nil {
			want, ok := numbers[c.leave]
			if !ok {
				close(c.done)
				continue
			}
			delete(numbers, c.leave)
			delete(waiters, want.Waiter)
			c.event = core.LeaveEvent{Key: want.Key, Waiter: want.Waiter}
		}
		e := table.Handle(c.event, time.Now())
		p.publish(table) // before the answers, so that who has one finds the peer in the status
		for _, a := range e.Answers {
			if ch := waiters[a.Waiter]; ch != nil {
				if a.View != nil {
					a.View.retain()
				}
				ch <- a
				delete(waiters, a.Waiter)
				delete(numbers, ch)
			}
		}
		p.carry(ctx, e)
		if c.done != nil {
			close(c.done)
		}
	}
	close(p.closed)
	p.handshakes.Wait()
	for _, peer := range table.Peers() {
		if peer.View != nil {
			peer.View.release()
		}
	}
}

// carry starts handshakes and gives snapshots up.
func (p *peerLoop) carry(ctx context.Context, e core.PeerEffects[*view]) {
	for _, v := range e.Close {
		v.release()
	}
	for _, key := range e.Shake {
		p.handshakes.Go(func() { p.handshake(ctx, key) })
	}
}

// handshake runs one bounded handshake, tells the loop, and then stands by until
// the connection ends.
func (p *peerLoop) handshake(ctx context.Context, key core.PeerKey) {
	start := time.Now()
	sctx, cancel := context.WithTimeout(ctx, p.limit)
	v, err := p.shake(sctx, key)
	cancel()
	p.metrics.Handshake(err == nil, time.Since(start))
	if err != nil {
		p.send(peerCall{event: core.ShookEvent[*view]{Key: key, Err: err}})
		return
	}
	done := v.conn.Done()
	if !p.send(peerCall{event: core.ShookEvent[*view]{Key: key, View: v}}) {
		v.release()
		return
	}
	select {
	case <-done:
		p.lost(key, v)
	case <-ctx.Done():
	}
}

func (p *peerLoop) send(c peerCall) bool {
	select {
	case p.calls <- c:
		return true
	case <-p.closed:
		return false
	}
}

// get returns a snapshot of the peer with at least the epoch; the caller
// releases it.
func (p *peerLoop) get(ctx context.Context, key core.PeerKey, epoch uint64) (*view, error) {
	answer := make(chan core.PeerAnswer[*view], 1)
	select {
	case p.calls <- peerCall{event: core.WantEvent{Key: key, Epoch: epoch}, answer: answer}:
	case <-p.closed:
		return nil, ErrClosed
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	select {
	case a := <-answer:
		return a.View, a.Err
	case <-p.closed:
	case <-ctx.Done():
		done := make(chan struct{})
		if p.send(peerCall{leave: answer, done: done}) {
			<-done
		}
	}
	select {
	case a := <-answer: // it crossed our leaving
		if a.View != nil {
			a.View.release()
		}
	default:
	}
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	return nil, ErrClosed
}

// lost tells the table that a snapshot's connection has ended.
func (p *peerLoop) lost(key core.PeerKey, v *view) {
	p.send(peerCall{event: core.PeerLostEvent[*view]{Key: key, View: v}})
}

// warm asks for a handshake that nobody waits for.
func (p *peerLoop) warm(key core.PeerKey, epoch uint64) {
	p.send(peerCall{event: core.WantEvent{Key: key, Epoch: epoch}})
}

func (p *peerLoop) publish(table *core.PeerTable[*view]) {
	peers := table.Peers()
	list := make([]PeerStatus, 0, len(peers))
	for _, p := range peers {
		list = append(list, peerStatus(p))
	}
	p.mu.Lock()
	p.status = list
	p.mu.Unlock()
}

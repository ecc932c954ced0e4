package transfer

import (
	"context"
	"fmt"
	"net"
	"sync"
	"time"
)

// A dialer shares one connection, and one attempt to make it, among everyone
// who dials an address. Addresses do not wait for each other.
type dialer struct {
	mu      sync.Mutex
	entries map[string]*dialEntry
}

type dialEntry struct {
	peer    *Peer         // connected, or nil
	attempt *dialAttempt  // running, or nil
	next    time.Time     // no attempt before
	delay   time.Duration // of the last failure
}

type dialAttempt struct {
	done    chan struct{}
	peer    *Peer // after done, with one holder for each waiter; or nil
	err     error // after done
	waiters int   // guarded by the dialer's mu
}

// maxEntries bounds the addresses whose failures are remembered.
const maxEntries = 1024

// Dial returns the shared connection to addr, HOST:PORT or unix:PATH, making it
// when there is none. After failures it waits for the back-off of that address
// before its one attempt. Each successful Dial needs one Close. A listener that
// does not hold the token is a RefusedError, as is this host itself.
func (h *Host) Dial(ctx context.Context, addr string) (*Peer, error) {
	p, a, first := h.dials.take(addr)
	if p != nil {
		return p, nil
	}
	if first && !h.spawn(func() { h.attempt(addr, a) }) {
		h.dials.finish(h, addr, a, nil, accepted{}, ErrClosed)
	}
	select {
	case <-a.done:
	case <-ctx.Done():
		if h.dials.abandon(a) {
			return nil, fmt.Errorf("transfer: dialling %s: %w", addr, context.Cause(ctx))
		}
	}
	if a.err != nil {
		return nil, fmt.Errorf("transfer: dialling %s: %w", addr, a.err)
	}
	return a.peer, nil
}

// take returns the connection to addr with one more holder, or the attempt that
// makes it with one more waiter. The first waiter starts the attempt.
func (d *dialer) take(addr string) (p *Peer, a *dialAttempt, first bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	e := d.entries[addr]
	if e == nil {
		d.pruneLocked()
		e = &dialEntry{}
		d.entries[addr] = e
	}
	if e.peer != nil {
		e.peer.holders++
		return e.peer, nil, false
	}
	if e.attempt == nil {
		e.attempt, first = &dialAttempt{done: make(chan struct{})}, true
	}
	e.attempt.waiters++
	return nil, e.attempt, first
}

// abandon takes a waiter back. It reports false when the attempt has ended: then
// its end is the waiter's.
func (d *dialer) abandon(a *dialAttempt) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	select {
	case <-a.done:
		return false
	default:
		a.waiters--
		return true
	}
}

// wait returns how long the back-off of addr still lasts.
func (d *dialer) wait(addr string) time.Duration {
	d.mu.Lock()
	defer d.mu.Unlock()
	return time.Until(d.entries[addr].next)
}

// finish ends an attempt. It returns the new peer, or nil when there is none:
// the attempt failed, or nobody waits for it any more and c is closed.
func (d *dialer) finish(h *Host, addr string, a *dialAttempt, c net.Conn, who accepted, err error) *Peer {
	d.mu.Lock()
	defer d.mu.Unlock()
	e := d.entries[addr]
	e.attempt = nil
	defer close(a.done)
	switch {
	case err != nil:
		e.delay = min(max(2*e.delay, h.limits.BackOff), 32*h.limits.BackOff)
		e.next = time.Now().Add(e.delay)
		a.err = err
		return nil
	case a.waiters == 0:
		delete(d.entries, addr)
		_ = c.Close()
		return nil
	}
	p := &Peer{
		host: h, addr: addr, link: newLink(c, h.limits), who: who, holders: a.waiters,
		slots: make(chan struct{}, h.limits.Calls), waiting: map[uint64]chan frame{},
	}
	p.link.before = func() { d.forget(p) } // who sees Done dials a new connection
	e.peer, a.peer = p, p
	e.delay, e.next = 0, time.Time{}
	return p
}

// attempt is the goroutine that dials; when it succeeds it becomes the reader
// of the connection.
func (h *Host) attempt(addr string, a *dialAttempt) {
	ctx, cancel := context.WithCancel(context.Background())
	stopped := make(chan struct{})
	go func() { // ends when dialling does
		defer close(stopped)
		select {
		case <-h.stop:
			cancel()
		case <-ctx.Done():
		}
	}()
	if wait := h.dials.wait(addr); wait > 0 {
		t := time.NewTimer(wait)
		select {
		case <-t.C:
		case <-ctx.Done():
		}
		t.Stop()
	}
	c, who, err := h.open(ctx, addr, forCalls, 0)
	cancel()
	<-stopped
	if p := h.dials.finish(h, addr, a, c, who, err); p != nil {
		p.run()
	}
}

// drop takes one holder from p and reports whether it was the last.
func (d *dialer) drop(p *Peer) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	p.holders--
	if p.holders > 0 {
		return false
	}
	d.forgetLocked(p)
	return true
}

// forget makes the next Dial connect anew.
func (d *dialer) forget(p *Peer) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.forgetLocked(p)
}

func (d *dialer) forgetLocked(p *Peer) {
	if e := d.entries[p.addr]; e != nil && e.peer == p {
		delete(d.entries, p.addr)
	}
}

// pruneLocked forgets failures that no longer delay anything once there are many.
func (d *dialer) pruneLocked() {
	if len(d.entries) < maxEntries {
		return
	}
	now := time.Now()
	for addr, e := range d.entries {
		if e.peer == nil && e.attempt == nil && e.next.Before(now) {
			delete(d.entries, addr)
		}
	}
}

package transfer

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"
)

// A Peer is a connection to another host, shared by everyone who dialled its
// address.
type Peer struct {
	host *Host
	addr string
	link *link
	who  accepted

	slots chan struct{} // holds one token for each call in flight

	holders int // guarded by the dialer's mu

	mu      sync.Mutex
	next    uint64
	waiting map[uint64]chan frame // calls without an answer; each holds one
}

// Incarnation returns the identity of the other host.
func (p *Peer) Incarnation() [16]byte { return p.who.Incarnation }

// Name returns what the other host calls itself.
func (p *Peer) Name() string { return p.who.Name }

// Addr returns the address that was dialled.
func (p *Peer) Addr() string { return p.addr }

// Done is closed when the connection has ended. A peer does not come back: dial
// again.
func (p *Peer) Done() <-chan struct{} { return p.link.done }

// ended reports whether the connection has ended.
func (p *Peer) ended() bool {
	select {
	case <-p.link.done:
		return true
	default:
		return false
	}
}

// Close gives back one Dial. The last one closes the connection.
func (p *Peer) Close() {
	if p.host.dials.drop(p) {
		p.link.end()
	}
}

// Call sends body to the handler of kind and returns its answer. It ends with
// ctx, with the connection (ErrPeerGone), or with the other side's error.
func (p *Peer) Call(ctx context.Context, kind Kind, body []byte) ([]byte, error) {
	out, err := p.call(ctx, kind, body)
	if err != nil {
		return nil, fmt.Errorf("transfer: calling %s: %w", p.addr, err)
	}
	return out, nil
}

// Notify sends body to the notice hook of the other host and returns when it
// was called.
func (p *Peer) Notify(ctx context.Context, body []byte) error {
	if _, err := p.call(ctx, KindNotice, body); err != nil {
		return fmt.Errorf("transfer: notifying %s: %w", p.addr, err)
	}
	return nil
}

// call waits in line while Limits.Calls calls are in flight, so that the other
// side does not refuse them.
func (p *Peer) call(ctx context.Context, kind Kind, body []byte) ([]byte, error) {
	if err := p.enter(ctx); err != nil {
		return nil, err
	}
	return p.exchange(ctx, kind, body)
}

func (p *Peer) enter(ctx context.Context) error {
	select {
	case p.slots <- struct{}{}:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-p.link.done:
		return ErrPeerGone
	}
}

// exchange sends one call and waits for its answer. The caller has entered; it
// has left when exchange returns.
func (p *Peer) exchange(ctx context.Context, kind Kind, body []byte) ([]byte, error) {
	defer func() { <-p.slots }()
	if len(body) > MaxBody {
		return nil, &BoundsError{What: fmt.Sprintf("body of %d bytes, at most %d", len(body), MaxBody)}
	}
	answer := make(chan frame, 1)
	p.mu.Lock()
	p.next++
	id := p.next
	p.waiting[id] = answer
	p.mu.Unlock()
	defer func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		delete(p.waiting, id)
	}()
	if !p.link.send(encodeFrame(frame{Type: frameCall, Kind: kind, ID: id, Body: body}), ctx.Done()) {
		if err := context.Cause(ctx); err != nil {
			return nil, err
		}
		return nil, ErrPeerGone
	}
	return p.await(ctx, answer)
}

// await waits for an answer. One that came before the end of ctx or the connection
// counts.
func (p *Peer) await(ctx context.Context, answer <-chan frame) ([]byte, error) {
	var f frame
	var err error
	select {
	case f = <-answer:
	case <-ctx.Done():
		err = context.Cause(ctx)
	case <-p.link.done:
		err = ErrPeerGone
	}
	if err != nil {
		select {
		case f = <-answer:
		default:
			return nil, err
		}
	}
	if f.Type == frameError {
		return nil, decodeError(f.Body)
	}
	return f.Body, nil
}

// run reads answers until the connection ends.
func (p *Peer) run() {
	var wg sync.WaitGroup
	wg.Go(p.link.write)
	wg.Go(func() {
		select {
		case <-p.host.stop:
			p.link.end()
		case <-p.link.done:
		}
	})
	for {
		f, err := p.link.read()
		if err != nil || (f.Type != frameAnswer && f.Type != frameError) {
			if err == nil || isProtocol(err) {
				p.host.counts.bad.Add(1)
			}
			break
		}
		p.mu.Lock()
		if c := p.waiting[f.ID]; c != nil { // else: given up
			delete(p.waiting, f.ID)
			c <- f
		}
		p.mu.Unlock()
	}
	p.link.end()
	wg.Wait()
}

// open dials an address for a purpose and carries out the handshake.
func (h *Host) open(ctx context.Context, addr string, why purpose, session uint64) (net.Conn, accepted, error) {
	deadline := time.Now().Add(h.limits.Handshake)
	if d, ok := ctx.Deadline(); ok && d.Before(deadline) {
		deadline = d
	}
	ctx, cancel := context.WithDeadline(ctx, deadline)
	defer cancel()
	var d net.Dialer
	kind, where := network(addr)
	c, err := d.DialContext(ctx, kind, where)
	if err != nil {
		return nil, accepted{}, err
	}
	stop := context.AfterFunc(ctx, func() { _ = c.SetDeadline(time.Unix(1, 0)) })
	a, err := introduce(c, h.me, why, session, deadline)
	if !stop() && err == nil {
		err = context.Cause(ctx) // and c has a deadline that it must not keep
	}
	if err != nil {
		return nil, accepted{}, errors.Join(err, c.Close())
	}
	return c, a, nil
}

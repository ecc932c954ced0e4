package transfer

import (
	"context"
	"fmt"
	"net"
	"slices"
	"sync"
)

// A Remote is a peer's region as an agent reads it. Its view of the peer's
// memory, map and descriptors, is dropped as soon as the connection to the peer
// ends, so that nothing here keeps a dead engine's memory.
type Remote struct {
	// Constant after Join.
	agent    *Agent
	peer     *Peer
	rank     uint16
	geometry Geometry
	path     string
	reason   string
	lanes    chan struct{} // holds one token for each data connection in use
	closing  chan struct{} // closed by Close

	mu       sync.Mutex
	epoch    uint64
	released bool
	gone     bool
	closed   bool
	view     *view // or nil: released, gone, or path tcp
	idle     []net.Conn
}

// Join makes the region that desc describes readable for a over p, on the path
// that is best by a measured probe. The description must be p's own.
func (a *Agent) Join(ctx context.Context, p *Peer, desc []byte) (*Remote, error) {
	r, err := a.join(ctx, p, desc)
	if err != nil {
		return nil, fmt.Errorf("transfer: joining %s: %w", p.addr, err)
	}
	return r, nil
}

func (a *Agent) join(ctx context.Context, p *Peer, desc []byte) (*Remote, error) {
	d, err := decodeDescription(desc)
	if err != nil {
		return nil, err
	}
	if d.Incarnation != p.who.Incarnation {
		return nil, &ProtocolError{What: fmt.Sprintf(
			"description of incarnation %x, the peer is %x", d.Incarnation, p.who.Incarnation)}
	}
	if d.Released {
		return nil, ErrReleased
	}
	r := &Remote{
		agent: a, peer: p, rank: d.Rank, geometry: d.Geometry, epoch: d.Epoch,
		lanes: make(chan struct{}, a.host.limits.Lanes), closing: make(chan struct{}),
	}
	if err := r.choose(ctx, d); err != nil {
		r.release()
		return nil, err
	}
	v := r.view // from here on the watcher may take it away
	if !a.host.spawn(r.watch) {
		r.release()
		return nil, ErrClosed
	}
	if v != nil && v.region == nil {
		r.prefault(v)
	}
	return r, nil
}

func (a *Agent) allows(path string) bool {
	return a.cfg.Paths == nil || slices.Contains(a.cfg.Paths, path)
}

// Path returns the path of data and why it was chosen.
func (r *Remote) Path() (name, reason string) { return r.path, r.reason }

// Geometry returns the shape of the remote region.
func (r *Remote) Geometry() Geometry { return r.geometry }

// Epoch returns the epoch of the registration that r knows.
func (r *Remote) Epoch() uint64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.epoch
}

// watch drops the view when the peer is gone or r is closed.
func (r *Remote) watch() {
	select {
	case <-r.peer.Done():
	case <-r.closing:
	}
	r.release()
}

func (r *Remote) release() {
	r.mu.Lock()
	r.gone = true
	idle := r.idle
	r.idle = nil
	old := r.swapLocked(nil)
	r.mu.Unlock()
	for _, c := range idle {
		_ = c.Close()
	}
	old.unmap()
}

// swapLocked replaces the view and returns the old one when nobody uses it: the
// caller unmaps it without the lock.
func (r *Remote) swapLocked(v *view) *view {
	old := r.view
	r.view = v
	if old == nil {
		return nil
	}
	old.dropped.Store(true)
	if old.refs > 0 {
		return nil
	}
	return old
}

// acquire takes a reference on the view of an epoch; nil means path tcp.
func (r *Remote) acquire(epoch uint64) (*view, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case r.closed:
		return nil, ErrClosed
	case r.gone || r.peer.ended():
		return nil, ErrPeerGone
	case epoch != r.epoch:
		return nil, &EpochError{Have: r.epoch, Want: epoch}
	case r.released:
		return nil, ErrReleased
	}
	if r.view != nil {
		r.view.refs++
	}
	return r.view, nil
}

// drop gives back a reference; the last one of a dropped view unmaps it.
func (r *Remote) drop(v *view) {
	if v == nil {
		return
	}
	r.mu.Lock()
	v.refs--
	last := v.refs == 0 && v.dropped.Load()
	r.mu.Unlock()
	if last {
		v.unmap()
	}
}

// Close drops r. Running reads end first on their own; new ones get ErrClosed.
func (r *Remote) Close() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.closed {
		r.closed = true
		close(r.closing)
	}
}

// Update replaces the registration that r knows by a newer one of the same
// region, keeping connections and plans. Running reads finish on the old view.
// An older epoch is an EpochError.
func (r *Remote) Update(desc []byte) error {
	if err := r.update(desc); err != nil {
		return fmt.Errorf("transfer: updating rank %d of %s: %w", r.rank, r.peer.addr, err)
	}
	return nil
}

func (r *Remote) update(desc []byte) error {
	d, err := decodeDescription(desc)
	if err != nil {
		return err
	}
	if d.Incarnation != r.peer.who.Incarnation || d.Rank != r.rank || d.Geometry != r.geometry {
		return &ProtocolError{What: "description of another region"}
	}
	r.mu.Lock()
	have, released, gone := r.epoch, r.released, r.gone
	r.mu.Unlock()
	switch {
	case gone:
		return ErrPeerGone
	case d.Epoch < have:
		return &EpochError{Have: have, Want: d.Epoch}
	case d.Epoch == have && (d.Released == released || released):
		return nil // as known, or a description from before the release
	}
	var v *view
	if !d.Released && r.path != PathTCP {
		ctx, cancel := context.WithTimeout(context.Background(), r.agent.host.limits.Handshake)
		defer cancel()
		if v, err = r.open(ctx, d, r.path); err != nil {
			return err
		}
	}
	r.mu.Lock()
	if r.gone || r.epoch > d.Epoch {
		r.mu.Unlock()
		v.unmap()
		return ErrPeerGone
	}
	r.epoch, r.released = d.Epoch, d.Released
	old := r.swapLocked(v)
	r.mu.Unlock()
	old.unmap()
	if v != nil && v.region == nil {
		r.prefault(v)
	}
	return nil
}

// open makes a view for one of the paths that have one.
func (r *Remote) open(ctx context.Context, d *description, path string) (*view, error) {
	if path == PathMemfd {
		return r.fetch(ctx, d)
	}
	h := r.agent.host.cfg.Directory.find(d.Incarnation)
	if h == nil {
		return nil, ErrPeerGone
	}
	a := h.agent(d.Rank)
	if a == nil {
		return nil, ErrPeerGone
	}
	region := a.region.Load()
	if region == nil || region.nonce != d.Nonce {
		return nil, ErrReleased
	}
	return &view{epoch: d.Epoch, region: region}, nil
}

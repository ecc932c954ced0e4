package transfer

import (
	"context"
	"crypto/rand"
	"fmt"
	"os"
	"sync"
	"time"
)

// Memory is what an agent registers: the bytes of an arena and the memory file
// that they map, or no file when peers cannot map it.
type Memory struct {
	Bytes []byte
	File  *os.File // owned by the caller; used while the region is not released
}

// A Region is the registered memory of one agent: read by peers, and written by
// this agent's own reads.
//
// A region is open, shut (Prepare), released (Release) or closed. While it is
// open both peers and own reads use it under a guard; Prepare shuts the guard
// and waits for them, so that after Release the caller may truncate and unmap
// the memory. Readers that map it are not waited for: the control word and the
// truncation stop them. All methods may be called from any goroutine.
type Region struct {
	agent    *Agent
	geometry Geometry
	nonce    [16]byte
	control  *control // non-nil until Close

	guard guard

	mu       sync.Mutex
	mem      Memory
	epoch    uint64
	released bool
	closed   bool
	serving  map[*dataConn]struct{} // streams in progress
}

// Register makes mem readable for peers under an epoch and usable as the
// destination of reads. An agent has one region at a time.
func (a *Agent) Register(mem Memory, g Geometry, epoch uint64) (*Region, error) {
	if err := checkMemory(mem, g); err != nil {
		return nil, fmt.Errorf("transfer: registering rank %d: %w", a.rank, err)
	}
	r := &Region{agent: a, geometry: g, mem: mem, epoch: epoch, serving: map[*dataConn]struct{}{}}
	_, _ = rand.Read(r.nonce[:]) // never fails
	c, err := newControl(r.nonce)
	if err != nil {
		return nil, fmt.Errorf("transfer: making the control page of rank %d: %w", a.rank, err)
	}
	r.control = c
	c.word().Store(controlWord(epoch, false))
	r.guard.open = true
	if !a.region.CompareAndSwap(nil, r) {
		_ = c.close()
		return nil, fmt.Errorf("transfer: registering rank %d: it has a region", a.rank)
	}
	return r, nil
}

func checkMemory(mem Memory, g Geometry) error {
	if err := g.check(); err != nil {
		return err
	}
	if len(mem.Bytes) < g.bytes() {
		return &BoundsError{What: fmt.Sprintf("%d tiles of %d bytes in %d bytes of memory", g.Tiles, g.TileBytes, len(mem.Bytes))}
	}
	return nil
}

// Geometry returns the shape of r.
func (r *Region) Geometry() Geometry { return r.geometry }

// Epoch returns the epoch of r, and whether its memory is released.
func (r *Region) Epoch() (epoch uint64, released bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.epoch, r.released
}

// Prepare refuses new reads from and into r and waits for the running ones
// until ctx ends; then r is open as before and the context's error is returned.
// A stream to a peer that takes no data is cut.
func (r *Region) Prepare(ctx context.Context) error {
	empty := r.guard.shut()
	r.mu.Lock()
	serving := make([]*dataConn, 0, len(r.serving))
	for c := range r.serving {
		serving = append(serving, c)
	}
	r.mu.Unlock()
	for _, c := range serving {
		c.hurry(200 * time.Millisecond)
	}
	select {
	case <-empty:
		return nil
	default:
	}
	select {
	case <-empty:
		return nil
	case <-ctx.Done():
		r.Resume()
		return fmt.Errorf("transfer: preparing the release of rank %d: %w", r.agent.rank, context.Cause(ctx))
	}
}

// Resume opens r again after a Prepare that is not followed by Release.
func (r *Region) Resume() {
	r.mu.Lock()
	blocked := r.released || r.closed
	r.mu.Unlock()
	if !blocked {
		r.guard.reopen()
	}
}

// Release prepares r and marks its control word released. When it returns nil
// nothing in this process uses the memory any more and no mapped read of it
// will be accepted; the caller truncates and unmaps it.
func (r *Region) Release(ctx context.Context) error {
	if err := r.Prepare(ctx); err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return fmt.Errorf("transfer: releasing rank %d: %w", r.agent.rank, ErrClosed)
	}
	r.control.word().Store(controlWord(r.epoch, true))
	r.released, r.mem = true, Memory{}
	return nil
}

// Restore gives a released r new memory of the same shape under a higher epoch
// and opens it. Peers learn of it by a new description.
func (r *Region) Restore(mem Memory, epoch uint64) error {
	if err := checkMemory(mem, r.geometry); err != nil {
		return fmt.Errorf("transfer: restoring rank %d: %w", r.agent.rank, err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case r.closed:
		return fmt.Errorf("transfer: restoring rank %d: %w", r.agent.rank, ErrClosed)
	case !r.released:
		return fmt.Errorf("transfer: restoring rank %d: it is not released", r.agent.rank)
	case epoch <= r.epoch:
		return fmt.Errorf("transfer: restoring rank %d: %w", r.agent.rank, &EpochError{Have: r.epoch, Want: epoch})
	}
	r.mem, r.epoch, r.released = mem, epoch, false
	r.control.word().Store(controlWord(epoch, false))
	r.guard.reopen()
	return nil
}

// Close ends r as Release does, waiting for as long as its users need, and
// frees its control page. It is idempotent.
func (r *Region) Close() error {
	r.mu.Lock()
	closed := r.closed
	r.closed = true
	r.mu.Unlock()
	if closed {
		return nil
	}
	if err := r.Prepare(context.Background()); err != nil {
		return err
	}
	r.mu.Lock()
	r.control.word().Store(controlWord(r.epoch, true))
	r.released, r.mem = true, Memory{}
	r.mu.Unlock()
	r.agent.region.CompareAndSwap(r, nil)
	return r.control.close()
}

// enter takes a reference on the memory of r. leave gives it back.
func (r *Region) enter() (Memory, uint64, error) {
	if !r.guard.enter() {
		return Memory{}, 0, ErrReleased
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.mem, r.epoch, nil
}

func (r *Region) leave() { r.guard.leave() }

// serve counts c among the streams of r; the returned function ends that.
func (r *Region) serve(c *dataConn) func() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.serving[c] = struct{}{}
	return func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		delete(r.serving, c)
	}
}

// checkTiles reports the first tile that is not in g.
func checkTiles(g Geometry, tiles []int32) error {
	for i, t := range tiles {
		if t < 0 || int(t) >= g.Tiles {
			return &BoundsError{What: fmt.Sprintf("tile %d (number %d of the list) of %d tiles", t, i, g.Tiles)}
		}
	}
	return nil
}

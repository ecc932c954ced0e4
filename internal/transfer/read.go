package transfer

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"
)

// A ReadRequest is the tile list of one read: tile Remote[i] of the remote
// region goes to tile Local[i] of the local one. The lists must have the same
// length, at most MaxTiles, and stay unchanged until the read is done. Local
// tiles must be distinct and belong to nobody else meanwhile.
type ReadRequest struct {
	Epoch         uint64 // that the remote region must have
	Lease         [16]byte
	Local, Remote []int32

	// Check looks at local tile Local[i] right after its bytes landed, from a
	// goroutine of the agent, for several tiles at once. An error marks tile i
	// failed; the others go on. Nil: every tile that landed is good.
	Check func(i int) error

	// NoProgress ends the read with ErrStalled when no byte arrived for so long.
	// 0: Limits.NoProgress.
	NoProgress time.Duration
}

// ReadStats says what a read did.
type ReadStats struct {
	Path  string
	Tiles int           // that landed
	Bytes int64         // of tiles that landed
	Setup time.Duration // from post until the owner allowed the read
	Total time.Duration // from post until the end, or until now
}

// A Read is one running read. It is over when Done is closed: then no byte of
// it can land any more.
type Read struct {
	plan   *Plan
	req    ReadRequest
	posted time.Time
	done   chan struct{}
	stop   chan struct{} // closed by the first halt

	stopped  atomic.Bool // as stop, for the copying goroutines
	waiting  atomic.Bool // in line behind other reads: no progress is expected
	progress atomic.Int64
	tiles    atomic.Int64
	setup    atomic.Int64
	total    atomic.Int64

	ok []bool // per tile, written by whoever moved it; read after done

	mu       sync.Mutex
	err      error // why it was halted
	failed   int   // tiles that did not pass Check
	checkErr error // of one of them
}

// Read posts a read and returns at once. It ends with ctx, whose error Err then
// gives, with Cancel, or with the connection to the peer.
func (pl *Plan) Read(ctx context.Context, req ReadRequest) *Read {
	r := &Read{plan: pl, req: req, posted: time.Now(), done: make(chan struct{}), stop: make(chan struct{})}
	if !pl.agent.host.spawn(func() { r.drive(ctx) }) {
		r.halt(ErrClosed)
		close(r.done)
	}
	return r
}

// Done is closed when the read is over.
func (r *Read) Done() <-chan struct{} { return r.done }

// Err returns nil when every tile landed and passed its check, a *CheckError
// when all landed and some did not pass, and otherwise why the read ended
// early. It is for use after Done.
func (r *Read) Err() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	err := r.err
	if err == nil && r.failed > 0 {
		err = &CheckError{Tiles: r.failed, Err: r.checkErr}
	}
	if err == nil {
		return nil
	}
	return fmt.Errorf("transfer: reading %d tiles of rank %d of %s: %w",
		len(r.req.Remote), r.plan.remote.rank, r.plan.remote.peer.addr, err)
}

// Failed returns the indexes into Local of the tiles that did not land or did
// not pass their check, ascending. It is for use after Done.
func (r *Read) Failed() []int {
	var out []int
	for i := range r.req.Local {
		if i >= len(r.ok) || !r.ok[i] {
			out = append(out, i)
		}
	}
	return out
}

// Cancel ends the read and returns when no later byte can land.
func (r *Read) Cancel() {
	r.halt(ErrCanceled)
	<-r.done
}

// Stats returns what r did so far.
func (r *Read) Stats() ReadStats {
	path, _ := r.plan.remote.Path()
	total := time.Duration(r.total.Load())
	if total == 0 {
		total = time.Since(r.posted)
	}
	n := r.tiles.Load()
	return ReadStats{
		Path: path, Tiles: int(n), Bytes: n * int64(r.plan.strides.bytes()),
		Setup: time.Duration(r.setup.Load()), Total: total,
	}
}

// halt ends r early; the first reason counts.
func (r *Read) halt(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.err == nil {
		r.err = err
		r.stopped.Store(true)
		close(r.stop)
	}
}

// landed checks tile i, whose bytes are all there.
func (r *Read) landed(i int) {
	r.tiles.Add(1)
	r.progress.Add(1)
	if r.req.Check != nil {
		if err := r.req.Check(i); err != nil {
			r.mu.Lock()
			defer r.mu.Unlock()
			r.failed++
			if r.checkErr == nil {
				r.checkErr = err
			}
			return
		}
	}
	r.ok[i] = true
}

// drive is the goroutine that watches over a read while another moves its data.
func (r *Read) drive(ctx context.Context) {
	limit := r.req.NoProgress
	if limit <= 0 {
		limit = r.plan.agent.host.limits.NoProgress
	}
	work, cancel := context.WithCancel(ctx)
	moved := make(chan error, 1)
	go func() { moved <- r.move(work) }() // waited for below
	tick := time.NewTicker(max(limit/8, time.Millisecond))
	last, since := int64(-1), time.Now()
	expired, gone, stop := ctx.Done(), r.plan.remote.peer.Done(), r.stop
	for {
		select {
		case err := <-moved:
			tick.Stop()
			cancel()
			if err != nil && ctx.Err() != nil {
				err = context.Cause(ctx) // what broke off because of it may be seen first
			}
			if err != nil {
				r.halt(err)
			}
			r.total.Store(int64(time.Since(r.posted)))
			close(r.done)
			return
		case <-expired:
			expired = nil
			r.halt(context.Cause(ctx))
		case <-gone:
			gone = nil
			r.halt(ErrPeerGone)
		case <-stop:
			stop = nil
			cancel()
		case now := <-tick.C:
			if p := r.progress.Load(); p != last || r.waiting.Load() {
				last, since = p, now
			} else if now.Sub(since) >= limit {
				r.halt(ErrStalled)
			}
		}
	}
}

// move checks the lists, holds both memories and moves the data on the
// remote's path. When it returns nobody writes to local memory any more.
func (r *Read) move(ctx context.Context) error {
	local, remote := r.plan.local, r.plan.remote
	if len(r.req.Local) != len(r.req.Remote) || len(r.req.Local) > MaxTiles {
		return &BoundsError{What: fmt.Sprintf("%d local and %d remote tiles, at most %d", len(r.req.Local), len(r.req.Remote), MaxTiles)}
	}
	if err := errors.Join(checkTiles(local.geometry, r.req.Local), checkTiles(remote.geometry, r.req.Remote)); err != nil {
		return err
	}
	r.ok = make([]bool, len(r.req.Local))
	if len(r.req.Local) == 0 {
		return nil
	}
	mem, _, err := local.enter()
	if err != nil {
		return fmt.Errorf("entering the local region: %w", err)
	}
	defer local.leave()
	v, err := remote.acquire(r.req.Epoch)
	if err != nil {
		return err
	}
	defer remote.drop(v)
	s := r.plan.strides
	q := readRequest{
		Rank: remote.rank, Epoch: r.req.Epoch, Lease: r.req.Lease, Tiles: r.req.Remote,
		Pieces: s.Pieces, Off: s.RemoteOff, Step: s.RemoteStep, Len: s.Len,
	}
	if v == nil {
		return remote.stream(ctx, r, &q, mem.Bytes)
	}
	r.waiting.Store(true)
	err = remote.peer.enter(ctx)
	r.waiting.Store(false)
	if err != nil {
		return err
	}
	if _, err := remote.peer.exchange(ctx, kindBegin, q.encode()); err != nil {
		return err
	}
	r.setup.Store(int64(time.Since(r.posted)))
	r.waiting.Store(true)
	r.plan.agent.pool.copyAll(r, v, mem.Bytes)
	return nil
}

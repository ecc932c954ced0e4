package transfer

import (
	"fmt"
	"runtime"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"unsafe"
)

// A view is a peer's memory as this process can copy from it, under one epoch.
type view struct {
	epoch uint64

	// Path mem.
	region *Region // or nil

	// Path memfd: read-only maps of the peer's memory and control page. They are
	// unmapped with the last reference.
	data, page []byte
	extents    [][2]int // ranges of data that had pages when it was mapped

	refs    int // guarded by the remote's mu
	dropped atomic.Bool
}

// copyTile copies the pieces of a remote tile to dst, a local one. No error
// means that every byte was copied while the region had the view's epoch and
// was not released.
func (v *view) copyTile(dst []byte, tile, size int, s Strides, stop *atomic.Bool) error {
	if v.region == nil {
		return v.guarded(func() error {
			if err := v.check(); err != nil {
				return err
			}
			copyPieces(dst, v.data[tile*size:(tile+1)*size], s, stop)
			return v.check()
		})
	}
	mem, epoch, err := v.region.enter()
	if err != nil {
		return err
	}
	defer v.region.leave()
	if epoch != v.epoch {
		return &EpochError{Have: epoch, Want: v.epoch}
	}
	copyPieces(dst, mem.Bytes[tile*size:(tile+1)*size], s, stop)
	return nil
}

// check compares the owner's control word with the view. It is called before
// and after a copy; on amd64 loads are not reordered, elsewhere the content
// sums of the tiles are the second line.
func (v *view) check() error {
	switch w := wordOf(v.page).Load(); {
	case w == controlWord(v.epoch, false):
		return nil
	case w&1 == 1:
		return ErrReleased
	default:
		return &EpochError{Have: w >> 1, Want: v.epoch}
	}
}

// guarded calls f, which reads the maps of v. When their owner has truncated
// them, the fault becomes ErrReleased; any other fault stays one.
func (v *view) guarded(f func() error) (err error) {
	old := debug.SetPanicOnFault(true)
	defer func() {
		debug.SetPanicOnFault(old)
		switch p := recover().(type) {
		case nil:
		case interface {
			runtime.Error
			Addr() uintptr
		}:
			if !within(v.data, p.Addr()) && !within(v.page, p.Addr()) {
				panic(p)
			}
			err = ErrReleased
		default:
			panic(p)
		}
	}()
	return f()
}

func within(b []byte, addr uintptr) bool {
	start := uintptr(unsafe.Pointer(unsafe.SliceData(b)))
	return addr >= start && addr < start+uintptr(len(b))
}

// copyPieces copies s from src to dst, two tiles, and looks at stop in between.
func copyPieces(dst, src []byte, s Strides, stop *atomic.Bool) {
	for p := range s.Pieces {
		d := dst[s.LocalOff+p*s.LocalStep:][:s.Len]
		f := src[s.RemoteOff+p*s.RemoteStep:][:s.Len]
		for len(d) > copyPiece && !stop.Load() {
			copy(d[:copyPiece], f)
			d, f = d[copyPiece:], f[copyPiece:]
		}
		if stop.Load() {
			return
		}
		copy(d, f)
	}
}

// copiers are the goroutines of an agent that copy from views: at most
// AgentConfig.Workers, for all reads in turn, and none while there is nothing
// to copy.
type copiers struct {
	agent *Agent

	mu      sync.Mutex
	running int
	queue   []*copyJob // reads with tiles that nobody has claimed
}

// A copyJob is a read in the hands of the copiers.
type copyJob struct {
	read  *Read
	view  *view
	local []byte
	chunk int           // tiles claimed at a time
	done  chan struct{} // closed when all are claimed and none is being copied

	// Guarded by the copiers' mu.
	next, busy int
	ended      bool
}

// copyAll copies all tiles of r and returns when no copier touches them any more.
func (p *copiers) copyAll(r *Read, v *view, local []byte) {
	n := len(r.req.Local)
	workers := p.agent.cfg.Workers
	size := r.plan.strides.bytes()
	chunk := max(1, min(copyPiece/size, (n+4*workers-1)/(4*workers)))
	j := &copyJob{read: r, view: v, local: local, chunk: chunk, done: make(chan struct{})}
	p.mu.Lock()
	p.queue = append(p.queue, j)
	start := min(workers-p.running, (n+chunk-1)/chunk)
	start = max(start, 0)
	p.running += start
	p.mu.Unlock()
	for range start {
		if !p.agent.host.spawn(p.run) {
			p.run() // the host stops: its connections end, and so does r
		}
	}
	<-j.done
}

// run is a copier. It ends when there is nothing to copy.
func (p *copiers) run() {
	j, from, to := p.claim(nil)
	for j != nil {
		j.copy(from, to)
		j, from, to = p.claim(j)
	}
}

// claim gives back the last chunk's job and takes the next chunk. The job goes
// to the end of the queue so that all reads advance.
func (p *copiers) claim(last *copyJob) (j *copyJob, from, to int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if last != nil {
		last.busy--
		p.endLocked(last)
	}
	for len(p.queue) > 0 {
		j := p.queue[0]
		p.queue[0] = nil
		p.queue = p.queue[1:]
		n := len(j.read.req.Local)
		if j.read.stopped.Load() {
			j.next = n
		}
		from, to := j.next, min(j.next+j.chunk, n)
		j.next = to
		if to < n {
			p.queue = append(p.queue, j)
		}
		if from < to {
			j.busy++
			j.read.waiting.Store(false)
			return j, from, to
		}
		p.endLocked(j)
	}
	p.running--
	return nil, 0, 0
}

// endLocked finishes j when all of it is claimed and nobody copies.
func (p *copiers) endLocked(j *copyJob) {
	if j.busy > 0 || j.next < len(j.read.req.Local) || j.ended {
		return
	}
	j.ended = true
	close(j.done)
}

// copy moves the tiles of one chunk. An error ends the whole read: it is not
// about one tile.
func (j *copyJob) copy(from, to int) {
	r := j.read
	size, remote := r.plan.local.geometry.TileBytes, r.plan.remote.geometry.TileBytes
	for i := from; i < to; i++ {
		if r.stopped.Load() {
			return
		}
		l := int(r.req.Local[i])
		err := j.view.copyTile(j.local[l*size:(l+1)*size], int(r.req.Remote[i]), remote, r.plan.strides, &r.stopped)
		if err != nil {
			r.halt(fmt.Errorf("copying tile %d: %w", r.req.Remote[i], err))
			return
		}
		if r.stopped.Load() { // the copy may have been cut short
			return
		}
		r.landed(i)
	}
}

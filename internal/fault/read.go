package fault

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"tandem/internal/connector"
	"tandem/internal/kv"
	"tandem/internal/transfer"
)

// noProgress is when a stalled read ends that has no limit of its own.
const noProgress = 5 * time.Second

type plan struct {
	connector.ReadPlan
	c     *conn
	arena *kv.Arena // local
	s     connector.Strides
}

// Read implements connector.ReadPlan. What is hit in a way that needs no time
// is the inner read with another list or another check; the rest is a read of
// its own, which posts inner ones and waits beside them.
func (p *plan) Read(ctx context.Context, spec connector.ReadSpec) connector.Read {
	if p.c.gone.Load() {
		return over(transfer.ErrPeerGone)
	}
	n := p.c.n
	sub := p.c.subject(ctx)
	post, postChanged, posted := n.in.decide(ReadPost, sub)
	if posted {
		switch post.Action {
		case Error:
			return over(readError(post.Class))
		case Cut:
			p.c.cut()
			return over(transfer.ErrPeerGone)
		default:
		}
	}
	var piece Fault
	var pieceChanged <-chan struct{}
	if (!posted || post.Action == Delay) && len(spec.Local) > 0 {
		piece, pieceChanged, _ = n.in.decide(ReadPiece, sub)
	}
	switch piece.Action {
	case Flip, Drop:
		spec = p.spoiled(spec, piece)
	case OtherTile:
		spec = p.swapped(spec, piece)
	default:
	}
	timed := piece.Action == Error || piece.Action == Stall || piece.Action == Cut || piece.Action == Duplicate || piece.Action == Delay
	if !posted && !timed {
		return p.ReadPlan.Read(ctx, spec)
	}
	ctx, cancel := context.WithCancelCause(ctx)
	r := &read{p: p, ctx: ctx, cancel: cancel, spec: spec, done: make(chan struct{})}
	if !n.spawn(func() {
		defer close(r.done)
		if posted {
			// Posted late or, without a delay, never. What is let go is posted.
			r.err = r.pause(time.Duration(post.Delay), postChanged)
		}
		if r.err == nil {
			r.err = r.move(piece, pieceChanged)
		}
		cancel(nil)
	}) {
		cancel(nil)
		return over(transfer.ErrClosed)
	}
	return r
}

// readError returns the error of a read that the connector takes for class.
func readError(class connector.LoadClass) error {
	switch class {
	case connector.ClassTimeout:
		return fmt.Errorf("%w: %w", errInjected, transfer.ErrStalled)
	case connector.ClassGone:
		return &transfer.RefusedError{Code: connector.RefusedLease, Text: errInjected.Error()}
	default:
		return fmt.Errorf("%w: the read breaks off", errInjected)
	}
}

// spoiled returns spec with a check that first damages the tiles of f: they have
// landed, and are looked at as they then are.
func (p *plan) spoiled(spec connector.ReadSpec, f Fault) connector.ReadSpec {
	hit := map[int]bool{}
	for _, i := range choose(f, len(spec.Local)) {
		hit[i] = true
	}
	check, local := spec.Check, spec.Local
	spec.Check = func(i int) error {
		if hit[i] {
			p.damage(p.arena.Tile(kv.TileID(local[i])), f)
		}
		if check == nil {
			return nil
		}
		return check(i)
	}
	return spec
}

// damage flips a bit of the pieces of a tile, or makes zeros of them.
func (p *plan) damage(tile []byte, f Fault) {
	if f.Action == Drop {
		for i := range p.s.Pieces {
			clear(tile[p.s.LocalOff+i*p.s.LocalStep:][:p.s.Len])
		}
		return
	}
	at := p.s.LocalOff + int(f.Draw>>40%uint64(p.s.Pieces))*p.s.LocalStep
	flipBit(tile, at, at+p.s.Len, f.Draw)
}

// swapped returns spec with the tiles of f asked for in their neighbours' place.
func (p *plan) swapped(spec connector.ReadSpec, f Fault) connector.ReadSpec {
	n := len(spec.Remote)
	if n == 1 {
		f.Action = Flip // a single tile has no other
		return p.spoiled(spec, f)
	}
	old := spec.Remote
	spec.Remote = append([]int32(nil), old...)
	for _, i := range choose(f, n) {
		spec.Remote[i] = old[(i+1)%n]
	}
	return spec
}

// over returns a read that has ended before it began.
func over(err error) connector.Read {
	r := &read{done: make(chan struct{}), cancel: func(error) {}, err: err}
	close(r.done)
	return r
}

// A read is a read with a fault that takes time. Its goroutine posts the inner
// reads, at most one at once, and none after done.
type read struct {
	p      *plan
	ctx    context.Context //nolint:containedctx // the scope of this one read
	cancel context.CancelCauseFunc
	spec   connector.ReadSpec
	done   chan struct{}
	err    error // after done

	mu      sync.Mutex
	stopped bool
	inner   connector.Read // or nil
}

// Done implements connector.Read.
func (r *read) Done() <-chan struct{} { return r.done }

// Err implements connector.Read.
func (r *read) Err() error { return r.err }

// Cancel implements connector.Read.
func (r *read) Cancel() {
	r.mu.Lock()
	r.stopped = true
	inner := r.inner
	r.mu.Unlock()
	if inner != nil {
		inner.Cancel()
	}
	r.cancel(transfer.ErrCanceled)
	<-r.done
}

// part reads the tiles of idx, with their checks or without.
func (r *read) part(idx []int, checked bool) error {
	if len(idx) == 0 {
		return nil
	}
	spec := r.spec
	spec.Local, spec.Remote, spec.Check = make([]int32, len(idx)), make([]int32, len(idx)), nil
	for j, i := range idx {
		spec.Local[j], spec.Remote[j] = r.spec.Local[i], r.spec.Remote[i]
	}
	if checked && r.spec.Check != nil {
		spec.Check = func(j int) error { return r.spec.Check(idx[j]) }
	}
	r.mu.Lock()
	if r.stopped {
		r.mu.Unlock()
		return transfer.ErrCanceled
	}
	inner := r.p.ReadPlan.Read(r.ctx, spec)
	r.inner = inner
	r.mu.Unlock()
	<-inner.Done()
	return inner.Err()
}

// pause waits for d, or without end when it is 0, as somebody does to whom
// nothing arrives.
func (r *read) pause(d time.Duration, changed <-chan struct{}) error {
	limit := r.spec.NoProgress
	if limit <= 0 {
		limit = noProgress
	}
	stalled := d == 0 || d >= limit
	if stalled {
		d = limit
	}
	letGo, err := r.p.c.n.pause(r.ctx, d, changed, r.p.c.Done())
	if err == nil && stalled && !letGo {
		err = transfer.ErrStalled
	}
	return err
}

// move moves the tiles with fault f.
func (r *read) move(f Fault, changed <-chan struct{}) error {
	n := len(r.spec.Local)
	all := span(0, n)
	switch f.Action {
	case Error, Stall, Cut:
		return r.prefix(f, changed)
	case Duplicate:
		err := r.part(all, true)
		if err == nil {
			err = r.part(choose(f, n), false)
		}
		return err
	case Delay:
		return r.delayed(f, changed)
	default:
		return r.part(all, true)
	}
}

// prefix moves the tiles that the fault lets through, and then what the fault
// says.
func (r *read) prefix(f Fault, changed <-chan struct{}) error {
	n := len(r.spec.Local)
	arrive := int(min(f.Bytes/int64(r.p.s.Pieces*r.p.s.Len), int64(n-1)))
	first := r.part(span(0, arrive), true)
	if ended(first) {
		return first
	}
	switch f.Action {
	case Error:
		return readError(f.Class)
	case Cut:
		r.p.c.cut()
		return transfer.ErrPeerGone
	default:
	}
	if err := r.pause(0, changed); err != nil {
		return err
	}
	return firstError(first, r.part(span(arrive, n), true))
}

// delayed moves the tiles that are not hit, and the others later.
func (r *read) delayed(f Fault, changed <-chan struct{}) error {
	n := len(r.spec.Local)
	late := choose(f, n)
	isLate := make([]bool, n)
	for _, i := range late {
		isLate[i] = true
	}
	var rest []int
	for i := range n {
		if !isLate[i] {
			rest = append(rest, i)
		}
	}
	first := r.part(rest, true)
	if ended(first) {
		return first
	}
	if err := r.pause(time.Duration(f.Delay), changed); err != nil {
		return err
	}
	return firstError(first, r.part(late, true))
}

// span returns the numbers from..to-1.
func span(from, to int) []int {
	out := make([]int, 0, to-from)
	for i := from; i < to; i++ {
		out = append(out, i)
	}
	return out
}

// ended reports that err ended a read, as a tile that did not match does not.
func ended(err error) bool {
	_, check := errors.AsType[*transfer.CheckError](err)
	return err != nil && !check
}

// firstError returns the error that ended a read, or else one of a check.
func firstError(a, b error) error {
	if a == nil || ended(b) {
		return b
	}
	return a
}

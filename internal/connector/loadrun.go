package connector

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"tandem/internal/connector/core"
	"tandem/internal/kv"
	"tandem/internal/transfer"
)

// A load is the shell of one core.Load: a goroutine that turns what happens into
// events and carries effects out.
type load struct {
	c      *Connector
	spec   LoadSpec
	digest Digest
	core   *core.Load
	start  time.Time

	events chan any
	cancel context.CancelFunc // of messages and waits, not of reads
	halt   chan struct{}      // closed: reads shall be cancelled
	landed atomic.Int64
	bytes  atomic.Int64
	parts  sync.WaitGroup

	view *view
	sums []uint64
	path string
}

// lateEvents is how many events may come once a load has ended: that of its
// handshake or that of its claim, whichever was under way. Reads are all over.
const lateEvents = 1

// run drives the load to its report. Ending ctx cancels the load. Its deadline is
// kept by the core alone, so that there is one answer to what passed first.
func (l *load) run(ctx context.Context) {
	mctx, cancel := context.WithCancel(withRequest(context.WithoutCancel(ctx), l.spec.name()))
	l.cancel = cancel
	l.parts.Go(func() { l.events <- l.meet(mctx) })
	poll := time.NewTicker(max(l.c.cfg.NoProgress/8, time.Millisecond))
	timer := time.NewTimer(l.c.cfg.LoadTimeout)
	done := ctx.Done()
	for {
		var event any = core.LoadTickEvent{}
		select {
		case event = <-l.events:
		case <-poll.C:
			event = core.LoadProgressEvent{Landed: int(l.landed.Load())}
		case <-timer.C:
		case <-done:
			done = nil
			event = core.LoadCancelEvent{}
		}
		e := l.core.Handle(event, time.Now())
		if l.carry(mctx, e) {
			return
		}
		if next := l.core.Next(); !next.IsZero() {
			timer.Reset(time.Until(next))
		}
	}
}

// carry performs effects and reports whether the load has ended.
func (l *load) carry(ctx context.Context, e core.LoadEffects) bool {
	if e.Claim {
		l.parts.Go(func() { l.events <- l.claim(ctx) })
	}
	if e.Read {
		l.read(ctx)
	}
	if e.Stop {
		close(l.halt)
	}
	if e.Report == nil {
		return false
	}
	l.cancel()
	l.parts.Wait()
	if e.Return {
		l.c.giveBack(l.spec.name(), l.spec.Handoff)
	}
	if l.view != nil {
		l.view.release()
	}
	l.c.finish(l, e.Report)
	return true
}

// meet waits for the peer's snapshot. It writes l.view before its event.
func (l *load) meet(ctx context.Context) core.LoadPeerEvent {
	h := l.spec.Handoff
	if l.digest != h.Digest {
		return core.LoadPeerEvent{Class: ClassRefused, Err: fmt.Errorf(
			"connector: comparing tokens: the hand-off is not of this prompt's first %d tokens", h.Tokens)}
	}
	v, err := l.c.peers.get(ctx, h.key(), uint64(h.Epoch))
	if err != nil {
		return core.LoadPeerEvent{Class: talkClass(err), Err: err}
	}
	l.view = v
	if v.hello.BlockTokens != h.BlockTokens || len(v.hello.Ranks) != h.TP {
		return core.LoadPeerEvent{Class: ClassSetup, Err: fmt.Errorf(
			"connector: comparing a hand-off with its engine: block size %d and TP %d there, %d and %d in the hand-off",
			v.hello.BlockTokens, len(v.hello.Ranks), h.BlockTokens, h.TP)}
	}
	return core.LoadPeerEvent{Reads: len(v.links)}
}

// claim sends the claim and writes l.sums before its event.
func (l *load) claim(ctx context.Context) core.LoadClaimEvent {
	h := l.spec.Handoff
	ask := encodeClaim(&core.Claim{
		Incarnation: h.Incarnation, Lease: h.Lease, Epoch: h.Epoch, From: l.spec.FromTile, To: l.spec.ToTile,
		Digest: l.digest, Tokens: h.Tokens, Factors: l.c.factorSum, Want: l.c.cfg.LoadTimeout - time.Since(l.start),
	})
	a, err := l.ask(ctx, ask)
	if err != nil && l.view.ended(err) {
		// The connection had ended without anybody noticing: any claim of it ends
		// too, so a fresh one may be tried.
		if err = l.meetAgain(ctx); err == nil {
			a, err = l.claimAgain(ctx, ask)
		}
	}
	if err != nil {
		return core.LoadClaimEvent{
			Class: talkClass(err), Err: fmt.Errorf("connector: claiming lease %v: %w", h.Lease, err),
		}
	}
	l.sums = a.Sums
	tiles := l.spec.ToTile - l.spec.FromTile
	return core.LoadClaimEvent{
		Verdict: a.Verdict, Limit: a.Limit, Sums: len(a.Sums) == tiles*l.view.hello.Heads*h.TP,
	}
}

// ask sends a claim and returns its answer.
func (l *load) ask(ctx context.Context, claim []byte) (*claimAnswer, error) {
	body, err := l.view.conn.Call(ctx, KindClaim, claim)
	if err != nil {
		return nil, err
	}
	return decodeClaimAnswer(body)
}

// reclaims is how often a claim is sent again while the peer has not noticed
// that the connection of the one before has ended; the pauses add up to a second.
const reclaims = 10

// claimAgain sends a claim over a new connection. The peer may still hold the
// claim of the old one, and then calls the lease busy.
func (l *load) claimAgain(ctx context.Context, claim []byte) (*claimAnswer, error) {
	for attempt := 0; ; attempt++ {
		a, err := l.ask(ctx, claim)
		if err != nil || a.Verdict != core.VerdictBusy || attempt == reclaims {
			return a, err
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(time.Millisecond << attempt):
		}
	}
}

// meetAgain replaces a snapshot whose connection has ended.
func (l *load) meetAgain(ctx context.Context) error {
	h, old := l.spec.Handoff, l.view
	l.c.peers.lost(h.key(), old)
	v, err := l.c.peers.get(ctx, h.key(), uint64(h.Epoch))
	if err != nil {
		return err
	}
	if len(v.links) != len(old.links) || v.hello.BlockTokens != old.hello.BlockTokens {
		v.release()
		return errors.New("connector: comparing an engine with itself: its geometry has changed")
	}
	l.view = v
	old.release()
	return nil
}

// talkClass sorts the error of a handshake, or of a claim.
func talkClass(err error) LoadClass {
	if he, ok := errors.AsType[*handshakeError](err); ok {
		return he.class
	}
	if _, ok := errors.AsType[*transfer.RefusedError](err); ok || errors.Is(err, errWire) {
		return ClassRefused
	}
	return ClassHandshake
}

// read starts one read for each link.
func (l *load) read(ctx context.Context) {
	h, n := l.spec.Handoff, l.spec.ToTile-l.spec.FromTile
	local, remote := make([]int32, n), make([]int32, n)
	for i := range n {
		local[i] = core.TileIn(l.spec.Local, l.c.layout.BlockTiles, l.spec.FromTile+i)
		remote[i] = core.TileIn(h.Blocks, h.BlockTokens/kv.TileTokens, l.spec.FromTile+i)
	}
	l.path, _ = l.view.links[0].remote.Path()
	for i := range l.view.links {
		l.parts.Go(func() { l.readLink(context.WithoutCancel(ctx), i, local, remote) })
	}
}

// readLink reads what one rank of the peer has for one of ours, and reports it
// when no byte can land any more.
func (l *load) readLink(ctx context.Context, at int, local, remote []int32) {
	k := l.view.links[at]
	verified := make([]bool, len(local))
	var bad atomic.Int64
	start := time.Now()
	r := k.plan.Read(ctx, ReadSpec{
		Epoch: l.spec.Handoff.Epoch, Lease: l.spec.Handoff.Lease, Local: local, Remote: remote,
		NoProgress: l.c.cfg.NoProgress,
		Check: func(i int) error {
			err := l.check(k.Span, i, local[i])
			if err != nil {
				bad.Add(1)
			} else {
				verified[i] = true
			}
			l.landed.Add(1)
			return err
		},
	})
	posted := time.Since(start)
	select {
	case <-r.Done():
	case <-l.halt:
		r.Cancel()
		<-r.Done()
	}
	good := 0
	for _, ok := range verified {
		if ok {
			good++
		}
	}
	moved := good * k.Heads * l.c.layout.HeadBytes() * l.c.layout.Layers
	l.bytes.Add(int64(moved))
	if good == len(verified) {
		l.c.cfg.Metrics.Transfer(Transfer{
			Peer: l.spec.Handoff.EngineID, Bytes: moved, Tiles: good,
			Pieces:   good * k.Strides(l.c.layout, l.view.hello.Heads).Pieces,
			Duration: time.Since(start), Post: posted, Path: l.path,
		})
	}
	l.events <- core.LoadReadEvent{
		Read: at, Class: readClass(r.Err()), Verified: verified, Bad: int(bad.Load()), Err: r.Err(),
	}
}

// check compares the sums of the heads that s brought with P's, over the bytes
// that lie in this engine's arena.
func (l *load) check(s core.Span, i int, local int32) error {
	err := s.CheckSums(l.c.cfg.Arenas[s.Local], kv.TileID(local), l.sums, l.view.hello.Heads, i, l.spec.ToTile-l.spec.FromTile)
	if err != nil {
		return fmt.Errorf("connector: checking tile %d: %w", l.spec.FromTile+i, err)
	}
	return nil
}

// readClass sorts the error of a read; sums have been counted by then.
func readClass(err error) LoadClass {
	switch {
	case errors.Is(err, transfer.ErrStalled):
		return ClassTimeout
	case isRefusedLease(err):
		return ClassGone
	}
	return ClassRead
}

// isRefusedLease reports that the serving side no longer knew the claim.
func isRefusedLease(err error) bool {
	r, ok := errors.AsType[*transfer.RefusedError](err)
	return ok && r.Code == RefusedLease
}

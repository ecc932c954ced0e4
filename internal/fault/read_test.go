package fault

import (
	"context"
	"errors"
	"sync"
	"testing"

	"tandem/internal/connector"
	"tandem/internal/transfer"
)

// A stuckPlan posts reads that end only when they are cancelled.
type stuckPlan struct{ posted chan *stuckRead }

func (p stuckPlan) Read(context.Context, connector.ReadSpec) connector.Read {
	r := &stuckRead{canceled: make(chan struct{}), done: make(chan struct{})}
	p.posted <- r
	return r
}

type stuckRead struct {
	once           sync.Once
	canceled, done chan struct{}
}

func (r *stuckRead) Done() <-chan struct{} { return r.done }
func (r *stuckRead) Err() error            { return transfer.ErrCanceled }
func (r *stuckRead) Cancel() {
	r.once.Do(func() { close(r.canceled) })
	<-r.done
}

type stillConn struct{ connector.Conn }

func (stillConn) Done() <-chan struct{} { return nil }
func (stillConn) Close()                {}

// Cancel does not return, and Done stays open, while an inner read can still
// write: that one is cancelled first, and nothing is posted after it.
func TestCancelWaitsForTheInnerRead(t *testing.T) {
	for _, f := range []Fault{
		{Point: ReadPiece, Action: Stall, Bytes: 2},
		{Point: ReadPiece, Action: Cut, Bytes: 2},
		{Point: ReadPiece, Action: Duplicate},
		{Point: ReadPiece, Action: Delay, Delay: soon},
		{Point: ReadPost, Action: Delay, Delay: soon},
	} {
		t.Run(string(f.Point)+" "+string(f.Action), func(t *testing.T) {
			in := set(t, Plan{Faults: []Fault{f}})
			n := &network{in: in, ended: make(chan struct{})}
			inner := stuckPlan{make(chan *stuckRead, 8)}
			p := &plan{ReadPlan: inner, c: &conn{Conn: stillConn{}, n: n}, s: connector.Strides{Pieces: 1, Len: 1}}
			r := p.Read(t.Context(), connector.ReadSpec{Local: make([]int32, 4), Remote: make([]int32, 4)})
			stuck := wait(t, "the inner read", inner.posted)
			returned := make(chan struct{})
			go func() { r.Cancel(); close(returned) }()
			wait(t, "the inner read's cancellation", stuck.canceled)
			select {
			case <-returned:
				t.Error("Cancel returned while the inner read could write")
			case <-r.Done():
				t.Error("done while the inner read could write")
			default:
			}
			close(stuck.done)
			wait(t, "Cancel", returned)
			wait(t, "the end", r.Done())
			if err := r.Err(); !errors.Is(err, transfer.ErrCanceled) || len(inner.posted) != 0 {
				t.Errorf("%v, and %d more reads", err, len(inner.posted))
			}
			n.reads.Wait()
		})
	}
}

// A network that has ended posts no reads with faults, and a cut connection none
// at all.
func TestNoReadAfterTheEnd(t *testing.T) {
	in := set(t, Plan{Faults: []Fault{{Point: ReadPiece, Action: Stall}}})
	n := &network{in: in, ended: make(chan struct{})}
	inner := stuckPlan{make(chan *stuckRead, 8)}
	p := &plan{ReadPlan: inner, c: &conn{Conn: stillConn{}, n: n}, s: connector.Strides{Pieces: 1, Len: 1}}
	spec := connector.ReadSpec{Local: make([]int32, 4), Remote: make([]int32, 4)}
	n.end()
	r := p.Read(t.Context(), spec)
	wait(t, "the end", r.Done())
	if !errors.Is(r.Err(), transfer.ErrClosed) {
		t.Error(r.Err())
	}
	p.c.cut()
	r = p.Read(t.Context(), spec)
	r.Cancel()
	wait(t, "the end", r.Done())
	if !errors.Is(r.Err(), transfer.ErrPeerGone) || len(inner.posted) != 0 {
		t.Errorf("%v, %d reads", r.Err(), len(inner.posted))
	}
	if _, err := p.c.Call(t.Context(), connector.KindClaim, nil); !errors.Is(err, transfer.ErrPeerGone) {
		t.Error(err)
	}
}

package connector

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"tandem/internal/kv"
)

// A load that asks for tiles or blocks that are not there, or that this engine
// may not make, is reported as one that failed, once, and costs the peer nothing.
// What the load does not touch is not judged.
func TestLoadsThatCannotStart(t *testing.T) {
	const blocks = 8 // of two tiles
	for _, c := range []struct {
		name     string
		from, to int
		local    []kv.BlockID
		set      func(d *testEngine, s *LoadSpec)
		err      error
		text     string // "": it can start
	}{
		{name: "everything", to: 6, local: []kv.BlockID{0, 7, 3}},
		{name: "one tile", from: 2, to: 3, local: []kv.BlockID{-1, 0, blocks}},
		{name: "one block", from: 2, to: 4, local: []kv.BlockID{-1, 7, blocks}},
		{name: "half of each", from: 3, to: 5, local: []kv.BlockID{-1, 7, 0, blocks}},
		{name: "no more than it needs", from: 4, to: 6, local: []kv.BlockID{-1, -1, 5}},
		{name: "before the beginning", from: -1, to: 4, local: []kv.BlockID{0, 1, 2}, text: "[-1, 4) of r: the hand-off offers 6"},
		{name: "nothing", from: 3, to: 3, local: []kv.BlockID{0, 1, 2}, text: "[3, 3)"},
		{name: "backwards", from: 4, to: 2, local: []kv.BlockID{0, 1, 2}, text: "[4, 2)"},
		{name: "more than is offered", to: 7, local: []kv.BlockID{0, 1, 2, 3}, text: "[0, 7) of r: the hand-off offers 6"},
		{name: "more than has room", to: 5, local: []kv.BlockID{0, 1}, text: "[0, 5) of r: the block table ends at 4"},
		{name: "no room", to: 1, text: "ends at 0"},
		{name: "a first block below all", from: 2, to: 5, local: []kv.BlockID{0, -1, 2}, text: "block -1 "},
		{name: "a first block beyond all", from: 3, to: 4, local: []kv.BlockID{0, blocks, 2}, text: "block 8 "},
		{name: "a last block below all", from: 2, to: 5, local: []kv.BlockID{0, 1, -5}, text: "block -5 "},
		{name: "a last block beyond all", from: 1, to: 6, local: []kv.BlockID{0, 1, blocks}, text: "block 8 "},
		{name: "the wrong role", to: 4, local: []kv.BlockID{0, 1}, set: func(d *testEngine, _ *LoadSpec) { d.cfg.Role = Producer }, err: ErrRole, text: "role"},
		{name: "no signature", to: 4, local: []kv.BlockID{0, 1}, set: func(_ *testEngine, s *LoadSpec) { s.Handoff.MAC[0]++ }, err: ErrMAC, text: "vouched"},
		{name: "after the end", to: 4, local: []kv.BlockID{0, 1}, set: func(d *testEngine, _ *LoadSpec) { d.stop() }, err: ErrClosed, text: "not running"},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFabric()
				var book ledger
				p, d := f.engine(t, "p:1", 1, 2, blocks), f.engine(t, "d:1", 1, 2, blocks, book.in)
				tokens := prompt(96, 1)
				h, pb := p.grant(t, tokens, 7)
				s := LoadSpec{ID: "r", Handoff: h, Prompt: append(tokens, 7), Local: slices.Clip(c.local), FromTile: c.from, ToTile: c.to}
				if c.set != nil {
					c.set(d, &s)
				}
				d.Load(s)
				r := d.report(t)
				if c.text == "" {
					if r.Err != nil || r.Valid != c.to-c.from {
						t.Fatalf("%+v", r)
					}
					sameKV(t, p, d, pb, c.local, c.from, c.to)
					f.nothingLeft(t, p, d)
					return
				}
				want := LoadReport{ID: "r", From: c.from, To: c.to}
				for i := c.from; i < c.to; i++ {
					want.Invalid = append(want.Invalid, i)
				}
				want.Err = &LoadError{Peer: "engine-p:1", Class: ClassSetup, Tiles: want.Invalid}
				if diff := cmp.Diff(want, r, cmpopts.IgnoreFields(LoadError{}, "Err")); diff != "" {
					t.Errorf("report: %s", diff)
				}
				if !strings.Contains(r.Err.Error(), c.text) || c.err != nil && !errors.Is(r.Err, c.err) {
					t.Errorf("%v, want %v %s", r.Err, c.err, c.text)
				}
				synctest.Wait()
				select {
				case r := <-d.Reports():
					t.Errorf("a second report: %+v", r)
				default:
				}
				if n := f.dials.Load(); n != 0 || !slices.Equal(book.failed, []LoadClass{ClassSetup}) {
					t.Errorf("%d dials, failed %v", n, book.failed)
				}
				f.nothingLeft(t, p, d)
			})
		})
	}
}

// A request has one load at a time; another of the same name says so and leaves
// the first alone.
func TestOneLoadOfARequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFabric()
		p, d := f.engine(t, "p:1", 1, 1, 16), f.engine(t, "d:1", 1, 1, 16)
		tokens := prompt(40, 1)
		h, pb := p.grant(t, tokens, 15)
		s := LoadSpec{ID: "r", Handoff: h, Prompt: tokens, Local: d.blocksFor(40, 15), ToTile: 3}
		both := make(chan struct{})
		f.onDial = func(ctx context.Context, _ string) error {
			select {
			case <-both:
			case <-ctx.Done():
			}
			return ctx.Err()
		}
		d.Load(s)
		d.Load(s)
		close(both) // the first one cannot have ended before
		var failed, done int
		for range 2 {
			if r := d.report(t); r.Err == nil {
				done++
			} else if r.Err.Class == ClassSetup && strings.Contains(r.Err.Error(), "runs already") {
				failed++
			}
		}
		if failed != 1 || done != 1 || f.claims.Load() != 1 {
			t.Errorf("%d failed, %d done, %d claims", failed, done, f.claims.Load())
		}
		sameKV(t, p, d, pb, s.Local, 0, 3)
		f.nothingLeft(t, p, d)
	})
}

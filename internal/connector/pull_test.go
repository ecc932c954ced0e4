package connector

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"tandem/internal/connector/core"
	"tandem/internal/kv"
)

// sameKV compares the loaded tiles with P's, over all heads.
func sameKV(t *testing.T, p, d *testEngine, pb, db []kv.BlockID, from, to int) {
	t.Helper()
	for i := from; i < to; i++ {
		if !bytes.Equal(p.headsOf(pb, i), d.headsOf(db, i)) {
			t.Fatalf("tile %d differs", i)
		}
	}
}

func TestEveryBlockSizeReadsEveryOther(t *testing.T) {
	lengths := []int{1, 15, 16, 17, 31, 32, 33, 63, 64, 65, 129}
	for _, ps := range []int{1, 2, 4} {
		for _, ds := range []int{1, 2, 4} {
			t.Run(fmt.Sprintf("P %d D %d", ps*16, ds*16), func(t *testing.T) {
				f := newFabric()
				p, d := f.engine(t, "p:1", 1, ps, 24), f.engine(t, "d:1", 1, ds, 20)
				for _, n := range lengths {
					tokens := prompt(n, n)
					h, pb := p.grant(t, tokens, 23)
					db := d.blocksFor(n, 19)
					tiles := core.TilesOf(h.Offers(tokens))
					if tiles == 0 {
						d.ReturnUnread(h)
					} else {
						r := d.load(t, "r", h, tokens, db)
						if r.Err != nil || r.Valid != tiles || len(r.Invalid) != 0 {
							t.Fatalf("length %d: %+v", n, r)
						}
						sameKV(t, p, d, pb, db, 0, tiles)
					}
					if got := p.freedBlocks(t); !slices.Equal(got, pb) {
						t.Fatalf("freed %v, want %v", got, pb)
					}
				}
				if s := p.Status().Leases; s.Live != 0 || s.Returned != uint64(len(lengths)) {
					t.Fatalf("leases %+v", s)
				}
			})
		}
	}
}

func TestEveryTPReadsEveryOther(t *testing.T) {
	for _, ptp := range []int{1, 2, 4} {
		for _, dtp := range []int{1, 2, 4} {
			t.Run(fmt.Sprintf("P %d D %d", ptp, dtp), func(t *testing.T) {
				f := newFabric()
				p, d := f.engine(t, "p:1", ptp, 1, 16), f.engine(t, "d:1", dtp, 2, 16)
				tokens := prompt(100, 3)
				h, pb := p.grant(t, tokens, 15)
				db := d.blocksFor(100, 15)
				if r := d.load(t, "r", h, tokens, db); r.Err != nil || r.Valid != 7 {
					t.Fatalf("%+v", r)
				}
				sameKV(t, p, d, pb, db, 0, 7)
				p.freedBlocks(t)
				// The sums that D keeps are those of its own bytes.
				for rank, a := range d.arenas {
					tile := kv.TileID(core.TileIn(db, 2, 3))
					for head, sum := range a.Sums(tile) {
						if sum != kv.SumHead(a.Tile(tile), d.layout, head) {
							t.Fatalf("rank %d head %d: stale sum", rank, head)
						}
					}
				}
			})
		}
	}
}

func TestOnlyMissingTilesAreRead(t *testing.T) {
	f := newFabric()
	p, d := f.engine(t, "p:1", 1, 1, 16), f.engine(t, "d:1", 1, 1, 16)
	tokens := prompt(100, 1)
	h, pb := p.grant(t, tokens, 15)
	db := d.blocksFor(100, 15)
	before := bytes.Clone(d.headsOf(db, 3))
	d.Load(LoadSpec{ID: "r", Handoff: h, Prompt: tokens, Local: db, FromTile: 4, ToTile: 7})
	r := d.report(t)
	if r.Err != nil || r.Valid != 3 || f.tiles.Load() != 3 || r.Bytes != 3*d.layout.TileBytes() {
		t.Fatalf("%+v after %d tiles", r, f.tiles.Load())
	}
	sameKV(t, p, d, pb, db, 4, 7)
	if !bytes.Equal(before, d.headsOf(db, 3)) {
		t.Fatal("a tile before the load was written")
	}
}

func TestSpoiledTileIsFoundAndOthersAreKept(t *testing.T) {
	f := newFabric()
	f.onTile = func(_ context.Context, rank, i int) (bool, error) { return rank == 1 && i == 2, nil }
	p, d := f.engine(t, "p:1", 2, 1, 16), f.engine(t, "d:1", 2, 1, 16)
	tokens := prompt(100, 1)
	h, _ := p.grant(t, tokens, 15)
	r := d.load(t, "r", h, tokens, d.blocksFor(100, 15))
	if r.Err == nil || r.Err.Class != ClassSum || !slices.Equal(r.Invalid, []int{2}) || r.Valid != 6 {
		t.Fatalf("%+v", r)
	}
	p.freedBlocks(t)
}

func TestDataThatChangedUnderTheLeaseIsFound(t *testing.T) {
	f := newFabric()
	p, d := f.engine(t, "p:1", 1, 1, 16), f.engine(t, "d:1", 1, 1, 16)
	tokens := prompt(64, 1)
	h, pb := p.grant(t, tokens, 15)
	p.arenas[0].Tile(kv.TileID(pb[1]))[5] ^= 1
	r := d.load(t, "r", h, tokens, d.blocksFor(64, 15))
	if r.Err == nil || r.Err.Class != ClassSum || !slices.Equal(r.Invalid, []int{1}) {
		t.Fatalf("%+v", r)
	}
}

func TestTilesThatArrivedBeforeThePeerDiedAreKept(t *testing.T) {
	f := newFabric()
	p, d := f.engine(t, "p:1", 1, 1, 16), f.engine(t, "d:1", 1, 1, 16)
	f.onTile = func(_ context.Context, _, i int) (bool, error) {
		if i == 3 {
			p.net.kill()
			return false, errors.New("peer gone")
		}
		return false, nil
	}
	tokens := prompt(100, 1)
	h, pb := p.grant(t, tokens, 15)
	db := d.blocksFor(100, 15)
	r := d.load(t, "r", h, tokens, db)
	if r.Err == nil || r.Err.Class != ClassRead || !slices.Equal(r.Invalid, []int{3, 4, 5, 6}) {
		t.Fatalf("%+v", r)
	}
	sameKV(t, p, d, pb, db, 0, 3)
}

func TestStallEndsAtTheNoProgressLimit(t *testing.T) {
	const limit = 80 * time.Millisecond
	const least, most = stallFactor * limit, stallFactor*limit + limit/8 // it looks 8 times a limit
	for _, at := range []int{0, 1, 3, 6} {
		synctest.Test(t, func(t *testing.T) {
			f := newFabric()
			p := f.engine(t, "p:1", 1, 1, 16)
			d := f.engine(t, "d:1", 1, 1, 16, func(c *Config) { c.NoProgress = limit })
			f.onTile = func(ctx context.Context, _, i int) (bool, error) {
				if i == at {
					<-ctx.Done()
					return false, ctx.Err()
				}
				return false, nil
			}
			tokens := prompt(100, 1)
			h, _ := p.grant(t, tokens, 15)
			r := d.load(t, "r", h, tokens, d.blocksFor(100, 15))
			if r.Err == nil || r.Err.Class != ClassTimeout || r.Valid != at || r.Duration < least || r.Duration > most {
				t.Fatalf("stall at %d: %+v", at, r)
			}
			p.freedBlocks(t)
		})
	}
}

func TestCancelReportsOnlyWhenNothingCanLand(t *testing.T) {
	f := newFabric()
	p, d := f.engine(t, "p:1", 1, 1, 16), f.engine(t, "d:1", 1, 1, 16)
	for round := range 100 {
		reached, late := make(chan struct{}), make(chan struct{})
		f.onTile = func(ctx context.Context, _, i int) (bool, error) {
			if i == 1 {
				close(reached)
				<-ctx.Done() // the transfer was told to stop, and still writes
				close(late)
			}
			return false, nil
		}
		tokens := prompt(64, round)
		h, _ := p.grant(t, tokens, 15)
		db := d.blocksFor(64, 15)
		d.Load(LoadSpec{ID: "r", Handoff: h, Prompt: tokens, Local: db, ToTile: 4})
		<-reached
		d.CancelLoad("r")
		d.CancelLoad("r")
		r := d.report(t)
		select {
		case <-late:
		default:
			t.Fatal("reported before the read was terminal")
		}
		if !r.Canceled || r.Err != nil {
			t.Fatalf("%+v", r)
		}
		after := bytes.Clone(d.arenas[0].Bytes())
		p.freedBlocks(t)
		if !bytes.Equal(after, d.arenas[0].Bytes()) {
			t.Fatal("bytes landed after the report")
		}
	}
	d.CancelLoad("unknown")
}

func TestCancelBeforeTheReadGivesTheLeaseBack(t *testing.T) {
	for _, stage := range []Kind{KindHello, KindClaim} {
		synctest.Test(t, func(t *testing.T) {
			f := newFabric()
			reached := make(chan struct{}, 8)
			f.onCall = func(ctx context.Context, _ string, k Kind) error {
				if k == stage {
					reached <- struct{}{}
					<-ctx.Done()
					return ctx.Err()
				}
				return nil
			}
			p, d := f.engine(t, "p:1", 1, 1, 16), f.engine(t, "d:1", 1, 1, 16)
			tokens := prompt(64, 1)
			h, _ := p.grant(t, tokens, 15)
			d.Load(LoadSpec{ID: "r", Handoff: h, Prompt: tokens, Local: d.blocksFor(64, 15), ToTile: 4})
			<-reached
			d.CancelLoad("r")
			if r := d.report(t); !r.Canceled || r.Valid != 0 {
				t.Fatalf("%+v", r)
			}
			if stage == KindClaim {
				p.freedBlocks(t)
			}
			if f.tiles.Load() != 0 {
				t.Fatal("bytes were read")
			}
		})
	}
}

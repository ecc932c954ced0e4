package connector

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"tandem/internal/connector/core"
	"tandem/internal/kv"
)

func TestSilentPeerEndsEveryWaiterAtTheDeadline(t *testing.T) {
	for _, n := range []int{1, 20} {
		synctest.Test(t, func(t *testing.T) { silentPeer(t, n) })
	}
}

func silentPeer(t *testing.T, waiters int) {
	const limit = 200 * time.Millisecond
	var silent atomic.Bool
	silent.Store(true)
	f := newFabric()
	f.onDial = func(ctx context.Context, _ string) error {
		if silent.Load() {
			<-ctx.Done()
			return ctx.Err()
		}
		return nil
	}
	p := f.engine(t, "p:1", 1, 1, 8)
	d := f.engine(t, "d:1", 1, 1, 64, func(c *Config) { c.HandshakeTimeout = limit })
	tokens := prompt(32, 1)
	h, pb := p.grant(t, tokens, 7)
	for i := range waiters {
		d.Load(LoadSpec{
			ID: kv.RequestID(fmt.Sprint(i)), Handoff: h, Prompt: tokens, Local: d.blocksFor(32, 2*i+1), ToTile: 2,
		})
	}
	for range waiters {
		if r := d.report(t); r.Err == nil || r.Err.Class != ClassHandshake || len(r.Invalid) != 2 || r.Duration != limit {
			t.Fatalf("%+v", r)
		}
	}
	<-time.After(d.cfg.ReturnTimeout) // no lease is given back to who was not reached
	if got := f.dials.Load(); got != 1 {
		t.Fatalf("%d dials for %d waiters", got, waiters)
	}
	silent.Store(false)
	db := d.blocksFor(32, 60)
	if r := d.load(t, "later", h, tokens, db); r.Err != nil {
		t.Fatalf("%+v", r)
	}
	sameKV(t, p, d, pb, db, 0, 2)
}

func TestAddressOfAnotherEngineReadsNothing(t *testing.T) {
	f := newFabric()
	p, other, d := f.engine(t, "p:1", 1, 1, 8), f.engine(t, "q:1", 1, 1, 8), f.engine(t, "d:1", 1, 1, 8)
	tokens := prompt(32, 1)
	h, _ := p.grant(t, tokens, 7)
	swapped := *h
	swapped.Addr = "q:1"
	swapped.Sign([]byte(testToken)) // what a P with a wrong advertised address would make
	r := d.load(t, "r", &swapped, tokens, d.blocksFor(32, 7))
	if r.Err == nil || r.Err.Class != ClassHandshake || !errors.Is(r.Err, ErrStale) || f.tiles.Load() != 0 {
		t.Fatalf("%+v, %d tiles", r, f.tiles.Load())
	}
	for _, inc := range []Incarnation{p.incarnation, other.incarnation} {
		if !strings.Contains(r.Err.Error(), inc.String()) {
			t.Errorf("%v does not name %v", r.Err, inc)
		}
	}
	if r := d.load(t, "r", h, tokens, d.blocksFor(32, 7)); r.Err != nil {
		t.Fatalf("%+v", r)
	}
}

func TestRestartedEngineIsANewPeer(t *testing.T) {
	f := newFabric()
	d := f.engine(t, "d:1", 1, 1, 64)
	blocks := []int{64, 32, 256}
	for round := range 10 {
		p := f.engine(t, "p:1", 1, 1, blocks[round%3], func(c *Config) { c.EngineID = "same" })
		for i := range 10 {
			tokens := prompt(40, round*10+i)
			h, pb := p.grant(t, tokens, 30)
			db := d.blocksFor(40, 63)
			if r := d.load(t, "r", h, tokens, db); r.Err != nil {
				t.Fatalf("round %d: %+v", round, r)
			}
			sameKV(t, p, d, pb, db, 0, 3)
			p.freedBlocks(t)
		}
		p.stop()
	}
	if n := f.hellos.Load(); n != 10 {
		t.Fatalf("%d handshakes for 10 process starts", n)
	}
}

func TestIncompatiblePeerNamesTheFactor(t *testing.T) {
	for name, edit := range map[string]func(*Config){
		"model":      func(c *Config) { c.Fingerprint[0].Value = "other" },
		"arithmetic": func(c *Config) { c.Fingerprint[1].Value = "2" },
		"extra":      func(c *Config) { c.Fingerprint = append(c.Fingerprint, Factor{"extra", "x"}) },
	} {
		f := newFabric()
		p := f.engine(t, "p:1", 1, 1, 8)
		d := f.engine(t, "d:1", 1, 1, 8, edit)
		tokens := prompt(32, 1)
		h, _ := p.grant(t, tokens, 7)
		r := d.load(t, "r", h, tokens, d.blocksFor(32, 7))
		fe, ok := errors.AsType[*FactorError](error(r.Err))
		if r.Err == nil || r.Err.Class != ClassIncompatible || !ok || fe.Factor != name || f.claims.Load() != 0 {
			t.Fatalf("%s: %+v", name, r)
		}
	}
	t.Run("head size", func(t *testing.T) {
		f := newFabric()
		p, d := f.engine(t, "p:1", 1, 1, 8), f.engine(t, "d:1", 1, 1, 8)
		d.factors = fingerprint(d.cfg.Fingerprint, kv.Layout{Layers: 2, Heads: 4, HeadDim: 16, BlockTiles: 1}, 1)
		tokens := prompt(32, 1)
		h, _ := p.grant(t, tokens, 7)
		r := d.load(t, "r", h, tokens, d.blocksFor(32, 7))
		if fe, ok := errors.AsType[*FactorError](error(r.Err)); !ok || fe.Factor != "head_size" {
			t.Fatalf("%+v", r)
		}
	})
}

func TestSlowPeerDelaysNobodyElse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFabric()
		f.onDial = func(ctx context.Context, addr string) error {
			if addr == "slow:1" {
				<-ctx.Done()
				return ctx.Err()
			}
			return nil
		}
		slow, p := f.engine(t, "slow:1", 1, 1, 8), f.engine(t, "p:1", 1, 1, 64)
		d := f.engine(t, "d:1", 1, 1, 64)
		tokens := prompt(32, 1)
		hs, _ := slow.grant(t, tokens, 7)
		d.Load(LoadSpec{ID: "slow", Handoff: hs, Prompt: tokens, Local: d.blocksFor(32, 63), ToTile: 2})
		for i := range 20 {
			h, _ := p.grant(t, tokens, 2*i+1)
			d.Load(LoadSpec{
				ID: kv.RequestID(fmt.Sprint(i)), Handoff: h, Prompt: tokens, Local: d.blocksFor(32, 2*i+1), ToTile: 2,
			})
		}
		for range 20 {
			if r := d.report(t); r.ID == "slow" || r.Err != nil || r.Duration != 0 {
				t.Fatalf("%+v", r)
			}
		}
		if n := f.hellos.Load(); n != 1 {
			t.Fatalf("%d handshakes with the healthy peer", n)
		}
		d.CancelLoad("slow")
		if r := d.report(t); r.ID != "slow" || !r.Canceled {
			t.Fatalf("%+v", r)
		}
	})
}

func TestOneCutIsOverAtTheNextRequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFabric()
		var over atomic.Bool
		f.onTile = func(ctx context.Context, _, i int) (bool, error) {
			if i == 1 && !over.Load() {
				<-ctx.Done()
				return false, ctx.Err()
			}
			return false, nil
		}
		p := f.engine(t, "p:1", 1, 1, 64)
		d := f.engine(t, "d:1", 1, 1, 64, func(c *Config) { c.NoProgress = 160 * time.Millisecond })
		tokens := prompt(32, 1)
		for i := range 10 {
			h, _ := p.grant(t, tokens, 2*i+1)
			d.Load(LoadSpec{
				ID: kv.RequestID(fmt.Sprint(i)), Handoff: h, Prompt: tokens, Local: d.blocksFor(32, 2*i+1), ToTile: 2,
			})
		}
		for range 10 {
			if r := d.report(t); r.Err == nil || r.Err.Class != ClassTimeout || r.Valid != 1 {
				t.Fatalf("%+v", r)
			}
		}
		over.Store(true)
		h, _ := p.grant(t, tokens, 31)
		if r := d.load(t, "11", h, tokens, d.blocksFor(32, 31)); r.Err != nil || r.Duration != 0 {
			t.Fatalf("%+v", r)
		}
	})
}

// TestDamagedReferencesNeverLoad sends hand-offs that the token vouches for, as a
// faulty P would make them, and genuine ones used wrongly. A reference with a bad
// MAC never gets so far.
func TestDamagedReferencesNeverLoad(t *testing.T) {
	type world struct {
		p, d   *testEngine
		tokens []kv.Token
	}
	cases := map[string]func(w *world, h *Handoff){
		"unknown lease":      func(_ *world, h *Handoff) { h.Lease[0]++ },
		"other epoch":        func(_ *world, h *Handoff) { h.Epoch++ },
		"older epoch":        func(_ *world, h *Handoff) { h.Epoch-- },
		"other incarnation":  func(_ *world, h *Handoff) { h.Incarnation[1]++ },
		"digest of others":   func(_ *world, h *Handoff) { h.Digest[0]++ },
		"another prompt":     func(w *world, _ *Handoff) { w.tokens[5]++ },
		"block out of range": func(_ *world, h *Handoff) { h.Blocks[1] = 1 << 30 },
		"somebody's block":   func(_ *world, h *Handoff) { h.Blocks[1] = 0 },
		"blocks swapped":     func(_ *world, h *Handoff) { h.Blocks[0], h.Blocks[1] = h.Blocks[1], h.Blocks[0] },
		"wrong block size":   func(_ *world, h *Handoff) { h.BlockTokens = 32 },
		"wrong rank count":   func(_ *world, h *Handoff) { h.TP = 4 },
		"fewer tokens":       func(_ *world, h *Handoff) { h.Tokens-- },
		"nobody there":       func(_ *world, h *Handoff) { h.Addr = "nowhere:1" },
		"used before": func(w *world, h *Handoff) {
			w.p.leases.handle(context.Background(), core.ReturnEvent{ID: h.Lease})
		},
		"expired": func(w *world, h *Handoff) {
			w.p.leases.handle(context.Background(), core.RevokeEvent{ID: h.Lease, Now: true})
		},
	}
	for _, name := range slices.Sorted(maps.Keys(cases)) {
		f := newFabric()
		short := func(c *Config) { c.ReturnTimeout = 50 * time.Millisecond }
		w := &world{f.engine(t, "p:1", 1, 1, 16), f.engine(t, "d:1", 1, 1, 16, short), prompt(60, 1)}
		genuine, _ := w.p.grant(t, w.tokens, 15)
		// Something else lies in block 0.
		w.p.fillPrompt(prompt(16, 9), []kv.BlockID{0})
		h := *genuine
		h.Blocks = slices.Clone(h.Blocks)
		cases[name](w, &h)
		h.Sign([]byte(testToken))
		r := w.d.load(t, "r", &h, w.tokens, w.d.blocksFor(60, 15))
		if r.Err == nil || len(r.Invalid) == 0 {
			t.Fatalf("%s: %+v", name, r)
		}
		// What was kept is what the prompt says.
		clean, cb := w.p, []kv.BlockID{11, 10, 9, 8}
		clean.fillPrompt(prompt(60, 1), cb)
		for i := range 4 {
			if !slices.Contains(r.Invalid, i) {
				sameKV(t, clean, w.d, cb, w.d.blocksFor(60, 15), i, i+1)
			}
		}
		// Both live on.
		tokens := prompt(30, 3)
		h2, pb := w.p.grant(t, tokens, 7)
		db := w.d.blocksFor(30, 7)
		if r := w.d.load(t, "control", h2, tokens, db); r.Err != nil {
			t.Fatalf("after %s: %+v", name, r)
		}
		sameKV(t, w.p, w.d, pb, db, 0, 2)
	}
}

func TestNothingIsDialledThatTheMACDidNotVouchFor(t *testing.T) {
	f := newFabric()
	p, d := f.engine(t, "p:1", 1, 1, 8), f.engine(t, "d:1", 1, 1, 8)
	tokens := prompt(32, 1)
	h, _ := p.grant(t, tokens, 7)
	for name, edit := range map[string]func(*Handoff){
		"address": func(h *Handoff) { h.Addr = "evil:1" },
		"mac":     func(h *Handoff) { h.MAC[3]++ },
		"other token": func(h *Handoff) {
			h.Sign([]byte("a token of some other cluster"))
		},
		"no token": func(h *Handoff) { h.Sign(nil) },
	} {
		bad := *h
		edit(&bad)
		err := d.Verify(&bad, tokens)
		if he, ok := errors.AsType[*HandoffError](err); !ok || !errors.Is(err, ErrMAC) || he.Field != FieldMAC {
			t.Errorf("%s: %v", name, err)
		}
		d.Track(&bad)
		d.ReturnUnread(&bad)
		if r := d.load(t, "r", &bad, tokens, d.blocksFor(32, 7)); !errors.Is(error(r.Err), ErrMAC) {
			t.Errorf("%s: %+v", name, r)
		}
	}
	host := *h
	host.Host, host.Port = "evil", 1
	if err := d.Verify(&host, tokens); err != nil {
		t.Error(err)
	}
	if n := f.dials.Load(); n != 0 {
		t.Fatalf("%d connections", n)
	}
	if r := d.load(t, "r", &host, tokens, d.blocksFor(32, 7)); r.Err != nil || f.dials.Load() != 1 {
		t.Fatalf("%+v", r)
	}
}

func TestEqualClientIDsDoNotMeet(t *testing.T) {
	f := newFabric()
	p, d := f.engine(t, "p:1", 1, 1, 128), f.engine(t, "d:1", 1, 1, 128)
	const n = 50
	type pair struct {
		tokens []kv.Token
		pb, db []kv.BlockID
	}
	all := map[kv.RequestID]pair{}
	for i := range n {
		tokens := prompt(30, i)
		h, pb := p.grant(t, tokens, 2*i+1) // all with the request id "p-request"
		db := d.blocksFor(30, 127-2*i)
		id := kv.RequestID(fmt.Sprint(i))
		all[id] = pair{tokens, pb, db}
		d.Load(LoadSpec{ID: id, Handoff: h, Prompt: tokens, Local: db, ToTile: 2})
	}
	for range n {
		r := d.report(t)
		if r.Err != nil {
			t.Fatalf("%+v", r)
		}
		sameKV(t, p, d, all[r.ID].pb, all[r.ID].db, 0, 2)
	}
	var freed []kv.BlockID
	for range n {
		freed = append(freed, p.freedBlocks(t)...)
	}
	slices.Sort(freed)
	if len(slices.Compact(freed)) != 2*n {
		t.Fatalf("freed %d blocks", len(freed))
	}
	if s := p.Status().Leases; s.Live != 0 || s.Expired != 0 {
		t.Fatalf("%+v", s)
	}
}

func TestExpiredLeaseIsNeverRead(t *testing.T) {
	f := newFabric()
	var mu sync.Mutex
	expired, classes := 0, map[LoadClass]int{}
	count := func(c *Config) {
		c.Metrics.Expired = func() { mu.Lock(); expired++; mu.Unlock() }
		c.Metrics.Failed = func(_ kv.EngineID, class LoadClass) { mu.Lock(); classes[class]++; mu.Unlock() }
	}
	p := f.engine(t, "p:1", 1, 1, 16, count, func(c *Config) { c.LeaseDuration = time.Millisecond })
	d := f.engine(t, "d:1", 1, 1, 16, count)
	const n = 200
	for i := range n {
		tokens := prompt(40, i)
		h, pb := p.grant(t, tokens, 15)
		p.freedBlocks(t)                 // the lease ran out while D's queue was full
		p.fillPrompt(prompt(40, -i), pb) // and the blocks belong to somebody else
		r := d.load(t, "r", h, tokens, d.blocksFor(40, 15))
		if r.Err == nil || r.Err.Class != ClassGone || r.Valid != 0 {
			t.Fatalf("%+v", r)
		}
	}
	mu.Lock()
	defer mu.Unlock()
	if expired != 2*n || classes[ClassGone] != n || f.tiles.Load() != 0 {
		t.Fatalf("expired %d, classes %v, tiles %d", expired, classes, f.tiles.Load())
	}
}

func TestHeartbeatsKeepAWaitingLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFabric()
		short := func(c *Config) { c.LeaseDuration, c.Heartbeat = 300*time.Millisecond, 30*time.Millisecond }
		p, d := f.engine(t, "p:1", 1, 1, 16, short), f.engine(t, "d:1", 1, 1, 16, short)
		tokens := prompt(40, 1)
		kept, kb := p.grant(t, tokens, 15)
		left, lb := p.grant(t, tokens, 9)
		d.Track(kept)
		d.Track(left)
		d.Untrack(left)
		if got := p.freedBlocks(t); !slices.Equal(got, lb) {
			t.Fatalf("freed %v first, want the one that nobody renews: %v", got, lb)
		}
		<-time.After(300 * time.Millisecond)
		if r := d.load(t, "r", kept, tokens, d.blocksFor(40, 15)); r.Err != nil {
			t.Fatalf("%+v", r)
		}
		if got := p.freedBlocks(t); !slices.Equal(got, kb) {
			t.Fatal(got)
		}
		if s := d.Status(); s.Tracked != 0 || s.Loads != 0 || len(s.Peers) != 1 || s.Peers[0].State != "ready" {
			t.Fatalf("%+v", s)
		}
	})
}

func TestReleaseByHandoff(t *testing.T) {
	f := newFabric()
	p, q := f.engine(t, "p:1", 1, 1, 16), f.engine(t, "q:1", 1, 1, 16)
	h, pb := p.grant(t, prompt(40, 1), 15)
	raw := text(t, object(t, h))
	if err := q.ReleaseByHandoff(raw); !errors.Is(err, ErrStale) {
		t.Fatal(err)
	}
	bad := *h
	bad.Lease[0]++
	if err := p.ReleaseByHandoff(text(t, object(t, &bad))); !errors.Is(err, ErrMAC) {
		t.Fatal(err)
	}
	for range 2 { // the second time it is gone, which is what was wanted
		if err := p.ReleaseByHandoff(raw); err != nil {
			t.Fatal(err)
		}
	}
	if got := p.freedBlocks(t); !slices.Equal(got, pb) {
		t.Fatal(got)
	}
	h, _ = p.grant(t, prompt(40, 1), 15)
	p.Revoke(h)
	p.freedBlocks(t)
	if n := p.Drain(t.Context()); n != 0 {
		t.Fatal(n)
	}
}

func TestShutdownReportsAndGivesBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFabric()
		f.onTile = func(ctx context.Context, _, _ int) (bool, error) {
			<-ctx.Done()
			return false, ctx.Err()
		}
		p, d := f.engine(t, "p:1", 1, 1, 16), f.engine(t, "d:1", 1, 1, 16)
		tokens := prompt(40, 1)
		h, _ := p.grant(t, tokens, 15)
		d.Load(LoadSpec{ID: "r", Handoff: h, Prompt: tokens, Local: d.blocksFor(40, 15), ToTile: 3})
		synctest.Wait()
		if p.Status().Leases.Claimed != 1 {
			t.Fatalf("%+v", p.Status().Leases)
		}
		d.stop()
		if r := d.report(t); !r.Canceled {
			t.Fatalf("%+v", r)
		}
		p.freedBlocks(t)
		if h := d.Grant(LeaseSpec{Blocks: []kv.BlockID{1}, Tokens: prompt(4, 1)}); h != nil {
			t.Fatal("granted after the end")
		}
	})
}

package connector

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"tandem/internal/connector/core"
	"tandem/internal/kv"
	"tandem/internal/transfer"
)

// errOdd is an error that nothing here knows.
var errOdd = errors.New("something odd")

// An adversity is what is wrong with a load, and what must become of it.
type adversity struct {
	name  string
	set   func(w *adverse)
	class LoadClass
	err   error  // in the chain; nil: any
	text  string // in the error

	hellos, claims, returns int
	lost                    int // returns, since they meet the same
	valid                   int // tiles of 4
	took                    time.Duration
}

// An adverse world has one load: 64 tokens, of which 4 tiles are wanted.
type adverse struct {
	f      *fabric
	p, d   *testEngine
	h      *Handoff
	prompt []kv.Token
}

// answers lets P answer a message as edit makes it of the right answer.
func (w *adverse) answers(k Kind, edit func(out []byte) ([]byte, error)) {
	next := w.p.net.handlers[k]
	w.p.net.handlers[k] = func(ctx context.Context, from CallerID, body []byte) ([]byte, error) {
		out, err := next(ctx, from, body)
		if err != nil {
			return nil, err
		}
		return edit(out)
	}
}

func (w *adverse) greets(edit func(h *hello)) {
	w.answers(KindHello, func(out []byte) ([]byte, error) {
		h, err := decodeHello(out)
		if err != nil {
			return nil, err
		}
		edit(h)
		return h.encode(), nil
	})
}

func (w *adverse) grants(edit func(a *claimAnswer)) {
	w.answers(KindClaim, func(out []byte) ([]byte, error) {
		a, err := decodeClaimAnswer(out)
		if err != nil {
			return nil, err
		}
		edit(a)
		return a.encode(), nil
	})
}

// fails lets the call of a kind fail with err; nil: it lasts until its context ends.
func (w *adverse) fails(kind Kind, err error) {
	w.f.onCall = func(ctx context.Context, _ string, k Kind) error {
		if k != kind {
			return nil
		}
		if err == nil {
			<-ctx.Done()
			return ctx.Err()
		}
		return err
	}
}

// breaks lets the read fail at tile 2.
func (w *adverse) breaks(err error) {
	w.f.onTile = func(_ context.Context, _, i int) (bool, error) {
		if i == 2 {
			return false, err
		}
		return false, nil
	}
}

func adversities() []adversity {
	all := []adversity{
		{name: "another prompt", set: func(w *adverse) { w.prompt[5]++ }, class: ClassRefused, text: "64 tokens", hellos: 1, returns: 1},
		{
			name: "a shorter prompt", set: func(w *adverse) { w.prompt = slices.Clip(w.prompt[:63]) },
			class: ClassRefused, text: "64 tokens", hellos: 1, returns: 1,
		},
		{name: "a hand-off of another block size", set: func(w *adverse) { w.h.BlockTokens = 32 }, class: ClassSetup, text: "block size 16 and TP 1 there, 32", hellos: 1, returns: 1},
		{name: "a hand-off of other ranks", set: func(w *adverse) { w.h.TP = 2 }, class: ClassSetup, text: "16 and 2 in the hand-off", hellos: 1, returns: 1},
		{name: "nobody there", set: func(w *adverse) { w.h.Addr = "nowhere:1" }, class: ClassHandshake, text: "connecting to nowhere:1"},
		{name: "no greeting", set: func(w *adverse) { w.fails(KindHello, errOdd) }, class: ClassHandshake, err: errOdd, hellos: 1},
		{
			name: "a greeting with more", set: func(w *adverse) {
				w.answers(KindHello, func(out []byte) ([]byte, error) { return append(out, 0), nil })
			}, class: ClassHandshake, err: errWire, hellos: 1,
		},
		{name: "a greeting that never comes", set: func(w *adverse) { w.fails(KindHello, nil) }, class: ClassTimeout, hellos: 1, lost: 1, took: 10 * time.Second},
		{name: "another identity", set: func(w *adverse) { w.greets(func(h *hello) { h.Incarnation[5]++ }) }, class: ClassHandshake, err: ErrStale, hellos: 1},
		{name: "a rank that is not joined", set: func(w *adverse) { w.f.onJoin = func(int) error { return errOdd } }, class: ClassHandshake, err: errOdd, hellos: 1},
		{name: "other heads", set: func(w *adverse) { w.greets(func(h *hello) { h.Heads = 3 }) }, lost: 1, class: ClassIncompatible, err: ErrIncompatible, text: "1 ranks of 4 KV heads here and 1 of 3 there"},
		{name: "no ranks", set: func(w *adverse) { w.greets(func(h *hello) { h.Ranks = nil }) }, lost: 1, class: ClassIncompatible, err: ErrIncompatible, text: "0 of 4 there"},
		{
			name: "too many ranks", set: func(w *adverse) { w.greets(func(h *hello) { h.Ranks = append(h.Ranks, h.Ranks[0]) }) },
			lost: 1, class: ClassIncompatible, err: ErrIncompatible, text: "2 of 4 there",
		},
		{name: "reads that cannot be planned", set: func(w *adverse) { w.f.onPlan = func(int) error { return errOdd } }, lost: 1, class: ClassSetup, err: errOdd},
		{name: "a claim without an answer", set: func(w *adverse) { w.fails(KindClaim, errOdd) }, class: ClassHandshake, err: errOdd, hellos: 1, claims: 1, returns: 1},
		{
			name: "a claim that is refused", set: func(w *adverse) { w.fails(KindClaim, &transfer.RefusedError{Code: "x"}) },
			class: ClassRefused, text: "refused (x)", hellos: 1, claims: 1, returns: 1,
		},
		{
			name: "an answer that is none", set: func(w *adverse) {
				w.answers(KindClaim, func(out []byte) ([]byte, error) { return out[:len(out)-1], nil })
			}, class: ClassRefused, err: errWire, hellos: 1, claims: 1, returns: 1,
		},
		{
			name: "too few sums", set: func(w *adverse) { w.grants(func(a *claimAnswer) { a.Sums = a.Sums[1:] }) },
			class: ClassRefused, text: "sums do not fit", hellos: 1, claims: 1, returns: 1,
		},
		{
			name: "an unknown lease", set: func(w *adverse) { w.h.Lease[0]++ },
			class: ClassGone, err: ErrLeaseGone, hellos: 1, claims: 1,
		},
		{
			name: "another's claim", set: func(w *adverse) {
				_, err := w.p.leases.handle(context.Background(), core.ClaimEvent{Claim: core.Claim{
					Incarnation: w.h.Incarnation, Lease: w.h.Lease, Epoch: w.h.Epoch, To: 4, Tokens: w.h.Tokens, Digest: w.h.Digest,
					Factors: w.p.factorSum, Want: time.Minute,
				}, From: CallerID{Conn: 99}})
				if err != nil {
					panic(err)
				}
			}, class: ClassRefused, text: "busy", hellos: 1, claims: 1,
		},
		{
			name: "another registration", set: func(w *adverse) { w.p.epoch++; w.h.Epoch++ },
			class: ClassRefused, text: "other epoch", hellos: 1, claims: 1, returns: 1,
		},
		{name: "a claim that is never answered", set: func(w *adverse) { w.fails(KindClaim, nil) }, class: ClassTimeout, hellos: 1, claims: 1, returns: 1, took: 4 * time.Second},
		{name: "a read that stalls", set: func(w *adverse) { w.breaks(transfer.ErrStalled) }, class: ClassTimeout, err: transfer.ErrStalled, hellos: 1, claims: 1, returns: 1, valid: 2},
		{
			name: "a read without a claim", set: func(w *adverse) { w.breaks(&transfer.RefusedError{Code: RefusedLease}) },
			class: ClassGone, text: "refused", hellos: 1, claims: 1, returns: 1, valid: 2,
		},
		{
			name: "a read that is refused", set: func(w *adverse) { w.breaks(&transfer.RefusedError{Code: "x"}) },
			class: ClassRead, text: "refused (x)", hellos: 1, claims: 1, returns: 1, valid: 2,
		},
		{name: "a read that breaks", set: func(w *adverse) { w.breaks(errOdd) }, class: ClassRead, err: errOdd, hellos: 1, claims: 1, returns: 1, valid: 2},
		{
			name: "a spoiled tile", set: func(w *adverse) {
				w.f.onTile = func(_ context.Context, _, i int) (bool, error) { return i == 1, nil }
			}, class: ClassSum, text: "1 tiles do not match", hellos: 1, claims: 1, returns: 1, valid: 3,
		},
	}
	for _, bt := range []int{0, 8, 15, 48, 80, 128} {
		all = append(all, adversity{
			name: fmt.Sprint("blocks of ", bt), set: func(w *adverse) { w.greets(func(h *hello) { h.BlockTokens = bt }) },
			lost: 1, class: ClassIncompatible, err: ErrIncompatible, text: fmt.Sprintf("16 here and %d there", bt),
		})
	}
	return all
}

// What becomes of a load at each thing that can be wrong: the class and cause of
// its failure, what it still brings, the messages it costs, and that nothing of it
// is kept.
func TestEveryAdversityOfALoad(t *testing.T) {
	for _, c := range adversities() {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { c.run(t) })
		})
	}
}

func (c *adversity) run(t *testing.T) {
	f := newFabric()
	var mu sync.Mutex
	calls := map[Kind]int{}
	f.onConn = func(_ context.Context, _ *fabricPeer, k Kind) error {
		mu.Lock()
		defer mu.Unlock()
		calls[k]++
		return nil
	}
	var book ledger
	limits := func(c *Config) {
		c.LoadTimeout, c.NoProgress, c.ReturnTimeout = 10*time.Second, 4*time.Second, 20*time.Millisecond
	}
	w := &adverse{f: f, p: f.engine(t, "p:1", 1, 1, 16, limits), d: f.engine(t, "d:1", 1, 1, 16, limits, book.in)}
	w.prompt = prompt(64, 1)
	granted, _ := w.p.grant(t, w.prompt, 15)
	h := *granted
	w.h = &h
	w.prompt = append(w.prompt, 7) // so that all four tiles are wanted
	var scope countedScope
	scope.count(w.d)
	c.set(w)
	h.Sign([]byte(testToken))
	r := w.d.load(t, "r", &h, w.prompt, w.d.blocksFor(64, 15))
	if r.Err == nil || r.Err.Class != c.class || c.err != nil && !errors.Is(r.Err, c.err) || !strings.Contains(r.Err.Error(), c.text) {
		t.Fatalf("%v, want %s: %v %s", r.Err, c.class, c.err, c.text)
	}
	if r.Valid != c.valid || r.Duration != c.took || r.Err.Peer != h.EngineID || !slices.Equal(r.Err.Tiles, r.Invalid) ||
		r.Valid+len(r.Invalid) != 4 || r.Bytes != c.valid*w.d.layout.TileBytes() {
		t.Errorf("%+v, want %d tiles after %v", r, c.valid, c.took)
	}
	<-time.After(w.d.cfg.ReturnTimeout)
	synctest.Wait()
	want := map[Kind]int{KindHello: c.hellos, KindClaim: c.claims, KindReturn: c.returns}
	maps.DeleteFunc(want, func(_ Kind, n int) bool { return n == 0 })
	if c.lost > 0 { // how often the return greets is not this test's matter
		delete(calls, KindHello)
		delete(want, KindHello)
	}
	if diff := cmp.Diff(want, calls); diff != "" || book.lost != c.lost {
		t.Errorf("%d returns lost, want %d; messages: %s", book.lost, c.lost, diff)
	}
	if !slices.Equal(book.failed, []LoadClass{c.class}) || book.loaded != 0 || len(book.transfers) != 0 {
		t.Errorf("metrics: failed %v, %d loaded, %d transfers", book.failed, book.loaded, len(book.transfers))
	}
	if scope.open.Load() != 0 {
		t.Errorf("%d contexts are kept", scope.open.Load())
	}
	f.nothingLeft(t, w.p, w.d)
}

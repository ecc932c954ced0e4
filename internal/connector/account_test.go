package connector

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"tandem/internal/bystander/logtest"
	"tandem/internal/connector/core"
	"tandem/internal/kv"
)

// A ledger notes what an engine's metrics are told.
type ledger struct {
	mu        sync.Mutex
	transfers []Transfer
	failed    []LoadClass
	expired   int
	lost      int // returns
	loaded    int // tiles
}

func (l *ledger) in(c *Config) {
	note := func(f func()) {
		l.mu.Lock()
		defer l.mu.Unlock()
		f()
	}
	c.Metrics.Transfer = func(x Transfer) { note(func() { l.transfers = append(l.transfers, x) }) }
	c.Metrics.Failed = func(_ kv.EngineID, class LoadClass) { note(func() { l.failed = append(l.failed, class) }) }
	c.Metrics.Expired = func() { note(func() { l.expired++ }) }
	c.Metrics.ReturnFailed = func(kv.EngineID) { note(func() { l.lost++ }) }
	c.Metrics.Loaded = func(tiles int, _ time.Duration) { note(func() { l.loaded += tiles }) }
}

// A countedScope counts what depends on its end.
type countedScope struct {
	context.Context //nolint:containedctx // it is one
	open            atomic.Int64
}

func (s *countedScope) Value(any) any { return nil }

func (s *countedScope) AfterFunc(f func()) func() bool {
	s.open.Add(1)
	stop := context.AfterFunc(s.Context, f)
	return func() bool { s.open.Add(-1); return stop() }
}

// count makes e's loads and returns count in the scope.
func (s *countedScope) count(e *testEngine) {
	e.mu.Lock()
	defer e.mu.Unlock()
	s.Context, e.scope = e.scope, s
}

// nothingLeft waits until all peers are idle and leases over, and compares what
// is held then with nothing.
func (f *fabric) nothingLeft(t *testing.T, engines ...*testEngine) {
	t.Helper()
	<-time.After(3 * time.Hour)
	synctest.Wait()
	if c, r := f.alive.Load(), f.joined.Load(); c != 0 || r != 0 {
		t.Errorf("%d connections and %d joined ranks are left", c, r)
	}
	for _, e := range engines {
		if s := e.Status(); s.Loads != 0 || s.Tracked != 0 || len(s.Peers) != 0 || s.Leases.Live != 0 || s.Leases.Claimed != 0 {
			t.Errorf("%s is left with %+v", s.Engine, s)
		}
	}
}

// A load tells exactly what it did, to the report, the metrics and the peer; its
// messages are one of each kind and bear the client's name; and nothing of it is
// held afterwards.
func TestALoadIsAccountedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const dial, post, tile = time.Second, 3 * time.Millisecond, 5 * time.Millisecond
		f := newFabric()
		var mu sync.Mutex
		var calls []tap
		var ended []context.Context
		note := func(ctx context.Context, what string) {
			mu.Lock()
			defer mu.Unlock()
			calls = append(calls, tap{what, RequestOf(ctx)})
			ended = append(ended, ctx)
		}
		f.onDial = func(context.Context, string) error { <-time.After(dial); return nil }
		f.onConn = func(ctx context.Context, _ *fabricPeer, k Kind) error {
			note(ctx, map[Kind]string{KindHello: "hello", KindClaim: "claim", KindReturn: "return"}[k])
			return nil
		}
		var posts []ReadSpec
		var names []string
		f.onPost = func(ctx context.Context, r ReadSpec) {
			mu.Lock()
			posts, names = append(posts, r), append(names, RequestOf(ctx))
			mu.Unlock()
			<-time.After(post)
		}
		var pb, db ledger
		p := f.engine(t, "p:1", 2, 2, 16, pb.in)
		d := f.engine(t, "d:1", 1, 1, 16, db.in, func(c *Config) { c.NoProgress = 7 * time.Second })
		var scope countedScope
		scope.count(d)
		f.onTile = func(context.Context, int, int) (bool, error) {
			if got, want := p.Status().Leases, (LeaseStats{Live: 1, Claimed: 1, Granted: 1}); got != want {
				t.Errorf("while it reads: leases %+v, want %+v", got, want)
			}
			<-time.After(tile)
			return false, nil
		}
		var ask *core.Claim
		answer := p.net.handlers[KindClaim]
		p.net.handlers[KindClaim] = func(ctx context.Context, from CallerID, body []byte) ([]byte, error) {
			ask, _ = decodeClaim(body)
			return answer(ctx, from, body)
		}
		tokens := prompt(100, 1)
		h, blocks := p.grant(t, tokens[:64], 15) // P has seen the beginning
		local := d.blocksFor(100, 15)
		d.Load(LoadSpec{ID: "r-1", ClientID: "client-1", Handoff: h, Prompt: tokens, Local: local, FromTile: 1, ToTile: 4})
		want := LoadReport{
			ID: "r-1", From: 1, To: 4, Valid: 3, Bytes: 3 * d.layout.TileBytes(), Duration: dial + post + 3*tile, Path: "mem",
		}
		if diff := cmp.Diff(want, d.report(t)); diff != "" {
			t.Errorf("report: %s", diff)
		}
		sameKV(t, p, d, blocks, local, 1, 4)
		if got := p.freedBlocks(t); !slices.Equal(got, blocks) {
			t.Errorf("freed %v, want %v", got, blocks)
		}
		synctest.Wait()
		if ask.Want != d.cfg.LoadTimeout-dial || ask.From != 1 || ask.To != 4 {
			t.Errorf("claimed %+v", ask)
		}
		if want := []tap{{"hello", ""}, {"claim", "client-1"}, {"return", "client-1"}}; !slices.Equal(calls, want) {
			t.Errorf("calls %v, want %v", calls, want)
		}
		for i, ctx := range ended {
			if ctx.Err() == nil {
				t.Errorf("the context of %s is kept", calls[i].what)
			}
		}
		for i, r := range posts {
			if names[i] != "client-1" || r.NoProgress != 7*time.Second || r.Epoch != h.Epoch || r.Lease != h.Lease {
				t.Errorf("read for %q: %+v", names[i], r)
			}
		}
		if scope.open.Load() != 0 {
			t.Errorf("%d contexts are kept", scope.open.Load())
		}
		x := Transfer{
			Peer: "engine-p:1", Bytes: 3 * p.layout.TileBytes(), Tiles: 3, Pieces: 3 * p.layout.Layers,
			Duration: post + 3*tile, Post: post, Path: "mem",
		}
		if diff := cmp.Diff([]Transfer{x, x}, db.transfers); diff != "" {
			t.Errorf("transfers: %s", diff)
		}
		if db.loaded != 3 || db.expired+db.lost+len(db.failed)+pb.expired != 0 {
			t.Errorf("%d tiles loaded, %d and %d leases expired, %d returns lost, failed %v",
				db.loaded, db.expired, pb.expired, db.lost, db.failed)
		}
		if got, want := p.Status().Leases, (LeaseStats{Granted: 1, Returned: 1}); got != want {
			t.Errorf("leases %+v, want %+v", got, want)
		}
		peer := PeerStatus{
			Engine: "engine-p:1", Addr: "p:1", State: "ready", Epoch: 1, Path: "mem", Why: "test",
		}
		if diff := cmp.Diff([]PeerStatus{peer}, d.Status().Peers); diff != "" {
			t.Errorf("peers: %s", diff)
		}
		f.nothingLeft(t, p, d)
		select {
		case b := <-p.Freed():
			t.Errorf("blocks %v are freed a second time", b)
		default:
		}
	})
}

// Leases that end otherwise are counted as what they were.
func TestEndsOfLeasesAreCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFabric()
		var book ledger
		p := f.engine(t, "p:1", 1, 1, 16, book.in, func(c *Config) { c.LeaseDuration = time.Minute })
		revoked, _ := p.grant(t, prompt(20, 1), 15)
		p.grant(t, prompt(20, 2), 12)
		p.Revoke(revoked)
		p.freedBlocks(t)
		if got, want := p.Status().Leases, (LeaseStats{Live: 1, Granted: 2, Revoked: 1}); got != want {
			t.Errorf("leases %+v, want %+v", got, want)
		}
		begun := time.Now()
		p.freedBlocks(t)
		if took := time.Since(begun); took != p.cfg.LeaseDuration {
			t.Errorf("it ran out after %v", took)
		}
		if got, want := p.Status().Leases, (LeaseStats{Granted: 2, Revoked: 1, Expired: 1}); got != want || book.expired != 1 {
			t.Errorf("leases %+v, want %+v; %d counted as expired", got, want, book.expired)
		}
	})
}

// What arrives keeps a load alive, however slowly; what stops ends it, counted
// from the look at which the last tile was found.
func TestProgressIsWhatKeepsALoad(t *testing.T) {
	for _, c := range []struct {
		name  string
		limit time.Duration
		tile  func(ctx context.Context, i int) error
		valid int
		took  time.Duration
	}{
		{"slow", 80 * time.Millisecond, func(context.Context, int) error { <-time.After(160 * time.Millisecond); return nil }, 7, 7 * 160 * time.Millisecond},
		{"a shortest limit", 1, func(context.Context, int) error { return nil }, 7, 0},
		{"stopped", 80 * time.Millisecond, func(ctx context.Context, i int) error {
			if i > 0 {
				<-ctx.Done()
				return ctx.Err()
			}
			<-time.After(5 * time.Millisecond)
			return nil
		}, 1, 10*time.Millisecond + stallFactor*80*time.Millisecond},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFabric()
				f.onTile = func(ctx context.Context, _, i int) (bool, error) { return false, c.tile(ctx, i) }
				p, d := f.engine(t, "p:1", 1, 1, 16), f.engine(t, "d:1", 1, 1, 16, func(cfg *Config) { cfg.NoProgress = c.limit })
				tokens := prompt(100, 1)
				h, _ := p.grant(t, tokens, 15)
				r := d.load(t, "r", h, tokens, d.blocksFor(100, 15))
				if r.Valid != c.valid || r.Duration != c.took || (r.Err == nil) != (c.valid == 7) || r.Bytes != c.valid*d.layout.TileBytes() {
					t.Errorf("%+v, want %d tiles after %v", r, c.valid, c.took)
				}
				if r.Err != nil && r.Err.Class != ClassTimeout {
					t.Error(r.Err)
				}
				f.nothingLeft(t, p, d)
			})
		})
	}
}

// A claim that nobody answers is given up to the moment, however the load's other
// looks at the clock fall.
func TestUnansweredClaimEndsOnTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const dial, limit = 3 * time.Millisecond, 80 * time.Millisecond
		f := newFabric()
		f.onDial = func(context.Context, string) error { <-time.After(dial); return nil }
		f.onCall = func(ctx context.Context, _ string, k Kind) error {
			if k == KindClaim {
				<-ctx.Done()
			}
			return ctx.Err()
		}
		p, d := f.engine(t, "p:1", 1, 1, 16), f.engine(t, "d:1", 1, 1, 16, func(c *Config) { c.NoProgress = limit })
		tokens := prompt(40, 1)
		h, _ := p.grant(t, tokens, 15)
		r := d.load(t, "r", h, tokens, d.blocksFor(40, 15))
		if r.Err == nil || r.Err.Class != ClassTimeout || r.Duration != dial+limit {
			t.Errorf("%+v, want it after %v", r, dial+limit)
		}
		f.nothingLeft(t, p, d)
	})
}

// A load that is cancelled reports as soon as nothing of it is under way, at
// whatever stage, and gives its lease back behind its last message.
func TestCancelledLoadsEndWithTheirLastMessage(t *testing.T) {
	const late = 10 * time.Millisecond
	after := func(ctx context.Context) { // a message or a read that does not end at once
		<-ctx.Done()
		<-time.After(late)
	}
	for _, c := range []struct {
		name  string
		set   func(f *fabric, reached func())
		took  time.Duration
		calls []Kind
	}{
		{"dialling", func(f *fabric, reached func()) {
			f.onDial = func(context.Context, string) error {
				if f.dials.Load() == 1 {
					reached()
					<-time.After(late)
				}
				return nil
			}
		}, 0, []Kind{KindHello, KindReturn}}, // which shares the handshake
		{"claiming", func(f *fabric, reached func()) {
			f.onCall = func(ctx context.Context, _ string, k Kind) error {
				if k == KindClaim {
					reached()
					after(ctx)
				}
				return nil
			}
		}, late, []Kind{KindHello, KindClaim, KindReturn}},
		{"reading", func(f *fabric, reached func()) {
			f.onTile = func(ctx context.Context, _, i int) (bool, error) {
				if i == 1 {
					reached()
					after(ctx)
					return false, ctx.Err()
				}
				return false, nil
			}
		}, late, []Kind{KindHello, KindClaim, KindReturn}},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFabric()
				var mu sync.Mutex
				var calls []Kind
				var reached atomic.Bool
				c.set(f, func() { reached.Store(true) })
				var book ledger
				p, d := f.engine(t, "p:1", 1, 1, 16), f.engine(t, "d:1", 1, 1, 16, book.in)
				for k, next := range p.net.handlers { // what arrives is answered, even when nobody waits
					p.net.handlers[k] = func(ctx context.Context, from CallerID, body []byte) ([]byte, error) {
						mu.Lock()
						calls = append(calls, k)
						mu.Unlock()
						return next(context.WithoutCancel(ctx), from, body)
					}
				}
				tokens := prompt(64, 1)
				h, pb := p.grant(t, tokens, 15)
				d.Load(LoadSpec{ID: "r", Handoff: h, Prompt: tokens, Local: d.blocksFor(64, 15), ToTile: 4})
				synctest.Wait()
				if !reached.Load() {
					t.Fatal("it never came so far")
				}
				d.CancelLoad("r")
				if r := d.report(t); !r.Canceled || r.Err != nil || r.Duration != c.took {
					t.Errorf("%+v, want it after %v", r, c.took)
				}
				if got := p.freedBlocks(t); !slices.Equal(got, pb) {
					t.Errorf("freed %v, want %v", got, pb)
				}
				synctest.Wait()
				if !slices.Equal(calls, c.calls) {
					t.Errorf("calls %v, want %v", calls, c.calls)
				}
				if got, want := p.Status().Leases, (LeaseStats{Granted: 1, Returned: 1}); got != want || len(book.failed)+book.loaded+book.lost != 0 {
					t.Errorf("leases %+v, want %+v; metrics %v, %d, %d", got, want, book.failed, book.loaded, book.lost)
				}
				f.nothingLeft(t, p, d)
			})
		})
	}
}

// A hand-off that is not read is given back once, over whatever connection there
// is, when it is a peer's and there is somebody to do so.
func TestReturnsOfWhatIsNotRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFabric()
		var returns atomic.Int64
		f.onCall = func(_ context.Context, _ string, k Kind) error {
			if k == KindReturn {
				returns.Add(1)
			}
			return nil
		}
		var book ledger
		p, d := f.engine(t, "p:1", 1, 1, 16), f.engine(t, "d:1", 1, 1, 16, book.in)
		d.ReturnUnread(nil)
		own, _ := d.grant(t, prompt(20, 1), 15)
		d.ReturnUnread(own)
		synctest.Wait()
		if n := f.dials.Load(); n != 0 || d.Status().Leases.Live != 1 {
			t.Errorf("%d dials for what is none of a peer's; %+v", n, d.Status().Leases)
		}
		// One of a registration that no handshake has met goes over what there is.
		p.epoch = 0
		first, _ := p.grant(t, prompt(20, 1), 15)
		d.ReturnUnread(first)
		p.freedBlocks(t)
		p.epoch = firstEpoch
		newer, _ := p.grant(t, prompt(20, 1), 15)
		d.ReturnUnread(newer)
		p.freedBlocks(t)
		if n := f.hellos.Load(); n != 1 {
			t.Errorf("%d handshakes", n)
		}
		h, _ := p.grant(t, prompt(20, 1), 15)
		d.Track(h)
		d.ReturnUnread(h)
		p.freedBlocks(t)
		synctest.Wait()
		if d.Status().Tracked != 0 {
			t.Errorf("it is still renewed: %+v", d.Status())
		}
		if got, want := p.Status().Leases, (LeaseStats{Granted: 3, Returned: 3}); got != want || returns.Load() != 3 || book.lost != 0 {
			t.Errorf("leases %+v, want %+v; %d returns, %d lost", got, want, returns.Load(), book.lost)
		}
		late, _ := p.grant(t, prompt(20, 1), 15)
		d.stop()
		d.ReturnUnread(late) // nobody is there to send it
		synctest.Wait()
		if returns.Load() != 3 || book.lost != 0 {
			t.Errorf("%d returns after the end, %d lost", returns.Load()-3, book.lost)
		}
	})
}

// A lease that another engine has claimed is given back when that claim ends. An
// answer that is none is no acknowledgement. What was in vain is told, with why.
func TestReturnsThatAreNotTaken(t *testing.T) {
	for _, c := range []struct {
		name   string
		answer func(n int) ([]byte, error)
		took   time.Duration
		lost   string
	}{
		{"claimed for a while", func(n int) ([]byte, error) {
			if n <= 2 {
				return encodeVerdicts([]core.Verdict{core.VerdictBusy}), nil
			}
			return nil, nil
		}, 3 * firstRetry, ""},
		{"claimed for long", func(int) ([]byte, error) {
			return encodeVerdicts([]core.Verdict{core.VerdictBusy}), nil
		}, 0, "another engine has claimed the lease"},
		{"no answer", func(int) ([]byte, error) { return []byte{}, nil }, 0, "malformed message"},
		{"two answers", func(int) ([]byte, error) { return encodeVerdicts(make([]core.Verdict, 2)), nil }, 0, "malformed message"},
		{"refused", func(int) ([]byte, error) { return nil, errors.New("not today") }, 0, "not today"},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { notTaken(t, c.answer, c.took, c.lost) })
		})
	}
}

func notTaken(t *testing.T, answer func(n int) ([]byte, error), took time.Duration, lost string) {
	f := newFabric()
	var book ledger
	var out logtest.Book
	p := f.engine(t, "p:1", 1, 1, 16)
	d := f.engine(t, "d:1", 1, 1, 16, book.in, logTo(&out), func(c *Config) { c.ReturnTimeout = time.Second })
	next := p.net.handlers[KindReturn]
	n := 0
	p.net.handlers[KindReturn] = func(ctx context.Context, from CallerID, body []byte) ([]byte, error) {
		n++
		if b, err := answer(n); b != nil || err != nil {
			return b, err
		}
		return next(ctx, from, body)
	}
	begun := time.Now()
	h, _ := p.grant(t, prompt(20, 1), 15)
	d.ReturnUnread(h)
	if lost == "" {
		p.freedBlocks(t)
		if got := time.Since(begun); got != took {
			t.Errorf("it was taken after %v, want %v", got, took)
		}
	}
	<-time.After(2 * time.Second)
	synctest.Wait()
	lines := out.Lines("KV lease not returned", "error=", lost)
	if want := min(len(lost), 1); book.lost != want || len(lines) != want {
		t.Errorf("%d returns lost, want %d: %v", book.lost, want, out.Lines("lease"))
	}
	if lost != "" && n != 5 { // after 0, 50, 150, 350 and 750 ms
		t.Errorf("%d attempts within %v", n, d.cfg.ReturnTimeout)
	}
	f.nothingLeft(t, p, d)
}

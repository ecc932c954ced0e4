package connector

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"tandem/internal/connector/core"
	"tandem/internal/kv"
	"tandem/internal/transfer"
)

// hostEngine starts a connector on real sockets.
func hostEngine(t *testing.T, name string, tp, blockTiles, blocks int, opts ...func(*Config)) *testEngine {
	t.Helper()
	arenas := newArenas(t, tp, blockTiles, blocks)
	cfg := testConfig(t, name, arenas)
	cfg.Listen = "127.0.0.1:0"
	for _, o := range opts {
		o(&cfg)
	}
	c, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	e := &testEngine{Connector: c, arenas: arenas}
	e.start(t)
	return e
}

// paths returns the options that make each transfer path the only one.
func paths(t *testing.T) map[string]func(*Config) {
	dir := transfer.NewDirectory()
	unixDir := t.TempDir()
	out := map[string]func(*Config){
		transfer.PathTCP: func(c *Config) { c.Paths = []string{transfer.PathTCP} },
		transfer.PathMem: func(c *Config) { c.Paths, c.Directory = []string{transfer.PathMem}, dir },
	}
	if newArenas(t, 1, 1, 1)[0].File() != nil {
		out[transfer.PathMemfd] = func(c *Config) { c.Paths, c.UnixDir = []string{transfer.PathMemfd}, unixDir+"/s" }
	}
	return out
}

func TestGridsOverEveryPath(t *testing.T) {
	for path, opt := range paths(t) {
		for _, ptp := range []int{1, 2, 4} {
			for _, dtp := range []int{1, 2, 4} {
				t.Run(fmt.Sprintf("%s/TP %d to %d", path, ptp, dtp), func(t *testing.T) {
					p, d := hostEngine(t, "p", ptp, 2, 20, opt), hostEngine(t, "d", dtp, 1, 20, opt)
					for _, n := range []int{17, 129} {
						roundTrip(t, p, d, n, path)
					}
				})
			}
		}
		for _, ps := range []int{1, 2, 4} {
			for _, ds := range []int{1, 2, 4} {
				t.Run(fmt.Sprintf("%s/block size %d to %d", path, 16*ps, 16*ds), func(t *testing.T) {
					p, d := hostEngine(t, "p", 1, ps, 20, opt), hostEngine(t, "d", 1, ds, 20, opt)
					for _, n := range []int{1, 15, 16, 17, 31, 32, 33, 63, 64, 65, 129} {
						roundTrip(t, p, d, n, path)
					}
				})
			}
		}
	}
}

// roundTrip hands one prompt from p to d and compares every byte.
func roundTrip(t *testing.T, p, d *testEngine, n int, path string) {
	t.Helper()
	tokens := prompt(n, n)
	h, pb := p.grant(t, tokens, 19)
	if err := d.Verify(h, tokens); err != nil {
		t.Fatal(err)
	}
	d.Track(h)
	db := d.blocksFor(n, 19)
	if tiles := core.TilesOf(h.Offers(tokens)); tiles == 0 {
		d.ReturnUnread(h)
	} else {
		r := d.load(t, "r", h, tokens, db)
		if r.Err != nil || r.Valid != tiles || r.Path != path {
			t.Fatalf("length %d: %+v", n, r)
		}
		sameKV(t, p, d, pb, db, 0, tiles)
	}
	if got := p.freedBlocks(t); !slices.Equal(got, pb) {
		t.Fatalf("freed %v, want %v", got, pb)
	}
}

func TestKilledEngineIsReplaced(t *testing.T) {
	d := hostEngine(t, "d", 1, 1, 20)
	listen := "127.0.0.2:0" // nobody else takes its ports meanwhile
	var last *Handoff
	for round := range 4 {
		p := hostEngine(t, "p", 1, 1, []int{20, 40, 10}[round%3], func(c *Config) { c.Listen = listen })
		listen = p.Addr()
		tokens := prompt(40, round)
		if last != nil { // the old process' hand-off leads to the new one
			r := d.load(t, "old", last, prompt(40, round-1), d.blocksFor(40, 19))
			if r.Err == nil || r.Err.Class != ClassHandshake || !errors.Is(r.Err, ErrStale) {
				t.Fatalf("%+v", r)
			}
		}
		h, pb := p.grant(t, tokens, 9)
		db := d.blocksFor(40, 9)
		if r := d.load(t, "r", h, tokens, db); r.Err != nil {
			t.Fatalf("round %d: %+v", round, r)
		}
		sameKV(t, p, d, pb, db, 0, 3)
		p.freedBlocks(t)
		last, _ = p.grant(t, tokens, 9)
		d.settle(t, last)
		p.stop()
		for slices.ContainsFunc(d.Status().Peers, func(s PeerStatus) bool { return s.State == core.PeerReady.String() }) {
			<-time.After(time.Millisecond) // until its end is noticed: what is under way could dial nobody
		}
	}
}

// settle waits until e has heard the answers to all that it asked of h's engine.
func (e *testEngine) settle(t *testing.T, h *Handoff) {
	t.Helper()
	v, err := e.peers.get(t.Context(), h.key(), 0)
	if err != nil {
		t.Fatal(err)
	}
	defer v.release()
	for v.refs.Load() > 2 { // the table's and ours
		<-time.After(time.Millisecond)
	}
}

func TestNoTokenNoKV(t *testing.T) {
	p := hostEngine(t, "p", 1, 1, 20)
	d := hostEngine(t, "d", 1, 1, 20, func(c *Config) {
		c.Token = []byte("another cluster's token")
	})
	tokens := prompt(40, 1)
	h, _ := p.grant(t, tokens, 9)
	if err := d.Verify(h, tokens); !errors.Is(err, ErrMAC) {
		t.Fatal(err)
	}
	h.Sign(d.cfg.Token) // even a hand-off that D's own token vouches for
	r := d.load(t, "r", h, tokens, d.blocksFor(40, 9))
	if r.Err == nil || r.Err.Class != ClassHandshake || p.Status().Leases.Claimed != 0 {
		t.Fatalf("%+v", r)
	}
	if host, _, _ := net.SplitHostPort(p.Addr()); !net.ParseIP(host).IsLoopback() {
		t.Fatalf("listens on %s by default", host)
	}
}

// TestReadWithoutTheClaimIsRefused: the serving side asks the lease table.
func TestReadWithoutTheClaimIsRefused(t *testing.T) {
	p, d := hostEngine(t, "p", 1, 1, 20), hostEngine(t, "d", 1, 1, 20)
	tokens := prompt(40, 1)
	h, pb := p.grant(t, tokens, 9)
	v, err := d.peers.get(t.Context(), h.key(), 1)
	if err != nil {
		t.Fatal(err)
	}
	defer v.release()
	read := func(tile int32) error {
		r := v.links[0].plan.Read(t.Context(), ReadSpec{
			Epoch: h.Epoch, Lease: h.Lease, Local: []int32{3}, Remote: []int32{tile}, Check: func(int) error { return nil },
		})
		<-r.Done()
		return r.Err()
	}
	mine, others := int32(pb[1]), int32(0)
	if err := read(mine); !isRefusedLease(err) {
		t.Fatalf("unclaimed: %v", err)
	}
	ask := core.Claim{
		Incarnation: h.Incarnation, Lease: h.Lease, Epoch: h.Epoch, To: 3, Digest: h.Digest, Tokens: h.Tokens,
		Factors: d.factorSum, Want: time.Minute,
	}
	if _, err := v.conn.Call(t.Context(), KindClaim, encodeClaim(&ask)); err != nil {
		t.Fatal(err)
	}
	if err := read(mine); err != nil {
		t.Fatalf("claimed: %v", err)
	}
	if err := read(others); !isRefusedLease(err) {
		t.Fatalf("a block outside the lease: %v", err)
	}
	if _, err := v.conn.Call(t.Context(), KindReturn, encodeLeases(h.Incarnation, []LeaseID{h.Lease})); err != nil {
		t.Fatal(err)
	}
	if err := read(mine); !isRefusedLease(err) {
		t.Fatalf("returned: %v", err)
	}
}

func TestTakenPortFailsAtOnce(t *testing.T) {
	p := hostEngine(t, "p", 1, 1, 4)
	cfg := testConfig(t, "q", newArenas(t, 1, 1, 4))
	cfg.Listen = p.Addr()
	if _, err := New(cfg); err == nil || !strings.Contains(err.Error(), p.Addr()) {
		t.Fatal(err)
	}
	cfg.Listen = "127.0.0.1:0"
	c, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := c.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if h := c.Grant(LeaseSpec{Blocks: []kv.BlockID{1}, Tokens: prompt(4, 1)}); h != nil || c.Run(t.Context()) == nil {
		t.Fatal("used after Close")
	}
}

// A stallProxy forwards TCP and can stop forwarding, or cut.
type stallProxy struct {
	l     net.Listener
	mu    sync.Mutex
	left  int // bytes to the dialler until it stalls; negative: no limit
	conns []net.Conn
	wg    sync.WaitGroup
}

func newStallProxy(t *testing.T) *stallProxy {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &stallProxy{l: l, left: -1}
	t.Cleanup(func() { _ = l.Close(); s.cut(); s.wg.Wait() })
	return s
}

func (s *stallProxy) run(to string) {
	s.wg.Go(func() {
		for {
			in, err := s.l.Accept()
			if err != nil {
				return
			}
			out, err := net.Dial("tcp", to)
			if err != nil {
				_ = in.Close()
				continue
			}
			s.mu.Lock()
			s.conns = append(s.conns, in, out)
			s.mu.Unlock()
			s.wg.Go(func() { s.pipe(out, in, false) })
			s.wg.Go(func() { s.pipe(in, out, true) })
		}
	})
}

func (s *stallProxy) pipe(to, from net.Conn, limited bool) {
	defer to.Close()
	buf := make([]byte, 4096)
	for {
		n, err := from.Read(buf)
		if err != nil {
			return
		}
		if limited {
			s.mu.Lock()
			if s.left >= 0 {
				n = min(n, s.left)
				s.left -= n
			}
			s.mu.Unlock()
		}
		if _, err := to.Write(buf[:n]); err != nil {
			return
		}
	}
}

func (s *stallProxy) allow(n int) {
	s.mu.Lock()
	s.left = n
	s.mu.Unlock()
}

func (s *stallProxy) cut() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range s.conns {
		_ = c.Close()
	}
	s.conns = nil
}

func TestStallAndCutOnTheWire(t *testing.T) {
	x := newStallProxy(t)
	free, err := net.Listen("tcp", "127.0.0.2:0") // nobody else takes its ports meanwhile
	if err != nil {
		t.Fatal(err)
	}
	bound := free.Addr().String()
	_ = free.Close()
	p := hostEngine(t, "p", 1, 1, 20*20, func(c *Config) { c.Listen, c.Advertise = bound, x.l.Addr().String() })
	x.run(bound)
	var net tapped
	d := hostEngine(t, "d", 1, 1, 40, func(c *Config) {
		c.Decorate = func(n Network) Network { net.Network = n; return &net }
	})
	tokens := prompt(300, 1)
	first := -1
	next := func() int { first += 20; return first } // nobody else's blocks
	bytes := core.TilesOf(299) * d.layout.TileBytes()
	// Only a load that must stall has a short limit: all of it, or its reads alone, so
	// that it is not met before.
	limits := func(noProgress, whole time.Duration) {
		net.noProgress.Store(int64(noProgress))
		d.cfg.LoadTimeout = whole
	}
	good := func() {
		t.Helper()
		x.allow(-1)
		x.cut()
		limits(0, patience)
		for slices.ContainsFunc(d.Status().Peers, func(s PeerStatus) bool { return s.State == core.PeerShaking.String() }) {
			<-time.After(time.Millisecond) // a handshake that the cut may have met
		}
		h, pb := p.grant(t, tokens, next())
		db := d.blocksFor(300, 39)
		if r := d.load(t, "good", h, tokens, db); r.Err != nil {
			t.Fatalf("%+v", r)
		}
		sameKV(t, p, d, pb, db, 0, core.TilesOf(299))
	}
	good()
	for _, percent := range []int{0, 1, 50, 99} {
		h, _ := p.grant(t, tokens, next())
		limits(100*time.Millisecond, patience)
		if percent == 0 {
			limits(0, 2*time.Second)
		}
		x.allow(600 + bytes*percent/100) // 0 % is within the claim's answer, which comes before the data
		r := d.load(t, "stalled", h, tokens, d.blocksFor(300, 39))
		if r.Err == nil || r.Err.Class != ClassTimeout || errors.Is(r.Err, transfer.ErrStalled) != (percent > 0) {
			t.Fatalf("%d %%: %+v", percent, r)
		}
		good()
	}
	for i := range 10 {
		h, _ := p.grant(t, tokens, next())
		d.Load(LoadSpec{
			ID: kv.RequestID(fmt.Sprint(i)), Handoff: h, Prompt: tokens, Local: d.blocksFor(32, 39-2*i), ToTile: 2,
		})
	}
	x.cut()
	for range 10 {
		d.report(t)
	}
	good()
}

func TestLossOfTheConnectionEndsTheClaim(t *testing.T) {
	p := hostEngine(t, "p", 1, 1, 20)
	d := hostEngine(t, "d", 1, 1, 20)
	tokens := prompt(40, 1)
	h, _ := p.grant(t, tokens, 9)
	v, err := d.peers.get(t.Context(), h.key(), 1)
	if err != nil {
		t.Fatal(err)
	}
	ask := core.Claim{
		Incarnation: h.Incarnation, Lease: h.Lease, Epoch: h.Epoch, To: 3, Digest: h.Digest, Tokens: h.Tokens,
		Factors: d.factorSum, Want: time.Minute,
	}
	if _, err := v.conn.Call(t.Context(), KindClaim, encodeClaim(&ask)); err != nil {
		t.Fatal(err)
	}
	v.release()
	d.stop() // killed, as far as P can see
	for p.Status().Leases.Claimed != 0 {
		<-time.After(time.Millisecond)
	}
	d2 := hostEngine(t, "d", 1, 1, 20)
	if r := d2.load(t, "r", h, tokens, d2.blocksFor(40, 9)); r.Err != nil {
		t.Fatalf("%+v", r)
	}
}

// BenchmarkLoad loads a 1,000-token prompt of a small model, sums checked.
func BenchmarkLoad(b *testing.B) {
	l := kv.Layout{Layers: 30, Heads: 3, HeadDim: 64, Elem: kv.F16, BlockTiles: 1}
	for _, path := range []string{transfer.PathMemfd, transfer.PathTCP} {
		b.Run(path, func(b *testing.B) {
			dir := b.TempDir() + "/s"
			start := func(name string) *Connector {
				a, err := kv.NewArena(l, 64)
				if err != nil {
					b.Fatal(err)
				}
				c, err := New(Config{
					EngineID: kv.EngineID(name), Role: Both, Arenas: []*kv.Arena{a}, Token: []byte(testToken),
					Listen: "127.0.0.1:0", UnixDir: dir, Paths: []string{path},
				})
				if err != nil {
					b.Fatal(err)
				}
				ctx, cancel := context.WithCancel(context.Background())
				done := make(chan error, 1)
				go func() { done <- c.Run(ctx) }()
				b.Cleanup(func() { cancel(); <-done; _ = a.Close() })
				return c
			}
			p, d := start("p"), start("d")
			tokens := prompt(1000, 1)
			var blocks []kv.BlockID
			for i := range 63 {
				blocks = append(blocks, kv.BlockID(i))
				p.cfg.Arenas[0].Seal(kv.TileID(i), 16)
			}
			b.SetBytes(int64(63 * l.TileBytes()))
			for b.Loop() {
				h := p.Grant(LeaseSpec{ID: "r", Blocks: blocks, Tokens: tokens})
				d.Load(LoadSpec{ID: "r", Handoff: h, Prompt: tokens, Local: blocks, ToTile: 63})
				if r := <-d.Reports(); r.Err != nil {
					b.Fatal(r.Err)
				}
				<-p.Freed()
			}
		})
	}
}

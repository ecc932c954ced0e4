package connector

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"tandem/internal/connector/core"
	"tandem/internal/kv"
)

// A fabric is an in-process network of engines with scripted faults. It copies
// between real arenas.
type fabric struct {
	mu    sync.Mutex
	nets  map[string]*fabricNet
	conns uint64

	// Faults; nil: none. They are set before the traffic they touch.
	onDial func(ctx context.Context, addr string) error
	onCall func(ctx context.Context, addr string, k Kind) error
	// onAnswer runs when a call was handled and its answer is on its way.
	onAnswer func(ctx context.Context, addr string, k Kind) error
	// onTile runs before tile i of a read lands, and says whether to spoil it.
	onTile func(ctx context.Context, rank, i int) (spoil bool, err error)

	// onPeer runs before each tile of a read from an engine.
	onPeer func(to *fabricNet)

	// onConn runs before a call, with its connection.
	onConn func(ctx context.Context, p *fabricPeer, k Kind) error
	// onJoin and onPlan run before a rank of the peer is joined, and its reads planned.
	onJoin, onPlan func(remote int) error
	// onPath runs when somebody asks for the path to a rank.
	onPath func()
	// onPost runs while a read is posted.
	onPost func(ctx context.Context, r ReadSpec)
	// unnoticed is for how long the end of a connection is not told to the peer.
	unnoticed time.Duration

	dials, hellos, claims, tiles atomic.Int64
	alive                        atomic.Int64 // connections that have not ended
	joined                       atomic.Int64 // ranks that have not been closed
}

func newFabric() *fabric { return &fabric{nets: map[string]*fabricNet{}} }

type fabricNet struct {
	f         *fabric
	addr      string
	inc       Incarnation
	arenas    []*kv.Arena
	handlers  map[Kind]Handler
	lost      func(CallerID)
	authorize func(CallerID, kv.Epoch, LeaseID, []int32) error
	dead      chan struct{}
	stop      sync.Once
}

func (f *fabric) open(addr string, inc Incarnation, arenas []*kv.Arena) *fabricNet {
	n := &fabricNet{
		f: f, addr: addr, inc: inc, arenas: arenas, dead: make(chan struct{}),
		handlers: map[Kind]Handler{},
	}
	return n
}

func (n *fabricNet) Addr() string { return n.addr }
func (n *fabricNet) Handle(k Kind, h Handler) {
	n.handlers[k] = h
}
func (n *fabricNet) OnLost(f func(CallerID)) { n.lost = f }
func (n *fabricNet) Authorize(f func(CallerID, kv.Epoch, LeaseID, []int32) error) {
	n.authorize = f
}
func (n *fabricNet) Describe(rank int) []byte { return []byte(fmt.Sprint(rank)) }
func (n *fabricNet) Close() error             { n.kill(); return nil }
func (n *fabricNet) Run(ctx context.Context) error {
	<-ctx.Done()
	n.kill()
	return nil
}

// ended reports whether the engine's side has ended.
func (n *fabricNet) ended() bool {
	select {
	case <-n.dead:
		return true
	default:
		return false
	}
}

// kill ends the engine's side of every connection.
func (n *fabricNet) kill() { n.stop.Do(func() { close(n.dead) }) }

func (n *fabricNet) Dial(ctx context.Context, addr string) (Conn, error) {
	n.f.dials.Add(1)
	if h := n.f.onDial; h != nil {
		if err := h(ctx, addr); err != nil {
			return nil, err
		}
	}
	n.f.mu.Lock()
	defer n.f.mu.Unlock()
	to := n.f.nets[addr]
	if to == nil {
		return nil, errors.New("connection refused")
	}
	select {
	case <-to.dead:
		return nil, errors.New("connection refused")
	default:
	}
	n.f.conns++
	n.f.alive.Add(1)
	p := &fabricPeer{from: n, to: to, id: CallerID{Incarnation: n.inc, Conn: n.f.conns}, done: make(chan struct{})}
	stop := make(chan struct{})
	p.stop = sync.OnceFunc(func() { close(stop) })
	go func() {
		select {
		case <-to.dead:
		case <-n.dead:
		case <-stop:
		}
		n.f.alive.Add(-1)
		close(p.done)
		if n.f.unnoticed > 0 {
			<-time.After(n.f.unnoticed)
		}
		if to.lost != nil {
			to.lost(p.id)
		}
	}()
	return p, nil
}

type fabricPeer struct {
	from, to *fabricNet
	id       CallerID
	done     chan struct{}
	stop     func()
}

func (p *fabricPeer) Incarnation() Incarnation { return p.to.inc }
func (p *fabricPeer) Done() <-chan struct{}    { return p.done }
func (p *fabricPeer) Close()                   { p.stop() }

func (p *fabricPeer) Call(ctx context.Context, k Kind, body []byte) ([]byte, error) {
	switch k {
	case KindHello:
		p.from.f.hellos.Add(1)
	case KindClaim:
		p.from.f.claims.Add(1)
	default:
	}
	if h := p.from.f.onConn; h != nil {
		if err := h(ctx, p, k); err != nil {
			return nil, err
		}
	}
	if h := p.from.f.onCall; h != nil {
		if err := h(ctx, p.to.addr, k); err != nil {
			return nil, err
		}
	}
	select {
	case <-p.done:
		return nil, errors.New("connection lost")
	default:
	}
	out, err := p.to.handlers[k](ctx, p.id, body)
	if h := p.from.f.onAnswer; h != nil && err == nil {
		err = h(ctx, p.to.addr, k)
	}
	return out, err
}

func (p *fabricPeer) Join(_ context.Context, _ int, desc []byte) (Remote, error) {
	var rank int
	if _, err := fmt.Sscan(string(desc), &rank); err != nil {
		return nil, err
	}
	if h := p.from.f.onJoin; h != nil {
		if err := h(rank); err != nil {
			return nil, err
		}
	}
	p.from.f.joined.Add(1)
	return &fabricRemote{p, rank}, nil
}

type fabricRemote struct {
	p    *fabricPeer
	rank int
}

func (r *fabricRemote) Path() (name, why string) {
	if h := r.p.from.f.onPath; h != nil {
		h()
	}
	return "mem", "test"
}
func (r *fabricRemote) Close() { r.p.from.f.joined.Add(-1) }
func (r *fabricRemote) Plan(rank int, s Strides) (ReadPlan, error) {
	if h := r.p.from.f.onPlan; h != nil {
		if err := h(r.rank); err != nil {
			return nil, err
		}
	}
	return &fabricPlan{r, r.p.from.arenas[rank], r.p.to.arenas[r.rank], rank, s}, nil
}

type fabricPlan struct {
	r             *fabricRemote
	local, remote *kv.Arena
	rank          int
	s             Strides
}

func (pl *fabricPlan) Read(post context.Context, spec ReadSpec) Read {
	if h := pl.r.p.from.f.onPost; h != nil {
		h(post, spec)
	}
	ctx, cancel := context.WithCancel(context.Background())
	r := &fabricRead{done: make(chan struct{}), cancel: cancel}
	go func() {
		defer close(r.done)
		r.err = pl.copy(ctx, spec)
	}()
	return r
}

func (pl *fabricPlan) copy(ctx context.Context, spec ReadSpec) error {
	p := pl.r.p
	if err := p.to.authorize(p.id, spec.Epoch, spec.Lease, spec.Remote); err != nil {
		return err
	}
	for i := range spec.Local {
		spoil := false
		if h := p.from.f.onPeer; h != nil {
			h(p.to)
		}
		if h := p.from.f.onTile; h != nil {
			var err error
			if spoil, err = h(ctx, pl.rank, i); err != nil {
				return err
			}
		}
		select {
		case <-p.done:
			return errors.New("connection lost")
		case <-p.to.dead:
			return errors.New("connection lost")
		case <-ctx.Done():
			return ctx.Err()
		default:
		}
		dst, src := pl.local.Tile(kv.TileID(spec.Local[i])), pl.remote.Tile(kv.TileID(spec.Remote[i]))
		for j := range pl.s.Pieces {
			lo, ro := pl.s.LocalOff+j*pl.s.LocalStep, pl.s.RemoteOff+j*pl.s.RemoteStep
			copy(dst[lo:lo+pl.s.Len], src[ro:ro+pl.s.Len])
		}
		if spoil {
			dst[pl.s.LocalOff] ^= 0x10
		}
		p.from.f.tiles.Add(1)
		_ = spec.Check(i)
	}
	return nil
}

type fabricRead struct {
	done   chan struct{}
	cancel context.CancelFunc
	err    error
}

func (r *fabricRead) Done() <-chan struct{} { return r.done }
func (r *fabricRead) Err() error            { return r.err }
func (r *fabricRead) Cancel()               { r.cancel(); <-r.done }

// A testEngine is a connector with arenas and the least of a pool.
type testEngine struct {
	*Connector
	arenas []*kv.Arena
	net    *fabricNet
	stop   func()
}

// patience is far beyond what anything takes here, on whatever machine.
const patience = time.Minute

const testToken = "0123456789abcdef-cluster"

// testLayout splits 4 KV heads of 8 elements over tp ranks.
func testLayout(tp, blockTiles int) kv.Layout {
	return kv.Layout{Layers: 2, Heads: 4 / tp, HeadDim: 8, Elem: kv.F16, BlockTiles: blockTiles}
}

// newArenas makes the arenas of all ranks.
func newArenas(t *testing.T, tp, blockTiles, blocks int) []*kv.Arena {
	t.Helper()
	var as []*kv.Arena
	for range tp {
		a, err := kv.NewArena(testLayout(tp, blockTiles), blocks)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = a.Close() })
		as = append(as, a)
	}
	return as
}

func testConfig(t *testing.T, name string, arenas []*kv.Arena) Config {
	t.Helper()
	return Config{
		EngineID: kv.EngineID(name), Role: Both, Arenas: arenas, Token: []byte(testToken),
		Fingerprint: []Factor{{"model", "tiny"}, {"arithmetic", "1"}},
		LoadTimeout: patience, HandshakeTimeout: patience, ReturnTimeout: patience, LeaseDuration: time.Hour, NoProgress: patience,
	}
}

// engine starts a connector on the fabric.
func (f *fabric) engine(t *testing.T, addr string, tp, blockTiles, blocks int, opts ...func(*Config)) *testEngine {
	t.Helper()
	arenas := newArenas(t, tp, blockTiles, blocks)
	cfg := testConfig(t, "engine-"+addr, arenas)
	for _, o := range opts {
		o(&cfg)
	}
	if err := cfg.fill(); err != nil {
		t.Fatal(err)
	}
	var inc Incarnation
	f.mu.Lock()
	f.conns++
	inc[0], inc[1] = byte(f.conns), byte(f.conns>>8)
	f.mu.Unlock()
	inc[15] = 1
	n := f.open(addr, inc, arenas)
	e := &testEngine{Connector: newConnector(cfg, inc, n), arenas: arenas, net: n}
	f.mu.Lock()
	f.nets[addr] = n // it can be dialled now
	f.mu.Unlock()
	e.start(t)
	return e
}

func (e *testEngine) start(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- e.Run(ctx) }()
	e.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(e.stop)
}

// fillPrompt writes the KV of tokens into blocks: every element is a function of
// token, position, layer and global head, so that ranks agree.
func (e *testEngine) fillPrompt(tokens []kv.Token, blocks []kv.BlockID) {
	l := e.layout
	for i := range core.TilesOf(len(tokens)) {
		tile := kv.TileID(core.TileIn(blocks, l.BlockTiles, i))
		filled := min(kv.TileTokens, len(tokens)-i*kv.TileTokens)
		for rank, a := range e.arenas {
			for layer := range l.Layers {
				for head := range l.Heads {
					b := a.Head(tile, layer, head)
					for slot := range kv.TileTokens {
						pos := i*kv.TileTokens + slot
						seed := uint32(0xdead)
						if slot < filled {
							seed = uint32(tokens[pos])*2654435761 ^ uint32(pos)*40503 ^ uint32(layer*64+rank*l.Heads+head)*97
						}
						putSlot(b, l, slot, seed)
					}
				}
			}
			a.Seal(tile, filled)
		}
	}
}

func putSlot(b []byte, l kv.Layout, slot int, seed uint32) {
	for d := range l.HeadDim {
		v := uint16((seed + uint32(d)*7919) >> 3)
		k := (d*kv.TileTokens + slot) * 2
		b[k], b[k+1] = byte(v), byte(v>>8)
		r := l.KBytes() + (slot*l.HeadDim+d)*2
		b[r], b[r+1] = byte(v^0x5555), byte((v^0x5555)>>8)
	}
}

// headsOf returns the bytes of a sequence tile in global head order, [head][layer].
func (e *testEngine) headsOf(blocks []kv.BlockID, i int) []byte {
	var out []byte
	tile := kv.TileID(core.TileIn(blocks, e.layout.BlockTiles, i))
	for _, a := range e.arenas {
		for head := range e.layout.Heads {
			for layer := range e.layout.Layers {
				out = append(out, a.Head(tile, layer, head)...)
			}
		}
	}
	return out
}

func prompt(n, seed int) []kv.Token {
	p := make([]kv.Token, n)
	for i := range p {
		p[i] = kv.Token((i*7 + seed*31) % 251)
	}
	return p
}

// blocksFor returns scattered blocks that hold n tokens, from first downwards.
func (e *testEngine) blocksFor(n, first int) []kv.BlockID {
	size := e.layout.BlockTokens()
	var bs []kv.BlockID
	for i := range (n + size - 1) / size {
		bs = append(bs, kv.BlockID(first-i))
	}
	return bs
}

// grant fills and hands off a prompt.
func (e *testEngine) grant(t *testing.T, tokens []kv.Token, first int) (*Handoff, []kv.BlockID) {
	t.Helper()
	blocks := e.blocksFor(len(tokens), first)
	e.fillPrompt(tokens, blocks)
	h := e.Grant(LeaseSpec{ID: "p-request", Blocks: blocks, Tokens: tokens})
	if h == nil {
		t.Fatal("no hand-off")
	}
	return h, blocks
}

// load runs one load of everything that h offers and returns its report.
func (e *testEngine) load(t *testing.T, id string, h *Handoff, tokens []kv.Token, local []kv.BlockID) LoadReport {
	t.Helper()
	e.Load(LoadSpec{
		ID: kv.RequestID(id), Handoff: h, Prompt: tokens, Local: local, ToTile: core.TilesOf(h.Offers(tokens)),
	})
	return e.report(t)
}

func (e *testEngine) report(t *testing.T) LoadReport {
	t.Helper()
	select {
	case r := <-e.Reports():
		return r
	case <-time.After(2 * patience):
		t.Fatal("no report")
		return LoadReport{}
	}
}

// freed waits for the blocks of one ended lease.
func (e *testEngine) freedBlocks(t *testing.T) []kv.BlockID {
	t.Helper()
	select {
	case b := <-e.Freed():
		return b
	case <-time.After(2 * patience):
		t.Fatalf("no lease ended: %+v", e.Status().Leases)
		return nil
	}
}

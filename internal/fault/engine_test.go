package fault

import (
	"bytes"
	"context"
	"encoding/binary"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"time"

	"tandem/internal/connector"
	"tandem/internal/kv"
	"tandem/internal/transfer"
)

// long is what no test waits for: it only ends one that hangs.
const long = time.Minute

// An engine is a connector with an injector in its network, and the least of a
// pool.
type engine struct {
	*connector.Connector
	t      *testing.T
	in     *Injector
	arena  *kv.Arena
	fired  chan struct{} // one for each fault
	killed chan struct{}
	next   int           // block to hand off
	lost   chan struct{} // one for each return that was given up
	stop   func()
}

// A signal is a log handler that tells of each line.
type signal struct{ fired chan struct{} }

func (s signal) Enabled(context.Context, slog.Level) bool { return true }
func (s signal) WithAttrs([]slog.Attr) slog.Handler       { return s }
func (s signal) WithGroup(string) slog.Handler            { return s }
func (s signal) Handle(context.Context, slog.Record) error {
	s.fired <- struct{}{}
	return nil
}

const blocks = 64

var layout = kv.Layout{Layers: 2, Heads: 2, HeadDim: 8, Elem: kv.F16, BlockTiles: 1}

func newEngine(t *testing.T, name string, opts ...func(*connector.Config)) *engine {
	t.Helper()
	arena, err := kv.NewArena(layout, blocks)
	if err != nil {
		t.Fatal(err)
	}
	e := &engine{
		t: t, arena: arena, fired: make(chan struct{}, 4096), killed: make(chan struct{}, 16), lost: make(chan struct{}, 16),
	}
	e.in = New(Config{Log: slog.New(signal{e.fired}), Kill: func() { e.killed <- struct{}{} }})
	cfg := connector.Config{
		EngineID: kv.EngineID(name), Role: connector.Both, Arenas: []*kv.Arena{arena}, Token: []byte("0123456789abcdef-cluster"),
		Fingerprint: []connector.Factor{{Name: "model", Value: "tiny"}}, Listen: "127.0.0.1:0",
		LoadTimeout: long, HandshakeTimeout: long, ReturnTimeout: long, NoProgress: long, LeaseDuration: long, Heartbeat: long,
		Decorate: func(n connector.Network) connector.Network { return Network(n, e.in, []*kv.Arena{arena}) },
		Metrics:  connector.Metrics{ReturnFailed: func(kv.EngineID) { e.lost <- struct{}{} }},
	}
	for _, o := range opts {
		o(&cfg)
	}
	if e.Connector, err = connector.New(cfg); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- e.Run(ctx) }()
	e.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(func() {
		e.stop()
		if err := arena.Close(); err != nil {
			t.Error(err)
		}
	})
	return e
}

// set gives the engine a plan.
func (e *engine) set(faults ...Fault) {
	e.t.Helper()
	if err := e.in.Set(Plan{Seed: 5, Faults: faults}); err != nil {
		e.t.Fatal(err)
	}
}

func wait[T any](t *testing.T, what string, c <-chan T) T {
	t.Helper()
	select {
	case v := <-c:
		return v
	case <-time.After(long):
		t.Fatal("nobody told of: ", what)
		panic("unreachable")
	}
}

// prompts are different for each number.
func promptOf(tokens, number int) []kv.Token {
	p := make([]kv.Token, tokens)
	for i := range p {
		p[i] = kv.Token(i*31 + number*7919)
	}
	return p
}

// grant hands off a prompt whose KV is a function of its tokens.
func (e *engine) grant(prompt []kv.Token) *connector.Handoff {
	e.t.Helper()
	tiles := (len(prompt) + kv.TileTokens - 1) / kv.TileTokens
	var table []kv.BlockID
	for i := range tiles {
		b := kv.BlockID(e.next % blocks) // what lies a round back has been returned
		e.next++
		table = append(table, b)
		tile := e.arena.Tile(kv.TileID(b))
		for at := 0; at < len(tile); at += 4 {
			v := uint32(prompt[i*kv.TileTokens])*2654435761 ^ uint32(at)*40503
			binary.LittleEndian.PutUint32(tile[at:], v)
		}
		e.arena.Seal(kv.TileID(b), min(kv.TileTokens, len(prompt)-i*kv.TileTokens))
	}
	h := e.Grant(connector.LeaseSpec{ID: "at-p", Blocks: table, Tokens: prompt})
	if h == nil {
		e.t.Fatal("no hand-off")
	}
	return h
}

// back waits until the blocks of a hand-off are P's again.
func (e *engine) back(h *connector.Handoff) {
	e.t.Helper()
	for !slices.Equal(wait(e.t, "freed blocks", e.Freed()), h.Blocks) {
	}
}

// A pulled load is its report, and what it left in D's arena.
type pulled struct {
	connector.LoadReport
	table []kv.BlockID
	tiles [][]byte // copies made when the report came
}

// pull loads all of h into blocks that hold 0xa5, and compares what it brought:
// tiles that count as valid are P's to the bit.
func (e *engine) pull(p *engine, id string, h *connector.Handoff, prompt []kv.Token) pulled {
	e.t.Helper()
	var r pulled
	tiles := (h.Offers(prompt) + kv.TileTokens - 1) / kv.TileTokens
	for i := range len(h.Blocks) {
		b := kv.BlockID(2*i + 1)
		r.table = append(r.table, b)
		tile := e.arena.Tile(kv.TileID(b))
		for at := range tile {
			tile[at] = 0xa5
		}
	}
	e.Load(connector.LoadSpec{ID: kv.RequestID(id), Handoff: h, Prompt: prompt, Local: r.table, ToTile: tiles})
	r.LoadReport = wait(e.t, "the report", e.Reports())
	if r.Valid+len(r.Invalid) != tiles || string(r.ID) != id || (r.Err == nil) != (len(r.Invalid) == 0) {
		e.t.Fatalf("%d valid and %v not valid of %d tiles, error %v", r.Valid, r.Invalid, tiles, r.Err)
	}
	for i, b := range r.table {
		mine := e.arena.Tile(kv.TileID(b))
		r.tiles = append(r.tiles, bytes.Clone(mine))
		if i < tiles && !slices.Contains(r.Invalid, i) && !bytes.Equal(mine, p.arena.Tile(kv.TileID(h.Blocks[i]))) {
			e.t.Errorf("tile %d counts as valid and is not P's", i)
		}
	}
	return r
}

// untouched reports a byte that landed after the report.
func (r *pulled) untouched(e *engine) {
	e.t.Helper()
	for i, b := range r.table {
		if !bytes.Equal(r.tiles[i], e.arena.Tile(kv.TileID(b))) {
			e.t.Errorf("tile %d was written to after the report", i)
		}
	}
}

// paths returns the options that make each transfer path the only one.
func paths(t *testing.T) map[string]func(*connector.Config) {
	dir := transfer.NewDirectory()
	sockets := t.TempDir()
	out := map[string]func(*connector.Config){
		transfer.PathTCP: func(c *connector.Config) { c.Paths = []string{transfer.PathTCP} },
		transfer.PathMem: func(c *connector.Config) { c.Paths, c.Directory = []string{transfer.PathMem}, dir },
	}
	a, err := kv.NewArena(layout, 1)
	if err != nil {
		t.Fatal(err)
	}
	if a.File() != nil {
		out[transfer.PathMemfd] = func(c *connector.Config) { c.Paths, c.UnixDir = []string{transfer.PathMemfd}, sockets+"/s" }
	}
	if err := a.Close(); err != nil {
		t.Fatal(err)
	}
	return out
}

func newSignal(fired chan struct{}) *slog.Logger { return slog.New(signal{fired}) }

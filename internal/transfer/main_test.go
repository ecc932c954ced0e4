package transfer

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"os"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
)

// childMode makes the test binary play the owner in another process.
const childMode = "TANDEM_TRANSFER_CHILD"

// patience is far beyond what anything takes here, on whatever machine.
const patience = time.Minute

func TestMain(m *testing.M) {
	if os.Getenv(childMode) != "" {
		child()
		return
	}
	goleak.VerifyTestMain(m)
}

func testToken() []byte { return []byte("a token of the test cluster") }

// startHost runs a host until the test ends. A limit that cfg leaves open is none
// that a slow machine meets.
func startHost(t testing.TB, cfg HostConfig, setup func(*Host)) *Host {
	t.Helper()
	if cfg.Token == nil {
		cfg.Token = testToken()
	}
	for _, d := range []*time.Duration{&cfg.Limits.Handshake, &cfg.Limits.KeepAlive, &cfg.Limits.NoProgress} {
		if *d == 0 {
			*d = patience
		}
	}
	h, err := NewHost(cfg)
	if err != nil {
		t.Fatal(err)
	}
	if setup != nil {
		setup(h)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- h.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run: %v", err)
		}
	})
	return h
}

// fill writes bytes that tell tile and position apart.
func fill(mem []byte, seed uint64) {
	r := rand.New(rand.NewPCG(seed, 1))
	for i := 0; i+8 <= len(mem); i += 8 {
		binary.LittleEndian.PutUint64(mem[i:], r.Uint64())
	}
}

func allowAll(Caller, uint64, [16]byte, []int32) error { return nil }

// A pair is an owner and a reader in one process.
type pair struct {
	owner, reader   *Host
	serving, agent  *Agent
	source, local   *Region
	memory, arrived []byte // of owner and reader
	peer            *Peer
	remote          *Remote
}

type pairOption struct {
	path      string
	geometry  Geometry
	authorize func(Caller, uint64, [16]byte, []int32) error
	limits    Limits
	addr      func(string) string // of a proxy in front of the owner
	workers   int
}

// newPair joins a reader to an owner over one path.
func newPair(t testing.TB, o pairOption) *pair {
	t.Helper()
	if o.geometry.Tiles == 0 {
		o.geometry = Geometry{Tiles: 64, TileBytes: 8 << 10}
	}
	if o.authorize == nil {
		o.authorize = allowAll
	}
	p := &pair{}
	dir := NewDirectory()
	if o.path != PathMem {
		dir = nil
	}
	p.owner = startHost(t, HostConfig{Name: "owner", UnixDir: socketDir(t), Directory: dir, Limits: o.limits}, func(h *Host) {
		p.serving = h.NewAgent(0, AgentConfig{Authorize: o.authorize})
	})
	p.reader = startHost(t, HostConfig{Name: "reader", Directory: dir, Limits: o.limits}, func(h *Host) {
		p.agent = h.NewAgent(0, AgentConfig{Paths: []string{o.path}, Workers: o.workers})
	})
	mem := newMemory(t, o.geometry.bytes())
	p.memory = mem.Bytes
	fill(p.memory, 7)
	p.arrived = make([]byte, o.geometry.bytes())
	p.source = register(t, p.serving, mem, o.geometry, 1)
	p.local = register(t, p.agent, Memory{Bytes: p.arrived}, o.geometry, 1)
	addr := p.owner.Addr()
	if o.addr != nil {
		addr = o.addr(addr)
	}
	peer, err := p.reader.Dial(t.Context(), addr)
	if err != nil {
		t.Fatal(err)
	}
	p.peer = peer
	if p.remote, err = p.agent.Join(t.Context(), peer, p.serving.Describe()); err != nil {
		t.Fatal(err)
	}
	if name, _ := p.remote.Path(); name != o.path {
		t.Fatalf("path %s, want %s", name, o.path)
	}
	return p
}

func socketDir(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "tt") //nolint:usetesting // t.TempDir is too long for a socket path of 107 bytes
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

func register(t testing.TB, a *Agent, mem Memory, g Geometry, epoch uint64) *Region {
	t.Helper()
	r, err := a.Register(mem, g, epoch)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.Close() })
	return r
}

func whole(g Geometry) Strides { return Strides{Pieces: 1, Len: g.TileBytes} }

func (p *pair) plan(t testing.TB) *Plan {
	t.Helper()
	pl, err := p.agent.Plan(p.local, p.remote, whole(p.local.geometry))
	if err != nil {
		t.Fatal(err)
	}
	return pl
}

// lists returns n random distinct tiles for both sides.
func lists(n, tiles int) (local, remote []int32) {
	r := rand.New(rand.NewPCG(3, 4))
	for _, v := range r.Perm(tiles)[:n] {
		local = append(local, int32(v))
	}
	for _, v := range r.Perm(tiles)[:n] {
		remote = append(remote, int32(v))
	}
	return local, remote
}

// held starts a read and returns when its first check runs, which waits until
// leave is closed.
func held(t testing.TB, p *Plan, local, remote []int32) (r *Read, leave chan struct{}) {
	t.Helper()
	entered, leave := make(chan struct{}), make(chan struct{})
	var once sync.Once
	r = p.Read(t.Context(), ReadRequest{Epoch: 1, Local: local, Remote: remote, Check: func(int) error {
		once.Do(func() { close(entered); <-leave })
		return nil
	}})
	<-entered
	return r, leave
}

func finish(t testing.TB, r *Read) error {
	t.Helper()
	select {
	case <-r.Done():
		return r.Err()
	case <-time.After(patience):
		t.Fatal("the read never ends")
		return nil
	}
}

func (p *pair) equal(t testing.TB, local, remote []int32) {
	t.Helper()
	size := p.local.geometry.TileBytes
	for i := range local {
		got, want := p.arrived[int(local[i])*size:][:size], p.memory[int(remote[i])*size:][:size]
		if !bytes.Equal(got, want) {
			t.Fatalf("tile %d, from %d, differs", local[i], remote[i])
		}
	}
}

func isEpoch(err error) bool {
	var e *EpochError
	return errors.As(err, &e)
}

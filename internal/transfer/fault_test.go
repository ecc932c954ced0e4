package transfer

import (
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// A proxy forwards TCP to an owner and can stall or cut what comes back.
type proxy struct {
	l      net.Listener
	to     string
	left   atomic.Int64  // bytes towards the reader before the fault; negative: no fault
	cut    atomic.Bool   // instead of stalling
	resume chan struct{} // closed by goOn
	once   sync.Once
	wg     sync.WaitGroup
	mu     sync.Mutex
	all    []net.Conn
}

func newProxy(t testing.TB, to string) *proxy {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &proxy{l: l, to: to, resume: make(chan struct{})}
	p.left.Store(-1)
	p.wg.Go(p.accept)
	t.Cleanup(func() {
		l.Close()
		p.goOn()
		p.closeAll()
		p.wg.Wait()
	})
	return p
}

// goOn lets stalled bytes through.
func (p *proxy) goOn() { p.once.Do(func() { close(p.resume) }) }

func (p *proxy) closeAll() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range p.all {
		c.Close()
	}
}

func (p *proxy) accept() {
	for {
		c, err := p.l.Accept()
		if err != nil {
			return
		}
		s, err := net.Dial("tcp", p.to)
		if err != nil {
			c.Close()
			continue
		}
		p.mu.Lock()
		p.all = append(p.all, c, s)
		p.mu.Unlock()
		p.wg.Go(func() { io.Copy(s, c); s.Close() })
		p.wg.Go(func() { p.back(c, s); c.Close(); s.Close() })
	}
}

func (p *proxy) back(c, s net.Conn) {
	b := make([]byte, 16<<10)
	for {
		n, err := s.Read(b)
		if left := p.left.Load(); left >= 0 && int64(n) > left {
			c.Write(b[:left])
			if p.cut.Load() {
				return
			}
			<-p.resume
			c.Write(b[left:n])
		} else {
			if left >= 0 {
				p.left.Add(-int64(n))
			}
			if _, err := c.Write(b[:n]); err != nil {
				return
			}
		}
		if err != nil {
			return
		}
	}
}

func TestStalledAndCutStreams(t *testing.T) {
	const total = 64 * 64 << 10
	for _, cut := range []bool{false, true} {
		for _, percent := range []int64{0, 1, 50, 99} {
			name := map[bool]string{false: "stall", true: "cut"}[cut]
			t.Run(name, func(t *testing.T) {
				var px *proxy
				p := newPair(t, pairOption{path: PathTCP, geometry: Geometry{Tiles: 64, TileBytes: 64 << 10}, addr: func(a string) string {
					px = newProxy(t, a)
					return px.l.Addr().String()
				}})
				local, remote := lists(64, 64)
				px.cut.Store(cut)
				px.left.Store(total * percent / 100)
				want, noProgress := ErrStalled, 100*time.Millisecond
				if cut {
					want, noProgress = ErrPeerGone, time.Hour
				}
				r := p.plan(t).Read(t.Context(), ReadRequest{Epoch: 1, Local: local, Remote: remote, NoProgress: noProgress})
				if err := finish(t, r); !errors.Is(err, want) {
					t.Fatalf("at %d %%: %v", percent, err)
				}
				failed := r.Failed()
				if min, max := 64-int(percent*64/100)-1, 64; len(failed) < min || len(failed) > max {
					t.Errorf("at %d %%: %d tiles failed", percent, len(failed))
				}
				before := string(p.arrived)
				px.left.Store(-1)
				px.goOn() // the late bytes come
				again, err := p.agent.Join(t.Context(), p.redial(t), p.serving.Describe())
				if err != nil {
					t.Fatal(err)
				}
				if before != string(p.arrived) {
					t.Fatal("bytes landed after the read was over")
				}
				p.remote = again
				if err := finish(t, p.plan(t).Read(t.Context(), ReadRequest{Epoch: 1, Local: local, Remote: remote})); err != nil {
					t.Fatalf("the next read: %v", err)
				}
				p.equal(t, local, remote)
			})
		}
	}
}

func (p *pair) redial(t testing.TB) *Peer {
	t.Helper()
	peer, err := p.reader.Dial(t.Context(), p.peer.addr)
	if err != nil {
		t.Fatal(err)
	}
	return peer
}

func TestLostConnectionEndsOnlyItsReads(t *testing.T) {
	for _, path := range paths {
		t.Run(path, func(t *testing.T) {
			var px *proxy
			p := newPair(t, pairOption{path: path, addr: func(a string) string {
				px = newProxy(t, a)
				return px.l.Addr().String()
			}})
			local, remote := lists(64, 64)
			r, leave := held(t, p.plan(t), local, remote)
			px.closeAll()
			<-p.peer.Done()
			<-r.stop
			close(leave)
			if err := finish(t, r); !errors.Is(err, ErrPeerGone) {
				t.Fatal(err)
			}
			if err := finish(t, p.plan(t).Read(t.Context(), ReadRequest{Epoch: 1, Local: local, Remote: remote})); !errors.Is(err, ErrPeerGone) {
				t.Fatalf("on the lost remote: %v", err)
			}
			next, err := p.agent.Join(t.Context(), p.redial(t), p.serving.Describe())
			if err != nil {
				t.Fatal(err)
			}
			p.remote = next
			if err := finish(t, p.plan(t).Read(t.Context(), ReadRequest{Epoch: 1, Local: local, Remote: remote})); err != nil {
				t.Fatal(err)
			}
			p.equal(t, local, remote)
		})
	}
}

// Dialling a black hole does not delay others, and its waiters share it.
func TestDialsDoNotWaitForEachOther(t *testing.T) {
	hole, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer hole.Close()
	owner := startHost(t, HostConfig{}, nil)
	reader := startHost(t, HostConfig{Limits: Limits{Handshake: time.Hour, BackOff: time.Hour}}, nil)
	failed := make(chan error, 2)
	for range 2 {
		go func() {
			_, err := reader.Dial(t.Context(), hole.Addr().String())
			failed <- err
		}()
	}
	eventually(t, "both wait for the black hole", func() bool {
		reader.dials.mu.Lock()
		defer reader.dials.mu.Unlock()
		e := reader.dials.entries[hole.Addr().String()]
		return e != nil && e.attempt != nil && e.attempt.waiters == 2
	})
	peers := make(chan *Peer, 20)
	for range 20 {
		go func() {
			p, err := reader.Dial(t.Context(), owner.Addr())
			if err != nil {
				t.Error(err)
			}
			peers <- p
		}()
	}
	first := <-peers
	for range 19 {
		if p := <-peers; p != first {
			t.Error("two connections to one address")
		}
	}
	if n := len(failed); n != 0 {
		t.Errorf("%d dials of the black hole ended before those of the healthy peer", n)
	}
	if n := owner.Stats().Accepted; n != 1 {
		t.Errorf("%d handshakes for 20 dials", n)
	}
	hole.Close() // what was not accepted is reset
	for range 2 {
		if err := <-failed; err == nil {
			t.Error("a black hole answered")
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	if _, err := reader.Dial(ctx, hole.Addr().String()); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("within the back-off: %v", err)
	}
}

func TestReleaseWaitsForReadsAndIsUndone(t *testing.T) {
	for _, path := range paths {
		t.Run(path, func(t *testing.T) {
			p := newPair(t, pairOption{path: path})
			local, remote := lists(64, 64)
			r, leave := held(t, p.plan(t), local, remote)
			ctx, cancel := context.WithTimeout(t.Context(), 5*time.Millisecond)
			defer cancel()
			if err := p.local.Release(ctx); !errors.Is(err, context.DeadlineExceeded) {
				t.Fatalf("released under a running read: %v", err)
			}
			if _, released := p.local.Epoch(); released {
				t.Fatal("released all the same")
			}
			close(leave)
			if err := finish(t, r); err != nil {
				t.Fatal(err)
			}
			if err := p.local.Release(t.Context()); err != nil {
				t.Fatal(err)
			}
			again := p.plan(t).Read(t.Context(), ReadRequest{Epoch: 1, Local: local, Remote: remote})
			if err := finish(t, again); !errors.Is(err, ErrReleased) {
				t.Fatalf("into released memory: %v", err)
			}
			if err := p.local.Restore(Memory{Bytes: p.arrived}, 2); err != nil {
				t.Fatal(err)
			}
			if err := finish(t, p.plan(t).Read(t.Context(), ReadRequest{Epoch: 1, Local: local, Remote: remote})); err != nil {
				t.Fatal(err)
			}
		})
	}
}

// A stream to a reader that takes nothing does not hold a release up.
func TestReleaseCutsAStuckStream(t *testing.T) {
	var px *proxy
	p := newPair(t, pairOption{path: PathTCP, limits: Limits{NoProgress: time.Hour, KeepAlive: time.Hour}, geometry: Geometry{Tiles: 64, TileBytes: 1 << 20}, addr: func(a string) string {
		px = newProxy(t, a)
		return px.l.Addr().String()
	}})
	px.left.Store(1 << 20)
	local, remote := lists(64, 64)
	r := p.plan(t).Read(t.Context(), ReadRequest{Epoch: 1, Local: local, Remote: remote})
	eventually(t, "the stream runs", func() bool { return r.progress.Load() > 1<<18 })
	ctx, cancel := context.WithTimeout(t.Context(), patience) // before a limit ends the stream
	defer cancel()
	if err := p.source.Release(ctx); err != nil {
		t.Fatal(err)
	}
	px.goOn()
	if err := finish(t, r); err == nil {
		t.Fatal("the read is complete")
	}
}

func TestOwnerSleepsAndWakes(t *testing.T) {
	for _, path := range paths {
		t.Run(path, func(t *testing.T) {
			p := newPair(t, pairOption{path: path})
			pl := p.plan(t)
			local, remote := lists(64, 64)
			read := func(epoch uint64) error {
				return finish(t, pl.Read(t.Context(), ReadRequest{Epoch: epoch, Local: local, Remote: remote}))
			}
			first := p.serving.Describe()
			if err := p.source.Release(t.Context()); err != nil {
				t.Fatal(err)
			}
			if err := read(1); !errors.Is(err, ErrReleased) {
				t.Fatalf("asleep: %v", err)
			}
			if _, err := p.agent.Join(t.Context(), p.peer, p.serving.Describe()); !errors.Is(err, ErrReleased) {
				t.Fatalf("joining a sleeper: %v", err)
			}
			if err := p.remote.Update(p.serving.Describe()); err != nil {
				t.Fatal(err)
			}
			if err := read(1); !errors.Is(err, ErrReleased) {
				t.Fatalf("asleep and known: %v", err)
			}
			woken := newMemory(t, p.source.geometry.bytes())
			t.Cleanup(func() { p.source.Close() }) // before its new memory
			p.memory = woken.Bytes
			fill(p.memory, 8)
			if err := p.source.Restore(woken, 1); !isEpoch(err) {
				t.Fatalf("restored without a new epoch: %v", err)
			}
			if err := p.source.Restore(woken, 2); err != nil {
				t.Fatal(err)
			}
			if err := read(2); !isEpoch(err) {
				t.Fatalf("before the update: %v", err)
			}
			if err := p.remote.Update(p.serving.Describe()); err != nil {
				t.Fatal(err)
			}
			if err := p.remote.Update(first); !isEpoch(err) {
				t.Fatalf("an old description: %v", err)
			}
			if err := read(2); err != nil {
				t.Fatal(err)
			}
			p.equal(t, local, remote)
			if err := read(1); !isEpoch(err) {
				t.Fatalf("the old epoch: %v", err)
			}
		})
	}
}

func TestJoinOfAnotherEngineIsRefused(t *testing.T) {
	p := newPair(t, pairOption{path: PathTCP})
	other := startHost(t, HostConfig{}, nil).NewAgent(0, AgentConfig{})
	register(t, other, newMemory(t, 4096), Geometry{Tiles: 1, TileBytes: 4096}, 1)
	var pe *ProtocolError
	if _, err := p.agent.Join(t.Context(), p.peer, other.Describe()); !errors.As(err, &pe) {
		t.Fatal(err)
	}
	if err := p.remote.Update(other.Describe()); !errors.As(err, &pe) {
		t.Fatal(err)
	}
}

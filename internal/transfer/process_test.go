//go:build !invariants

package transfer

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
)

// What the owner in the child process does when it is called.
const (
	kindDescribe Kind = 1 + iota
	kindCycle         // release, truncate, restore with the pattern of the next epoch
	kindRelease       // release and truncate
	kindTruncate      // truncate without a word
	kindStream        // a raw writev stream of the tiles in the body
)

// child is the owner's process: "tiles tileBytes socketDir" in the environment,
// its address on standard output, until standard input ends.
func child() {
	if err := own(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func own() error {
	f := strings.Fields(os.Getenv(childMode))
	tiles, _ := strconv.Atoi(f[0])
	size, _ := strconv.Atoi(f[1])
	g := Geometry{Tiles: tiles, TileBytes: size}
	h, err := NewHost(HostConfig{
		Name: "child", UnixDir: f[2], Token: testToken(),
		Limits: Limits{Handshake: patience, KeepAlive: patience, NoProgress: patience},
	})
	if err != nil {
		return err
	}
	mem, err := mapFile(g.bytes())
	if err != nil {
		return err
	}
	pattern(mem.Bytes, g, 1)
	a := h.NewAgent(0, AgentConfig{Authorize: allowAll})
	r, err := a.Register(mem, g, 1)
	if err != nil {
		return err
	}
	var mu sync.Mutex
	h.Handle(kindDescribe, func(context.Context, Caller, []byte) ([]byte, error) { return a.Describe(), nil })
	release := func(ctx context.Context) error {
		if err := r.Release(ctx); err != nil {
			return err
		}
		return errors.Join(unix.Ftruncate(int(mem.File.Fd()), 0), unix.Munmap(mem.Bytes), mem.File.Close())
	}
	h.Handle(kindRelease, func(ctx context.Context, _ Caller, _ []byte) ([]byte, error) { return nil, release(ctx) })
	h.Handle(kindTruncate, func(context.Context, Caller, []byte) ([]byte, error) {
		return nil, unix.Ftruncate(int(mem.File.Fd()), 0)
	})
	h.Handle(kindCycle, func(ctx context.Context, _ Caller, _ []byte) ([]byte, error) {
		mu.Lock()
		defer mu.Unlock()
		if err := release(ctx); err != nil {
			return nil, err
		}
		epoch, _ := r.Epoch()
		if mem, err = mapFile(g.bytes()); err != nil {
			return nil, err
		}
		pattern(mem.Bytes, g, epoch+1)
		return nil, r.Restore(mem, epoch+1)
	})
	ctx, cancel := context.WithCancel(context.Background())
	raw, err := rawStream(mem.Bytes, g)
	if err != nil {
		cancel()
		return err
	}
	fmt.Fprintln(os.Stdout, h.Addr(), raw)
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		cancel()
	}()
	return h.Run(ctx)
}

// pattern makes every tile tell its epoch and number in every line.
func pattern(mem []byte, g Geometry, epoch uint64) {
	for t := range g.Tiles {
		b := mem[t*g.TileBytes:][:g.TileBytes]
		for i := 0; i+16 <= len(b); i += 16 {
			binary.LittleEndian.PutUint64(b[i:], epoch)
			binary.LittleEndian.PutUint64(b[i+8:], uint64(t))
		}
	}
}

func checkPattern(b []byte, epoch uint64, tile int32) error {
	for i := 0; i+16 <= len(b); i += 16 {
		if e, n := binary.LittleEndian.Uint64(b[i:]), binary.LittleEndian.Uint64(b[i+8:]); e != epoch || n != uint64(tile) {
			return fmt.Errorf("byte %d is of epoch %d and tile %d", i, e, n)
		}
	}
	return nil
}

// A process is an owner in another process and a reader here.
type process struct {
	cmd     *exec.Cmd
	addr    string
	raw     string // of the raw stream
	host    *Host
	agent   *Agent
	local   *Region
	arrived []byte
	peer    *Peer
	remote  *Remote
	g       Geometry
}

func startProcess(t testing.TB, g Geometry, path string, workers int) *process {
	t.Helper()
	p := &process{g: g, arrived: make([]byte, g.bytes())}
	p.cmd = exec.Command(os.Args[0])
	p.cmd.Env = append(os.Environ(), fmt.Sprintf("%s=%d %d %s", childMode, g.Tiles, g.TileBytes, socketDir(t)))
	p.cmd.Stderr = os.Stderr
	in, err := p.cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		in.Close()
		_ = p.cmd.Wait()
	})
	if _, err := fmt.Fscan(out, &p.addr, &p.raw); err != nil {
		t.Fatal(err)
	}
	p.host = startHost(t, HostConfig{Name: "parent"}, func(h *Host) {
		p.agent = h.NewAgent(0, AgentConfig{Paths: []string{path}, Workers: workers})
	})
	p.local = register(t, p.agent, Memory{Bytes: p.arrived}, g, 1)
	if p.peer, err = p.host.Dial(t.Context(), p.addr); err != nil {
		t.Fatal(err)
	}
	if p.remote, err = p.agent.Join(t.Context(), p.peer, p.describe(t)); err != nil {
		t.Fatal(err)
	}
	return p
}

func (p *process) describe(t testing.TB) []byte {
	t.Helper()
	return p.call(t, kindDescribe)
}

func (p *process) call(t testing.TB, k Kind) []byte {
	t.Helper()
	b, err := p.peer.Call(t.Context(), k, nil)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func (p *process) plan(t testing.TB) *Plan {
	t.Helper()
	pl, err := p.agent.Plan(p.local, p.remote, whole(p.g))
	if err != nil {
		t.Fatal(err)
	}
	return pl
}

func TestProcessesReadContent(t *testing.T) {
	for _, path := range []string{PathMemfd, PathTCP} {
		t.Run(path, func(t *testing.T) {
			p := startProcess(t, Geometry{Tiles: 128, TileBytes: 40 << 10}, path, 2)
			local, remote := lists(128, 128)
			if err := finish(t, p.plan(t).Read(t.Context(), ReadRequest{Epoch: 1, Local: local, Remote: remote})); err != nil {
				t.Fatal(err)
			}
			for i := range local {
				if err := checkPattern(p.arrived[int(local[i])*p.g.TileBytes:][:p.g.TileBytes], 1, remote[i]); err != nil {
					t.Fatal(err)
				}
			}
			name, why := p.remote.Path()
			t.Log(name, why)
		})
	}
}

// mapped reports whether this process still maps or holds a peer's arena.
func mapped(t testing.TB) bool {
	t.Helper()
	m, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		t.Fatal(err)
	}
	if bytes.Contains(m, []byte("memfd:test-arena")) {
		return true
	}
	fds, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range fds {
		if s, _ := os.Readlink("/proc/self/fd/" + e.Name()); strings.Contains(s, "test-arena") {
			return true
		}
	}
	return false
}

// The reader's map and descriptor are all that keeps a dead owner's arena.
func TestKilledOwnerLeavesNoMemory(t *testing.T) {
	g := Geometry{Tiles: 256, TileBytes: 1 << 20}
	p := startProcess(t, g, PathMemfd, 2)
	if !mapped(t) {
		t.Fatal("nothing is mapped while the owner lives")
	}
	local, remote := lists(256, 256)
	r, leave := held(t, p.plan(t), local, remote)
	if err := p.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the death is noticed", func() bool { // before KeepAlive is over
		select {
		case <-r.stop:
			return true
		default:
			return false
		}
	})
	close(leave)
	if err := finish(t, r); !errors.Is(err, ErrPeerGone) {
		t.Fatal(err)
	}
	eventually(t, "map and descriptor gone", func() bool { return !mapped(t) })
}

// What an owner does with its memory, and what a reader with an old map gets.
func TestReaderOfReleasedMemory(t *testing.T) {
	for _, c := range []struct {
		name string
		kind Kind
		want func(error) bool
	}{
		{"truncated without a word", kindTruncate, func(err error) bool { return errors.Is(err, ErrReleased) }},
		{"released and truncated", kindRelease, func(err error) bool { return errors.Is(err, ErrReleased) }},
		{"released and restored elsewhere", kindCycle, isEpoch},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := startProcess(t, Geometry{Tiles: 16, TileBytes: 64 << 10}, PathMemfd, 2)
			p.call(t, c.kind)
			// Past the owner's own check, as if the release came after it.
			v, err := p.remote.acquire(1)
			if err != nil {
				t.Fatal(err)
			}
			defer p.remote.drop(v)
			r := &Read{plan: p.plan(t)}
			err = v.copyTile(p.arrived[:p.g.TileBytes], 3, p.g.TileBytes, whole(p.g), &r.stopped)
			if !c.want(err) {
				t.Fatal(err)
			}
		})
	}
}

// Reads race with sleep and wake; no byte of another epoch is ever accepted.
func TestReadsRaceWithSleep(t *testing.T) {
	for _, path := range []string{PathMemfd, PathTCP} {
		t.Run(path, func(t *testing.T) {
			p := startProcess(t, Geometry{Tiles: 64, TileBytes: 64 << 10}, path, 2)
			pl := p.plan(t)
			local, remote := lists(64, 64)
			const cycles = 30
			cycled := make(chan error, 1)
			midway := make(chan struct{}, 1) // a read is in the middle of its tiles
			go func() {
				for range cycles {
					<-midway
					if _, err := p.peer.Call(context.Background(), kindCycle, nil); err != nil {
						cycled <- err
						return
					}
				}
				cycled <- nil
			}()
			good, stale := 0, 0
			for last := false; !last; {
				select {
				case err := <-cycled:
					if err != nil {
						t.Fatal(err)
					}
					last = true
				default:
				}
				epoch := p.remote.Epoch()
				r := pl.Read(t.Context(), ReadRequest{Epoch: epoch, Local: local, Remote: remote, Check: func(i int) error {
					if i == len(local)/4 {
						select {
						case midway <- struct{}{}:
						default:
						}
					}
					return nil
				}})
				err := finish(t, r)
				switch {
				case err == nil:
				case isEpoch(err), errors.Is(err, ErrReleased),
					path == PathTCP && errors.Is(err, ErrPeerGone): // a release cuts a stream that takes long
					stale++
					if err := p.remote.Update(p.describe(t)); err != nil && !isEpoch(err) && !errors.Is(err, ErrReleased) {
						t.Fatal(err)
					}
					last = false
				default:
					t.Fatal(err)
				}
				failed := map[int]bool{}
				for _, i := range r.Failed() {
					failed[i] = true
				}
				for i := range local {
					if failed[i] {
						continue
					}
					good++
					if err := checkPattern(p.arrived[int(local[i])*p.g.TileBytes:][:p.g.TileBytes], epoch, remote[i]); err != nil {
						t.Fatalf("accepted under epoch %d: %v", epoch, err)
					}
				}
				if epoch == cycles+1 && err == nil {
					break
				}
			}
			t.Logf("%d tiles accepted, %d reads met another epoch", good, stale)
			if good == 0 || stale == 0 {
				t.Error("the race did not happen")
			}
		})
	}
}

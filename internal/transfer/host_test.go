package transfer

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

const kindEcho Kind = 7

func echo(_ context.Context, _ Caller, body []byte) ([]byte, error) { return body, nil }

func TestCallsAndNotices(t *testing.T) {
	var mu sync.Mutex
	var got []string
	gone := make(chan Caller, 1)
	owner := startHost(t, HostConfig{Name: "owner"}, func(h *Host) {
		h.Handle(kindEcho, echo)
		h.Handle(8, func(_ context.Context, _ Caller, body []byte) ([]byte, error) {
			switch string(body) {
			case "epoch":
				return nil, &EpochError{Have: 3, Want: 2}
			case "released":
				return nil, ErrReleased
			case "refused":
				return nil, &RefusedError{Code: "busy-lease", Text: "claimed"}
			}
			return nil, errors.New("some trouble")
		})
		h.OnNotice(func(from Caller, body []byte) {
			mu.Lock()
			defer mu.Unlock()
			got = append(got, from.Name+":"+string(body))
		})
		h.OnDisconnect(func(c Caller) { gone <- c })
	})
	reader := startHost(t, HostConfig{Name: "reader"}, nil)
	p, err := reader.Dial(t.Context(), owner.Addr())
	if err != nil {
		t.Fatal(err)
	}
	if p.Incarnation() != owner.Incarnation() || p.Name() != "owner" {
		t.Fatalf("peer is %x %s", p.Incarnation(), p.Name())
	}
	again, err := reader.Dial(t.Context(), owner.Addr())
	if err != nil || again != p {
		t.Fatalf("second dial: another connection, %v", err)
	}
	again.Close()
	if out, err := p.Call(t.Context(), kindEcho, []byte("hello")); err != nil || string(out) != "hello" {
		t.Fatalf("%q, %v", out, err)
	}
	_, err = p.Call(t.Context(), 8, []byte("epoch"))
	if !isEpoch(err) {
		t.Error(err)
	}
	if _, err = p.Call(t.Context(), 8, []byte("released")); !errors.Is(err, ErrReleased) {
		t.Error(err)
	}
	if _, err = p.Call(t.Context(), 8, []byte("refused")); !isRefused(err, "busy-lease") {
		t.Error(err)
	}
	if _, err = p.Call(t.Context(), 8, nil); !isRefused(err, RefusedFault) || !strings.Contains(err.Error(), "some trouble") {
		t.Error(err)
	}
	if _, err = p.Call(t.Context(), 9, nil); !isRefused(err, RefusedKind) {
		t.Error(err)
	}
	if _, err = p.Call(t.Context(), kindEcho, make([]byte, MaxBody+1)); !isBounds(err) {
		t.Error(err)
	}
	if err := p.Notify(t.Context(), []byte("n1")); err != nil {
		t.Error(err)
	}
	mu.Lock()
	defer mu.Unlock()
	if len(got) != 1 || got[0] != "reader:n1" { // acknowledged: it is there already
		t.Errorf("notices %q", got)
	}
	p.Close()
	if c := <-gone; c.Incarnation != reader.Incarnation() {
		t.Errorf("disconnected %x", c.Incarnation)
	}
	if _, err := p.Call(t.Context(), kindEcho, nil); !errors.Is(err, ErrPeerGone) {
		t.Error(err)
	}
}

func isRefused(err error, code string) bool {
	var r *RefusedError
	return errors.As(err, &r) && r.Code == code
}

func TestCallEndsAtItsDeadlineAndWithTheConnection(t *testing.T) {
	var ends sync.WaitGroup
	ends.Add(2)
	entered := make(chan struct{}, 2)
	owner := startHost(t, HostConfig{}, func(h *Host) {
		h.Handle(kindEcho, func(ctx context.Context, _ Caller, _ []byte) ([]byte, error) {
			entered <- struct{}{}
			<-ctx.Done()
			ends.Done()
			return nil, ctx.Err()
		})
	})
	reader := startHost(t, HostConfig{}, nil)
	p, err := reader.Dial(t.Context(), owner.Addr())
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	defer cancel(nil)
	go func() {
		<-entered
		cancel(context.DeadlineExceeded) // while the other side works on it
	}()
	if _, err := p.Call(ctx, kindEcho, nil); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatal(err)
	}
	result := make(chan error, 1)
	go func() {
		_, err := p.Call(t.Context(), kindEcho, nil)
		result <- err
	}()
	<-entered
	p.Close()
	if err := <-result; !errors.Is(err, ErrPeerGone) {
		t.Fatal(err)
	}
	ends.Wait()
}

func TestWrongTokenIsRefusedBeforeAnyPayload(t *testing.T) {
	called := false
	owner := startHost(t, HostConfig{Token: []byte("another cluster's token")}, func(h *Host) {
		h.Handle(kindEcho, func(context.Context, Caller, []byte) ([]byte, error) { called = true; return nil, nil })
	})
	reader := startHost(t, HostConfig{}, nil)
	if _, err := reader.Dial(t.Context(), owner.Addr()); !isRefused(err, RefusedToken) {
		t.Fatal(err)
	}
	if s := owner.Stats(); s.Refused != 1 || s.Accepted != 0 || called {
		t.Fatalf("%+v, called %v", s, called)
	}
}

// A listener that lets everyone in without knowing the token learns nothing and
// is refused.
func TestListenerMustProveTheToken(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	rest := make(chan []byte, 1)
	go func() {
		c, err := l.Accept()
		if err != nil {
			return
		}
		defer c.Close()
		_, accept, _ := challenge(c, identity{Incarnation: [16]byte{1}, Token: []byte("guessed")}, time.Now().Add(patience))
		if accept != nil {
			panic("the token was accepted")
		}
		_, _ = c.Write(encodeFrame(frame{Type: frameAccept, Body: make([]byte, 40)}))
		b, _ := io.ReadAll(c)
		rest <- b
	}()
	reader := startHost(t, HostConfig{}, nil)
	if _, err := reader.Dial(t.Context(), l.Addr().String()); !isRefused(err, RefusedToken) {
		t.Fatal(err)
	}
	if b := <-rest; len(b) != 0 {
		t.Fatalf("%d bytes were sent to a listener without the token", len(b))
	}
}

// What one side says cannot be used as the other side's proof.
func TestProofsDifferByRoleAndNonce(t *testing.T) {
	h := &hello{Min: 1, Max: 1, Purpose: forCalls, Incarnation: [16]byte{1}, Nonce: [32]byte{2}}
	base := string(proof(testToken(), "dial", 1, h, [16]byte{3}, [32]byte{4}))
	other := *h
	other.Purpose = forData
	for name, b := range map[string][]byte{
		"role":        proof(testToken(), "listen", 1, h, [16]byte{3}, [32]byte{4}),
		"incarnation": proof(testToken(), "dial", 1, h, [16]byte{5}, [32]byte{4}),
		"nonce":       proof(testToken(), "dial", 1, h, [16]byte{3}, [32]byte{5}),
		"version":     proof(testToken(), "dial", 2, h, [16]byte{3}, [32]byte{4}),
		"purpose":     proof(testToken(), "dial", 1, &other, [16]byte{3}, [32]byte{4}),
		"token":       proof([]byte("x"), "dial", 1, h, [16]byte{3}, [32]byte{4}),
	} {
		if string(b) == base {
			t.Errorf("the proof does not depend on the %s", name)
		}
	}
}

func TestDialOfItselfAndOfNobody(t *testing.T) {
	h := startHost(t, HostConfig{}, nil)
	if _, err := h.Dial(t.Context(), h.Addr()); !isRefused(err, RefusedSelf) {
		t.Error(err)
	}
	if _, err := h.Dial(t.Context(), "unix:"+filepath.Join(socketDir(t), "none")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("nobody is there: %v", err)
	}
	if _, err := NewHost(HostConfig{Listen: h.Addr(), Token: testToken()}); err == nil || !strings.Contains(err.Error(), h.Addr()) {
		t.Errorf("taken port: %v", err)
	}
	if _, err := NewHost(HostConfig{Token: []byte("short")}); err == nil {
		t.Error("a short token was taken")
	}
}

func TestSocketDirectoryMustBePrivate(t *testing.T) {
	dir := socketDir(t)
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if _, err := NewHost(HostConfig{UnixDir: dir, Token: testToken()}); !errors.Is(err, ErrSocketDir) || !strings.Contains(err.Error(), dir) {
		t.Fatalf("a directory that others can enter: %v", err)
	}
	inner := filepath.Join(dir, "in")
	stale := filepath.Join(inner, "peer-00.sock")
	if err := os.MkdirAll(inner, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(stale, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	a := startHost(t, HostConfig{UnixDir: inner}, nil)
	if err := os.Remove(a.unixPath + ".lock"); err != nil { // as a cleaner of temporary folders
		t.Fatal(err)
	}
	b := startHost(t, HostConfig{UnixDir: inner}, nil)
	if _, err := os.Stat(stale); !os.IsNotExist(err) {
		t.Error("the socket of a dead host is still there")
	}
	p, err := b.Dial(t.Context(), "unix:"+a.unixPath)
	if err != nil || p.Incarnation() != a.Incarnation() {
		t.Fatalf("over the unix socket: %v", err)
	}
}

// A host that is killed as it starts or ends leaves a lock without a socket.
func TestLocksOfKilledHostsAreRemoved(t *testing.T) {
	dir := socketDir(t)
	old, young := filepath.Join(dir, "peer-00.sock.lock"), filepath.Join(dir, "peer-01.sock.lock")
	for _, path := range []string{old, young} {
		if err := os.WriteFile(path, nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	a := startHost(t, HostConfig{UnixDir: dir}, nil)
	if err := os.Remove(a.unixPath); err != nil { // a lock that is held is not of a killed host
		t.Fatal(err)
	}
	long := time.Now().Add(-time.Hour)
	for _, path := range []string{old, a.unixPath + ".lock"} {
		if err := os.Chtimes(path, long, long); err != nil {
			t.Fatal(err)
		}
	}
	startHost(t, HostConfig{UnixDir: dir}, nil)
	for path, want := range map[string]bool{old: false, young: true, a.unixPath + ".lock": true} {
		if _, err := os.Stat(path); (err == nil) != want {
			t.Errorf("%s: %v", path, err)
		}
	}
}

// A folder that is no folder any more costs a host nothing at its end.
func TestSocketDirectoryMayVanish(t *testing.T) {
	dir := filepath.Join(socketDir(t), "in")
	h, err := NewHost(HostConfig{UnixDir: dir, Token: testToken()})
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(os.RemoveAll(dir), os.WriteFile(dir, nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := h.Run(ctx); err != nil {
		t.Error(err)
	}
}

func TestGarbageConnectionsHurtNobody(t *testing.T) {
	owner := startHost(t, HostConfig{Limits: Limits{Pending: 32, Handshake: time.Hour}}, func(h *Host) { h.Handle(kindEcho, echo) })
	reader := startHost(t, HostConfig{}, nil)
	before := settled(t, owner, reader)
	hi := hello{Min: 1, Max: 1, Purpose: forCalls, Incarnation: [16]byte{1}}
	old := hi
	old.Min, old.Max = 90, 99
	garbage := [][]byte{
		nil,
		[]byte("GET / HTTP/1.1\r\nHost: x\r\n\r\n"),
		{1, 0, 0},
		appendHead(nil, frame{Type: frameHello}, 1<<31),
		encodeFrame(frame{Type: frameCall, Body: []byte("before the proof")}),
		encodeFrame(frame{Type: frameHello, Body: []byte("TNDM")}),
		encodeFrame(frame{Type: frameHello, Body: old.encode()}),
		append(encodeFrame(frame{Type: frameHello, Body: hi.encode()}), encodeFrame(frame{Type: frameProof, Body: make([]byte, 32)})...),
	}
	var conns []net.Conn
	for i := range 1000 {
		c, err := net.Dial("tcp", owner.Addr())
		if err != nil {
			t.Fatal(err)
		}
		_, _ = c.Write(garbage[i%len(garbage)])
		conns = append(conns, c)
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience) // long before a garbage connection ends by itself
	defer cancel()
	p, err := reader.Dial(ctx, owner.Addr())
	if err != nil {
		t.Fatal(err)
	}
	if out, err := p.Call(ctx, kindEcho, []byte("x")); err != nil || string(out) != "x" {
		t.Fatal(err)
	}
	eventually(t, "each kind is counted", func() bool { // a greeting may be later than that of the peer
		s := owner.Stats()
		return s.Evicted > 0 && s.BadFrames > 0 && s.Refused > 0
	})
	if s := owner.Stats(); s.Accepted != 2 {
		t.Errorf("%+v", s)
	}
	for _, c := range conns {
		c.Close()
	}
	p.Close()
	eventually(t, "goroutines back to the start", func() bool { return runtime.NumGoroutine() <= before })
}

// eventually polls for what other goroutines or processes bring about.
func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	end := time.After(patience)
	for !ok() {
		select {
		case <-tick.C:
		case <-end:
			t.Fatalf("never: %s", what)
		}
	}
}

// After authentication too a bad frame closes its own connection only.
func TestBadFrameClosesOnlyItsConnection(t *testing.T) {
	owner := startHost(t, HostConfig{}, func(h *Host) { h.Handle(kindEcho, echo) })
	reader := startHost(t, HostConfig{}, nil)
	good, err := reader.Dial(t.Context(), owner.Addr())
	if err != nil {
		t.Fatal(err)
	}
	for _, b := range [][]byte{
		appendHead(nil, frame{Type: frameCall}, MaxBody+1),
		encodeFrame(frame{Type: frameAnswer}),
		appendHead(nil, frame{Type: 77}, 0),
	} {
		bad := owner.Stats().BadFrames
		c, _, err := reader.open(t.Context(), owner.Addr(), forCalls, 0)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := c.Write(b); err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadAll(c); err != nil && !errors.Is(err, net.ErrClosed) && !strings.Contains(err.Error(), "reset") {
			t.Error(err)
		}
		c.Close()
		eventually(t, "the frame is counted", func() bool { return owner.Stats().BadFrames == bad+1 })
	}
	if _, err := good.Call(t.Context(), kindEcho, nil); err != nil {
		t.Fatal(err)
	}
	// A data connection needs the session of its own caller.
	if _, _, err := reader.open(t.Context(), owner.Addr(), forData, 1<<40); !isRefused(err, RefusedSession) {
		t.Error(err)
	}
}

func TestReconnectsLeaveNothingBehind(t *testing.T) {
	owner := startHost(t, HostConfig{}, func(h *Host) { h.Handle(kindEcho, echo) })
	reader := startHost(t, HostConfig{}, nil)
	fds := func() int {
		e, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Fatal(err)
		}
		return len(e)
	}
	heap := func() uint64 {
		runtime.GC()
		runtime.GC() // what finalizers kept
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	goroutines, files, before := settled(t, owner, reader), fds(), heap()
	for range 200 {
		p, err := reader.Dial(t.Context(), owner.Addr())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := p.Call(t.Context(), kindEcho, nil); err != nil {
			t.Fatal(err)
		}
		p.Close()
	}
	eventually(t, "goroutines and descriptors back to the start", func() bool {
		return runtime.NumGoroutine() <= goroutines && fds() <= files
	})
	if after := heap(); after > before+1<<20 {
		t.Errorf("the heap grew from %d to %d bytes", before, after)
	}
}

func TestTooManyCallsAreRefused(t *testing.T) {
	block := make(chan struct{})
	owner := startHost(t, HostConfig{Limits: Limits{Calls: 2}}, func(h *Host) {
		h.Handle(kindEcho, func(ctx context.Context, _ Caller, _ []byte) ([]byte, error) {
			select {
			case <-block:
			case <-ctx.Done():
			}
			return nil, nil
		})
	})
	reader := startHost(t, HostConfig{}, nil)
	p, err := reader.Dial(t.Context(), owner.Addr())
	if err != nil {
		t.Fatal(err)
	}
	results := make(chan error, 3)
	for range 3 {
		go func() {
			_, err := p.Call(t.Context(), kindEcho, nil)
			results <- err
		}()
	}
	if err := <-results; !isRefused(err, RefusedBusy) {
		t.Fatal(err)
	}
	close(block)
	for range 2 {
		if err := <-results; err != nil {
			t.Fatal(err)
		}
	}
}

// A peer has so many data connections and no more; one that ends makes room.
func TestTooManyDataConnectionsAreRefused(t *testing.T) {
	owner := startHost(t, HostConfig{Limits: Limits{Attached: 2}}, nil)
	reader := startHost(t, HostConfig{}, nil)
	control, a, err := reader.open(t.Context(), owner.Addr(), forCalls, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer control.Close()
	var open []net.Conn
	for range 2 {
		c, _, err := reader.open(t.Context(), owner.Addr(), forData, a.Session)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		open = append(open, c)
	}
	if _, _, err := reader.open(t.Context(), owner.Addr(), forData, a.Session); !isRefused(err, RefusedBusy) {
		t.Error(err)
	}
	open[0].Close()
	eventually(t, "there is room again", func() bool {
		c, _, err := reader.open(t.Context(), owner.Addr(), forData, a.Session)
		if err == nil {
			c.Close()
		}
		return err == nil
	})
	control.Close()
	if err := open[1].SetDeadline(time.Now().Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadAll(open[1]); err != nil && !strings.Contains(err.Error(), "reset") {
		t.Errorf("the end of the control connection: %v", err)
	}
}

func TestSilentConnectionEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := net.Pipe()
		l := newLink(a, Limits{KeepAlive: time.Second}.withDefaults())
		var wg sync.WaitGroup
		wg.Go(l.write)
		wg.Go(func() { _, _ = io.Copy(io.Discard, b) })
		wg.Go(func() { // pings for ten seconds
			for range 10 {
				<-time.After(time.Second)
				_, _ = b.Write(encodeFrame(frame{Type: framePing}))
			}
		})
		start := time.Now()
		_, err := l.read()
		if d := time.Since(start); err == nil || d != 13*time.Second {
			t.Errorf("ended after %v with %v", d, err)
		}
		l.end()
		_ = b.Close()
		wg.Wait()
	})
}

// settled returns the goroutines once a first connection has come and gone.
func settled(t *testing.T, owner, reader *Host) int {
	t.Helper()
	q, err := owner.Dial(t.Context(), reader.Addr()) // the reader's own goroutines run
	if err != nil {
		t.Fatal(err)
	}
	q.Close()
	p, err := reader.Dial(t.Context(), owner.Addr())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := p.Call(t.Context(), kindEcho, nil); err != nil {
		t.Fatal(err)
	}
	busy := runtime.NumGoroutine()
	p.Close()
	eventually(t, "the first connection ends", func() bool { return runtime.NumGoroutine() <= busy-6 })
	return runtime.NumGoroutine()
}

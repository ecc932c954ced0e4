package transfer

import (
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// A client without the token that stays on after its refusal makes room for others
// as one that says nothing does, and holds the end of the host up no longer.
func TestRefusedClientsThatStayMakeRoom(t *testing.T) {
	var conns []net.Conn
	t.Cleanup(func() { // when the host has ended
		for _, c := range conns {
			c.Close()
		}
	})
	owner := startHost(t, HostConfig{Limits: Limits{Pending: 1, Handshake: time.Hour}}, nil)
	for n := range uint64(3) {
		c, err := net.Dial("tcp", owner.Addr())
		if err != nil {
			t.Fatal(err)
		}
		conns = append(conns, c)
		if _, err := io.WriteString(c, "GET / HTTP/1.1\r\n\r\n"); err != nil {
			t.Fatal(err)
		}
		if b, err := io.ReadAll(c); err != nil || len(b) == 0 {
			t.Fatalf("%q, %v", b, err)
		}
		eventually(t, "those before it are evicted", func() bool { return owner.Stats().Evicted == n })
	}
}

// No ping comes before the handshake is over, however short the keepalive.
func TestAcceptIsTheFirstFrame(t *testing.T) {
	owner := startHost(t, HostConfig{Limits: Limits{KeepAlive: 1}}, nil)
	reader := startHost(t, HostConfig{}, nil)
	for range 100 {
		c, _, err := reader.open(t.Context(), owner.Addr(), forCalls, 0)
		if err != nil {
			t.Fatal(err)
		}
		c.Close()
	}
}

// A peer that does not read its answers is asked no more of: so many wait for it.
func TestUnreadAnswersAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const calls = 4
		var served atomic.Int64
		h := &Host{limits: Limits{Calls: calls}.withDefaults(), handlers: map[Kind]Handler{
			kindEcho: func(context.Context, Caller, []byte) ([]byte, error) { served.Add(1); return nil, nil },
		}}
		a, b := net.Pipe()
		s := &serverConn{host: h, link: newLink(a, h.limits)}
		var wg sync.WaitGroup
		wg.Go(s.link.write)
		wg.Go(func() { s.loop(t.Context(), &wg) })
		wg.Go(func() {
			for err := error(nil); err == nil; {
				synctest.Wait() // for the call before, so that none is refused
				_, err = b.Write(encodeFrame(frame{Type: frameCall, Kind: kindEcho, ID: 1}))
			}
		})
		<-time.After(time.Second) // long before the writer gives up
		// One is being written, with what was queued then; the queue is full; the others wait.
		if n, most := served.Load(), int64(2*calls+2*cap(s.link.out)+1); n < calls || n > most {
			t.Errorf("%d calls were served of a peer that reads no answer, want at most %d", n, most)
		}
		s.link.end()
		b.Close()
		wg.Wait()
	})
}

// An answer that came counts, whatever has ended since.
func TestAnswersComeBeforeTheEnd(t *testing.T) {
	a, _ := net.Pipe()
	p := &Peer{link: newLink(a, Limits{}.withDefaults())}
	p.link.end()
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	for range 50 {
		for _, ctx := range []context.Context{t.Context(), ended} {
			answer := make(chan frame, 1)
			answer <- frame{Type: frameAnswer, Body: []byte("x")}
			if b, err := p.await(ctx, answer); err != nil || string(b) != "x" {
				t.Fatalf("%q, %v", b, err)
			}
		}
	}
	if _, err := p.await(t.Context(), nil); !errors.Is(err, ErrPeerGone) {
		t.Error(err)
	}
	if _, err := (&Peer{link: newLink(a, Limits{})}).await(ended, nil); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

// A connection that is made while the last who waits for it gives up is his to
// close: nobody else would.
func TestAConnectionMadeForNobodyIsHeld(t *testing.T) {
	h := startHost(t, HostConfig{}, nil)
	a, b := net.Pipe()
	defer b.Close()
	_, first, _ := h.dials.take("x")
	_, second, _ := h.dials.take("x")
	if first != second {
		t.Fatal("two attempts for one address")
	}
	if !h.dials.abandon(first) {
		t.Fatal("nobody may leave while it is tried")
	}
	p := h.dials.finish(h, "x", second, a, accepted{}, nil)
	if p == nil || h.dials.abandon(second) || second.peer != p {
		t.Fatal("the attempt succeeded, and its waiter has no connection")
	}
	if p.ended() {
		t.Fatal("ended, and somebody holds it")
	}
	p.Close()
	if !p.ended() {
		t.Fatal("nobody holds it, and it goes on")
	}
}

// A remote is lost with its connection, not when its watcher has noticed.
func TestReadsOfAnEndedConnectionDoNotStart(t *testing.T) {
	a, _ := net.Pipe()
	r := &Remote{peer: &Peer{link: newLink(a, Limits{})}, epoch: 1}
	if _, err := r.acquire(1); err != nil {
		t.Fatal(err)
	}
	r.peer.link.end()
	if _, err := r.acquire(1); !errors.Is(err, ErrPeerGone) {
		t.Fatal(err)
	}
}

// A join may meet the end of its connection at any point, and races with nothing.
func TestJoinsMeetTheEndOfTheirConnection(t *testing.T) {
	for _, path := range paths {
		t.Run(path, func(t *testing.T) {
			p := newPair(t, pairOption{path: path})
			p.peer.link.end()
			for i := range 100 {
				peer := p.redial(t)
				time.AfterFunc(time.Duration(i)*20*time.Microsecond, peer.link.end)
				r, err := p.agent.Join(t.Context(), peer, p.serving.Describe())
				if err == nil {
					r.Close()
				}
				<-peer.Done()
				peer.Close()
			}
		})
	}
}

// A release that hurried a stream says nothing to the calls after it.
func TestAHurriedConnectionIsCalmAgain(t *testing.T) {
	h := startHost(t, HostConfig{}, nil)
	a, b := net.Pipe()
	d := &dataConn{conn: a, limit: patience}
	d.hurry(-time.Second)
	var wg sync.WaitGroup
	wg.Go(func() { h.serveData(d, &serverConn{host: h}) })
	q := readRequest{Rank: 9, Pieces: 1, Len: 1}
	if _, err := b.Write(encodeFrame(frame{Type: frameCall, Kind: kindRead, ID: 1, Body: q.encode()})); err != nil {
		t.Fatal(err)
	}
	f, err := readFrame(b, maxHello)
	if err != nil || !isRefused(decodeError(f.Body), RefusedRank) {
		t.Errorf("%+v, %v", f, err)
	}
	b.Close()
	wg.Wait()
}

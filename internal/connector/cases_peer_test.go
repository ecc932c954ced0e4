package connector

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"tandem/internal/kv"
)

// H103: while a load reads from a peer, the peer is evicted as unused, or
// replaced because it registered again; new loads start before, at and after that
// moment. No read fails, each is right, and what is not used any more is closed.
func TestPeerIsReplacedUnderARead(t *testing.T) {
	const idle = 10 * time.Second
	interleavings, evicted, replaced := 0, 0, 0
	for held := range 6 {
		for _, more := range []int{1, 3} {
			for _, when := range []time.Duration{-time.Millisecond, 0, time.Millisecond} {
				for _, epoch := range []kv.Epoch{firstEpoch, firstEpoch + 1} {
					for _, early := range []bool{false, true} { // the held read goes on before the new ones end
						interleavings++
						synctest.Test(t, func(t *testing.T) {
							f := newFabric()
							p := f.engine(t, "p:1", 1, 1, 64)
							d := f.engine(t, "d:1", 1, 1, 64, func(c *Config) { c.PeerIdle = idle })
							reached, release := make(chan struct{}), make(chan struct{})
							free := sync.OnceFunc(func() { close(release) })
							defer free()
							var met atomic.Bool
							f.onTile = func(_ context.Context, _, i int) (bool, error) {
								if i == held && !met.Swap(true) {
									close(reached)
									<-release
								}
								return false, nil
							}
							var all []LoadSpec
							for n := range 1 + more {
								tokens := prompt(100, n)
								h, _ := p.grant(t, tokens, 8*n+7)
								all = append(all, LoadSpec{
									ID: kv.RequestID(fmt.Sprint(n)), Handoff: h, Prompt: tokens, Local: d.blocksFor(100, 8*n+7), ToTile: 7,
								})
							}
							d.Load(all[0])
							<-reached
							if n := f.alive.Load(); n != 1 {
								t.Fatalf("%d connections", n)
							}
							<-time.After(idle + when)
							if p.epoch = epoch; epoch != firstEpoch {
								d.peers.warm(all[0].Handoff.key(), uint64(epoch)) // as a hand-off of that registration would
							}
							for _, s := range all[1:] {
								d.Load(s)
							}
							if early {
								free()
							}
							want := 1 + more
							if !early {
								want = more
							}
							check := func(n int) {
								t.Helper()
								for range n {
									r := d.report(t)
									if r.Err != nil || r.Valid != 7 {
										t.Fatalf("%+v", r)
									}
									s := all[r.ID[0]-'0']
									sameKV(t, p, d, s.Handoff.Blocks, s.Local, 0, 7)
								}
							}
							check(want)
							if !early {
								free()
								check(1)
							}
							for range 1 + more {
								p.freedBlocks(t)
							}
							switch n := f.hellos.Load(); {
							case n == 2 && epoch != firstEpoch:
								replaced++
							case n == 2 && when >= 0:
								evicted++
							case n != 1 || epoch != firstEpoch || when > 0:
								t.Errorf("%d handshakes", n)
							}
							<-time.After(2 * idle)
							synctest.Wait()
							if n := f.alive.Load(); n != 0 {
								t.Errorf("%d connections are left", n)
							}
						})
						if t.Failed() {
							t.Fatalf("held at %d, %d more at %v with epoch %d, early %v", held, more, when, epoch, early)
						}
					}
				}
			}
		}
	}
	if interleavings < 100 || evicted < 20 || replaced < 50 {
		t.Errorf("%d interleavings, evicted in %d, replaced in %d", interleavings, evicted, replaced)
	}
}

// H102: handshakes, reads, evictions, deaths and returns of four peers at once.
// Every load is right or says why not.
func TestFourPeersComeAndGo(t *testing.T) {
	const peers, workers, loads = 4, 4, 120
	f := newFabric()
	d := f.engine(t, "d:1", 1, 1, 64, func(c *Config) { c.PeerIdle, c.ReturnTimeout = time.Millisecond, 50*time.Millisecond })
	var mu sync.Mutex // guards now
	now := make([]*testEngine, peers)
	back := sync.NewCond(&mu) // of a dead engine's successor
	quit := make(chan struct{})
	var drains, tasks sync.WaitGroup
	start := func(i int) *testEngine {
		p := f.engine(t, fmt.Sprintf("p:%d", i), 1, 1, 64)
		drains.Go(func() {
			for {
				select {
				case <-p.Freed():
				case <-quit:
					return
				}
			}
		})
		return p
	}
	for i := range peers {
		now[i] = start(i)
	}
	var tiles, kills atomic.Int64
	dead := make(chan string, 1000)
	f.onPeer = func(to *fabricNet) {
		if tiles.Add(1)%101 == 0 { // in the middle of a read from it
			to.kill()
			kills.Add(1)
			dead <- to.addr
		}
	}
	tasks.Go(func() { // the dead come back under their addresses
		for {
			select {
			case addr := <-dead:
				var i int
				if _, err := fmt.Sscanf(addr, "p:%d", &i); err != nil {
					t.Error(err)
					return
				}
				p := start(i)
				mu.Lock()
				now[i] = p
				mu.Unlock()
				back.Broadcast()
			case <-quit:
				return
			}
		}
	})
	tasks.Go(func() { // who looks on
		for {
			select {
			case <-quit:
				return
			case <-time.After(100 * time.Microsecond):
				d.Status()
			}
		}
	})
	waiting := make([]chan LoadReport, workers)
	for w := range waiting {
		waiting[w] = make(chan LoadReport, 1)
	}
	tasks.Go(func() {
		for {
			select {
			case r := <-d.Reports():
				waiting[r.ID[0]-'0'] <- r
			case <-quit:
				return
			}
		}
	})
	var good, bad atomic.Int64
	var wg sync.WaitGroup
	for w := range workers {
		wg.Go(func() {
			for n := range loads {
				mu.Lock()
				p := now[(w+n)%peers]
				for ; p.net.ended(); p = now[(w+n)%peers] { // else loads from the dead are all there is
					back.Wait()
				}
				mu.Unlock()
				tokens := prompt(100, w*loads+n)
				pb, db := p.blocksFor(100, 8*w+7+32*(n%2)), d.blocksFor(100, 8*w+7)
				p.fillPrompt(tokens, pb)
				h := p.Grant(LeaseSpec{ID: "r", Blocks: pb, Tokens: tokens})
				if h == nil {
					t.Error("no hand-off")
					return
				}
				d.Load(LoadSpec{ID: kv.RequestID(fmt.Sprint(w, "-", n)), Handoff: h, Prompt: tokens, Local: db, ToTile: 7})
				r := <-waiting[w]
				for i := range 7 {
					if !slices.Contains(r.Invalid, i) {
						sameKV(t, p, d, pb, db, i, i+1)
					}
				}
				if r.Err == nil {
					good.Add(1)
				} else {
					bad.Add(1)
				}
			}
		})
	}
	wg.Wait()
	close(quit)
	tasks.Wait()
	drains.Wait()
	if kills.Load() < 10 || bad.Load() < kills.Load() || good.Load() < workers*loads/2 || f.hellos.Load() < 4+kills.Load() {
		t.Errorf("%d loads are good, %d failed, %d kills, %d handshakes", good.Load(), bad.Load(), kills.Load(), f.hellos.Load())
	}
}

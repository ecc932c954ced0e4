package connector

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"tandem/internal/connector/core"
	"tandem/internal/kv"
	"tandem/internal/transfer"
)

// A peer that is slow at any stage delays nobody else: their loads, leases and
// returns take no time beside it.
func TestPeerThatIsSlowAtAnyStageDelaysNobodyElse(t *testing.T) {
	for name, stage := range map[string]Kind{"hello": KindHello, "claim": KindClaim, "renewal": KindRenew, "return": KindReturn} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { slowAt(t, stage) })
		})
	}
}

func slowAt(t *testing.T, stage Kind) {
	var slows atomic.Int64
	f := newFabric()
	f.onCall = func(ctx context.Context, addr string, k Kind) error {
		if !strings.HasPrefix(addr, "slow") || k != stage {
			return nil
		}
		slows.Add(1)
		<-ctx.Done()
		return ctx.Err()
	}
	short := func(c *Config) { c.LeaseDuration, c.Heartbeat = 900*time.Millisecond, 150*time.Millisecond }
	slow, p := f.engine(t, "slow:1", 1, 1, 64, short), f.engine(t, "p:1", 1, 1, 64, short)
	d := f.engine(t, "d:1", 1, 1, 64, short)
	tokens := prompt(32, 1)
	begun := time.Now()
	for i := range 8 { // one after the other their renewals would take longer than a lease lasts
		h, _ := f.engine(t, fmt.Sprintf("slow:%d", i+2), 1, 1, 8, short).grant(t, tokens, 7)
		d.Track(h)
	}
	// Everything that D does with a peer is under way with the slow one.
	loaded, _ := slow.grant(t, tokens, 7)
	waiting, _ := slow.grant(t, tokens, 9)
	unread, _ := slow.grant(t, tokens, 11)
	d.Track(waiting)
	d.Load(LoadSpec{ID: "slow", Handoff: loaded, Prompt: tokens, Local: d.blocksFor(32, 63), ToTile: 2})
	d.ReturnUnread(unread)
	// One that waits for longer than its lease lasts without renewals.
	kept, _ := p.grant(t, tokens, 61)
	d.Track(kept)
	synctest.Wait()
	for i := range 20 {
		h, _ := p.grant(t, tokens, 2*i+1)
		d.Load(LoadSpec{
			ID: kv.RequestID(fmt.Sprint(i)), Handoff: h, Prompt: tokens, Local: d.blocksFor(32, 2*i+1), ToTile: 2,
		})
	}
	for n := 0; n < 20; {
		switch r := d.report(t); {
		case r.ID == "slow" && stage != KindHello && stage != KindClaim: // this one is slow elsewhere
		case r.ID == "slow" || r.Err != nil || r.Duration != 0:
			t.Fatalf("%+v", r)
		default:
			n++
		}
	}
	for range 20 { // all of their leases came back at once
		p.freedBlocks(t)
	}
	if took := time.Since(begun); took != 0 {
		t.Errorf("the others waited for %v", took)
	}
	<-time.After(2 * time.Second)
	synctest.Wait()
	if r := d.load(t, "kept", kept, tokens, d.blocksFor(32, 41)); r.Err != nil || r.Duration != 0 {
		if r.ID != "slow" {
			t.Fatalf("%+v", r)
		}
	}
	if slows.Load() == 0 {
		t.Fatal("nothing was slow")
	}
}

// What D holds of a peer goes with its connection: maps and descriptors at once,
// the entry in the table a minute later, although no handshake follows.
func TestWhatWasHeldOfAPeerGoesWithItsConnection(t *testing.T) {
	if newArenas(t, 1, 1, 1)[0].File() == nil {
		t.Skip("this build has no memory files")
	}
	opt := paths(t)[transfer.PathMemfd]
	d := hostEngine(t, "d", 2, 1, 20, opt)
	for round := range 5 {
		p := hostEngine(t, "p", 2, 1, 20, opt)
		maps, files := held(t)
		roundTrip(t, p, d, 40, transfer.PathMemfd)
		if m, n := held(t); m != maps+2 || n < files {
			t.Fatalf("round %d: %d maps and %d files before, %d and %d after: D maps two ranks", round, maps, files, m, n)
		}
		p.stop()
		for begun := time.Now(); ; runtime.Gosched() {
			m, n := held(t)
			s := d.Status()
			gone := true
			for _, x := range s.Peers {
				gone = gone && x.State != "ready" && x.Path == ""
			}
			if m == maps && n <= files && gone {
				break
			}
			if time.Since(begun) > patience { // it takes milliseconds
				t.Fatalf("round %d: %d maps and %d files before, %d and %d after P's end; peers %+v", round, maps, files, m, n, s.Peers)
			}
		}
	}
}

// A peer that is not used for long is given up, though its connection stands.
func TestIdlePeersMapsAreGivenUp(t *testing.T) {
	if newArenas(t, 1, 1, 1)[0].File() == nil {
		t.Skip("this build has no memory files")
	}
	opt := paths(t)[transfer.PathMemfd]
	d := hostEngine(t, "d", 1, 1, 20, opt, func(c *Config) { c.PeerIdle = 300 * time.Millisecond })
	p := hostEngine(t, "p", 1, 1, 20, opt)
	maps, files := held(t)
	for range 2 { // and it is met again when it is wanted
		roundTrip(t, p, d, 40, transfer.PathMemfd)
		for begun := time.Now(); ; runtime.Gosched() {
			if m, n := held(t); m == maps && n <= files && len(d.Status().Peers) == 0 {
				break
			}
			if time.Since(begun) > patience {
				t.Fatalf("%+v", d.Status().Peers)
			}
		}
	}
}

// held counts this process's maps and descriptors of KV arenas.
func held(t *testing.T) (maps, files int) {
	t.Helper()
	text, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		t.Fatal(err)
	}
	for l := range strings.Lines(string(text)) {
		if strings.Contains(l, "/memfd:tandem-kv") {
			maps++
		}
	}
	all, err := filepath.Glob("/proc/self/fd/*")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range all {
		if to, err := os.Readlink(f); err == nil && strings.HasPrefix(to, "/memfd:tandem-kv") {
			files++
		}
	}
	return maps, files
}

// Engines that come and go at one address, under the old and new names and with
// other block counts, are new peers each, and are forgotten.
func TestPeersThatComeAndGoAreForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFabric()
		d := f.engine(t, "d:1", 1, 1, 64)
		var stale *Handoff
		for round := range 40 {
			name := kv.EngineID("same")
			if round%3 == 1 {
				name = kv.EngineID(fmt.Sprint("new-", round))
			}
			p := f.engine(t, "p:1", 1, []int{1, 2, 4}[round%3], []int{64, 32, 128}[round%3], func(c *Config) { c.EngineID = name })
			tokens := prompt(40, round)
			h, pb := p.grant(t, tokens, 20)
			db := d.blocksFor(40, 63)
			if r := d.load(t, "r", h, tokens, db); r.Err != nil || r.Duration != 0 {
				t.Fatalf("round %d: %+v", round, r)
			}
			sameKV(t, p, d, pb, db, 0, 3)
			p.freedBlocks(t)
			if stale != nil { // of the engine before it
				r := d.load(t, "old", stale, prompt(40, round-1), d.blocksFor(40, 60))
				if r.Err == nil || r.Err.Class != ClassHandshake || !errors.Is(r.Err, ErrStale) {
					t.Fatalf("round %d: %+v", round, r)
				}
			}
			stale, _ = p.grant(t, tokens, 24)
			p.stop()
			synctest.Wait()
		}
		if n := len(d.Status().Peers); n < 2 {
			t.Fatalf("%d peers are remembered for their back-off", n)
		}
		<-time.After(time.Minute + 2*time.Second)
		synctest.Wait()
		if s := d.Status().Peers; len(s) != 0 {
			t.Errorf("%d peers are remembered: %+v", len(s), s[0])
		}
	})
}

// Who has a peer's snapshot finds the peer in the status, however long that takes
// to be written.
func TestStatusKnowsThePeerOfALoad(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFabric()
		f.onPath = func() { <-time.After(time.Second) }
		p, d := f.engine(t, "p:1", 1, 1, 16), f.engine(t, "d:1", 1, 1, 16)
		h, _ := p.grant(t, prompt(40, 1), 15)
		v, err := d.peers.get(t.Context(), h.key(), 0)
		if err != nil {
			t.Fatal(err)
		}
		v.release()
		if s := d.Status().Peers; len(s) != 1 || s[0].State != "ready" {
			t.Errorf("%+v", s)
		}
	})
}

// What is tracked is in the status at once, and not a moment longer than it is
// tracked or loaded.
func TestStatusKnowsWhatIsTracked(t *testing.T) {
	f := newFabric()
	p, d := f.engine(t, "p:1", 1, 1, 16), f.engine(t, "d:1", 1, 1, 16)
	tokens := prompt(40, 1)
	for i := range 100 {
		h, _ := p.grant(t, tokens, 15)
		want := func(when string, tracked int) {
			t.Helper()
			if s := d.Status(); s.Tracked != tracked || s.Loads != 0 {
				t.Fatalf("round %d, %s: %+v, want %d tracked", i, when, s, tracked)
			}
		}
		d.Track(h)
		want("tracked", 1)
		d.Untrack(h)
		want("not tracked", 0)
		d.Track(h)
		if r := d.load(t, "r", h, tokens, d.blocksFor(40, 15)); r.Err != nil {
			t.Fatalf("%+v", r)
		}
		want("loaded", 0)
		p.freedBlocks(t)
	}
}

// A load that joins a handshake under way shares its end, good or bad.
func TestLoadsThatJoinAHandshakeShareItsFailure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFabric()
		f.onDial = func(ctx context.Context, _ string) error {
			<-ctx.Done()
			return ctx.Err()
		}
		p := f.engine(t, "p:1", 1, 1, 64)
		d := f.engine(t, "d:1", 1, 1, 64, func(c *Config) { c.HandshakeTimeout, c.LoadTimeout = 5*time.Second, 30*time.Second })
		tokens := prompt(32, 1)
		for i := range 4 {
			h, _ := p.grant(t, tokens, 2*i+1)
			d.Load(LoadSpec{ID: kv.RequestID(fmt.Sprint(i)), Handoff: h, Prompt: tokens, Local: d.blocksFor(32, 2*i+1), ToTile: 2})
			<-time.After(d.cfg.HandshakeTimeout / 5)
		}
		for range 4 {
			r := d.report(t)
			i, _ := strconv.Atoi(string(r.ID))
			if want := time.Duration(5-i) * time.Second; r.Err == nil || r.Err.Class != ClassHandshake || r.Duration != want {
				t.Errorf("load %d: %+v", i, r)
			}
		}
		if n := f.dials.Load(); n != 1 {
			t.Errorf("%d dials", n)
		}
	})
}

// Reads from a peer whose bytes stop coming hold up no reads from another, though
// one rank has one copying goroutine.
func TestStalledReadDelaysNobodyElse(t *testing.T) {
	x := newStallProxy(t)
	free, err := net.Listen("tcp", "127.0.0.3:0") // nobody else takes its ports meanwhile
	if err != nil {
		t.Fatal(err)
	}
	bound := free.Addr().String()
	if err := free.Close(); err != nil {
		t.Fatal(err)
	}
	tcp := paths(t)[transfer.PathTCP]
	slow := hostEngine(t, "slow", 1, 1, 64, tcp, func(c *Config) { c.Listen, c.Advertise = bound, x.l.Addr().String() })
	x.run(bound)
	p := hostEngine(t, "p", 1, 1, 20, tcp)
	d := hostEngine(t, "d", 1, 1, 128, tcp, func(c *Config) { c.Copiers = 1 })
	tokens := prompt(300, 1)
	warm, _ := slow.grant(t, tokens, 63)
	if r := d.load(t, "warm", warm, tokens, d.blocksFor(300, 127)); r.Err != nil {
		t.Fatalf("%+v", r)
	}
	slow.freedBlocks(t) // the claim that is waited for below is not this one's
	tiles := core.TilesOf(299)
	x.allow(600 + tiles/2*d.layout.TileBytes())
	h, _ := slow.grant(t, tokens, 40)
	d.Load(LoadSpec{ID: "stalled", Handoff: h, Prompt: tokens, Local: d.blocksFor(300, 127), ToTile: tiles})
	for slow.Status().Leases.Claimed == 0 {
		runtime.Gosched()
	}
	for range 20 {
		roundTrip(t, p, d, 129, transfer.PathTCP) // its reports come while the other's is out
	}
	if s := d.Status(); s.Loads != 1 {
		t.Fatalf("%d loads run, want the stalled one", s.Loads)
	}
	d.CancelLoad("stalled")
	if r := d.report(t); r.ID != "stalled" || !r.Canceled {
		t.Fatalf("%+v", r)
	}
	x.allow(-1) // so that the return of its lease is heard
	x.cut()
}

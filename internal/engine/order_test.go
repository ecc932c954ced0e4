package engine

import (
	"errors"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"tandem/internal/connector"
	"tandem/internal/kv"
	"tandem/internal/sched"
	"tandem/internal/sim"
)

// What a client reads right behind its answer counts its own request as ended,
// and there is room for its next one.
func TestNumbersRightBehindAnAnswer(t *testing.T) {
	var finished atomic.Int64
	b := start(t, sim.Config{}, Config{MaxRequests: 1, Metrics: Metrics{Finished: func(RequestStats) { finished.Add(1) }}})
	for i := range 3000 {
		r := greedy(prompt(5+i%40, i), 1+i%2)
		s, err := b.Submit(t.Context(), r)
		if err != nil {
			t.Fatalf("request %d: %v", i, err)
		}
		if i%3 == 2 {
			s.Abort("left")
			if err := drain(t, s); err != nil && !errors.Is(err, ErrAborted) {
				t.Fatal(err)
			}
		} else {
			read(t, s, 1)
		}
		st := b.Status()
		k := st.Stats
		if n := k.Finished[sched.Aborted] + k.Finished[sched.Length]; st.Live != 0 || k.Free != k.Blocks || int(n) != i+1 || finished.Load() != int64(i)+1 {
			t.Fatalf("after %d requests: %d ended by the metrics, %+v", i+1, finished.Load(), st)
		}
	}
	b.settled(t)
}

// Who drains an engine finds the leases of its last answers.
func TestDrainEndsBehindTheLastLease(t *testing.T) {
	for range 200 {
		m, err := sim.New(sim.Config{})
		if err != nil {
			t.Fatal(err)
		}
		l := (&fabric{}).link(m)
		b := startModel(t, m, Config{Model: m, Connector: l})
		r := greedy(prompt(20, 1), 1)
		r.RemoteDecode = true
		s, err := b.Submit(t.Context(), r)
		if err != nil {
			t.Fatal(err)
		}
		n := b.Drain(t.Context())
		if _, _, _, _, leases := l.counts(); n != 0 || leases != 1 {
			t.Fatalf("%d requests and %d leases are left", n, leases)
		}
		s.Abort("not delivered")
		b.settled(t)
	}
}

// Drain waits for requests that the end of the engine ends.
func TestDrainOfAnEngineThatEnds(t *testing.T) {
	p := startPair(t, sim.Config{}, sim.Config{}, Config{}, Config{}) // for P alone
	m, err := sim.New(sim.Config{})
	if err != nil {
		t.Fatal(err)
	}
	l := &late{link: p.pl.f.link(m), posted: make(chan kv.RequestID, 1), cancelled: make(chan kv.RequestID), land: make(chan struct{})}
	d := startModel(t, m, Config{Model: m, Connector: l})
	r := greedy(prompt(100, 1), 4)
	r.Handoff = p.prefill(t, r)
	s, err := d.Submit(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	<-l.posted
	go d.halt() // waits for the test to take the cancellation
	release := sync.OnceFunc(func() {
		<-l.cancelled
		close(l.land)
	})
	t.Cleanup(release)
	for !d.holds(func() bool { return d.closed }) {
		runtime.Gosched()
	}
	left := make(chan int, 1)
	go func() { left <- d.Drain(t.Context()) }()
	for !d.holds(func() bool { return len(d.idle) == 1 }) {
		select {
		case n := <-left:
			t.Fatalf("Drain returned with %d requests left", n)
		default:
			runtime.Gosched()
		}
	}
	release()
	if n := <-left; n != 0 {
		t.Errorf("%d requests are left", n)
	}
	if err := drain(t, s); !errors.Is(err, ErrClosed) {
		t.Error(err)
	}
	d.settled(t)
	p.settled(t)
}

// holds looks at what b's lock guards.
func (b bench) holds(f func() bool) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return f()
}

// A heldTrack keeps the loop in Track until the test lets it go.
type heldTrack struct {
	*link
	let chan struct{}
}

func (h heldTrack) Track(o *connector.Handoff) {
	<-h.let
	h.link.Track(o)
}

// An engine that was held up and then has nothing to compute does not count as
// hung while it rests: it would refuse all requests until one of old moved it.
func TestAnEngineThatRestsIsNotHungAnyMore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := startPair(t, sim.Config{}, sim.Config{}, Config{}, Config{}) // for P alone
		m, err := sim.New(sim.Config{})
		if err != nil {
			t.Fatal(err)
		}
		l := heldTrack{p.pl.f.link(m), make(chan struct{})}
		l.hold = make(chan struct{})
		d := startModel(t, m, Config{Model: m, Connector: l, StallLimit: time.Second})
		r := greedy(prompt(40, 1), 2)
		r.Handoff = p.prefill(t, r)
		synctest.Wait() // D rests: there is one event to come
		s, err := d.Submit(t.Context(), r)
		if err != nil {
			t.Fatal(err)
		}
		<-d.sign.raised()
		close(l.let)
		synctest.Wait()
		if st := d.Status(); st.Hung || st.Stalled != 0 || st.Stats.Loading != 1 {
			t.Errorf("status of an engine whose only request loads: %+v", st)
		}
		if a := d.run(t, greedy(prompt(5, 2), 2)); len(a.tokens) != 2 {
			t.Errorf("%d tokens", len(a.tokens))
		}
		close(l.hold)
		if as, _ := read(t, s, 1); as[0].last.Usage.Loaded != 39 {
			t.Errorf("%+v", as[0].last)
		}
		d.settled(t)
		p.settled(t)
	})
}

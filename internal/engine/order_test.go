package engine

import (
	"errors"
	"sync/atomic"
	"testing"

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

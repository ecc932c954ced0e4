package engine

import (
	"fmt"
	"runtime"
	"slices"
	"testing"

	"tandem/internal/connector"
	"tandem/internal/kv"
	"tandem/internal/sim"
)

// A late link goes on writing into the blocks of a load that was cancelled,
// until the test lets it end.
type late struct {
	*link
	posted, cancelled chan kv.RequestID
	land              chan struct{}
}

func (l *late) Load(s connector.LoadSpec) {
	s.Local = slices.Clone(s.Local)
	go func() {
		<-l.land
		rep := connector.LoadReport{ID: s.ID, From: s.FromTile, To: s.ToTile, Canceled: true}
		for i := s.FromTile; i < s.ToTile; i++ {
			l.scribble(s, i)
			rep.Invalid = append(rep.Invalid, i)
		}
		l.f.peer(s.Handoff).end(s.Handoff.Lease)
		l.reports <- rep
	}()
	l.posted <- s.ID
}

func (l *late) CancelLoad(id kv.RequestID) { l.cancelled <- id }

// H010: blocks of an aborted load belong to nobody until its last byte has
// landed; who needs them waits, and gets what is right.
func TestBytesThatLandLateSpoilNobody(t *testing.T) {
	one := start(t, sim.Config{}, Config{})
	p := startPair(t, sim.Config{}, sim.Config{}, Config{}, Config{}) // for P alone
	m, err := sim.New(sim.Config{Blocks: 8})
	if err != nil {
		t.Fatal(err)
	}
	l := &late{link: p.pl.f.link(m), posted: make(chan kv.RequestID, 1), cancelled: make(chan kv.RequestID, 1)}
	d := startModel(t, m, Config{Model: m, Connector: l})
	for i := range 100 {
		l.land = make(chan struct{})
		a := greedy(prompt(100, i), 4)
		a.Handoff = p.prefill(t, a)
		victim, err := d.Submit(t.Context(), a)
		if err != nil {
			t.Fatal(err)
		}
		id := <-l.posted
		victim.Abort("the client left")
		if got := <-l.cancelled; got != id {
			t.Fatalf("%s was cancelled, not %s", got, id)
		}
		b := greedy(prompt(60, 1000+i), 4) // needs four blocks, one is free
		big, err := d.Submit(t.Context(), b)
		if err != nil {
			t.Fatal(err)
		}
		for d.Status().Stats.Waiting != 1 {
			runtime.Gosched()
		}
		small := greedy(prompt(9, 2000+i), 4)
		if s := d.Status().Stats; s.Held != 7 || s.Running != 0 {
			t.Fatalf("round %d: %+v", i, s)
		}
		close(l.land)
		got, _ := read(t, big, 1)
		equal(t, fmt.Sprintf("round %d, the one that waited", i), got[0].tokens, one.run(t, b).tokens)
		equal(t, fmt.Sprintf("round %d, the next", i), d.run(t, small).tokens, one.run(t, small).tokens)
	}
	if s := d.Status().Stats; s.Held != 0 {
		t.Errorf("blocks are held: %+v", s)
	}
	if _, _, _, _, leases := p.pl.counts(); leases != 0 {
		t.Errorf("%d leases are left", leases)
	}
	d.settled(t)
}

package engine

import (
	"errors"
	"testing"
	"time"

	"tandem/internal/sim"
)

// H042: a loop that hangs is known to hang: who waits gets an error, who comes
// gets one at once, and all is well again when the loop goes on.
func TestHungLoopEndsEveryWait(t *testing.T) {
	m, err := sim.New(sim.Config{})
	if err != nil {
		t.Fatal(err)
	}
	g := &gate{Model: m, steps: make(chan struct{}), entered: make(chan int, 100)}
	b := startModel(t, m, Config{Model: g, StallLimit: time.Second})
	running, err := b.Submit(t.Context(), greedy(prompt(5, 1), 2))
	if err != nil {
		t.Fatal(err)
	}
	<-g.entered
	waiting, err := b.Submit(t.Context(), greedy(prompt(6, 2), 2))
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range []*Stream{running, waiting} {
		if _, err := s.Next(t.Context()); !errors.Is(err, ErrStalled) {
			t.Fatalf("a request of a hung loop: %v", err)
		}
	}
	st := b.Status()
	if !st.Hung || st.Stalled < time.Second || st.Stats.Running != 1 {
		t.Errorf("status of a hung loop: %+v", st)
	}
	if _, err := b.Submit(t.Context(), greedy(prompt(5, 3), 2)); !errors.Is(err, ErrStalled) {
		t.Errorf("a new request: %v", err)
	}
	close(g.steps)
	<-g.entered // the next turn has begun
	for b.Status().Hung {
		b.look()
	}
	for _, s := range []*Stream{running, waiting} {
		if as, _ := read(t, s, 1); len(as[0].tokens) != 2 {
			t.Errorf("%d tokens after the hold-up", len(as[0].tokens))
		}
	}
	if a := b.run(t, greedy(prompt(5, 3), 2)); len(a.tokens) != 2 {
		t.Errorf("a new request after the hold-up: %+v", a)
	}
	b.settled(t)
	if st := b.Status(); st.Hung || st.Stalled != 0 {
		t.Errorf("status at the end: %+v", st)
	}
}

package engine

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"tandem/internal/sim"
)

// H042: a loop that hangs is known to hang: who waits gets an error, who comes
// gets one at once, and all is well again when the loop goes on.
func TestHungLoopEndsEveryWait(t *testing.T) {
	synctest.Test(t, hungLoop) // so that no other hold-up is taken for the test's
}

func hungLoop(t *testing.T) {
	const limit = time.Second
	b, g := startGate(t, sim.Config{}, Config{StallLimit: limit}, nil)
	g.steps, g.entered = make(chan struct{}), make(chan int, 100)
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
	if st := b.Status(); !st.Hung || st.Stalled < limit || st.Stalled > limit+limit/2 || st.Stats.Running != 1 {
		t.Errorf("status of a hung loop: %+v", st)
	}
	if _, err := b.Submit(t.Context(), greedy(prompt(5, 3), 2)); !errors.Is(err, ErrStalled) {
		t.Errorf("a new request: %v", err)
	}
	g.over()
	synctest.Wait()
	if st := b.Status(); st.Hung {
		t.Errorf("status after the hold-up: %+v", st)
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

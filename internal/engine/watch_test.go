package engine

import (
	"testing"
	"testing/synctest"
	"time"

	"tandem/internal/sim"
)

// A turn that is old because nothing ran is no hang: the watchdog must have seen
// it again and again.
func TestASuspendedProcessIsNoHungLoop(t *testing.T) {
	var w watcher
	for turn := range int64(10) {
		for look := range 6 {
			if got, want := w.saw(turn+1), look >= 3; got != want {
				t.Errorf("turn %d, look %d: %v", turn, look, got)
			}
		}
	}
	// Found within a quarter more than the limit all the same.
	synctest.Test(t, func(t *testing.T) {
		const limit = 8 * time.Second
		for ahead := range 8 {
			b, g := startGate(t, sim.Config{}, Config{StallLimit: limit}, nil)
			g.steps = make(chan struct{})
			<-time.After(time.Duration(ahead) * time.Second)
			if _, err := b.Submit(t.Context(), greedy(prompt(5, 1), 2)); err != nil {
				t.Fatal(err)
			}
			begun := time.Now()
			<-b.sign.raised()
			if d := time.Since(begun); d < limit || d > limit+limit/4 {
				t.Errorf("found after %v", d)
			}
			g.over()
			b.settled(t)
		}
	})
}

// Whoever is woken by the sign finds it up: otherwise it would take the hold-up
// for something else.
func TestSignIsUpWhenItWakes(t *testing.T) {
	s := newSign()
	woken := make(chan bool)
	for range 20_000 {
		raised := s.raised()
		go func() {
			for {
				select {
				case <-raised:
				default:
					continue // awake on another core when it happens
				}
				woken <- s.up()
				return
			}
		}()
		s.set(true)
		if !<-woken {
			t.Fatal("woken by a sign that was not up")
		}
		s.set(false)
		select {
		case <-s.raised():
			t.Fatal("a lowered sign wakes")
		default:
		}
	}
}

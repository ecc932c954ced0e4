package engine

import "testing"

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

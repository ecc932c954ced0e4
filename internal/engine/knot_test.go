package engine

import (
	"runtime"
	"testing"

	"tandem/internal/kv"
	"tandem/internal/sim"
)

// An engine that waits for its own leases does not keep its peers': two engines
// that prefill for each other would wait until the leases' cap. When it moves
// again the leases of what still waits are renewed again.
func TestStuckEngineRenewsNothing(t *testing.T) {
	x := startPair(t, sim.Config{}, sim.Config{Blocks: 12}, Config{}, Config{})
	waiting := func(n int) {
		t.Helper()
		for x.d.Status().Stats.Waiting != n {
			runtime.Gosched()
		}
	}
	tracked := func(want int, when string) {
		t.Helper()
		if _, _, _, n, _ := x.dl.counts(); n != want {
			t.Errorf("%s: %d leases are renewed, want %d", when, n, want)
		}
	}
	x.dl.hold, x.dl.posted = make(chan struct{}), make(chan kv.RequestID, 2)

	// D keeps 7 of its 12 blocks for a reader.
	lent := greedy(prompt(100, 1), 1)
	lent.RemoteDecode = true
	h := x.d.run(t, lent).last.Handoff
	if h == nil {
		t.Fatal("no hand-off")
	}
	// Neither fits beside them.
	first, second := greedy(prompt(150, 2), 4), greedy(prompt(80, 3), 4)
	want := []answer{x.p.run(t, first), x.p.run(t, second)}
	first.Handoff, second.Handoff = x.prefill(t, first), x.prefill(t, second)
	submit := func(r Request) *Stream {
		t.Helper()
		s, err := x.d.Submit(t.Context(), r)
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	s1 := submit(first)
	waiting(1)
	tracked(0, "the first waits for blocks")
	s2 := submit(second)
	waiting(2)
	tracked(0, "the second waits behind it")

	if !x.dl.end(h.Lease) {
		t.Fatal("the lease had ended")
	}
	<-x.dl.posted
	waiting(1)
	tracked(2, "the blocks are back")
	close(x.dl.hold)
	for i, s := range []*Stream{s1, s2} {
		as, _ := read(t, s, 1)
		equal(t, "after the knot", as[0].tokens, want[i].tokens)
		if u := as[0].last.Usage; u.Loaded == 0 {
			t.Errorf("nothing was loaded: %+v", u)
		}
	}
	x.settled(t)
}

// The same for one whose running request is short of a block: it moves no more
// than one that waits for its first.
func TestShortEngineRenewsNothing(t *testing.T) {
	x := newTurns(t, sim.Config{Blocks: 4}, Config{})
	lent := greedy(prompt(40, 9), 1)
	lent.RemoteDecode = true
	x.submit(lent) // 3 blocks
	x.turn()
	x.d.calls = nil
	s := x.submit(greedy(prompt(10, 1), 20)) // the fourth, and one more from the 17th token on
	x.submit(offered("d", greedy(prompt(20, 2), 2), 20))
	x.turn()
	x.calls("one runs, one waits", "track d")
	x.rest()
	x.calls("nothing moves", "untrack d")
	if outs, ended := x.read(s); len(outs) != 7 || ended {
		t.Errorf("%d outputs, ended %t", len(outs), ended)
	}
	x.d.freed <- []kv.BlockID{0, 1, 2}
	x.turn()
	x.calls("the blocks are back", "load 3.0 of d from d: tiles 0 to 2 of 20 tokens into 2 blocks", "track d")
	x.report("3.0", 2, "")
	x.rest()
	x.calls("it is loaded", "untrack d")
	if outs, ended := x.read(s); len(outs) != 13 || !ended {
		t.Errorf("%d more outputs, ended %t", len(outs), ended)
	}
	x.gone()
}

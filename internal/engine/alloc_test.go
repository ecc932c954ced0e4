//go:build !invariants && !race

package engine

import "testing"

// A decode step allocates next to nothing: the queues of outputs and the lists
// of tokens grow now and then.
func TestDecodeStepDoesNotAllocate(t *testing.T) {
	const seqs = 16
	s := newStepper(t, seqs)
	for range 300 {
		s.step(t)
	}
	n := testing.AllocsPerRun(200, func() { s.step(t) })
	if n > 1 {
		t.Errorf("%v allocations for a step of %d sequences", n, seqs)
	}
}

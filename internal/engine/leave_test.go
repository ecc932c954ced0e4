package engine

import (
	"testing"

	"tandem/internal/sim"
)

// A reader that leaves while the step computes which makes its hand-off: no
// lease is made, and the blocks are back at once.
func TestReaderThatLeavesDuringItsLastStep(t *testing.T) {
	m, err := sim.New(sim.Config{})
	if err != nil {
		t.Fatal(err)
	}
	l := (&fabric{}).link(m)
	streams := make(chan *Stream, 1)
	g := &gate{Model: m, edit: func(rows [][]float32) ([][]float32, error) {
		(<-streams).Abort("left")
		return rows, nil
	}}
	b := startModel(t, m, Config{Model: g, Connector: l})
	t.Cleanup(g.over)
	r := greedy(prompt(40, 1), 1)
	r.RemoteDecode = true
	s, err := b.Submit(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	streams <- s
	o, err := s.Next(t.Context())
	if err != nil || o.Handoff != nil || o.Finish != FinishAbort {
		t.Fatalf("%+v, %v", o, err)
	}
	b.settled(t)
	if l.granted != 0 || l.revoked != 0 {
		t.Errorf("%d leases were made, %d revoked, for a reader that had gone", l.granted, l.revoked)
	}
}

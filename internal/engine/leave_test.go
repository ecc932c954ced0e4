package engine

import (
	"testing"

	"tandem/internal/connector"
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

// A reader that leaves while its load fails: the failure counts as it does in the
// connector's log, once, and nobody is told that anything was made good. A load
// that was cut short because the reader left is no failure.
func TestFailedLoadOfAReaderThatLeft(t *testing.T) {
	for _, canceled := range []bool{false, true} {
		for _, policy := range []FailPolicy{PolicyFail, PolicyRecompute} {
			failed, recovered := map[connector.LoadClass]int{}, 0
			x := startPair(t, sim.Config{}, sim.Config{}, Config{}, Config{Policy: policy, Metrics: Metrics{
				LoadFailed: func(c connector.LoadClass) { failed[c]++ }, Recovered: func(int, int) { recovered++ },
			}})
			x.dl.bad = func(i int) bool { return i == 1 }
			if canceled {
				x.dl.hold = make(chan struct{})
			}
			x.dl.inline = !canceled                  // so that the report is there before the load can be cancelled
			x.dl.onLoad = func(connector.LoadSpec) { // in the loop's goroutine
				for g := range x.d.core.groups {
					x.d.core.abort(g, ErrAborted)
				}
			}
			r := greedy(prompt(60, 2), 3)
			r.Handoff = x.prefill(t, r)
			if o, err := x.submit(t, r).Next(t.Context()); err != nil || o.Finish != FinishAbort {
				t.Fatalf("%+v, %v", o, err)
			}
			x.settled(t)
			want := 1
			if canceled {
				want = 0
			}
			if failed[connector.ClassSum] != want || len(failed) != want || recovered != 0 {
				t.Errorf("canceled %v, policy %s: failures %v, %d recovered", canceled, policy, failed, recovered)
			}
		}
	}
}

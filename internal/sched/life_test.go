package sched

import (
	"testing"

	"tandem/internal/moves/movestest"
)

// The drawing in the package comment shows the edges of the table and no other.
func TestDrawingShowsTheTable(t *testing.T) { movestest.Drawn(t, "doc.go", Moves.Edges()) }

func TestMovePanicsOffTheTable(t *testing.T) {
	for from := queued; from <= finished; from++ {
		for to := queued; to <= finished; to++ {
			r := &request{status: from}
			want := Moves.May(from, to)
			func() {
				defer func() {
					if (recover() == nil) != want {
						t.Errorf("%v to %v: allowed %t", from, to, !want)
					}
				}()
				r.move(to)
			}()
		}
	}
}

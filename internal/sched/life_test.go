package sched

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// The drawing in the package comment shows the edges of the table and no other.
func TestDrawingShowsTheTable(t *testing.T) {
	src, err := os.ReadFile("doc.go")
	if err != nil {
		t.Fatal(err)
	}
	var drawn, table []string
	word := regexp.MustCompile(`[a-z]+`)
	for line := range strings.Lines(string(src)) {
		parts := strings.Split(line, "──▶")
		for i := range len(parts) - 1 {
			drawn = append(drawn, word.FindString(parts[i])+" "+word.FindString(parts[i+1]))
		}
	}
	for _, e := range Moves.Edges() {
		table = append(table, e.From+" "+e.To)
	}
	slices.Sort(drawn)
	slices.Sort(table)
	if drawn = slices.Compact(drawn); !slices.Equal(drawn, table) {
		t.Errorf("drawing %q\ntable   %q", drawn, table)
	}
}

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

// Package movestest compares the drawings of state machines in comments with the
// tables that the machines move by. Only tests import it.
package movestest

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"tandem/internal/moves"
)

// state is the name of a state: a word, and the side that it is about.
var state = regexp.MustCompile(`[a-z]+( [PD]\b)?`)

// Drawn fails t unless the arrows in a source file are the edges of the tables
// and no others.
func Drawn(t *testing.T, file string, tables ...[]moves.Edge) {
	t.Helper()
	src, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var drawn, table []string
	for line := range strings.Lines(string(src)) {
		parts := strings.Split(line, "──▶")
		for i := range len(parts) - 1 {
			drawn = append(drawn, state.FindString(parts[i])+" to "+state.FindString(parts[i+1]))
		}
	}
	for _, e := range slices.Concat(tables...) {
		table = append(table, e.From+" to "+e.To)
	}
	slices.Sort(drawn)
	slices.Sort(table)
	if drawn = slices.Compact(drawn); !slices.Equal(drawn, table) {
		t.Errorf("drawing %q\ntable   %q", drawn, table)
	}
}

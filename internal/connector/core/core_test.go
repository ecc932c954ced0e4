package core

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"tandem/internal/moves"
)

// The drawings in the package comment show the edges of the tables and no other.
func TestDrawingsShowTheTables(t *testing.T) {
	src, err := os.ReadFile("core.go")
	if err != nil {
		t.Fatal(err)
	}
	var drawn, table []string
	word := regexp.MustCompile(`[a-z]+`)
	for line := range strings.Lines(string(src)) {
		parts := strings.Split(line, "──▶")
		for i := range len(parts) - 1 {
			drawn = append(drawn, word.FindString(parts[i])+" to "+word.FindString(parts[i+1]))
		}
	}
	for _, edges := range [][]moves.Edge{LeaseMoves.Edges(), PeerMoves.Edges(), LoadMoves.Edges()} {
		for _, e := range edges {
			table = append(table, e.From+" to "+e.To)
		}
	}
	slices.Sort(drawn)
	slices.Sort(table)
	if drawn = slices.Compact(drawn); !slices.Equal(drawn, table) {
		t.Errorf("drawing %q\ntable   %q", drawn, table)
	}
}

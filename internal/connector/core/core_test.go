package core

import (
	"testing"

	"tandem/internal/moves/movestest"
)

// The drawings in the package comment show the edges of the tables and no other.
func TestDrawingsShowTheTables(t *testing.T) {
	movestest.Drawn(t, "core.go", LeaseMoves.Edges(), PeerMoves.Edges(), LoadMoves.Edges())
}

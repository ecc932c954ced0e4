package connector

import (
	"fmt"

	"tandem/internal/kv"
)

// tilesOf returns the tiles that hold n tokens.
func tilesOf(n int) int { return (n + kv.TileTokens - 1) / kv.TileTokens }

// tileIn returns the arena tile of tile i of a sequence with this block table.
func tileIn(table []kv.BlockID, blockTiles, i int) int32 {
	return int32(table[i/blockTiles])*int32(blockTiles) + int32(i%blockTiles)
}

// A span is the heads that one local rank takes from one remote rank: a piece
// in each layer of each tile.
type span struct {
	Local, Remote         int // ranks
	LocalHead, RemoteHead int // first head within the rank
	Heads                 int
}

// spans maps heads ranks × tp heads between two tensor-parallel sizes. Every
// local head is covered exactly once.
func spans(heads, localTP, remoteTP int) ([]span, error) {
	if heads <= 0 || localTP <= 0 || remoteTP <= 0 || heads%localTP != 0 || heads%remoteTP != 0 {
		return nil, fmt.Errorf("connector: mapping %d KV heads from TP %d to TP %d: not divisible", heads, remoteTP, localTP)
	}
	l, r := heads/localTP, heads/remoteTP
	var out []span
	for h := 0; h < heads; {
		n := min(l-h%l, r-h%r)
		out = append(out, span{h / l, h / r, h % l, h % r, n})
		h += n
	}
	return out, nil
}

// strides returns the pieces of s, where local is the layout of this engine and
// remoteHeads the heads of one of the peer's ranks. Equal layouts are one piece.
func (s span) strides(local kv.Layout, remoteHeads int) Strides {
	if local.Heads == remoteHeads && s.Heads == remoteHeads {
		return Strides{Pieces: 1, Len: local.TileBytes()}
	}
	hb := local.HeadBytes()
	return Strides{
		Pieces:   local.Layers,
		LocalOff: s.LocalHead * hb, LocalStep: local.Heads * hb,
		RemoteOff: s.RemoteHead * hb, RemoteStep: remoteHeads * hb,
		Len: s.Heads * hb,
	}
}

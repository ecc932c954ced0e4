package core

import (
	"fmt"

	"tandem/internal/kv"
)

// TilesOf returns the tiles that hold n tokens.
func TilesOf(n int) int { return (n + kv.TileTokens - 1) / kv.TileTokens }

// TileIn returns the arena tile of tile i of a sequence with this block table.
func TileIn(table []kv.BlockID, blockTiles, i int) int32 {
	return int32(table[i/blockTiles])*int32(blockTiles) + int32(i%blockTiles)
}

// A Span is the heads that one local rank takes from one remote rank: a piece
// in each layer of each tile.
type Span struct {
	Local, Remote         int // ranks
	LocalHead, RemoteHead int // first head within the rank
	Heads                 int
}

// Spans maps heads ranks × tp heads between two tensor-parallel sizes. Every
// local head is covered exactly once.
func Spans(heads, localTP, remoteTP int) ([]Span, error) {
	if heads <= 0 || localTP <= 0 || remoteTP <= 0 || heads%localTP != 0 || heads%remoteTP != 0 {
		return nil, fmt.Errorf("connector: mapping %d KV heads from TP %d to TP %d: not divisible", heads, remoteTP, localTP)
	}
	l, r := heads/localTP, heads/remoteTP
	var out []Span
	for h := 0; h < heads; {
		n := min(l-h%l, r-h%r)
		out = append(out, Span{h / l, h / r, h % l, h % r, n})
		h += n
	}
	return out, nil
}

// Strides returns the pieces of s, where local is the layout of this engine and
// remoteHeads the heads of one of the peer's ranks. Equal layouts are one piece.
func (s Span) Strides(local kv.Layout, remoteHeads int) Strides {
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

// Strides is where the pieces of a tile lie on either side: Pieces pieces of Len
// bytes, piece p from RemoteOff+p*RemoteStep of the remote tile to
// LocalOff+p*LocalStep of the local one.
type Strides struct {
	Pieces                int
	LocalOff, LocalStep   int
	RemoteOff, RemoteStep int
	Len                   int
}

// SumsOf returns the sums of tiles [from, to) of a block table as a claim's answer
// carries them: rank, tile, head.
func SumsOf(arenas []*kv.Arena, blocks []kv.BlockID, from, to int) []uint64 {
	l := arenas[0].Layout()
	out := make([]uint64, 0, len(arenas)*(to-from)*l.Heads)
	for _, arena := range arenas {
		for i := from; i < to; i++ {
			out = append(out, arena.Sums(kv.TileID(TileIn(blocks, l.BlockTiles, i)))...)
		}
	}
	return out
}

// CheckSums compares the heads that s brought of tile i of a load of n tiles with
// P's sums, over the bytes that lie in tile local of this engine's arena. It
// notes the sums there when all match, so that the tile can be handed on. The
// peer has so many heads in each rank.
func (s Span) CheckSums(arena *kv.Arena, local kv.TileID, sums []uint64, peerHeads, i, n int) error {
	tile := arena.Tile(local)
	want := sums[(s.Remote*n+i)*peerHeads+s.RemoteHead:]
	for j := range s.Heads {
		if kv.SumHead(tile, arena.Layout(), s.LocalHead+j) != want[j] {
			return fmt.Errorf("the sum of head %d is not the peer's", s.LocalHead+j)
		}
	}
	for j := range s.Heads {
		arena.SetSum(local, s.LocalHead+j, want[j])
	}
	return nil
}

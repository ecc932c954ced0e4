package kv

import "github.com/zeebo/xxh3"

// Seal finishes tile t, of which the first filled slots are written, 1 to 16:
// it zeroes the others, of every layer and head, and notes the content sum of
// each head.
func (a *Arena) Seal(t TileID, filled int) {
	tile := a.Tile(t)
	if filled < TileTokens {
		for layer := range a.layout.Layers {
			for head := range a.layout.Heads {
				clearSlots(headBytes(tile, a.layout, layer, head), a.layout, filled)
			}
		}
	}
	sums := a.Sums(t)
	for head := range sums {
		sums[head] = SumHead(tile, a.layout, head)
	}
}

// Sums returns the content sums of tile t, one for each KV head of the rank, as
// Seal or SetSum left them. The slice is valid until the tile is sealed again.
func (a *Arena) Sums(t TileID) []uint64 {
	n := a.layout.Heads
	o := int(t) * n
	return a.sums[o : o+n : o+n]
}

// SetSum notes the content sum of one head of tile t whose bytes a reader has
// checked against it, so that the tile can be handed on like one sealed here.
func (a *Arena) SetSum(t TileID, head int, sum uint64) { a.Sums(t)[head] = sum }

// SumHead returns the content sum of one head of a tile laid out as l: over the
// layers ascending, h = xxh3(K and V bytes of the layer, seed h), from h = 0.
func SumHead(tile []byte, l Layout, head int) uint64 {
	var h uint64
	for layer := range l.Layers {
		h = xxh3.HashSeed(headBytes(tile, l, layer, head), h)
	}
	return h
}

// headBytes returns the K and V bytes of one head of one layer of a tile.
func headBytes(tile []byte, l Layout, layer, head int) []byte {
	n := l.HeadBytes()
	o := layer*l.LayerBytes() + head*n
	return tile[o : o+n : o+n]
}

// clearSlots zeroes the slots from filled on: columns of K, rows of V.
func clearSlots(kv []byte, l Layout, filled int) {
	k, v := kv[:l.KBytes()], kv[l.KBytes():]
	row, from := TileTokens*l.Elem.Size(), filled*l.Elem.Size()
	for o := 0; o < len(k); o += row {
		clear(k[o+from : o+row])
	}
	clear(v[filled*l.HeadDim*l.Elem.Size():])
}

package core

import (
	"fmt"
	"slices"
	"testing"

	"tandem/internal/kv"
)

func TestTiles(t *testing.T) {
	for n, want := range map[int]int{0: 0, 1: 1, 15: 1, 16: 1, 17: 2, 32: 2, 33: 3} {
		if got := TilesOf(n); got != want {
			t.Errorf("%d tokens take %d tiles, want %d", n, got, want)
		}
	}
	table := []kv.BlockID{7, 2}
	for i, want := range []int32{21, 22, 23, 6, 7, 8} {
		if got := TileIn(table, 3, i); got != want {
			t.Errorf("tile %d is %d of the arena, want %d", i, got, want)
		}
	}
}

// Heads that one of the sides cannot divide evenly have no mapping.
func TestSpansOfWhatDoesNotDivide(t *testing.T) {
	for _, c := range [][3]int{{0, 1, 1}, {-4, 1, 1}, {4, 0, 1}, {4, 1, 0}, {4, -1, 1}, {4, 1, -1}, {4, 3, 1}, {4, 1, 3}} {
		if ss, err := Spans(c[0], c[1], c[2]); err == nil {
			t.Errorf("%d heads from TP %d to TP %d: %v, want an error", c[0], c[2], c[1], ss)
		}
	}
	ss, err := Spans(1, 1, 1)
	if want := []Span{{Heads: 1}}; err != nil || !slices.Equal(ss, want) {
		t.Errorf("one head: %v, %v, want %v", ss, err, want)
	}
}

// Where neither size divides the other, a span ends with the rank of either side.
func TestSpansOfUnlikeSizes(t *testing.T) {
	for _, c := range []struct {
		local, remote int
		want          []Span
	}{
		{2, 3, []Span{{0, 0, 0, 0, 2}, {0, 1, 2, 0, 1}, {1, 1, 0, 1, 1}, {1, 2, 1, 0, 2}}},
		{3, 2, []Span{{0, 0, 0, 0, 2}, {1, 0, 0, 2, 1}, {1, 1, 1, 0, 1}, {2, 1, 0, 1, 2}}},
	} {
		if got, err := Spans(6, c.local, c.remote); err != nil || !slices.Equal(got, c.want) {
			t.Errorf("TP %d to %d: %v, %v, want %v", c.remote, c.local, got, err, c.want)
		}
	}
}

// The pieces of every layout that can meet another bring each head to its place,
// and touch no byte beside it.
func TestStridesBringEachHead(t *testing.T) {
	const heads = 4
	layout := func(tp int) kv.Layout {
		return kv.Layout{Layers: 3, Heads: heads / tp, HeadDim: 8, Elem: kv.F16, BlockTiles: 1}
	}
	// name is what a head's bytes hold: its layer and its number over all ranks.
	name := func(layer, head int) byte { return byte(1 + layer*heads + head) }
	for _, localTP := range []int{1, 2, 4} {
		for _, remoteTP := range []int{1, 2, 4} {
			l, r := layout(localTP), layout(remoteTP)
			hb := l.HeadBytes()
			fill := func(rank int) []byte {
				tile := make([]byte, r.TileBytes())
				for i := range tile {
					tile[i] = name(i/(r.Heads*hb), rank*r.Heads+i/hb%r.Heads)
				}
				return tile
			}
			ss, err := Spans(heads, localTP, remoteTP)
			if err != nil {
				t.Fatal(err)
			}
			tiles := make([][]byte, localTP)
			for i := range tiles {
				tiles[i] = make([]byte, l.TileBytes())
			}
			for _, s := range ss {
				from, st := fill(s.Remote), s.Strides(l, r.Heads)
				if one := localTP == remoteTP; (st.Pieces == 1) != one {
					t.Errorf("TP %d to %d: %d pieces", remoteTP, localTP, st.Pieces)
				}
				for p := range st.Pieces {
					at := st.RemoteOff + p*st.RemoteStep
					copy(tiles[s.Local][st.LocalOff+p*st.LocalStep:], from[at:at+st.Len])
				}
			}
			for rank, tile := range tiles {
				for i, got := range tile {
					layer, head := i/(l.Heads*hb), rank*l.Heads+i/hb%l.Heads
					if want := name(layer, head); got != want {
						t.Fatalf("TP %d to %d: byte %d of rank %d is %d, want %d", remoteTP, localTP, i, rank, got, want)
					}
				}
			}
		}
	}
}

// A rank that P has and D shares holds other heads than it takes: one piece
// would overrun it.
func TestStridesOfAPartOfARank(t *testing.T) {
	l := kv.Layout{Layers: 3, Heads: 2, HeadDim: 8, Elem: kv.F16, BlockTiles: 1}
	hb := l.HeadBytes()
	got := Span{LocalHead: 1, RemoteHead: 1, Heads: 1}.Strides(l, 2)
	if want := (Strides{Pieces: 3, LocalOff: hb, LocalStep: 2 * hb, RemoteOff: hb, RemoteStep: 2 * hb, Len: hb}); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
}

// Sums travel by rank, tile and head; a tile is handed on only when all heads
// that were brought have P's sums, and then with them.
func TestSumsFindTheirHeads(t *testing.T) {
	const tiles, from, to = 6, 1, 4
	peer := kv.Layout{Layers: 2, Heads: 2, HeadDim: 8, Elem: kv.F16, BlockTiles: 2}
	local := peer
	local.Heads = 4
	arena := func(l kv.Layout) *kv.Arena {
		a, err := kv.NewArena(l, 5)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = a.Close() })
		return a
	}
	p, d := []*kv.Arena{arena(peer), arena(peer)}, arena(local)
	table := []kv.BlockID{3, 1, 4}
	for rank, a := range p {
		for i := range tiles {
			tile := kv.TileID(TileIn(table, peer.BlockTiles, i))
			for j, b := 0, a.Tile(tile); j < len(b); j++ {
				b[j] = byte(1 + rank*100 + i*10 + j/peer.HeadBytes())
			}
			a.Seal(tile, kv.TileTokens)
		}
	}
	sums := SumsOf(p, table, from, to)
	if len(sums) != 2*(to-from)*2 || cap(sums) != len(sums) {
		t.Fatalf("%d sums with room for %d", len(sums), cap(sums))
	}
	for i := range to - from {
		for rank := range p {
			s := Span{Remote: rank, LocalHead: rank * 2, Heads: 2}
			at := kv.TileID(i)
			src := p[rank].Tile(kv.TileID(TileIn(table, peer.BlockTiles, from+i)))
			st := s.Strides(local, peer.Heads)
			for k := range st.Pieces {
				copy(d.Tile(at)[st.LocalOff+k*st.LocalStep:], src[st.RemoteOff+k*st.RemoteStep:][:st.Len])
			}
			for _, head := range []int{0, 1} {
				b := &d.Head(at, 1, s.LocalHead+head)[0]
				*b ^= 1
				err := s.CheckSums(d, at, sums, peer.Heads, i, to-from)
				if want := fmt.Sprintf("the sum of head %d is not the peer's", s.LocalHead+head); err == nil || err.Error() != want {
					t.Errorf("tile %d of rank %d, head %d broken: %v", i, rank, head, err)
				}
				if noted := d.Sums(at)[s.LocalHead : s.LocalHead+2]; noted[0] != 0 || noted[1] != 0 {
					t.Errorf("tile %d of rank %d is noted as %v though a head is broken", i, rank, noted)
				}
				*b ^= 1
			}
			if err := s.CheckSums(d, at, sums, peer.Heads, i, to-from); err != nil {
				t.Errorf("tile %d of rank %d: %v", i, rank, err)
			}
			want := sums[(rank*(to-from)+i)*2:][:2]
			if got := d.Sums(at)[s.LocalHead : s.LocalHead+2]; !slices.Equal(got, want) {
				t.Errorf("tile %d of rank %d: sums %v are noted, want %v", i, rank, got, want)
			}
		}
	}
}

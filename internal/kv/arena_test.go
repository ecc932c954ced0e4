package kv

import (
	"bytes"
	"encoding/binary"
	"math/rand/v2"
	"testing"

	"github.com/zeebo/xxh3"
)

func testArena(t *testing.T, l Layout, blocks int) *Arena {
	t.Helper()
	a, err := NewArena(l, blocks)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := a.Close(); err != nil {
			t.Error(err)
		}
	})
	return a
}

func fill(b []byte, seed uint64) {
	rng := rand.New(rand.NewPCG(seed, 1))
	for i := range b {
		b[i] = byte(rng.Uint32() | 1)
	}
}

func TestArenaGeometry(t *testing.T) {
	for _, l := range []Layout{
		{Layers: 2, Heads: 4, HeadDim: 32, Elem: F16, BlockTiles: 1},
		{Layers: 3, Heads: 1, HeadDim: 64, Elem: F32, BlockTiles: 4},
	} {
		a := testArena(t, l, 5)
		if a.Blocks() != 5 || a.Tiles() != 5*l.BlockTiles || a.Layout() != l || len(a.Bytes()) != 5*l.BlockBytes() {
			t.Errorf("%+v: %d blocks, %d tiles, %d bytes", l, a.Blocks(), a.Tiles(), len(a.Bytes()))
		}
		if len(bytes.Trim(a.Bytes(), "\x00")) != 0 {
			t.Error("not zero")
		}
		// Heads, layers and tiles follow each other without gap or overlap.
		var joined []byte
		fill(a.Bytes(), 1)
		for tile := range a.Tiles() {
			for layer := range l.Layers {
				for head := range l.Heads {
					joined = append(joined, a.Head(TileID(tile), layer, head)...)
				}
			}
		}
		if !bytes.Equal(joined, a.Bytes()) {
			t.Error("heads are not the arena in order")
		}
	}
}

func TestArenaRefuses(t *testing.T) {
	good := Layout{Layers: 1, Heads: 1, HeadDim: 16, BlockTiles: 1}
	for name, edit := range map[string]func(*Layout, *int){
		"no blocks":      func(_ *Layout, n *int) { *n = 0 },
		"no layers":      func(l *Layout, _ *int) { l.Layers = 0 },
		"three tiles":    func(l *Layout, _ *int) { l.BlockTiles = 3 },
		"too many":       func(_ *Layout, n *int) { *n = 1 << 32 },
		"no such memory": func(l *Layout, n *int) { l.BlockTiles, l.Layers, *n = 1, 1<<10, 1<<30 },
		"past the word":  func(l *Layout, n *int) { l.HeadDim, *n = 1<<40, 1<<30 },
	} {
		l, n := good, 4
		edit(&l, &n)
		if _, err := NewArena(l, n); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

func TestSealZeroesTheRestAndSums(t *testing.T) {
	for _, elem := range []DType{F16, F32} {
		l := Layout{Layers: 2, Heads: 3, HeadDim: 8, Elem: elem, BlockTiles: 2}
		for filled := 1; filled <= TileTokens; filled++ {
			a := testArena(t, l, 2)
			fill(a.Bytes(), uint64(filled))
			before := bytes.Clone(a.Bytes())
			const tile = 2
			a.Seal(tile, filled)
			n := l.TileBytes()
			if !bytes.Equal(a.Bytes()[:tile*n], before[:tile*n]) || !bytes.Equal(a.Bytes()[(tile+1)*n:], before[(tile+1)*n:]) {
				t.Fatal("another tile changed")
			}
			es := elem.Size()
			for head := range l.Heads {
				var h uint64
				for layer := range l.Layers {
					kv := a.Head(tile, layer, head)
					h = xxh3.HashSeed(kv, h)
					o := tile*n + layer*l.LayerBytes() + head*l.HeadBytes()
					for i := range kv {
						slot := i / es % TileTokens // of K
						if i >= l.KBytes() {
							slot = (i - l.KBytes()) / es / l.HeadDim
						}
						want := before[o+i]
						if slot >= filled {
							want = 0
						}
						if kv[i] != want {
							t.Fatalf("%v filled %d: byte %d of slot %d is %d, want %d", elem, filled, i, slot, kv[i], want)
						}
					}
				}
				if a.Sums(tile)[head] != h || SumHead(a.Tile(tile), l, head) != h {
					t.Fatalf("sum of head %d", head)
				}
			}
		}
	}
}

// The sums of a head are the same whatever the rank's number of heads, so that
// readers with other ranks can check them.
func TestSumsDoNotDependOnRanks(t *testing.T) {
	whole := Layout{Layers: 3, Heads: 4, HeadDim: 16, BlockTiles: 1}
	part := whole
	part.Heads = 2
	a, b := testArena(t, whole, 1), testArena(t, part, 1)
	fill(a.Bytes(), 3)
	for layer := range 3 {
		for head := range 2 {
			copy(b.Head(0, layer, head), a.Head(0, layer, head+2))
		}
	}
	a.Seal(0, 16)
	b.Seal(0, 16)
	if a.Sums(0)[2] != b.Sums(0)[0] || a.Sums(0)[3] != b.Sums(0)[1] || a.Sums(0)[0] == a.Sums(0)[2] {
		t.Errorf("%x %x", a.Sums(0), b.Sums(0))
	}
	b.SetSum(0, 1, 77)
	if b.Sums(0)[1] != 77 {
		t.Error("SetSum")
	}
}

// Known bytes give known sums: the wire depends on them.
func TestSumIsStable(t *testing.T) {
	l := Layout{Layers: 2, Heads: 1, HeadDim: 4, BlockTiles: 1}
	tile := make([]byte, l.TileBytes())
	for i := 0; i < len(tile); i += 4 {
		binary.LittleEndian.PutUint32(tile[i:], uint32(i*2654435761))
	}
	if got, want := SumHead(tile, l, 0), uint64(0x8a927e10960e1ae5); got != want {
		t.Errorf("sum %#x, want %#x", got, want)
	}
}

func TestSealAndSumDoNotAllocate(t *testing.T) {
	a := testArena(t, Layout{Layers: 4, Heads: 2, HeadDim: 32, BlockTiles: 1}, 2)
	if n := testing.AllocsPerRun(20, func() { a.Seal(1, 5) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func TestCloseTwice(t *testing.T) {
	a := testArena(t, Layout{Layers: 1, Heads: 1, HeadDim: 16, BlockTiles: 1}, 1)
	for range 2 {
		if err := a.Close(); err != nil {
			t.Error(err)
		}
	}
}

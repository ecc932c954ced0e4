package kv

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// An Arena is the KV memory of one rank: Blocks blocks in one piece, laid out
// as its Layout says.
//
// The memory lies outside the Go heap, in a sealed memory file that peers may
// map for reading, so that sleep can give it back at once. Builds with the
// invariants tag keep it on the Go heap, without a file, for the race detector
// to see. The bytes are shared: the model writes the slots of its step,
// transfers write the tiles of their load, and peers read tiles that nobody
// writes. An Arena orders none of that; the scheduler's block tables do.
type Arena struct {
	layout Layout
	blocks int
	mem    memory
	sums   []uint64 // Heads for each tile
}

// ErrMemory is matched by the errors for more KV memory than the machine has.
var ErrMemory = errors.New("more than the memory of this machine")

// Fits refuses blocks of so many bytes each that the machine has no memory for. A
// memory file of any length can be made; it fails where nothing can be done about
// it, when its pages are written.
func Fits(blocks, bytes int) error {
	have := machineMemory()
	if have == 0 || uint64(blocks) <= have/uint64(bytes) {
		return nil
	}
	const mib = 1 << 20
	return fmt.Errorf("kv: %d blocks of %d bytes are %.0f MiB, %w, %d MiB",
		blocks, bytes, float64(blocks)*float64(bytes)/mib, ErrMemory, have/mib)
}

// NewArena maps an arena of so many blocks, all zero.
func NewArena(l Layout, blocks int) (*Arena, error) {
	if l.Layers <= 0 || l.Heads <= 0 || l.HeadDim <= 0 || blocks <= 0 {
		return nil, fmt.Errorf("kv: arena of %d blocks of %+v: not positive", blocks, l)
	}
	if l.BlockTiles != 1 && l.BlockTiles != 2 && l.BlockTiles != 4 {
		return nil, fmt.Errorf("kv: arena with %d tiles a block: want 1, 2 or 4", l.BlockTiles)
	}
	if tiles := int64(blocks) * int64(l.BlockTiles); tiles > 1<<31-1 {
		return nil, fmt.Errorf("kv: arena of %d tiles: too many", tiles)
	}
	if int64(blocks) > (1<<62)/int64(l.BlockBytes()) {
		return nil, fmt.Errorf("kv: arena of %d blocks of %d bytes: too large", blocks, l.BlockBytes())
	}
	if err := Fits(blocks, l.BlockBytes()); err != nil {
		return nil, err
	}
	mem, err := mapMemory(blocks * l.BlockBytes())
	if err != nil {
		return nil, fmt.Errorf("kv: mapping an arena of %d bytes: %w", blocks*l.BlockBytes(), err)
	}
	return &Arena{
		layout: l,
		blocks: blocks,
		mem:    mem,
		sums:   make([]uint64, blocks*l.BlockTiles*l.Heads),
	}, nil
}

// machineMemory returns the bytes of memory that the machine has, 0 when it does
// not say.
func machineMemory() uint64 {
	var s unix.Sysinfo_t
	if unix.Sysinfo(&s) != nil {
		return 0
	}
	return s.Totalram * uint64(s.Unit)
}

// Layout returns the geometry of a.
func (a *Arena) Layout() Layout { return a.layout }

// Blocks returns the number of blocks.
func (a *Arena) Blocks() int { return a.blocks }

// Tiles returns the number of tiles.
func (a *Arena) Tiles() int { return a.blocks * a.layout.BlockTiles }

// Bytes returns the whole memory. It is valid until Close.
func (a *Arena) Bytes() []byte { return a.mem.bytes }

// Tile returns the bytes of tile t. They are valid until Close.
func (a *Arena) Tile(t TileID) []byte {
	n := a.layout.TileBytes()
	o := int(t) * n
	return a.mem.bytes[o : o+n : o+n]
}

// Head returns the bytes of one head of one layer of tile t: K as
// [HeadDim][16], then V as [16][HeadDim]. They are valid until Close.
func (a *Arena) Head(t TileID, layer, head int) []byte {
	return headBytes(a.Tile(t), a.layout, layer, head)
}

// File returns the memory file, or nil when the arena is on the Go heap. It is
// owned by the arena; whoever gives it to a peer opens it anew for reading.
func (a *Arena) File() *os.File { return a.mem.file }

// Populate gives blocks [from, to) their pages, so that writing them does not
// wait for the system to find and clear some. Contents stay as they are; it may
// run beside every other use but Close.
func (a *Arena) Populate(from, to int) error {
	n := a.layout.BlockBytes()
	if err := a.mem.populate(from*n, to*n); err != nil {
		return fmt.Errorf("kv: populating blocks [%d, %d) of an arena: %w", from, to, err)
	}
	return nil
}

// Close gives the memory back. The slices of a must not be used any more.
func (a *Arena) Close() error {
	if err := a.mem.close(); err != nil {
		return fmt.Errorf("kv: closing an arena: %w", err)
	}
	return nil
}

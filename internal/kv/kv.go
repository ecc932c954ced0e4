// Package kv is the ground floor of an engine: where the KV cache of one rank
// lies in memory, who holds its blocks, and which of them hold what tokens.
//
// It hides four things: the arena (memory outside the Go heap that peers may
// map), the block pool (reference counts and the free list), the prefix index
// (which blocks hold which tokens) and the seals (content sums of finished
// tiles). Nothing here knows requests, time or the network. All types are
// single-owner values unless their comment says otherwise.
package kv

// TileTokens is the number of tokens of a tile, the unit of layout and
// transfer.
const TileTokens = 16

type (
	// A BlockID numbers a block within an engine; every rank's arena uses the
	// same numbers.
	BlockID int32

	// A TileID numbers a tile within an arena: tile t of block b is
	// b*BlockTiles + t.
	TileID int32

	// An Epoch numbers the registrations of an arena. It rises by one with
	// each restore of released memory.
	Epoch uint64

	// An EngineID names an engine in hand-offs and logs. It is chosen by the
	// operator or drawn at random; the identity of a process is its incarnation.
	EngineID string

	// A RequestID names one request inside one engine. The engine makes it, so
	// that two requests never share one whatever their clients call them.
	RequestID string

	// A Token is an index into the model's vocabulary.
	Token = int32
)

// A DType is the element type of cached keys and values.
type DType uint8

// The element types.
const (
	F16 DType = iota // IEEE binary16, the default
	F32              // for the f32 test mode
)

// Size returns the bytes of one element.
func (d DType) Size() int {
	if d == F32 {
		return 4
	}
	return 2
}

// String returns the name used in flags, fingerprints and logs.
func (d DType) String() string {
	if d == F32 {
		return "f32"
	}
	return "f16"
}

// A Layout is the geometry of one rank's arena:
//
//	[block][tile][layer][KV head][K | V]
//
// where K of a head and a tile is transposed, [HeadDim][16], so that one vector
// holds one dimension of sixteen keys, and V is [16][HeadDim]. A tile is one
// contiguous piece over all layers; inside it a layer is a sub-range and the
// heads of a layer are contiguous.
type Layout struct {
	Layers     int
	Heads      int // KV heads of this rank
	HeadDim    int // elements of one key
	Elem       DType
	BlockTiles int // tiles of a block: 1, 2 or 4
}

// KBytes returns the bytes of the keys of one head, layer and tile; the values
// take as many and follow at once.
func (l Layout) KBytes() int { return TileTokens * l.HeadDim * l.Elem.Size() }

// HeadBytes returns the bytes of one head of one layer of a tile, K and V.
func (l Layout) HeadBytes() int { return 2 * l.KBytes() }

// LayerBytes returns the bytes of one layer of a tile.
func (l Layout) LayerBytes() int { return l.Heads * l.HeadBytes() }

// TileBytes returns the bytes of a tile.
func (l Layout) TileBytes() int { return l.Layers * l.LayerBytes() }

// BlockBytes returns the bytes of a block.
func (l Layout) BlockBytes() int { return l.BlockTiles * l.TileBytes() }

// BlockTokens returns the tokens of a block.
func (l Layout) BlockTokens() int { return l.BlockTiles * TileTokens }

// A Seq is one request's part of a step.
type Seq struct {
	// Tokens are computed in this step; Tokens[0] is at position Pos.
	Tokens []Token
	Pos    int

	// Blocks is the block table. It covers positions 0 to Pos+len(Tokens)-1.
	Blocks []BlockID

	// WriteFrom is the first position whose keys and values are written. The
	// slots below it hold verified data already and are only read.
	WriteFrom int

	// Logits is how many of the last tokens' logits are wanted.
	Logits int

	// Seal lists the tiles of Blocks (by index from the start of the sequence)
	// that this step finishes: each is sealed before the step returns.
	// SealFilled is the number of written slots of the last of them, 1 to 16.
	SealFrom, SealTo int // tiles [SealFrom, SealTo)
	SealFilled       int
}

// A Batch is what a step computes: the sequences in the order in which their
// logits are returned.
type Batch struct {
	Seqs []Seq
}

// Tokens returns the number of tokens of b.
func (b *Batch) Tokens() int {
	n := 0
	for i := range b.Seqs {
		n += len(b.Seqs[i].Tokens)
	}
	return n
}

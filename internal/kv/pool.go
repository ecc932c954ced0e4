package kv

import "fmt"

// none marks the end of a list of blocks.
const none BlockID = -1

// A Pool hands out the blocks of an engine and remembers which of them hold
// what tokens.
//
// A block has a reference count. At zero it is free: a block in the prefix
// index goes to the tail of the free list and keeps its contents until it is
// the oldest there, any other goes to the head and is used first. Every
// operation on one block takes constant time and none allocates.
//
// A Pool counts; it touches no KV memory. It belongs to the scheduler: it is
// not safe for concurrent use. Misuse (freeing a free block) is a bug of the
// caller and panics.
type Pool struct {
	blockTokens int
	blocks      []block
	tokens      []Token // of indexed blocks, blockTokens each

	free       int     // blocks without references
	high       int     // blocks that were ever given out, from the first on
	head, tail BlockID // of the free list

	index
}

// block is what a pool knows of one block.
type block struct {
	refs       int32
	prev, next BlockID // in the free list, while refs is 0
	entry              // in the prefix index, while id is not 0
}

// A PoolOption changes how a Pool works.
type PoolOption func(*Pool)

// WithHash replaces the hash of the prefix index, which gets the salt for the
// first block of a sequence and "" for others. Hits are compared token by
// token, so that a weak hash costs hits but never gives a wrong one.
func WithHash(f func(parent Chain, salt string, tokens []Token) uint64) PoolOption {
	return func(p *Pool) { p.hash = f }
}

// NewPool returns a pool of free blocks of blockTokens tokens each. It panics
// when either number is not positive.
func NewPool(blocks, blockTokens int, opts ...PoolOption) *Pool {
	if blocks <= 0 || blockTokens <= 0 {
		panic(fmt.Sprintf("kv: pool of %d blocks of %d tokens", blocks, blockTokens))
	}
	p := &Pool{
		blockTokens: blockTokens,
		blocks:      make([]block, blocks),
		tokens:      make([]Token, blocks*blockTokens),
		free:        blocks,
		head:        0,
		tail:        BlockID(blocks - 1),
		index:       newIndex(blocks),
	}
	for i := range p.blocks {
		p.blocks[i].prev, p.blocks[i].next = BlockID(i-1), BlockID(i+1)
	}
	p.blocks[blocks-1].next = none
	for _, o := range opts {
		o(p)
	}
	return p
}

// Blocks returns the number of blocks.
func (p *Pool) Blocks() int { return len(p.blocks) }

// BlockTokens returns the tokens of a block.
func (p *Pool) BlockTokens() int { return p.blockTokens }

// Free returns the number of blocks that Alloc can give, those that are kept
// only for the prefix index among them.
func (p *Pool) Free() int { return p.free }

// High returns the length of the shortest run of blocks, from the first on, that
// holds every block ever given out. Blocks behind it were never written.
func (p *Pool) High() int { return p.high }

// Refs returns the number of references to b.
func (p *Pool) Refs(b BlockID) int { return int(p.blocks[b].refs) }

// Alloc appends n blocks to dst, each with one reference, and reports whether
// there were as many. It evicts the least recently used blocks of the prefix
// index when no others are left. Without success nothing changes.
func (p *Pool) Alloc(dst []BlockID, n int) ([]BlockID, bool) {
	if n > p.free {
		return dst, false
	}
	for range n {
		b := p.head
		p.unlink(b)
		if p.blocks[b].id != 0 {
			p.evict(b)
		}
		p.blocks[b].refs = 1
		p.high = max(p.high, int(b)+1)
		dst = append(dst, b)
	}
	return dst, true
}

// Ref adds a reference to b, which may be free if it is in the prefix index.
func (p *Pool) Ref(b BlockID) {
	if p.blocks[b].refs == 0 {
		if p.blocks[b].id == 0 {
			panic(fmt.Sprintf("kv: reference to free block %d", b))
		}
		p.unlink(b)
	}
	p.blocks[b].refs++
}

// Unref drops a reference to b and reports whether that freed it.
func (p *Pool) Unref(b BlockID) bool {
	x := &p.blocks[b]
	if x.refs <= 0 {
		panic(fmt.Sprintf("kv: block %d freed twice", b))
	}
	x.refs--
	if x.refs > 0 {
		return false
	}
	p.link(b, x.id != 0)
	return true
}

// Release drops a reference to each of blocks, the last first, so that the end
// of a prefix is evicted before its beginning.
func (p *Pool) Release(blocks []BlockID) {
	for i := len(blocks) - 1; i >= 0; i-- {
		p.Unref(blocks[i])
	}
}

// link puts b into the free list: last if it is worth keeping, else first.
func (p *Pool) link(b BlockID, keep bool) {
	x := &p.blocks[b]
	p.free++
	switch {
	case p.head == none:
		x.prev, x.next = none, none
		p.head, p.tail = b, b
	case keep:
		x.prev, x.next = p.tail, none
		p.blocks[p.tail].next = b
		p.tail = b
	default:
		x.prev, x.next = none, p.head
		p.blocks[p.head].prev = b
		p.head = b
	}
}

// unlink takes b out of the free list.
func (p *Pool) unlink(b BlockID) {
	x := &p.blocks[b]
	p.free--
	if x.prev == none {
		p.head = x.next
	} else {
		p.blocks[x.prev].next = x.next
	}
	if x.next == none {
		p.tail = x.prev
	} else {
		p.blocks[x.next].prev = x.prev
	}
	x.prev, x.next = none, none
}

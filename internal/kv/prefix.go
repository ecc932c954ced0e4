package kv

import (
	"encoding/binary"
	"math/bits"
	"slices"

	"github.com/zeebo/xxh3"
)

// A Chain names a prefix in the index of a Pool: the tokens from the start of a
// sequence to the end of one of its blocks. The zero Chain is the empty prefix.
//
// A Chain is made anew whenever a prefix enters the index, so that one that was
// evicted is never mistaken for what took its place.
type Chain uint64

// lost is the chain behind a prefix that the index did not take.
const lost = ^Chain(0)

// maxBucket bounds the blocks whose hashes fall together. A full bucket takes
// no more, which keeps every operation short whatever the clients send.
const maxBucket = 32

// index finds blocks by what they hold. An entry belongs to a block and lies in
// a list per bucket of the hash.
type index struct {
	hash    func(parent Chain, salt string, tokens []Token) uint64
	buckets []BlockID // first entry, none when empty
	mask    uint64
	entries int
	made    Chain  // the last chain given out
	changes uint64 // entries added so far
}

// entry is a block's place in the index.
type entry struct {
	id     Chain // of the prefix that ends with this block; 0: not indexed
	parent Chain // of the prefix before it
	salt   string
	sum    uint64
	after  BlockID // next of the bucket
}

func newIndex(blocks int) index {
	n := 1 << bits.Len(uint(2*blocks-1))
	x := index{hash: hashBlock, buckets: make([]BlockID, n), mask: uint64(n - 1)}
	for i := range x.buckets {
		x.buckets[i] = none
	}
	return x
}

// hashBlock is the hash of a block's tokens behind a prefix.
func hashBlock(parent Chain, salt string, tokens []Token) uint64 {
	seed := uint64(parent)
	if salt != "" {
		seed = xxh3.HashString(salt)
	}
	var buf [256]byte
	for len(tokens) > 0 {
		n := min(len(tokens), len(buf)/4)
		for i, t := range tokens[:n] {
			binary.LittleEndian.PutUint32(buf[4*i:], uint32(t))
		}
		seed = xxh3.HashSeed(buf[:4*n], seed)
		tokens = tokens[n:]
	}
	return seed
}

// sumOf hashes a block. The salt counts for the first block of a sequence; the
// others inherit it from their parents.
func (p *Pool) sumOf(parent Chain, salt string, tokens []Token) uint64 {
	if parent != 0 {
		salt = ""
	}
	return p.hash(parent, salt, tokens)
}

// find returns the block that holds tokens behind parent, or none, and how many
// entries of its bucket came before.
func (p *Pool) find(parent Chain, salt string, tokens []Token, sum uint64) (b BlockID, seen int) {
	for b = p.buckets[sum&p.mask]; b != none; b = p.blocks[b].after {
		x := &p.blocks[b]
		if x.sum == sum && x.parent == parent && (parent != 0 || x.salt == salt) &&
			slices.Equal(p.held(b), tokens) {
			return b, seen
		}
		seen++
	}
	return none, seen
}

// held returns the tokens that the index has noted for b.
func (p *Pool) held(b BlockID) []Token {
	return p.tokens[int(b)*p.blockTokens : (int(b)+1)*p.blockTokens]
}

// Match returns the length in blocks of the longest indexed prefix of tokens
// that leaves at least one token over, and how many of these blocks are free
// now. It changes nothing.
func (p *Pool) Match(tokens []Token, salt string) (blocks, free int) {
	var at Chain
	for n := p.blockTokens; n < len(tokens); n += p.blockTokens {
		part := tokens[n-p.blockTokens : n]
		b, _ := p.find(at, salt, part, p.sumOf(at, salt, part))
		if b == none {
			break
		}
		blocks++
		if p.blocks[b].refs == 0 {
			free++
		}
		at = p.blocks[b].id
	}
	return blocks, free
}

// Lookup appends to dst the blocks of the longest indexed prefix of tokens that
// leaves at least one token over, and takes a reference to each. A hit has the
// same salt and the same tokens, compared one by one. The Chain is where Index
// goes on.
func (p *Pool) Lookup(dst []BlockID, tokens []Token, salt string) ([]BlockID, Chain) {
	var at Chain
	for n := p.blockTokens; n < len(tokens); n += p.blockTokens {
		part := tokens[n-p.blockTokens : n]
		b, _ := p.find(at, salt, part, p.sumOf(at, salt, part))
		if b == none {
			break
		}
		p.Ref(b)
		dst = append(dst, b)
		at = p.blocks[b].id
	}
	return dst, at
}

// Index enters block b, which the caller holds, as what follows the prefix at.
// All of its slots must hold the verified KV of tokens, BlockTokens of them.
// It returns the prefix that ends with tokens. When the index has such a block
// already it keeps that one.
func (p *Pool) Index(at Chain, b BlockID, tokens []Token, salt string) Chain {
	x := &p.blocks[b]
	if len(tokens) != p.blockTokens || x.refs == 0 {
		panic("kv: index of a block that is not held or not full")
	}
	if at == lost || x.id != 0 {
		return lost
	}
	sum := p.sumOf(at, salt, tokens)
	known, seen := p.find(at, salt, tokens, sum)
	if known != none {
		return p.blocks[known].id
	}
	if seen >= maxBucket {
		return lost
	}
	p.made++
	head := &p.buckets[sum&p.mask]
	x.entry = entry{id: p.made, parent: at, sum: sum, after: *head}
	if at == 0 {
		x.salt = salt
	}
	*head = b
	copy(p.held(b), tokens)
	p.entries++
	p.changes++
	return x.id
}

// evict takes b out of the index.
func (p *Pool) evict(b BlockID) {
	x := &p.blocks[b]
	at := &p.buckets[x.sum&p.mask]
	for *at != b {
		at = &p.blocks[*at].after
	}
	*at = x.after
	x.entry = entry{}
	p.entries--
}

// Indexed returns the number of blocks in the prefix index.
func (p *Pool) Indexed() int { return p.entries }

// Changes returns how many blocks have entered the prefix index so far. While
// it stays the same no prefix gets longer hits.
func (p *Pool) Changes() uint64 { return p.changes }

package kv

import (
	"fmt"
	"math/bits"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// slowPool does what a Pool promises in the plainest way: free blocks in a list
// in the order in which they are to be used, prefixes found by looking at every
// block.
type slowPool struct {
	blocks []slowBlock
	free   []BlockID
	made   int
}

type slowBlock struct {
	refs   int
	id     int // of the prefix that ends here; 0: none
	parent int
	salt   string
	tokens []Token
}

func newSlowPool(n int) *slowPool {
	p := &slowPool{blocks: make([]slowBlock, n)}
	for i := range n {
		p.free = append(p.free, BlockID(i))
	}
	return p
}

func (p *slowPool) alloc(n int) ([]BlockID, bool) {
	if n > len(p.free) {
		return nil, false
	}
	got := slices.Clone(p.free[:n])
	p.free = slices.Clone(p.free[n:])
	for _, b := range got {
		p.blocks[b] = slowBlock{refs: 1}
	}
	return got, true
}

func (p *slowPool) ref(b BlockID) {
	if p.blocks[b].refs == 0 {
		p.free = slices.DeleteFunc(p.free, func(f BlockID) bool { return f == b })
	}
	p.blocks[b].refs++
}

func (p *slowPool) unref(b BlockID) bool {
	x := &p.blocks[b]
	if x.refs--; x.refs > 0 {
		return false
	}
	if x.id != 0 {
		p.free = append(p.free, b)
	} else {
		p.free = append([]BlockID{b}, p.free...)
	}
	return true
}

func (p *slowPool) find(parent int, salt string, tokens []Token) BlockID {
	for b, x := range p.blocks {
		if x.id != 0 && x.parent == parent && (parent != 0 || x.salt == salt) && slices.Equal(x.tokens, tokens) {
			return BlockID(b)
		}
	}
	return none
}

// hits returns the blocks of the longest prefix that leaves a token over.
func (p *slowPool) hits(tokens []Token, salt string, bt int) (blocks []BlockID, at int) {
	for n := bt; n < len(tokens); n += bt {
		b := p.find(at, salt, tokens[n-bt:n])
		if b == none {
			break
		}
		blocks, at = append(blocks, b), p.blocks[b].id
	}
	return blocks, at
}

// index returns the prefix that ends with tokens; -1 when the pool does not know
// one.
func (p *slowPool) index(at int, b BlockID, tokens []Token, salt string) int {
	x := &p.blocks[b]
	if at < 0 || x.id != 0 {
		return -1
	}
	if k := p.find(at, salt, tokens); k != none {
		return p.blocks[k].id
	}
	p.made++
	x.id, x.parent, x.salt, x.tokens = p.made, at, salt, slices.Clone(tokens)
	return x.id
}

// reader is somebody who holds blocks of both pools.
type reader struct {
	sequence
	at int // the slow pool's chain
}

// Any history of a pool is that of the slow one, block for block: the same hits,
// the same blocks given out in the same order, the same ones evicted. Holders
// come, share, index late or twice, and give back in parts.
func TestPoolEqualsTheSlowOne(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, 14).Draw(t, "blocks")
		bt := rapid.IntRange(1, 3).Draw(t, "block tokens")
		var opts []PoolOption
		if keep := rapid.SampledFrom([]int{0, 1, 64}).Draw(t, "bits"); keep < 64 {
			opts = append(opts, WithHash(func(p Chain, salt string, tokens []Token) uint64 {
				return hashBlock(p, salt, tokens) & (1<<keep - 1)
			}))
		}
		p, slow := NewPool(n, bt, opts...), newSlowPool(n)
		var live []*reader
		pick := func(t *rapid.T) *reader {
			if len(live) == 0 {
				t.Skip("nobody holds anything")
			}
			return live[rapid.IntRange(0, len(live)-1).Draw(t, "who")]
		}
		leave := func(r *reader) { live = slices.DeleteFunc(live, func(x *reader) bool { return x == r }) }
		t.Repeat(map[string]func(*rapid.T){
			"": func(t *rapid.T) { samePools(t, p, slow) },
			"come": func(t *rapid.T) {
				r := &reader{sequence: sequence{salt: rapid.SampledFrom([]string{"", "a"}).Draw(t, "salt")}}
				r.tokens = rapid.SliceOfN(rapid.Int32Range(0, 1), 1, 4*bt+1).Draw(t, "tokens")
				want, at := slow.hits(r.tokens, r.salt, bt)
				free := 0
				for _, b := range want {
					if slow.blocks[b].refs == 0 {
						free++
					}
				}
				if m, f := p.Match(r.tokens, r.salt); m != len(want) || f != free {
					t.Fatalf("%d hits, %d of them free, want %v, %d", m, f, want, free)
				}
				r.blocks, r.chain = p.Lookup(nil, r.tokens, r.salt)
				r.at, r.known = at, len(want)
				for _, b := range want {
					slow.ref(b)
				}
				if !slices.Equal(r.blocks, want) {
					t.Fatalf("hits %v, want %v", r.blocks, want)
				}
				need := (len(r.tokens)+bt-1)/bt - len(want)
				more, could := slow.alloc(need)
				var ok bool
				r.blocks, ok = p.Alloc(r.blocks, need)
				if ok != could || !slices.Equal(r.blocks, append(want, more...)) {
					t.Fatalf("%v %t, want %v and %v", r.blocks, ok, want, more)
				}
				live = append(live, r)
			},
			"index": func(t *rapid.T) {
				r := pick(t)
				if (r.known+1)*bt > len(r.tokens) || r.known >= len(r.blocks) {
					t.Skip("nothing left")
				}
				part, b := r.tokens[r.known*bt:(r.known+1)*bt], r.blocks[r.known]
				r.chain = p.Index(r.chain, b, part, r.salt)
				r.at = slow.index(r.at, b, part, r.salt)
				if (r.chain == lost) != (r.at < 0) {
					t.Fatalf("chain %d, want %d", r.chain, r.at)
				}
				r.known++
				if p.Holds(b) && p.Index(0, b, part, r.salt) != lost {
					t.Fatal("an indexed block entered the index again")
				}
			},
			"share": func(t *rapid.T) {
				r := pick(t)
				for _, b := range r.blocks {
					p.Ref(b)
					slow.ref(b)
				}
				live = append(live, &reader{sequence: sequence{tokens: r.tokens, salt: r.salt,
					blocks: slices.Clone(r.blocks), known: len(r.tokens)}})
			},
			"give back": func(t *rapid.T) {
				r := pick(t)
				from := rapid.IntRange(0, len(r.blocks)).Draw(t, "from")
				to := rapid.IntRange(from, len(r.blocks)).Draw(t, "to")
				p.Release(r.blocks[from:to])
				for i := to - 1; i >= from; i-- {
					slow.unref(r.blocks[i])
				}
				r.blocks = slices.Delete(r.blocks, from, to)
				r.known = len(r.tokens) // what is left has lost its place
				if len(r.blocks) == 0 {
					leave(r)
				}
			},
			"drop one": func(t *rapid.T) {
				r := pick(t)
				if len(r.blocks) == 0 {
					leave(r)
					return
				}
				b := r.blocks[len(r.blocks)-1]
				if got, want := p.Unref(b), slow.unref(b); got != want {
					t.Fatalf("block %d freed: %t, want %t", b, got, want)
				}
				r.blocks, r.known = r.blocks[:len(r.blocks)-1], len(r.tokens)
			},
		})
	})
}

// samePools compares what both pools say of themselves.
func samePools(t *rapid.T, p *Pool, slow *slowPool) {
	if err := p.Check(); err != nil {
		t.Fatal(err)
	}
	indexed := 0
	for b, x := range slow.blocks {
		if p.Refs(BlockID(b)) != x.refs || p.Holds(BlockID(b)) != (x.id != 0) {
			t.Fatalf("block %d: %d references, indexed %t, want %+v", b, p.Refs(BlockID(b)), p.Holds(BlockID(b)), x)
		}
		if x.id != 0 {
			indexed++
		}
	}
	if p.Free() != len(slow.free) || p.Indexed() != indexed || p.Changes() != uint64(slow.made) {
		t.Fatalf("%d free, %d indexed, %d changes, want %d, %d, %d",
			p.Free(), p.Indexed(), p.Changes(), len(slow.free), indexed, slow.made)
	}
	if p.Blocks() != len(slow.blocks) {
		t.Fatalf("%d blocks", p.Blocks())
	}
}

// A full bucket takes no more: what comes after is served without hits, keeps
// every count, and the bucket takes entries again when it has lost some.
func TestFullBucketTakesNoMore(t *testing.T) {
	p := NewPool(maxBucket+4, 1, WithHash(func(at Chain, _ string, _ []Token) uint64 {
		if at == lost { // would have room
			return 6
		}
		return 5
	}))
	b, _ := p.Alloc(nil, maxBucket+4)
	for i := range maxBucket {
		if p.Index(0, b[i], []Token{Token(i)}, "") == lost {
			t.Fatalf("entry %d of %d is refused", i, maxBucket)
		}
	}
	at := p.Index(0, b[maxBucket], []Token{99}, "")
	if at != lost || p.Indexed() != maxBucket || p.Holds(b[maxBucket]) {
		t.Fatalf("chain %d, %d entries", at, p.Indexed())
	}
	if p.Index(at, b[maxBucket+1], []Token{1}, "") != lost {
		t.Fatal("a child of what was not taken has a chain")
	}
	if got := p.Index(0, b[maxBucket+1], []Token{3}, ""); got == lost {
		t.Fatal("a prefix that is known is not found in a full bucket")
	}
	if n, _ := p.Match([]Token{Token(maxBucket - 1), 0}, ""); n != 1 {
		t.Fatal("an entry of the full bucket is not found")
	}
	p.Unref(b[0])
	if got, ok := p.Alloc(nil, 1); !ok || got[0] != b[0] || p.Indexed() != maxBucket-1 {
		t.Fatalf("%v, %d entries", got, p.Indexed())
	}
	if p.Index(0, b[maxBucket], []Token{99}, "") == lost {
		t.Fatal("the bucket has room and takes nothing")
	}
	if p.Index(at, b[maxBucket+2], []Token{1}, "") != lost || p.Indexed() != maxBucket {
		t.Fatal("a child of what was not taken is taken when there is room")
	}
	if err := p.Check(); err != nil {
		t.Fatal(err)
	}
}

// Every token and the salt count in the hash of a block, the salt only at the
// start of a sequence, since others have it in their parents. Blocks that are
// longer than the buffer of the hash are hashed to their end.
func TestHashSeesEverything(t *testing.T) {
	p := NewPool(1, 16)
	for _, n := range []int{1, 16, 64, 65, 128, 200} {
		tokens := make([]Token, n)
		for i := range tokens {
			tokens[i] = Token(i * 77)
		}
		whole := p.sumOf(7, "", tokens)
		seen := map[uint64]string{whole: "whole"}
		note := func(sum uint64, what string) {
			t.Helper()
			if seen[sum] != "" {
				t.Errorf("%d tokens: %s and %s have one hash", n, what, seen[sum])
			}
			seen[sum] = what
		}
		for i := range tokens {
			tokens[i]++
			note(p.sumOf(7, "", tokens), fmt.Sprint("token ", i, " changed"))
			tokens[i]--
		}
		note(p.sumOf(8, "", tokens), "another parent")
		note(p.sumOf(0, "", tokens), "no parent")
		note(p.sumOf(0, "a", tokens), "salt a")
		note(p.sumOf(0, "b", tokens), "salt b")
		if p.sumOf(7, "a", tokens) != whole {
			t.Errorf("%d tokens: the salt counts behind a parent", n)
		}
	}
}

// The buckets are a power of two and at least as many as the blocks, so that a
// sum's low bits choose among all of them.
func TestBuckets(t *testing.T) {
	for _, n := range []int{1, 2, 3, 4, 5, 8, 9, 1000} {
		x := newIndex(n)
		if len(x.buckets) < n || bits.OnesCount(uint(len(x.buckets))) != 1 || x.mask != uint64(len(x.buckets)-1) {
			t.Errorf("%d buckets, mask %x for %d blocks", len(x.buckets), x.mask, n)
		}
	}
}

// The sums of every tile have a place of their own.
func TestSumsOfTilesStandApart(t *testing.T) {
	l := Layout{Layers: 2, Heads: 3, HeadDim: 8, Elem: F16, BlockTiles: 2}
	a := testArena(t, l, 4)
	fill(a.Bytes(), 9)
	for tile := range TileID(8) {
		a.Seal(tile, TileTokens)
	}
	for tile := range TileID(8) {
		for head := range l.Heads {
			if a.Sums(tile)[head] != SumHead(a.Tile(tile), l, head) {
				t.Errorf("tile %d, head %d: another tile's sum took its place", tile, head)
			}
		}
		if len(a.Sums(tile)) != l.Heads || cap(a.Sums(tile)) != l.Heads {
			t.Errorf("tile %d: %d sums with room for %d", tile, len(a.Sums(tile)), cap(a.Sums(tile)))
		}
	}
}

// One changed bit anywhere in a sealed tile changes the sum of the head whose
// byte it is, and of no other.
func TestSumCoversEveryByte(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		l := Layout{
			Layers: rapid.IntRange(1, 4).Draw(rt, "layers"), Heads: rapid.IntRange(1, 4).Draw(rt, "heads"),
			HeadDim: 8 * rapid.IntRange(1, 3).Draw(rt, "dim"), Elem: DType(rapid.IntRange(0, 1).Draw(rt, "elem")),
			BlockTiles: rapid.SampledFrom([]int{1, 2, 4}).Draw(rt, "tiles"),
		}
		a := testArena(t, l, 2)
		fill(a.Bytes(), rapid.Uint64().Draw(rt, "bytes"))
		tile := TileID(rapid.IntRange(0, 2*l.BlockTiles-1).Draw(rt, "tile"))
		a.Seal(tile, rapid.IntRange(1, TileTokens).Draw(rt, "filled"))
		at := rapid.IntRange(0, l.TileBytes()-1).Draw(rt, "byte")
		a.Tile(tile)[at] ^= 1 << rapid.IntRange(0, 7).Draw(rt, "bit")
		owner := at % l.LayerBytes() / l.HeadBytes()
		for head := range l.Heads {
			if same := SumHead(a.Tile(tile), l, head) == a.Sums(tile)[head]; same != (head != owner) {
				rt.Fatalf("byte %d of head %d: sum of head %d is the same: %t", at, owner, head, same)
			}
		}
	})
}

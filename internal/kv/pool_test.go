package kv

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// shadow is a pool that remembers in the plainest way what each block holds.
type shadow struct {
	refs map[BlockID]int
	// prefix is salt and all tokens up to the block's end, for blocks that
	// entered the index or doubled one that had.
	prefix map[BlockID]string
}

type sequence struct {
	tokens []Token
	salt   string
	blocks []BlockID
	chain  Chain
	known  int
}

func (q *sequence) key(n int) string { return fmt.Sprint(q.salt, q.tokens[:n]) }

// Any history of the pool agrees with the shadow: references are conserved, no
// block has two owners, a hit holds the very same tokens and salt. H048 H049
func TestPoolAgainstShadow(t *testing.T) {
	const bt = 2
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, 12).Draw(t, "blocks")
		var opts []PoolOption
		if bits := rapid.SampledFrom([]int{0, 1, 64}).Draw(t, "bits"); bits < 64 {
			opts = append(opts, WithHash(func(p Chain, salt string, tokens []Token) uint64 {
				return hashBlock(p, salt, tokens) & (1<<bits - 1)
			}))
		}
		p := NewPool(n, bt, opts...)
		sh := shadow{refs: map[BlockID]int{}, prefix: map[BlockID]string{}}
		var live []*sequence
		pick := func() *sequence { return live[rapid.IntRange(0, len(live)-1).Draw(t, "which")] }
		actions := map[string]func(*rapid.T){
			"": func(t *rapid.T) {
				if err := p.Check(); err != nil {
					t.Fatal(err)
				}
				held := 0
				for b := range n {
					if p.Refs(BlockID(b)) != sh.refs[BlockID(b)] {
						t.Fatalf("block %d: %d references, want %d", b, p.Refs(BlockID(b)), sh.refs[BlockID(b)])
					}
					if sh.refs[BlockID(b)] > 0 {
						held++
					}
				}
				if p.Free() != n-held {
					t.Fatalf("%d free, want %d", p.Free(), n-held)
				}
			},
			"start": func(t *rapid.T) {
				q := &sequence{salt: rapid.SampledFrom([]string{"", "a"}).Draw(t, "salt")}
				for range rapid.IntRange(1, 9).Draw(t, "tokens") {
					q.tokens = append(q.tokens, Token(rapid.IntRange(0, 1).Draw(t, "token")))
				}
				hits, idle := p.Match(q.tokens, q.salt)
				free := p.Free()
				q.blocks, q.chain = p.Lookup(nil, q.tokens, q.salt)
				if len(q.blocks) != hits || free-p.Free() != idle {
					t.Fatalf("match says %d, %d idle; lookup %d, %d", hits, idle, len(q.blocks), free-p.Free())
				}
				if hits*bt >= len(q.tokens) {
					t.Fatalf("%d hits leave no token of %d", hits, len(q.tokens))
				}
				for i, b := range q.blocks {
					if sh.prefix[b] != q.key((i+1)*bt) {
						t.Fatalf("hit %d holds %q, want %q", b, sh.prefix[b], q.key((i+1)*bt))
					}
					sh.refs[b]++
				}
				q.known = hits
				need := (len(q.tokens)+bt-1)/bt - hits
				free = p.Free()
				blocks, ok := p.Alloc(q.blocks, need)
				if ok != (need <= free) {
					t.Fatalf("alloc of %d with %d free: %t", need, free, ok)
				}
				if !ok {
					for _, b := range q.blocks {
						sh.refs[b]--
					}
					p.Release(q.blocks)
					return
				}
				for _, b := range blocks[hits:] {
					if sh.refs[b] != 0 {
						t.Fatalf("block %d given out twice", b)
					}
					sh.refs[b] = 1
					delete(sh.prefix, b)
				}
				q.blocks = blocks
				live = append(live, q)
			},
			"index": func(t *rapid.T) {
				if len(live) == 0 {
					t.Skip("none")
				}
				if q := pick(); (q.known+1)*bt <= len(q.tokens) {
					b := q.blocks[q.known]
					q.chain = p.Index(q.chain, b, q.tokens[q.known*bt:(q.known+1)*bt], q.salt)
					q.known++
					sh.prefix[b] = q.key(q.known * bt)
				}
			},
			"end": func(t *rapid.T) {
				if len(live) == 0 {
					t.Skip("none")
				}
				q := pick()
				for _, b := range q.blocks {
					sh.refs[b]--
				}
				p.Release(q.blocks)
				live = slices.DeleteFunc(live, func(x *sequence) bool { return x == q })
			},
		}
		t.Repeat(actions)
	})
}

// Unindexed blocks go first, then the least recently used; of one prefix, its
// end before its beginning.
func TestOrderOfEviction(t *testing.T) {
	p := NewPool(6, 2)
	use := func(tokens ...Token) []BlockID {
		t.Helper()
		b, at := p.Lookup(nil, append(tokens, 0), "")
		hits := len(b)
		b, ok := p.Alloc(b, len(tokens)/2-hits)
		if !ok {
			t.Fatal("full")
		}
		for i := hits; i < len(b); i++ {
			at = p.Index(at, b[i], tokens[2*i:2*i+2], "")
		}
		return b
	}
	hits := func(tokens ...Token) int {
		n, _ := p.Match(append(tokens, 0), "")
		return n
	}
	a := use(1, 1, 2, 2)
	b := use(3, 3, 4, 4)
	p.Release(a)
	p.Release(b)
	p.Release(use(1, 1, 2, 2)) // a is the younger one now
	x, _ := p.Alloc(nil, 2)    // the two that were never used
	if hits(1, 1, 2, 2) != 2 || hits(3, 3, 4, 4) != 2 {
		t.Fatal("an indexed block went before an empty one")
	}
	y, _ := p.Alloc(nil, 1)
	if hits(3, 3, 4, 4) != 1 || hits(1, 1, 2, 2) != 2 {
		t.Fatalf("hits %d %d", hits(3, 3, 4, 4), hits(1, 1, 2, 2))
	}
	if _, ok := p.Alloc(nil, 4); ok {
		t.Fatal("4 of 3 blocks")
	}
	p.Release(x)
	p.Release(y)
	if p.Free() != 6 || p.Indexed() != 3 {
		t.Errorf("%d free, %d indexed", p.Free(), p.Indexed())
	}
}

// A prefix that was evicted and came back is another one: what followed the old
// one is not found behind the new one unless it is entered again.
func TestChildOfAnEvictedParent(t *testing.T) {
	p := NewPool(3, 2)
	b, _ := p.Alloc(nil, 2)
	at := p.Index(0, b[0], []Token{1, 1}, "")
	p.Index(at, b[1], []Token{2, 2}, "")
	p.Unref(b[0])
	p.Alloc(nil, 2) // takes the empty one and evicts the parent
	if n, _ := p.Match([]Token{1, 1, 2, 2, 3}, ""); n != 0 {
		t.Fatalf("%d hits behind an evicted parent", n)
	}
	p.Index(0, b[0], []Token{9, 9}, "")
	if n, _ := p.Match([]Token{9, 9, 2, 2, 3}, ""); n != 1 {
		t.Fatalf("%d hits: what followed the old prefix is found behind the one that took its block", n)
	}
}

func TestHighCoversEveryBlockGivenOut(t *testing.T) {
	p := NewPool(8, 16)
	if p.High() != 0 {
		t.Errorf("high %d of a new pool", p.High())
	}
	got, _ := p.Alloc(nil, 3)
	p.Release(got)
	if p.High() != 3 {
		t.Errorf("high %d after three blocks", p.High())
	}
	got, _ = p.Alloc(nil, 2) // two of the three again
	if p.High() != 3 {
		t.Errorf("high %d after blocks that were used before", p.High())
	}
	if p.Alloc(got, 7); p.High() != 3 {
		t.Errorf("high %d after an Alloc that failed", p.High())
	}
	if p.Alloc(got, 6); p.High() != 8 {
		t.Errorf("high %d after all blocks", p.High())
	}
}

func TestMisusePanics(t *testing.T) {
	p := NewPool(2, 2)
	b, _ := p.Alloc(nil, 1)
	p.Unref(b[0])
	q := NewPool(1, 2)
	held, _ := q.Alloc(nil, 1)
	for name, f := range map[string]func(){
		"freed twice":   func() { p.Unref(b[0]) },
		"ref of free":   func() { p.Ref(b[0]) },
		"index of free": func() { p.Index(0, b[0], []Token{1, 2}, "") },
		"index of half": func() { q.Index(0, held[0], []Token{1}, "") },
		"index of more": func() { q.Index(0, held[0], []Token{1, 2, 3}, "") },
		"empty pool":    func() { NewPool(0, 16) },
		"empty blocks":  func() { NewPool(4, 0) },
		"less than no":  func() { NewPool(-1, 16) },
		"less than one": func() { NewPool(4, -1) },
	} {
		func() {
			defer func() {
				if p, ok := recover().(string); !ok || !strings.HasPrefix(p, "kv: ") {
					t.Errorf("%s: no panic of this package", name)
				}
			}()
			f()
		}()
	}
}

func TestPoolDoesNotAllocate(t *testing.T) {
	p := NewPool(64, 16)
	tokens := make([]Token, 16*8+1)
	blocks := make([]BlockID, 0, 16)
	next := Token(0)
	got := testing.AllocsPerRun(500, func() {
		next++
		tokens[next%129] = next
		var at Chain
		blocks, at = p.Lookup(blocks[:0], tokens, "salt")
		hits := len(blocks)
		blocks, _ = p.Alloc(blocks, 8-hits)
		for i := hits; i < 8; i++ {
			at = p.Index(at, blocks[i], tokens[16*i:16*i+16], "salt")
		}
		p.Release(blocks)
	})
	if got != 0 {
		t.Errorf("%v allocations", got)
	}
}

func BenchmarkAllocRelease(b *testing.B) {
	for _, n := range []int{1_000, 100_000} {
		b.Run(fmt.Sprintf("blocks=%d", n), func(b *testing.B) {
			p := NewPool(n, 16)
			var blocks []BlockID
			for b.Loop() {
				blocks, _ = p.Alloc(blocks[:0], 8)
				p.Release(blocks)
			}
		})
	}
}

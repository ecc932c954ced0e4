package tokenizer

import (
	"fmt"
	"strings"
)

// bpe holds the merges, keyed by pairs of symbols. A symbol is a token id, or
// beyond the vocabulary the number of a text that merges make or need but that
// is no token.
type bpe struct {
	tokens int32            // symbols from here on are no tokens
	bytes  [256]int32       // the symbol of each byte
	isByte [256]bool        // whether that symbol is a token
	pairs  map[uint64]int32 // pair of symbols to rank
	result []int32          // the symbol a merge makes, by rank
	extra  []string         // bytes of the symbols that are no tokens
}

// noRank marks a symbol that does not merge with its successor.
const noRank int32 = -1

func pair(l, r int32) uint64 { return uint64(uint32(l))<<32 | uint64(uint32(r)) }

// newBPE reads the merges. Of two tokens with one text the last has it, as in
// llama.cpp.
func newBPE(tokens, merges []string) (*bpe, error) {
	b := &bpe{
		tokens: int32(len(tokens)),
		pairs:  make(map[uint64]int32, len(merges)),
		result: make([]int32, len(merges)),
	}
	ids := make(map[string]int32, len(tokens)+64)
	for i, s := range tokens {
		ids[s] = int32(i)
	}
	symbol := func(text string) int32 {
		id, ok := ids[text]
		if !ok {
			id = b.tokens + int32(len(b.extra))
			ids[text] = id
			b.extra = append(b.extra, string(appendUnspelled(nil, text)))
		}
		return id
	}
	for i := range 256 {
		b.bytes[i] = symbol(string(spell(byte(i))))
		b.isByte[i] = b.bytes[i] < b.tokens
	}
	var joined []byte
	for rank, m := range merges {
		cut := strings.IndexByte(m[min(1, len(m)):], ' ') + 1
		if cut <= 0 || cut+1 >= len(m) {
			return nil, fmt.Errorf("tokenizer: reading merge %d: %q is not two texts", rank, m)
		}
		l, r := m[:cut], m[cut+1:]
		joined = append(append(joined[:0], l...), r...)
		made, ok := ids[string(joined)]
		if !ok {
			made = symbol(string(joined))
		}
		b.result[rank] = made
		key := pair(symbol(l), symbol(r))
		if _, ok := b.pairs[key]; !ok {
			b.pairs[key] = int32(rank)
		}
	}
	return b, nil
}

// A work holds the memory of one encoding, so that its words share it.
//
// A word is a doubly linked list of symbols. Each knows the rank of its merge
// with its successor; the heap orders these by rank, then place. A heap entry
// is stale when its symbol's rank is another by the time it comes up, so a
// word of n bytes takes O(n log n) whatever it holds.
type work struct {
	sym, next, prev, rank []int32
	heap                  []uint64
}

// appendWord appends the tokens of one word to out.
func (b *bpe) appendWord(out []int32, word string, w *work) []int32 {
	n := len(word)
	if n == 1 {
		return b.appendSymbol(out, b.bytes[word[0]])
	}
	w.reset(n)
	for i := range n {
		w.sym[i] = b.bytes[word[i]]
		w.next[i], w.prev[i] = int32(i+1), int32(i-1)
	}
	for i := range n {
		b.rate(w, int32(i), n)
	}
	w.heapify()
	for len(w.heap) > 0 {
		top := w.pop()
		i, rank := int32(uint32(top)), int32(top>>32)
		if w.rank[i] != rank {
			continue
		}
		j := w.next[i]
		w.sym[i] = b.result[rank]
		w.next[i] = w.next[j]
		w.rank[j] = noRank
		if k := w.next[j]; int(k) < n {
			w.prev[k] = i
		}
		if b.rate(w, i, n) {
			w.up()
		}
		if h := w.prev[i]; h >= 0 && b.rate(w, h, n) {
			w.up()
		}
	}
	for i := int32(0); int(i) < n; i = w.next[i] {
		out = b.appendSymbol(out, w.sym[i])
	}
	return out
}

// rate sets the rank of symbol i with its successor and, when they merge,
// appends it to the heap.
func (b *bpe) rate(w *work, i int32, n int) bool {
	w.rank[i] = noRank
	j := w.next[i]
	if int(j) >= n {
		return false
	}
	rank, ok := b.pairs[pair(w.sym[i], w.sym[j])]
	if !ok {
		return false
	}
	w.rank[i] = rank
	w.heap = append(w.heap, uint64(rank)<<32|uint64(i))
	return true
}

// appendSymbol appends a symbol's token, or the tokens of its bytes when it is
// none. Bytes without a token give nothing.
func (b *bpe) appendSymbol(out []int32, sym int32) []int32 {
	if sym < b.tokens {
		return append(out, sym)
	}
	s := b.extra[sym-b.tokens]
	for i := range len(s) {
		if b.isByte[s[i]] {
			out = append(out, b.bytes[s[i]])
		}
	}
	return out
}

// reset makes room for a word of n bytes.
func (w *work) reset(n int) {
	if cap(w.sym) < n {
		m := max(n, 64)
		mem := make([]int32, 4*m)
		w.sym, w.next, w.prev, w.rank = mem[:m:m], mem[m:2*m:2*m], mem[2*m:3*m:3*m], mem[3*m:]
	}
	w.sym, w.next, w.prev, w.rank = w.sym[:n], w.next[:n], w.prev[:n], w.rank[:n]
	w.heap = w.heap[:0]
}

// heapify orders the heap after entries were appended in any order.
func (w *work) heapify() {
	for i := len(w.heap)/2 - 1; i >= 0; i-- {
		w.down(i)
	}
}

// up restores the order after one entry was appended.
func (w *work) up() {
	h := w.heap
	i := len(h) - 1
	for i > 0 {
		p := (i - 1) / 2
		if h[p] <= h[i] {
			return
		}
		h[p], h[i] = h[i], h[p]
		i = p
	}
}

// pop removes and returns the least entry.
func (w *work) pop() uint64 {
	top := w.heap[0]
	last := len(w.heap) - 1
	w.heap[0] = w.heap[last]
	w.heap = w.heap[:last]
	w.down(0)
	return top
}

// down restores the order below entry i.
func (w *work) down(i int) {
	h := w.heap
	for {
		c := 2*i + 1
		if c >= len(h) {
			return
		}
		if c+1 < len(h) && h[c+1] < h[c] {
			c++
		}
		if h[i] <= h[c] {
			return
		}
		h[i], h[c] = h[c], h[i]
		i = c
	}
}

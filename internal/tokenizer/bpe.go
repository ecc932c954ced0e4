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
// with its successor. Short words are searched for the best merge; long ones
// keep their merges in a queue, where an entry is stale when its symbol's rank
// is another by the time it comes up. So a word of n bytes takes O(n log n) at
// most, and O(n) when it is one thing over and over.
type work struct {
	sym, next, prev, rank []int32
	queue                 queue
}

// shortWord is the length up to which searching beats the queue.
const shortWord = 48

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
	if n <= shortWord {
		b.mergeShort(w, n)
	} else {
		b.mergeLong(w, n)
	}
	for i := int32(0); int(i) < n; i = w.next[i] {
		out = b.appendSymbol(out, w.sym[i])
	}
	return out
}

// mergeShort searches the word for its best merge until there is none.
func (b *bpe) mergeShort(w *work, n int) {
	for i := range n {
		b.rate(w, int32(i), n)
	}
	for {
		best, at := noRank, int32(0)
		for i := int32(0); int(i) < n; i = w.next[i] {
			if r := w.rank[i]; r != noRank && (best == noRank || r < best) {
				best, at = r, i
			}
		}
		if best == noRank {
			return
		}
		b.merge(w, at, n)
	}
}

// mergeLong takes the merges from the queue.
func (b *bpe) mergeLong(w *work, n int) {
	w.queue.reset(len(b.result))
	for i := range n {
		if r := b.rate(w, int32(i), n); r != noRank {
			w.queue.push(r, int32(i))
		}
	}
	for {
		rank, i, ok := w.queue.pop()
		if !ok {
			return
		}
		if w.rank[i] != rank {
			continue
		}
		h := b.merge(w, i, n)
		if r := w.rank[i]; r != noRank {
			w.queue.push(r, i)
		}
		if h >= 0 && w.rank[h] != noRank {
			w.queue.push(w.rank[h], h)
		}
	}
}

// merge joins symbol i with its successor, rates the pairs that come to be, and
// returns the symbol before i.
func (b *bpe) merge(w *work, i int32, n int) int32 {
	j := w.next[i]
	w.sym[i] = b.result[w.rank[i]]
	w.next[i] = w.next[j]
	w.rank[j] = noRank
	if k := w.next[j]; int(k) < n {
		w.prev[k] = i
	}
	b.rate(w, i, n)
	h := w.prev[i]
	if h >= 0 {
		b.rate(w, h, n)
	}
	return h
}

// rate sets and returns the rank of symbol i with its successor.
func (b *bpe) rate(w *work, i int32, n int) int32 {
	w.rank[i] = noRank
	if j := w.next[i]; int(j) < n {
		if rank, ok := b.pairs[pair(w.sym[i], w.sym[j])]; ok {
			w.rank[i] = rank
		}
	}
	return w.rank[i]
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
}

package sample

import "slices"

// topHeap selects the first k candidates in the order of before. It is a heap
// with the last of those kept at the root, so that most candidates of a large
// vocabulary cost one comparison.
type topHeap struct{ h []cand }

// top returns the first k of all, 0 < k < len(all), in order, at the front of
// all.
func (t *topHeap) top(all []cand, k int) []cand {
	if k > len(all)/8 {
		slices.SortFunc(all, before)
		return all[:k]
	}
	t.h = append(t.h[:0], all[:k]...)
	h := t.h
	for i := k/2 - 1; i >= 0; i-- {
		sink(h, i)
	}
	for _, c := range all[k:] {
		if before(c, h[0]) < 0 {
			h[0] = c
			sink(h, 0)
		}
	}
	slices.SortFunc(h, before)
	return all[:copy(all, h)]
}

// sink restores the heap below i: no candidate comes after its parent.
func sink(h []cand, i int) {
	for {
		c := 2*i + 1
		if c >= len(h) {
			return
		}
		if c+1 < len(h) && before(h[c], h[c+1]) < 0 {
			c++
		}
		if before(h[c], h[i]) < 0 {
			return
		}
		h[i], h[c] = h[c], h[i]
		i = c
	}
}

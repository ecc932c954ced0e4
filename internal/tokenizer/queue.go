package tokenizer

// A queue orders the merges of a long word by rank, then place. The places of
// one rank mostly come in order, left to right, so each rank has a list for
// those and a heap for the rest. Its zero value needs a reset.
type queue struct {
	slot  []int32 // by rank: 1 + index of its bucket, or 0
	bkts  []bucket
	ranks minHeap // of the buckets that hold anything
}

type bucket struct {
	rank   int32
	run    []int32 // ascending; places before head are taken
	head   int
	late   minHeap // places that came after a greater one
	queued bool    // its rank is in ranks
}

// reset empties the queue for ranks below n.
func (q *queue) reset(n int) {
	if len(q.slot) < n {
		q.slot = make([]int32, n)
	}
	for i := range q.bkts {
		q.slot[q.bkts[i].rank] = 0
	}
	q.bkts, q.ranks = q.bkts[:0], q.ranks[:0]
}

func (q *queue) push(rank, at int32) {
	s := q.slot[rank]
	if s == 0 {
		q.bkts = append(q.bkts, bucket{rank: rank})
		s = int32(len(q.bkts))
		q.slot[rank] = s
	}
	b := &q.bkts[s-1]
	if b.head == len(b.run) {
		b.run, b.head = b.run[:0], 0
	}
	if n := len(b.run); n == 0 || at >= b.run[n-1] {
		b.run = append(b.run, at)
	} else {
		b.late.push(at)
	}
	if !b.queued {
		b.queued = true
		q.ranks.push(rank)
	}
}

// pop removes the first entry; ok is false when there is none.
func (q *queue) pop() (rank, at int32, ok bool) {
	if len(q.ranks) == 0 {
		return 0, 0, false
	}
	rank = q.ranks[0]
	b := &q.bkts[q.slot[rank]-1]
	if b.head < len(b.run) && (len(b.late) == 0 || b.run[b.head] <= b.late[0]) {
		at = b.run[b.head]
		b.head++
	} else {
		at = b.late.pop()
	}
	if b.head == len(b.run) && len(b.late) == 0 {
		b.queued = false
		q.ranks.pop()
	}
	return rank, at, true
}

// A minHeap is a binary heap with the least number first.
type minHeap []int32

func (h *minHeap) push(x int32) {
	s := append(*h, x)
	i := len(s) - 1
	for i > 0 {
		p := (i - 1) / 2
		if s[p] <= s[i] {
			break
		}
		s[p], s[i] = s[i], s[p]
		i = p
	}
	*h = s
}

func (h *minHeap) pop() int32 {
	s := *h
	top, last := s[0], len(s)-1
	s[0] = s[last]
	s = s[:last]
	for i := 0; ; {
		c := 2*i + 1
		if c >= last {
			break
		}
		if c+1 < last && s[c+1] < s[c] {
			c++
		}
		if s[i] <= s[c] {
			break
		}
		s[i], s[c] = s[c], s[i]
		i = c
	}
	*h = s
	return top
}

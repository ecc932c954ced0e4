package sched

import (
	"container/heap"
	"slices"
)

// before tells whether a ranks above b.
func (s *Scheduler) before(a, b *request) bool {
	if s.cfg.Priority && a.Priority != b.Priority {
		return a.Priority < b.Priority
	}
	if a.Arrival != b.Arrival {
		return a.Arrival < b.Arrival
	}
	return a.number < b.number
}

// queue holds requests and gives the highest ranked.
type queue struct{ items []*request }

func (q *queue) len() int { return len(q.items) }

// first returns the highest ranked request, or nil.
func (q *queue) first() *request {
	if len(q.items) == 0 {
		return nil
	}
	return q.items[0]
}

func (q *queue) push(r *request, s *Scheduler) { heap.Push(ranked{q, s}, r) }

func (q *queue) remove(r *request, s *Scheduler) { heap.Remove(ranked{q, s}, r.place) }

// ranked is a queue as package heap wants it.
type ranked struct {
	q *queue
	s *Scheduler
}

func (h ranked) Len() int           { return len(h.q.items) }
func (h ranked) Less(i, j int) bool { return h.s.before(h.q.items[i], h.q.items[j]) }

func (h ranked) Swap(i, j int) {
	x := h.q.items
	x[i], x[j] = x[j], x[i]
	x[i].place, x[j].place = i, j
}

func (h ranked) Push(v any) {
	r := v.(*request)
	r.place = len(h.q.items)
	h.q.items = append(h.q.items, r)
}

func (h ranked) Pop() any {
	x := h.q.items
	r := x[len(x)-1]
	x[len(x)-1] = nil
	h.q.items = x[:len(x)-1]
	r.place = -1
	return r
}

// insert puts r into list by rank.
func (s *Scheduler) insert(list []*request, r *request) []*request {
	i, _ := slices.BinarySearchFunc(list, r, func(a, b *request) int {
		if s.before(a, b) {
			return -1
		}
		return 1
	})
	return slices.Insert(list, i, r)
}

// remove takes r out of list.
func remove(list []*request, r *request) []*request {
	i := slices.Index(list, r)
	return slices.Delete(list, i, i+1)
}

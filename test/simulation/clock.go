package simulation

import (
	"container/heap"
	"time"
)

// An event is something that happens at a time of the world's clock.
type event struct {
	at   int64 // ns since the world began
	seq  uint64
	node *node // whose process carries it out; nil: the world itself
	gen  int   // of the process; a later one does not get the event
	what string
	run  func()
	over bool // carried out, or taken back
}

// pending reports whether e will still happen.
func (e *event) pending() bool { return e != nil && !e.over }

// cancel takes e back.
func (e *event) cancel() {
	if e != nil {
		e.over = true
	}
}

type eventHeap []*event

func (h eventHeap) Len() int { return len(h) }
func (h eventHeap) Less(i, j int) bool {
	return h[i].at < h[j].at || h[i].at == h[j].at && h[i].seq < h[j].seq
}
func (h eventHeap) Swap(i, j int) { h[i], h[j] = h[j], h[i] }
func (h *eventHeap) Push(x any)   { *h = append(*h, x.(*event)) }
func (h *eventHeap) Pop() any {
	old := *h
	e := old[len(old)-1]
	old[len(old)-1] = nil
	*h = old[:len(old)-1]
	return e
}

// now returns the world's time.
func (w *world) now() time.Time { return time.Unix(0, w.clock) }

// after schedules f, for the process that n runs now or for the world itself.
func (w *world) after(n *node, d time.Duration, what string, f func()) *event {
	w.seq++
	e := &event{at: w.clock + int64(max(d, 0)), seq: w.seq, node: n, what: what, run: f}
	if n != nil {
		e.gen = n.gen
	}
	heap.Push(&w.events, e)
	return e
}

// at schedules f at a time.
func (w *world) at(n *node, t time.Time, what string, f func()) *event {
	return w.after(n, t.Sub(w.now()), what, f)
}

// next carries the next event out. It reports false when there is none left.
func (w *world) next() bool {
	for len(w.events) > 0 {
		e := heap.Pop(&w.events).(*event)
		if e.over {
			continue
		}
		if n := e.node; n != nil {
			if n.gen != e.gen {
				e.over = true
				continue
			}
			if n.frozen {
				n.parked = append(n.parked, e)
				continue
			}
		}
		w.clock = max(w.clock, e.at)
		w.steps++
		e.over = true
		if w.trace != nil && e.what != "" {
			w.logf(e.node, "%s", e.what)
		}
		e.run()
		w.check(e.node)
		return true
	}
	return false
}

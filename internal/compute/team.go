package compute

import (
	"runtime"
	"sync"
	"sync/atomic"
	"time"
)

// DefaultSpin is how long a member of a team looks for work before it parks:
// longer than the serial gaps of a forward pass, short enough for teams that
// share their cores.
const DefaultSpin = 200 * time.Microsecond

// MaxChunks is the most chunks of a job.
const MaxChunks = 1<<chunkBits - 1

// A Team runs jobs cut into chunks that any member may claim. The caller of Do
// is member 0; it claims too and never waits for a chunk that nobody has
// begun, so a member that is not on a core costs nothing and two teams can
// share the cores. What a chunk computes must not depend on who runs it.
//
// The members are goroutines locked to their threads. They end with Close,
// which waits for them. Do, Rouse and Close are for one goroutine at a time.
// GOMAXPROCS should exceed the members of all teams by two or more, or other
// goroutines run late.
type Team struct {
	n    int
	spin time.Duration
	wg   sync.WaitGroup

	// state is the job's number, its chunks and how many are claimed. A member
	// that has claimed a chunk by comparing and swapping it knows that job is
	// the one of that number until the chunk is done.
	state atomic.Uint64
	_     [56]byte
	done  atomic.Int32
	_     [60]byte

	job   func(member, chunk int)
	panic atomic.Pointer[panicked]
	quit  atomic.Bool
	rest  []waiter // by member; 0 is the caller's
}

// panicked carries what a chunk panicked with.
type panicked struct{ value any }

const (
	chunkBits = 12
	chunkMask = 1<<chunkBits - 1
	jobShift  = 2 * chunkBits
)

// NewTeam starts a team of n members, the caller included, that spin for about
// spin before they park.
func NewTeam(n int, spin time.Duration) *Team {
	t := &Team{n: max(n, 1), spin: spin}
	t.rest = make([]waiter, t.n)
	for i := range t.rest {
		t.rest[i].ch = make(chan struct{}, 1)
	}
	for m := 1; m < t.n; m++ {
		t.wg.Go(func() { t.member(m) })
	}
	return t
}

// N returns the number of members.
func (t *Team) N() int { return t.n }

// Rouse wakes parked members. Call it before a run of jobs, and before each
// job that takes much longer than a wake-up.
func (t *Team) Rouse() {
	for m := 1; m < t.n; m++ {
		t.rest[m].rouse()
	}
}

// Do runs f(member, chunk) for each chunk below chunks, at most MaxChunks, and
// returns when all are done. Member numbers are below N, and no two chunks run
// under the same one at once. When a chunk panics, the others still run, and
// Do panics with the first one's value. f is kept until the next Do.
func (t *Team) Do(chunks int, f func(member, chunk int)) {
	if t.n == 1 || chunks <= 1 {
		for c := range chunks {
			f(0, c)
		}
		return
	}
	if chunks > MaxChunks {
		panic("compute: job of too many chunks")
	}
	t.job = f
	t.done.Store(0)
	job := t.state.Load()>>jobShift + 1
	t.state.Store(job<<jobShift | uint64(chunks)<<chunkBits)
	t.claim(0)
	if int(t.done.Load()) != chunks {
		t.rest[0].wait(t.spin, func() bool { return int(t.done.Load()) == chunks })
	}
	if p := t.panic.Swap(nil); p != nil {
		panic(p.value)
	}
}

// claim runs chunks until none is left.
func (t *Team) claim(m int) {
	for {
		s := t.state.Load()
		total, next := s>>chunkBits&chunkMask, s&chunkMask
		if next >= total {
			return
		}
		if !t.state.CompareAndSwap(s, s+1) {
			continue
		}
		t.chunk(m, int(next))
		if uint64(t.done.Add(1)) == total && m != 0 {
			t.rest[0].rouse()
		}
	}
}

// chunk runs one chunk and keeps what it panics with.
func (t *Team) chunk(m, c int) {
	defer func() {
		if v := recover(); v != nil {
			t.panic.CompareAndSwap(nil, &panicked{v})
		}
	}()
	t.job(m, c)
}

// member claims chunks until the team is closed.
func (t *Team) member(m int) {
	runtime.LockOSThread()
	ready := func() bool {
		s := t.state.Load()
		return s&chunkMask < s>>chunkBits&chunkMask || t.quit.Load()
	}
	for {
		t.rest[m].wait(t.spin, ready)
		if t.quit.Load() {
			return
		}
		t.claim(m)
	}
}

// Close ends the members and waits for them. It may be called twice; Do must
// not be called afterwards.
func (t *Team) Close() {
	t.quit.Store(true)
	t.Rouse()
	t.wg.Wait()
}

// A waiter is where one goroutine waits for another's progress.
type waiter struct {
	parked atomic.Bool
	ch     chan struct{}
	_      [40]byte
}

// wait returns when cond holds: it spins, then parks until rouse.
func (w *waiter) wait(spin time.Duration, cond func() bool) {
	for {
		for start := time.Now(); ; {
			for range 8 {
				if cond() {
					return
				}
				pause(4)
			}
			if time.Since(start) >= spin {
				break
			}
		}
		w.parked.Store(true)
		if !cond() || !w.parked.CompareAndSwap(true, false) {
			<-w.ch
		}
		if cond() {
			return
		}
	}
}

// rouse wakes the waiter if it is parked.
func (w *waiter) rouse() {
	if w.parked.Load() && w.parked.CompareAndSwap(true, false) {
		w.ch <- struct{}{}
	}
}

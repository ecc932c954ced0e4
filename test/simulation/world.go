package simulation

import (
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"runtime/debug"
	"strings"
	"time"

	"tandem/internal/connector/core"
	"tandem/internal/fault"
	"tandem/internal/moves"
	"tandem/internal/router/flow"
	"tandem/internal/sample"
	"tandem/internal/sched"
)

// Bounds of every wait, in the world's time.
const (
	handshakeLimit = 5 * time.Second
	returnLimit    = 5 * time.Second
	releaseLimit   = 2 * time.Second
	legLimit       = 70 * time.Second // from a leg's request to the first byte of its answer
	silence        = 30 * time.Second // between two pieces of an answer
	patience       = 10 * time.Minute // of a client
	peerIdle       = time.Hour
)

// token is the cluster's.
var token = []byte("a cluster token of a simulation")

// A Mask leaves parts of a seed's history out, to find those that matter.
type Mask struct {
	Requests map[int]bool // indexes that are left out
	Faults   map[int]bool
	Acts     map[int]bool
}

// Options say how a seed is run.
type Options struct {
	Requests int       // at least; each seed draws up to a half more
	Trace    io.Writer // nil: none
	Mask     Mask

	also func(*world) // looks at the world after every event; nil: nobody
}

// A Coverage counts what worlds went through.
type Coverage struct {
	Sched, Lease, Peer, Load, Flow moves.Count
	Cells                          map[fault.Cell]uint64

	Requests, Answered, Failed, Left, Interrupted uint64
	Events                                        uint64
	Totals                                        sched.Totals
}

// NewCoverage returns empty counts.
func NewCoverage() *Coverage { return &Coverage{Cells: map[fault.Cell]uint64{}} }

// Add adds the counts of o.
func (c *Coverage) Add(o *Coverage) {
	c.Sched.Add(&o.Sched)
	c.Lease.Add(&o.Lease)
	c.Peer.Add(&o.Peer)
	c.Load.Add(&o.Load)
	c.Flow.Add(&o.Flow)
	for k, n := range o.Cells {
		c.Cells[k] += n
	}
	c.Requests += o.Requests
	c.Answered += o.Answered
	c.Failed += o.Failed
	c.Left += o.Left
	c.Interrupted += o.Interrupted
	c.Events += o.Events
	t, u := &c.Totals, &o.Totals
	t.Preemptions += u.Preemptions
	t.FailedLoads += u.FailedLoads
	t.Prompt += u.Prompt
	t.Local += u.Local
	t.Loaded += u.Loaded
	t.Recomputed += u.Recomputed
	t.Computed += u.Computed
	t.Redone += u.Redone
	t.Output += u.Output
}

// Machines returns the drawings of all machines with their counts.
func (c *Coverage) Machines() []Machine {
	return []Machine{
		{sched.Moves.Name(), sched.Moves.Edges(), &c.Sched},
		{core.LeaseMoves.Name(), core.LeaseMoves.Edges(), &c.Lease},
		{core.PeerMoves.Name(), core.PeerMoves.Edges(), &c.Peer},
		{core.LoadMoves.Name(), core.LoadMoves.Edges(), &c.Load},
		{flow.Moves.Name(), flow.Moves.Edges(), &c.Flow},
	}
}

// A Machine is a drawing and how often its edges were walked.
type Machine struct {
	Name  string
	Edges []moves.Edge
	Count *moves.Count
}

// A BrokenError is a broken promise, and where in the seed's history it was seen.
type BrokenError struct {
	Seed  uint64
	Step  int
	At    time.Duration // of the world's clock
	What  string
	Stack string // where a panic came from, or ""
}

// Error says all of it.
func (v *BrokenError) Error() string {
	return fmt.Sprintf("seed %d, event %d at %v: %s", v.Seed, v.Step, v.At, v.What)
}

// A world is one system under one seed.
type world struct {
	seed   uint64
	opt    Options
	ref    *reference
	models *modelCache
	cover  *Coverage
	trace  io.Writer

	clock  int64
	seq    uint64
	steps  int
	events eventHeap
	net    *rand.Rand // of latencies and other choices

	// Limits that differ from seed to seed.
	loadLimit  time.Duration
	noProgress time.Duration
	maxClaim   time.Duration

	both   bool // all engines prefill and decode
	mapped bool // reads map P's memory; else they come over the connection
	nodes  []*node
	pre    []*node
	dec    []*node
	http   *fault.Injector
	conns  []*conn
	calls  []*call
	leases uint64            // made so far
	seen   []json.RawMessage // hand-offs of all requests so far
	calm   bool              // nothing goes wrong in this seed

	failure *BrokenError
}

// request is what a client wants.
type request struct {
	key    string
	prompt []int32
	params sample.Params
	at     time.Duration
	leaves time.Duration // after at; 0: stays
	whole  bool
	policy string        // "" is the engine's
	want   []*answer     // by choice
	stopAt int           // the server finds a stop string in choice 0 after so many tokens; 0: never
	slow   time.Duration // the answer is not read for so long; 0: it is read at once
	salt   string
	rank   int  // priority
	probe  bool // wants log-probabilities of the prompt
	forged bool // comes with a hand-off that nobody signed
	stolen bool // comes with the hand-off of another request, if there is any
}

// fail notes the first broken promise.
func (w *world) fail(format string, args ...any) {
	if w.failure == nil {
		w.failure = &BrokenError{Seed: w.seed, Step: w.steps, At: time.Duration(w.clock), What: fmt.Sprintf(format, args...)}
		w.logf(nil, "BROKEN: %s", w.failure.What)
	}
}

func (w *world) logf(n *node, format string, args ...any) {
	if w.trace == nil {
		return
	}
	who := "-"
	if n != nil {
		who = n.name
	}
	fmt.Fprintf(w.trace, "%6d %14v %-3s %s\n", w.steps, time.Duration(w.clock), who, fmt.Sprintf(format, args...))
}

// between draws a duration, mostly near its lower end.
func (w *world) between(lo, hi time.Duration) time.Duration {
	x := w.net.Float64()
	return lo + time.Duration(float64(hi-lo)*x*x*x)
}

// latency of one message.
func (w *world) latency() time.Duration { return w.between(30*time.Microsecond, 4*time.Millisecond) }

func (w *world) chance(p float64) bool { return w.net.Float64() < p }

// run carries the whole history out and returns the first violation.
func (w *world) run() (v *BrokenError) {
	defer func() {
		if p := recover(); p != nil {
			w.fail("panic: %v", p)
			w.failure.Stack = string(debug.Stack())
		}
		v = w.failure
	}()
	for w.failure == nil && w.next() {
		if w.steps > 2_000_000 {
			w.fail("no end after %d events: %s", w.steps, w.open())
		}
	}
	if w.failure == nil {
		w.settled()
	}
	return w.failure
}

// open names the clients that have no answer.
func (w *world) open() string {
	var out []string
	for _, c := range w.calls {
		if !c.over {
			out = append(out, fmt.Sprintf("request %d is %v", c.id, c.flow.State()))
		}
	}
	return strings.Join(out, ", ")
}

// struck counts a fault that was carried out.
func (w *world) struck(c fault.Cell) { w.cover.Cells[c]++ }

// collect adds what the world went through to its coverage.
func (w *world) collect() {
	c := w.cover
	for _, n := range w.nodes {
		if n.alive {
			n.collect()
		}
	}
	for _, k := range w.calls {
		c.Flow.Add(k.flow.Moves())
	}
	c.Requests += uint64(len(w.calls))
	c.Events += uint64(w.steps)
}

// Run runs one seed and adds to cover what it went through. It returns the first
// broken promise, or nil.
func (r *Runner) Run(seed uint64, opt Options, cover *Coverage) *BrokenError {
	w := r.build(seed, opt, cover)
	v := w.run()
	if v == nil {
		w.collect()
		v = w.failure
	}
	r.models.giveBack()
	return v
}

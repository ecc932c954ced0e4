package core

import (
	"errors"
	"fmt"
	"time"

	"tandem/internal/moves"
)

// A LoadState is how far a load is.
type LoadState uint8

// The states of a load, in order.
const (
	LoadShaking  LoadState = iota // waiting for the peer's snapshot
	LoadClaiming                  // the claim is on its way
	LoadReading                   // reads run
	LoadEnded                     // reported
)

// String returns the name in the drawing.
func (s LoadState) String() string {
	return [...]string{"shaking", "claiming", "reading", "ended"}[s]
}

// LoadMoves is the drawing of a load.
var LoadMoves = moves.Draw("connector: load",
	[]LoadState{LoadClaiming, LoadEnded},
	[]LoadState{LoadReading, LoadEnded},
	[]LoadState{LoadEnded},
	nil,
)

// The events of a load.
type (
	// LoadPeerEvent says that the snapshot is there and needs Reads reads, or is not.
	LoadPeerEvent struct {
		Reads int
		Class LoadClass
		Err   error
	}
	// LoadClaimEvent says that the claim was answered, or will have no answer.
	LoadClaimEvent struct {
		Verdict Verdict
		Limit   time.Duration // P's bound of the claim
		Sums    bool          // the sums fit the geometry
		Class   LoadClass     // when Err is set
		Err     error
	}
	// LoadReadEvent says that read Read is terminal. Verified says for each tile whether
	// all of the read's pieces of it landed and match P's sums.
	LoadReadEvent struct {
		Read     int
		Class    LoadClass // when Err is set
		Verified []bool
		Bad      int // tiles that landed and did not match
		Err      error
	}
	// LoadProgressEvent tells how many pieces of tiles have landed so far.
	LoadProgressEvent struct{ Landed int }
	// LoadCancelEvent says that nobody wants the load any more.
	LoadCancelEvent struct{}
	// LoadTickEvent only tells the time; due at Next.
	LoadTickEvent struct{}
)

// LoadEffects are what the shell does after an event.
type LoadEffects struct {
	Claim  bool // send the claim
	Read   bool // start all reads
	Stop   bool // cancel whatever runs
	Return bool // give the lease back
	Report *LoadResult
}

// A LoadResult is what a load came to.
type LoadResult struct {
	Valid    []bool // by tile of the load
	Class    LoadClass
	Err      error
	Canceled bool
}

// Causes of ClassTimeout.
var (
	errNoAnswer   = errors.New("the claim was not answered within the no-progress limit")
	errNoProgress = errors.New("no tile arrived within the no-progress limit")
	errDeadline   = errors.New("deadline passed")
)

// LoadLimits are the times that a load may take.
type LoadLimits struct {
	Whole  time.Duration // from its begin to the end of its reads
	Answer time.Duration // from the sending of the claim to its answer
	Tile   time.Duration // of the reads, from one tile to the next
}

// A Load decides about one load. It reports once, when nothing of the load
// can write any more.
type Load struct {
	state  LoadState
	moves  moves.Count
	tiles  int
	limits LoadLimits

	started  time.Time
	deadline time.Time
	landed   int
	asked    time.Time // when the claim was sent
	moved    time.Time // when the reads began or landed last rose

	reads    int
	terminal []bool // by read
	open     int
	matches  []int // by tile: reads that verified it

	class    LoadClass // of the first failure
	err      error
	canceled bool
	stopped  bool
	keep     bool // nothing to give back
}

// NewLoad returns a load of so many tiles that begins at now.
func NewLoad(tiles int, limits LoadLimits, now time.Time) *Load {
	return &Load{
		tiles: tiles, limits: limits,
		started: now, deadline: now.Add(limits.Whole), matches: make([]int, tiles),
	}
}

// Handle applies an event at time now. An ended load absorbs every event.
func (l *Load) Handle(event any, now time.Time) (e LoadEffects) {
	if l.state == LoadEnded {
		return e
	}
	switch ev := event.(type) {
	case LoadPeerEvent:
		l.peer(ev, now, &e)
	case LoadClaimEvent:
		l.claimed(ev, now, &e)
	case LoadReadEvent:
		l.read(ev, &e)
	case LoadProgressEvent:
		if ev.Landed > l.landed {
			l.landed, l.moved = ev.Landed, now
		}
	case LoadCancelEvent:
		l.canceled = true
		l.stop(&e)
	case LoadTickEvent:
	}
	if l.state != LoadEnded && !l.stopped {
		l.tick(now, &e)
	}
	return e
}

// State returns how far the load is.
func (l *Load) State() LoadState { return l.state }

// Moves returns how often the load has moved along each edge of LoadMoves.
func (l *Load) Moves() *moves.Count { return &l.moves }

func (l *Load) move(to LoadState) { l.state = LoadMoves.Move(l.state, to, &l.moves, "") }

// Next returns when Handle must be called at the latest.
func (l *Load) Next() time.Time {
	if l.stopped || l.state == LoadEnded {
		return time.Time{}
	}
	at, _ := l.due()
	return at
}

// due returns when the load gives up if nothing happens, and why.
func (l *Load) due() (time.Time, error) {
	quiet, err := l.deadline, errDeadline
	switch l.state {
	case LoadClaiming:
		quiet, err = l.asked.Add(l.limits.Answer), errNoAnswer
	case LoadReading:
		quiet, err = l.moved.Add(l.limits.Tile), errNoProgress
	default: // only the deadline
	}
	if quiet.Before(l.deadline) {
		return quiet, err
	}
	return l.deadline, errDeadline
}

func (l *Load) tick(now time.Time, e *LoadEffects) {
	at, err := l.due()
	if now.Before(at) {
		return
	}
	l.fail(ClassTimeout, err)
	l.stop(e)
}

func (l *Load) peer(ev LoadPeerEvent, now time.Time, e *LoadEffects) {
	if l.state != LoadShaking {
		return
	}
	if ev.Err != nil {
		l.fail(ev.Class, ev.Err)
		l.keep = ev.Class == ClassHandshake
		l.end(e)
		return
	}
	l.reads, l.terminal = ev.Reads, make([]bool, ev.Reads)
	l.move(LoadClaiming)
	l.asked = now
	e.Claim = true
}

func (l *Load) claimed(ev LoadClaimEvent, now time.Time, e *LoadEffects) {
	if l.state != LoadClaiming {
		return
	}
	switch {
	case ev.Err != nil:
		l.fail(ev.Class, ev.Err)
	case ev.Verdict == VerdictGone || ev.Verdict == VerdictExpired || ev.Verdict == VerdictIncarnation:
		l.keep = true
		err := ErrLeaseGone
		if ev.Verdict == VerdictExpired {
			err = ErrExpired
		}
		l.fail(ClassGone, fmt.Errorf("claim refused: %v: %w", ev.Verdict, err))
	case ev.Verdict != VerdictOK:
		l.keep = ev.Verdict == VerdictBusy
		l.fail(ClassRefused, fmt.Errorf("claim refused: %v", ev.Verdict))
	case !ev.Sums:
		l.fail(ClassRefused, errors.New("the claim's sums do not fit the tiles"))
	case l.started.Add(ev.Limit - ev.Limit/8).Before(now):
		l.fail(ClassTimeout, errDeadline)
	default:
		// P's clock started later than ours, so with its limit shortened we give up
		// first.
		if at := l.started.Add(ev.Limit - ev.Limit/8); at.Before(l.deadline) {
			l.deadline = at
		}
		l.move(LoadReading)
		l.open, l.moved = l.reads, now
		e.Read = true
		return
	}
	l.end(e)
}

func (l *Load) read(ev LoadReadEvent, e *LoadEffects) {
	if l.state != LoadReading || ev.Read < 0 || ev.Read >= l.reads || l.terminal[ev.Read] {
		return
	}
	l.terminal[ev.Read] = true
	l.open--
	for i, ok := range ev.Verified {
		if ok && i < l.tiles {
			l.matches[i]++
		}
	}
	switch {
	case ev.Bad > 0:
		l.fail(ClassSum, fmt.Errorf("%d tiles do not match the sums of the peer", ev.Bad))
	case ev.Err != nil:
		l.fail(ev.Class, ev.Err)
	}
	if l.open == 0 {
		l.end(e)
	}
}

// fail notes the first cause.
func (l *Load) fail(class LoadClass, err error) {
	if l.err == nil && !l.canceled {
		l.class, l.err = class, err
	}
}

// stop cancels what runs and ends at once when nothing can write.
func (l *Load) stop(e *LoadEffects) {
	if !l.stopped {
		l.stopped, e.Stop = true, true
	}
	if l.state < LoadReading {
		l.end(e)
	}
}

func (l *Load) end(e *LoadEffects) {
	reading := l.state == LoadReading
	l.move(LoadEnded)
	r := &LoadResult{Valid: make([]bool, l.tiles), Class: l.class, Err: l.err, Canceled: l.canceled}
	all := reading
	for i, n := range l.matches {
		r.Valid[i] = reading && n == l.reads && l.reads > 0
		all = all && r.Valid[i]
	}
	switch {
	case l.canceled || all:
		r.Class, r.Err = "", nil // a late trouble took nothing away
	case r.Err == nil:
		r.Class, r.Err = ClassRead, errors.New("the read ended before all tiles had arrived")
	}
	e.Report = r
	e.Return = !l.keep
}

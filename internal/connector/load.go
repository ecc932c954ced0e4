package connector

import (
	"errors"
	"fmt"
	"time"
)

// A loadState is how far a load is.
type loadState uint8

// The states of a load, in order.
const (
	loadShaking  loadState = iota // waiting for the peer's snapshot
	loadClaiming                  // the claim is on its way
	loadReading                   // reads run
	loadEnded                     // reported
)

// The events of a load.
type (
	// loadPeerEvent: the snapshot is there and needs Reads reads, or it is not.
	loadPeerEvent struct {
		Reads int
		Class LoadClass
		Err   error
	}
	loadClaimEvent struct {
		Verdict verdict
		Limit   time.Duration // P's bound of the claim
		Sums    bool          // the sums fit the geometry
		Class   LoadClass     // when Err is set
		Err     error
	}
	// loadReadEvent: read Read is terminal. Verified says for each tile whether
	// all of the read's pieces of it landed and match P's sums.
	loadReadEvent struct {
		Read     int
		Class    LoadClass // when Err is set
		Verified []bool
		Bad      int // tiles that landed and did not match
		Err      error
	}
	loadProgressEvent struct{ Landed int } // pieces of tiles so far
	loadCancelEvent   struct{}
	loadTickEvent     struct{}
)

// loadEffects are what the shell does after an event.
type loadEffects struct {
	Claim  bool // send the claim
	Read   bool // start all reads
	Stop   bool // cancel whatever runs
	Return bool // give the lease back
	Report *loadResult
}

// A loadResult is what a load came to.
type loadResult struct {
	Valid    []bool // by tile of the load
	Class    LoadClass
	Err      error
	Canceled bool
}

// errExpired is an ErrLeaseGone whose lease ran out.
var errExpired = fmt.Errorf("%w: it ran out", ErrLeaseGone)

// errNoProgress and errDeadline are causes of ClassTimeout.
var (
	errNoProgress = errors.New("no tile arrived within the no-progress limit")
	errDeadline   = errors.New("deadline passed")
)

// A loadCore decides about one load. It reports once, when nothing of the load
// can write any more.
type loadCore struct {
	state      loadState
	tiles      int
	limit      time.Duration
	noProgress time.Duration

	started  time.Time
	deadline time.Time
	landed   int
	moved    time.Time // when landed last rose

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

func newLoadCore(tiles int, limit, noProgress time.Duration, now time.Time) *loadCore {
	return &loadCore{
		tiles: tiles, limit: limit, noProgress: noProgress,
		started: now, deadline: now.Add(limit), moved: now, matches: make([]int, tiles),
	}
}

// Handle applies an event at time now. An ended load absorbs every event.
func (l *loadCore) Handle(event any, now time.Time) (e loadEffects) {
	if l.state == loadEnded {
		return e
	}
	switch ev := event.(type) {
	case loadPeerEvent:
		l.peer(ev, &e)
	case loadClaimEvent:
		l.claimed(ev, now, &e)
	case loadReadEvent:
		l.read(ev, &e)
	case loadProgressEvent:
		if ev.Landed > l.landed {
			l.landed, l.moved = ev.Landed, now
		}
	case loadCancelEvent:
		l.canceled = true
		l.stop(&e)
	case loadTickEvent:
	}
	if l.state != loadEnded && !l.stopped {
		l.tick(now, &e)
	}
	return e
}

// Next returns when Handle must be called at the latest.
func (l *loadCore) Next() time.Time {
	if l.stopped || l.state == loadEnded {
		return time.Time{}
	}
	if l.state == loadReading {
		if at := l.moved.Add(l.noProgress); at.Before(l.deadline) {
			return at
		}
	}
	return l.deadline
}

func (l *loadCore) tick(now time.Time, e *loadEffects) {
	switch {
	case !now.Before(l.deadline):
		l.fail(ClassTimeout, errDeadline)
	case l.state == loadReading && !now.Before(l.moved.Add(l.noProgress)):
		l.fail(ClassTimeout, errNoProgress)
	default:
		return
	}
	l.stop(e)
}

func (l *loadCore) peer(ev loadPeerEvent, e *loadEffects) {
	if l.state != loadShaking {
		return
	}
	if ev.Err != nil {
		l.fail(ev.Class, ev.Err)
		l.keep = ev.Class == ClassHandshake
		l.end(e)
		return
	}
	l.reads, l.terminal = ev.Reads, make([]bool, ev.Reads)
	l.state = loadClaiming
	e.Claim = true
}

func (l *loadCore) claimed(ev loadClaimEvent, now time.Time, e *loadEffects) {
	if l.state != loadClaiming {
		return
	}
	switch {
	case ev.Err != nil:
		l.fail(ev.Class, ev.Err)
	case ev.Verdict == verdictGone || ev.Verdict == verdictExpired || ev.Verdict == verdictIncarnation:
		l.keep = true
		err := ErrLeaseGone
		if ev.Verdict == verdictExpired {
			err = errExpired
		}
		l.fail(ClassGone, fmt.Errorf("claim refused: %v: %w", ev.Verdict, err))
	case ev.Verdict != verdictOK:
		l.keep = ev.Verdict == verdictBusy
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
		l.state, l.open, l.moved = loadReading, l.reads, now
		e.Read = true
		return
	}
	l.end(e)
}

func (l *loadCore) read(ev loadReadEvent, e *loadEffects) {
	if l.state != loadReading || ev.Read < 0 || ev.Read >= l.reads || l.terminal[ev.Read] {
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
func (l *loadCore) fail(class LoadClass, err error) {
	if l.err == nil && !l.canceled {
		l.class, l.err = class, err
	}
}

// stop cancels what runs and ends at once when nothing can write.
func (l *loadCore) stop(e *loadEffects) {
	if !l.stopped {
		l.stopped, e.Stop = true, true
	}
	if l.state < loadReading {
		l.end(e)
	}
}

func (l *loadCore) end(e *loadEffects) {
	reading := l.state == loadReading
	l.state = loadEnded
	r := &loadResult{Valid: make([]bool, l.tiles), Class: l.class, Err: l.err, Canceled: l.canceled}
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

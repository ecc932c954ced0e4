package engine

import (
	"time"

	"tandem/internal/sched"
)

// snapshotEvery bounds the age of the sums in a Status while the engine works. The
// end of a request is in them at once.
const snapshotEvery = 100 * time.Millisecond

// A Status is a snapshot of an engine.
type Status struct {
	at time.Time

	Live     int // choices that were submitted and have not ended
	Draining bool
	Dead     string // why the engine ended with an error, or ""

	// Stats are the scheduler's: requests, blocks, totals.
	Stats sched.Stats

	MaxSeqs, MaxLen int
	BlockTokens     int

	// Stalled is how long the loop's present turn has taken, one step at most; 0
	// while it rests. A value above the longest step means that the engine hangs.
	Stalled time.Duration

	// Hung says that the turn takes longer than Config.StallLimit.
	Hung bool
}

// Status returns the latest snapshot. It never waits for the loop.
func (e *Engine) Status() Status {
	live := int(e.live.Load()) // first: what has ended is in the numbers
	s := *e.status.Load()
	e.mu.Lock()
	s.Draining = e.draining
	if e.err != nil {
		s.Dead = e.err.Error()
	}
	e.mu.Unlock()
	s.Live, s.Hung = live, e.sign.up()
	if at := e.turn.Load(); at != 0 {
		s.Stalled = e.since(at)
	}
	return s
}

// publish stores a snapshot: always, or when the numbers of requests or blocks
// changed, or the last one is older than snapshotEvery.
func (e *Engine) publish(now time.Time, always bool) {
	st := e.core.sched.Stats()
	if old := e.status.Load(); !always && now.Sub(old.at) < snapshotEvery {
		a, b := old.Stats, st
		a.Totals, b.Totals = sched.Totals{}, sched.Totals{}
		if a == b {
			return
		}
	}
	e.status.Store(&Status{
		at: now, Stats: st, MaxSeqs: e.cfg.MaxSeqs, MaxLen: e.limit,
		BlockTokens: e.model.Arenas()[0].Layout().BlockTokens(),
	})
}

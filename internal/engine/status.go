package engine

import (
	"time"

	"tandem/internal/sched"
)

// snapshotEvery bounds the age of the sums in a Status while the engine works.
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
		s.Stalled = max(0, time.Since(time.Unix(0, at)))
	}
	return s
}

// publish stores a snapshot when the numbers of requests or blocks changed, and
// the sums at most every snapshotEvery besides. Only then do requests that ended
// no longer count as live: Status never shows the blocks of a request that is gone.
func (e *Engine) publish(now time.Time) {
	if e.left != 0 {
		defer e.leave()
	}
	st := e.core.sched.Stats()
	if old := e.status.Load(); old != nil && now.Sub(old.at) < snapshotEvery {
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

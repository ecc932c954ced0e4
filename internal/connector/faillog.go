package connector

import (
	"context"
	"log/slog"
	"sync/atomic"
	"time"

	"tandem/internal/kv"
	"tandem/internal/ration"
)

// failuresEvery is the least time between two lines about the failures of one
// peer and class, and failureKeys how many pairs of those are told apart.
const (
	failuresEvery = 10 * time.Second
	failureKeys   = 256
)

// classReturn is the class of a lease that could not be given back. It is no
// LoadClass: no load fails by it.
const classReturn = "return"

// A failureKey is what failures have in common.
type failureKey struct {
	peer  kv.EngineID // "": peers for which there is no room
	class string
}

// A failure is a load, or a return, that did not do what it was for, as it is
// logged.
type failure struct {
	key   failureKey
	attrs []any
}

// A failureLog tells of failures: the first of a peer and class at once, those
// that follow as one line every failuresEvery, with the number that it stands
// for. Whoever meets a failure hands it over and goes on.
type failureLog struct {
	log    *slog.Logger
	events chan failure
	full   atomic.Uint64 // failures for which the channel had no room
}

func newFailureLog(log *slog.Logger) *failureLog {
	return &failureLog{log: log, events: make(chan failure, 1024)}
}

// add takes a failure. It never waits.
func (f *failureLog) add(x failure) {
	select {
	case f.events <- x:
	default:
		f.full.Add(1)
	}
}

// run logs until ctx ends, and then what is left.
func (f *failureLog) run(ctx context.Context) {
	table := ration.New(ration.Config[failureKey, failure]{
		Window: failuresEvery, Keys: failureKeys,
		Other: func(k failureKey) failureKey { return failureKey{class: k.class} },
	})
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		if at, ok := table.Next(); ok {
			timer.Reset(time.Until(at))
		} else {
			timer.Stop()
		}
		select {
		case x := <-f.events:
			f.take(table, x)
		case <-timer.C:
			f.say(table.Due(time.Now())...)
		case <-ctx.Done():
			f.rest(table)
			return
		}
	}
}

func (f *failureLog) take(table *ration.Table[failureKey, failure], x failure) {
	if w, ok := table.Tell(x.key, x, time.Now()); ok {
		f.say(w)
	}
}

// rest logs what is left. Nothing is added any more.
func (f *failureLog) rest(table *ration.Table[failureKey, failure]) {
	for len(f.events) > 0 {
		f.take(table, <-f.events)
	}
	f.say(table.Flush()...)
	if n := f.full.Swap(0); n > 0 {
		f.log.Warn("KV failures were not logged: the log did not take them in time", "not_counted", n)
	}
}

// say logs the latest failure of each word, and how many like it are left out.
func (f *failureLog) say(words ...ration.Word[failureKey, failure]) {
	for _, w := range words {
		attrs := w.What.attrs
		if w.More > 0 {
			attrs = append(attrs, "suppressed", w.More)
		}
		if n := f.full.Swap(0); n > 0 {
			attrs = append(attrs, "not_counted", n)
		}
		if w.Key.class == classReturn {
			f.log.Warn("KV lease not returned; it ends at its deadline", attrs...)
		} else {
			f.log.Error("KV transfer failure", attrs...)
		}
	}
}

// loadFailed notes a load that did not bring all its tiles.
func (c *Connector) loadFailed(s *LoadSpec, rep *LoadReport) {
	h := s.Handoff
	c.cfg.Metrics.Failed(h.EngineID, rep.Err.Class)
	c.failures.add(failure{
		key: failureKey{h.EngineID, string(rep.Err.Class)},
		attrs: []any{
			"failure_type", string(rep.Err.Class), "request_id", string(s.ID), "client_id", s.ClientID,
			"engine_id", string(c.cfg.EngineID), "remote_engine_id", string(h.EngineID), "remote_request_id", h.RequestID,
			"remote_addr", h.Addr, "lease", h.Lease.String(), "tiles", rep.To - rep.From, "invalid_tiles", len(rep.Invalid),
			"invalid_sample", rep.Invalid[:min(len(rep.Invalid), 10)], "path", rep.Path, "duration", rep.Duration,
			"error", rep.Err.Err,
		},
	})
}

// returnFailed notes a lease that could not be given back.
func (c *Connector) returnFailed(h *Handoff, err error) {
	c.cfg.Metrics.ReturnFailed(h.EngineID)
	c.failures.add(failure{
		key: failureKey{h.EngineID, classReturn},
		attrs: []any{
			"engine_id", string(c.cfg.EngineID), "remote_engine_id", string(h.EngineID), "remote_request_id", h.RequestID,
			"remote_addr", h.Addr, "lease", h.Lease.String(), "error", err,
		},
	})
}

package engine

import (
	"log/slog"
	"time"

	"tandem/internal/connector"
)

// carry performs the core's effects in order. Effects that arise meanwhile (a
// reader that is too slow) are performed too. Requests that end with them are
// told of last, when all else is done.
func (e *Engine) carry(now time.Time) {
	for i := 0; i < len(e.core.effects); i++ {
		f := e.core.effects[i] // copied: the list may grow
		e.core.effects[i] = effect{}
		switch f.kind {
		case doEmit:
			e.emit(&f)
		case doGrant:
			e.grant(&f)
			e.emit(&f)
		case doLoad:
			e.cfg.Connector.Load(f.load)
		case doCancel:
			e.cfg.Connector.CancelLoad(f.id)
		case doTrack:
			e.cfg.Connector.Track(f.g.req.Handoff)
		case doUntrack:
			e.cfg.Connector.Untrack(f.g.req.Handoff)
		case doReturn:
			e.cfg.Connector.ReturnUnread(f.g.req.Handoff)
		}
	}
	e.core.effects = e.core.effects[:0]
	e.end(now)
}

func (e *Engine) emit(f *effect) {
	switch {
	case f.last:
		e.ends = append(e.ends, *f)
	case f.g.stream.push(f.out): // else its reader is too slow
	case !f.g.over: // a request that is over is told so by its last output
		e.core.abort(f.g, ErrSlowReader)
	}
}

// end sends the last outputs of requests. Before, every number counts their ends:
// whoever reads metrics or Status behind an answer, drains, or submits the next
// request in its place, finds that it has ended.
func (e *Engine) end(now time.Time) {
	if len(e.ends) == 0 {
		return
	}
	choices := 0
	for i := range e.ends {
		f := &e.ends[i]
		if f.out.Err == nil && f.g.stream.behind() {
			f.out = Output{Finish: FinishAbort, Usage: f.out.Usage, Err: ErrSlowReader}
		}
		e.finished(f, now)
		choices += f.g.req.N
	}
	e.publish(now, true)
	e.leave(choices)
	for i := range e.ends {
		e.ends[i].g.stream.end(e.ends[i].out)
	}
	clear(e.ends)
	e.ends = e.ends[:0]
}

// grant makes the lease before the output that names it leaves. When the reader
// has gone meanwhile the lease ends at once.
func (e *Engine) grant(f *effect) {
	s := f.g.stream
	s.mu.Lock()
	quit := s.quit
	s.mu.Unlock()
	if !quit {
		f.out.Handoff = e.cfg.Connector.Grant(connector.LeaseSpec{
			ID: f.fin.ID, Blocks: f.fin.Blocks, Tokens: f.g.req.Prompt,
		})
	}
	if f.out.Handoff == nil {
		e.core.sched.Release(f.fin.Blocks)
		f.out.Finish, f.out.Err = FinishError, ErrNoConnector
		if quit {
			f.out.Finish, f.out.Err = FinishAbort, ErrAborted
		}
	}
}

// finished counts and logs the end of a request, whose last output is that of f.
func (e *Engine) finished(f *effect, now time.Time) {
	g, last := f.g, &f.out
	since := func(from, to time.Time) time.Duration {
		if from.IsZero() || to.IsZero() {
			return 0
		}
		return to.Sub(from)
	}
	st := RequestStats{
		ID: g.id, ClientID: g.req.ClientID, Finish: last.Finish, Err: last.Err, Usage: last.Usage, N: g.req.N, Max: g.max,
		Total: now.Sub(g.submitted), Queue: since(g.submitted, g.planned),
		Prefill: since(g.planned, g.first), Decode: since(g.first, now),
	}
	e.cfg.Metrics.Finished(st)
	attrs := []any{
		slog.String("id", string(g.id)), slog.String("client_id", g.req.ClientID),
		slog.String("finish", string(last.Finish)), slog.Int("prompt", st.Usage.Prompt),
		slog.Int("completion", st.Usage.Completion), slog.Int("cached", st.Usage.LocalHit),
		slog.Int("loaded", st.Usage.Loaded), slog.Int("recomputed", st.Usage.Recomputed),
		slog.String("load_failure", string(st.Usage.Failure)),
		slog.Duration("queue", st.Queue), slog.Duration("prefill", st.Prefill), slog.Duration("total", st.Total),
	}
	if last.Err != nil {
		attrs = append(attrs, slog.Any("err", last.Err))
	}
	// The caller, who knows the client, has the line at level info.
	e.log.Debug("request finished", attrs...)
}

// shut ends every request and waits until no load can write any more.
func (e *Engine) shut(cause error) {
	e.mu.Lock()
	e.closed, e.err = true, cause
	in := e.inbox
	e.mu.Unlock()
	now := time.Now()
	if cause != nil {
		e.log.Error("engine is dead", slog.Any("err", cause))
	}
	for i := range in {
		// What was submitted in the last moment ends like all others.
		if in[i].kind == evSubmit { //nolint:staticcheck // two of many kinds matter
			g := in[i].stream.g
			g.submitted = now
			e.core.groups[g] = struct{}{}
			if g.req.Handoff != nil {
				e.cfg.Connector.ReturnUnread(g.req.Handoff)
			}
		} else if in[i].kind == evAbort {
			e.revoke(in[i].stream)
		}
	}
	for g := range e.core.groups {
		if cause != nil {
			e.core.kill(g, cause)
		} else {
			e.core.abort(g, ErrClosed)
		}
	}
	e.carry(now)
	reports, freed := e.channels()
	for len(e.core.loads) > 0 {
		select {
		case r := <-reports:
			if cause != nil {
				delete(e.core.loads, r.ID)
			} else {
				e.core.loaded(r)
			}
		case b := <-freed:
			if cause == nil {
				e.core.sched.Release(b)
			}
		}
	}
	e.recoveries.flush()
	e.publish(now, true)
}

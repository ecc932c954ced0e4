package engine

import (
	"log/slog"
	"time"

	"tandem/internal/connector"
)

// carry performs the core's effects in order. Effects that arise meanwhile (a
// reader that is too slow) are performed too.
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
		case doDone:
			e.finished(f.g, f.err, now)
		}
	}
	e.core.effects = e.core.effects[:0]
}

func (e *Engine) emit(f *effect) {
	switch {
	case f.g.stream.push(f.out, f.last):
	case f.g.over: // ended in this very step, so that an abort would tell nobody
		f.g.stream.push(Output{Finish: FinishAbort, Usage: f.g.usage, Err: ErrSlowReader}, true)
	default:
		e.core.abort(f.g, ErrSlowReader)
	}
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

// finished counts and logs the end of a request.
func (e *Engine) finished(g *group, err error, now time.Time) {
	since := func(from, to time.Time) time.Duration {
		if from.IsZero() || to.IsZero() {
			return 0
		}
		return to.Sub(from)
	}
	st := RequestStats{
		ID: g.id, ClientID: g.req.ClientID, Finish: g.finish, Err: err, Usage: g.usage, N: g.req.N, Max: g.max,
		Total: now.Sub(g.submitted), Queue: since(g.submitted, g.planned),
		Prefill: since(g.planned, g.first), Decode: since(g.first, now),
	}
	e.cfg.Metrics.Finished(st)
	attrs := []any{
		slog.String("id", string(g.id)), slog.String("client_id", g.req.ClientID),
		slog.String("finish", string(g.finish)), slog.Int("prompt", st.Usage.Prompt),
		slog.Int("completion", st.Usage.Completion), slog.Int("cached", st.Usage.LocalHit),
		slog.Int("loaded", st.Usage.Loaded), slog.Int("recomputed", st.Usage.Recomputed),
		slog.String("load_failure", string(st.Usage.Failure)),
		slog.Duration("queue", st.Queue), slog.Duration("prefill", st.Prefill), slog.Duration("total", st.Total),
	}
	if err != nil {
		attrs = append(attrs, slog.Any("err", err))
	}
	// The caller, who knows the client, has the line at level info.
	e.log.Debug("request finished", attrs...)
	e.left += g.req.N
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
	e.publish(now)
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
	e.publish(now)
}

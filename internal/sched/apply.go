package sched

import (
	"fmt"

	"tandem/internal/kv"
)

// A Result answers an Item of a plan. Only those that sample are read.
type Result struct {
	Token kv.Token

	// Finish ends the request: Stop, or Length when the engine counts shorter
	// than MaxTokens. The scheduler sets Length by itself when Token is the last
	// that MaxTokens, context or pool allow.
	Finish Reason
}

// A Finished tells of a request that ended. It has left the scheduler.
type Finished struct {
	ID     kv.RequestID
	Tag    any
	Why    Reason
	Counts Counts

	// Blocks hold the KV of the first Tokens tokens, for a request with a lease.
	// They belong to the caller, who gives them back with Release.
	Blocks []kv.BlockID
	Tokens int
}

// Apply takes the results of the planned step, one for each item in order, and
// returns the requests that ended. The slice is valid until the next Apply;
// Finished.Blocks for good.
func (s *Scheduler) Apply(results []Result) []Finished {
	p := &s.plan
	if len(results) != len(p.Items) {
		panic(fmt.Sprintf("sched: %d results for %d items", len(results), len(p.Items)))
	}
	clear(s.finished)
	s.finished = s.finished[:0]
	for i, r := range s.planned {
		if r.status != running { // aborted during the step
			continue
		}
		seq := &p.Batch.Seqs[i]
		end := seq.Pos + len(seq.Tokens)
		s.redone(r, seq.Pos, end)
		r.done = end
		r.sealed = max(r.sealed, r.done/kv.TileTokens)
		if r.NoCache {
			r.rows = max(r.rows, min(r.done, len(r.Prompt)))
		}
		r.pass()
		s.index(r)
		if !p.Items[i].Sample {
			continue
		}
		if why := s.sampled(r, results[i]); why != Unfinished {
			s.finish(r, why)
		}
	}
	clear(s.planned)
	s.planned = s.planned[:0]
	p.Items, p.Batch.Seqs = p.Items[:0], p.Batch.Seqs[:0]
	s.audited("Apply")
	return s.finished
}

// redone counts what of the tokens [from, end) r had computed before it was
// preempted, when that was after its first token.
func (s *Scheduler) redone(r *request, from, end int) {
	if r.counts.Output > 0 {
		n := max(0, min(end, r.reached)-from)
		r.counts.Redone += n
		s.total.Redone += uint64(n)
	}
}

// sampled appends r's next token and returns whether that was the last.
func (s *Scheduler) sampled(r *request, res Result) Reason {
	if r.counts.Output == 0 {
		t, c := &s.total, &r.counts
		t.Prompt += uint64(c.Prompt)
		t.Local += uint64(c.Local)
		t.Loaded += uint64(c.Loaded)
		t.Recomputed += uint64(c.Recomputed)
		t.Computed += uint64(c.Computed)
	}
	r.counts.Output++
	s.total.Output++
	r.tokens = append(r.tokens, res.Token)
	if res.Finish == Unfinished && len(r.tokens) >= r.most {
		return Length
	}
	return res.Finish
}

// index enters r's full and verified blocks into the prefix index.
func (s *Scheduler) index(r *request) {
	if !s.cfg.PrefixCache {
		return
	}
	n := s.blockTokens
	for (r.known+1)*n <= r.done {
		part := r.tokens[r.known*n : (r.known+1)*n]
		r.chain = s.pool.Index(r.chain, r.blocks[r.known], part, r.Salt)
		r.known++
	}
}

// finish ends a running request and tells the caller.
func (s *Scheduler) finish(r *request, why Reason) {
	f := Finished{ID: r.ID, Tag: r.Tag, Why: why, Counts: r.counts}
	if r.Lease {
		f.Tokens = r.done
		f.Blocks = r.blocks
		r.blocks = nil
		s.leased += len(f.Blocks)
		s.audit.lease(f.Blocks)
	}
	s.end(r, why)
	s.finished = append(s.finished, f)
}

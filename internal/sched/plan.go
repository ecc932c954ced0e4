package sched

import "tandem/internal/kv"

// A Plan is what a step does. It and all it refers to are valid until Apply;
// the block table of a Load, until its LoadDone.
type Plan struct {
	// Batch is what the model computes; empty when nothing can run before the
	// next event (Add, LoadDone, Release, Abort).
	Batch kv.Batch

	// Items has an entry for each of Batch.Seqs, in the same order.
	Items []Item

	// Loads are to be started. Each ends in exactly one LoadDone.
	Loads []Load

	// Unread are the requests whose hand-off is of no use, since nothing is
	// missing here or nothing may be loaded: it can be given back unread. Each
	// request with one is either here once, or in Loads once, or was aborted
	// before.
	Unread []Item

	// Preempted are the requests that gave their blocks back in this step.
	Preempted []Item
}

// An Item names a request of a plan.
type Item struct {
	ID  kv.RequestID
	Tag any

	// Sample tells that the last row of the sequence's logits samples the
	// request's next token. The rows before it, if any, belong to the prompt.
	Sample bool
}

// A Load is a request's read of KV from a peer: tiles FromTile to ToTile-1 of
// the sequence, where tile i lies in block Blocks[i/BlockTiles].
type Load struct {
	ID               kv.RequestID
	Tag              any
	FromTile, ToTile int
	Blocks           []kv.BlockID // the request's block table
}

// Plan decides the next step: who computes how many tokens, which loads start.
// The engine computes the batch and answers with Apply, unless the batch is
// empty.
//
// Requests that decode come first, then prompts that have begun, then new ones;
// each group by rank, as long as the token budget lasts.
func (s *Scheduler) Plan() *Plan {
	p := &s.plan
	p.Loads, p.Unread, p.Preempted = p.Loads[:0], p.Unread[:0], p.Preempted[:0]
	budget := s.cfg.MaxBatchedTokens

	// The list shrinks at its end, by those who give way.
	idle := 0
	for i := 0; i < len(s.running); i++ { //nolint:intrange // see above
		if r := s.running[i]; r.left() == 1 {
			if !s.grow(r, idle) {
				idle++
				continue
			}
			budget -= s.put(r, budget)
		}
	}
	for _, r := range s.running {
		if budget == 0 {
			break
		}
		if r.left() > 1 {
			budget -= s.put(r, budget)
		}
	}
	s.admit(budget)
	s.audited("Plan")
	return p
}

// put adds the next chunk of r to the plan, at most budget tokens, and returns
// its length.
func (s *Scheduler) put(r *request, budget int) int {
	n := min(r.left(), budget)
	if r.NoCache && r.rows < len(r.Prompt) {
		n = min(n, s.cfg.ProbeChunk)
	}
	if r.next < len(r.verified) {
		n = min(n, r.verified[r.next].from-r.done)
	}
	end := r.done + n
	last := end == len(r.tokens)
	seq := kv.Seq{
		Tokens:    r.tokens[r.done:end],
		Pos:       r.done,
		Blocks:    r.blocks,
		WriteFrom: max(r.done, r.slots),
	}
	if r.NoCache {
		seq.Logits = max(0, min(end, len(r.Prompt))-r.rows)
	}
	if last {
		seq.Logits = max(seq.Logits, 1)
	}
	if s.cfg.Seal {
		seq.SealFrom, seq.SealTo, seq.SealFilled = r.seal(end, last)
	}
	s.plan.Batch.Seqs = append(s.plan.Batch.Seqs, seq)
	s.plan.Items = append(s.plan.Items, Item{ID: r.ID, Tag: r.Tag, Sample: last})
	s.planned = append(s.planned, r)
	return n
}

// seal returns the tiles to seal after a step that ends r's KV at end: those
// that are full, and for a lease the partial one when the step samples.
func (r *request) seal(end int, last bool) (from, to, filled int) {
	if part := end % kv.TileTokens; part > 0 && r.Lease && last {
		return r.sealed, end/kv.TileTokens + 1, part
	}
	return r.sealed, end / kv.TileTokens, kv.TileTokens
}

// grow makes sure that r has a block for its next token. When the pool is empty
// the lowest ranked request gives its blocks up, if it ranks below r and unless
// more blocks than the idle requests above wait for are about to come back.
func (s *Scheduler) grow(r *request, idle int) bool {
	if !s.short(r) {
		return true
	}
	for {
		var ok bool
		if r.blocks, ok = s.pool.Alloc(r.blocks, 1); ok {
			return true
		}
		if s.held > idle {
			return false
		}
		v := s.lowest()
		if s.before(r, v) {
			s.preempt(v)
			continue
		}
		// A parked request may hold the blocks and lack the place that r holds.
		if len(s.parked) > 0 && len(s.running) == s.cfg.MaxSeqs {
			s.preempt(r)
		}
		return false
	}
}

// short reports whether r has no block for the next token that it computes.
func (s *Scheduler) short(r *request) bool { return r.done/s.blockTokens >= len(r.blocks) }

// lowest returns the lowest ranked request whose blocks can be taken. Somebody
// runs when it is called.
func (s *Scheduler) lowest() *request {
	v := s.running[len(s.running)-1]
	if n := len(s.parked); n > 0 && s.before(v, s.parked[n-1]) {
		v = s.parked[n-1]
	}
	return v
}

// preempt takes r's blocks away and queues it to be computed again.
func (s *Scheduler) preempt(r *request) {
	s.drop(r)
	r.reached = max(r.reached, r.done)
	if r.status == running {
		r.move(queued)
	}
	s.pool.Release(r.blocks)
	r.holding = holding{}
	r.counts.Preempted++
	s.total.Preemptions++
	s.queue.push(r, s)
	s.plan.Preempted = append(s.plan.Preempted, Item{ID: r.ID, Tag: r.Tag})
}

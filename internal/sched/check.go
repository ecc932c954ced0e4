package sched

import (
	"fmt"

	"tandem/internal/kv"
)

// Check verifies every invariant of s: each reference of the pool has an owner,
// nobody writes a block that another one reads, tables and statuses agree, and
// the counters add up. leases are the references of blocks handed over. It is
// slow; tests and builds with the invariants tag call it.
func (s *Scheduler) Check(leases map[kv.BlockID]int) error {
	if err := s.pool.Check(); err != nil {
		return err
	}
	refs := make([]int, s.pool.Blocks())
	for b, n := range leases {
		refs[b] += n
	}
	seen, held := 0, 0
	walk := func(list []*request, st status, blocks bool) error {
		for i, r := range list {
			seen++
			if s.requests[r.ID] != r {
				return fmt.Errorf("request %s is in a list and not in the table", r.ID)
			}
			if r.status != st || (len(r.blocks) > 0) != blocks {
				return fmt.Errorf("request %s: %v with %d blocks in the list of %v", r.ID, r.status, len(r.blocks), st)
			}
			if st != loading && blocks && i > 0 && !s.before(list[i-1], r) {
				return fmt.Errorf("request %s is out of order", r.ID)
			}
			if err := s.checkRequest(r); err != nil {
				return fmt.Errorf("request %s: %w", r.ID, err)
			}
			for _, b := range r.blocks {
				refs[b]++
			}
		}
		return nil
	}
	for _, err := range []error{
		walk(s.queue.items, queued, false), walk(s.parked, queued, true),
		walk(s.loads, loading, true), walk(s.running, running, true),
	} {
		if err != nil {
			return err
		}
	}
	if seen != len(s.requests) {
		return fmt.Errorf("%d requests in lists, %d in the table", seen, len(s.requests))
	}
	for id, g := range s.ghosts {
		if g.status != finished || s.requests[id] != nil {
			return fmt.Errorf("quarantined request %s is %v", id, g.status)
		}
		held += len(g.blocks) - g.hits
		for _, b := range g.blocks {
			refs[b]++
		}
	}
	if held != s.held {
		return fmt.Errorf("%d blocks quarantined, counted %d", held, s.held)
	}
	if len(s.running) > s.cfg.MaxSeqs || len(s.loads)+len(s.parked) > s.cfg.MaxSeqs {
		return fmt.Errorf("%d running, %d loading, %d parked: more than %d", len(s.running),
			len(s.loads), len(s.parked), s.cfg.MaxSeqs)
	}
	for b, n := range refs {
		if have := s.pool.Refs(kv.BlockID(b)); have != n {
			return fmt.Errorf("block %d has %d references, its owners hold %d", b, have, n)
		}
	}
	return s.checkWriters(refs)
}

// checkRequest verifies one request.
func (s *Scheduler) checkRequest(r *request) error {
	c := r.counts
	switch {
	case c.Local < 0 || c.Loaded < 0 || c.Recomputed < 0 || c.Computed < 0 ||
		c.Local+c.Loaded+c.Recomputed+c.Computed != c.Prompt || c.Prompt != len(r.Prompt):
		return fmt.Errorf("counters do not add up: %+v", c)
	case c.Output != len(r.tokens)-len(r.Prompt):
		return fmt.Errorf("%d tokens made, counted %d", len(r.tokens)-len(r.Prompt), c.Output)
	case len(r.tokens) >= r.most:
		return fmt.Errorf("%d tokens: should have ended at %d", len(r.tokens), r.most)
	case r.done < 0 || r.done >= len(r.tokens):
		return fmt.Errorf("%d of %d tokens are done", r.done, len(r.tokens))
	case r.done > len(r.blocks)*s.blockTokens:
		return fmt.Errorf("%d tokens are done in %d blocks", r.done, len(r.blocks))
	case len(r.blocks) > s.blocksFor(r.most-1) && len(r.blocks) > s.blocksFor(len(r.tokens)):
		return fmt.Errorf("%d blocks for at most %d tokens", len(r.blocks), r.most)
	case r.known*s.blockTokens > r.done || r.hits > len(r.blocks):
		return fmt.Errorf("%d blocks indexed, %d hits, %d tokens done", r.known, r.hits, r.done)
	}
	for i := r.next; i < len(r.verified); i++ {
		v := r.verified[i]
		if v.from >= v.to || v.from <= r.done || v.to > len(r.blocks)*s.blockTokens {
			return fmt.Errorf("verified tokens %v, %d done", v, r.done)
		}
	}
	return nil
}

// checkWriters verifies that every block that may still be written has one
// reference and is not in the index.
func (s *Scheduler) checkWriters(refs []int) error {
	for _, list := range [][]*request{s.running, s.parked, s.loads} {
		for _, r := range list {
			for i, b := range r.blocks {
				if (i+1)*s.blockTokens <= max(r.done, r.slots) {
					continue
				}
				if refs[b] != 1 || s.pool.Holds(b) {
					return fmt.Errorf("request %s: block %d is still written, with %d references, indexed %t",
						r.ID, b, refs[b], s.pool.Holds(b))
				}
			}
		}
	}
	return nil
}

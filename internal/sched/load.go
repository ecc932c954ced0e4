package sched

import "tandem/internal/kv"

// A LoadReport tells how a load ended. No byte of it lands any more.
type LoadReport struct {
	// Invalid are the tiles of the load, counted from the start of the sequence,
	// that are not there or not verified. Tiles outside of the load are ignored.
	Invalid []int

	// Fail ends the request when any tile is invalid; else what is missing is
	// computed here.
	Fail bool
}

// LoadResult is what became of a load's request.
type LoadResult struct {
	Found bool // false: no such load

	// Finished is set when the request is over: it was aborted before, or a tile
	// was invalid and the report said Fail.
	Finished bool
	Why      Reason // Aborted or LoadFailed, when Finished

	// Missing is the number of tokens that the load promised and did not bring.
	Missing int
	Counts  Counts
	Tag     any
}

// LoadDone takes the one report of a load that a Plan listed. The verified tiles
// are kept, also those behind invalid ones: they are not computed again.
func (s *Scheduler) LoadDone(id kv.RequestID, rep LoadReport) LoadResult {
	if g := s.ghosts[id]; g != nil {
		delete(s.ghosts, id)
		s.held -= len(g.blocks) - g.hits
		s.pool.Release(g.blocks)
		s.audited("LoadDone")
		return LoadResult{Found: true, Finished: true, Why: Aborted, Counts: g.counts, Tag: g.Tag}
	}
	r := s.requests[id]
	if r == nil || r.status != loading {
		return LoadResult{}
	}
	loaded := r.verify(rep.Invalid)
	promised := r.load.to - r.load.from
	r.count(r.load.from, loaded, r.load.to)
	res := LoadResult{Found: true, Missing: promised - loaded, Tag: r.Tag}
	if res.Missing > 0 {
		s.total.FailedLoads++
	}
	s.loads = remove(s.loads, r)
	if res.Missing > 0 && rep.Fail {
		r.move(finished)
		delete(s.requests, r.ID)
		s.total.Finished[LoadFailed]++
		s.pool.Release(r.blocks)
		res.Finished, res.Why = true, LoadFailed
	} else {
		r.move(queued)
		s.parked = s.insert(s.parked, r)
		r.pass()
		s.index(r)
	}
	res.Counts = r.counts
	s.audited("LoadDone")
	return res
}

// verify notes the tiles of r's load except the invalid ones and returns how
// many of the promised tokens they hold.
func (r *request) verify(invalid []int) (loaded int) {
	from, to := r.load.from/kv.TileTokens, tilesFor(r.load.to)
	bad := make([]bool, to-from)
	for _, t := range invalid {
		if t >= from && t < to {
			bad[t-from] = true
		}
	}
	// The last tile may hold the KV of the last prompt token too: it need not be
	// written then, though its logits are computed.
	held := min(r.External, len(r.Prompt))
	r.verified = r.verified[:0]
	for t := from; t < to; t++ {
		if bad[t-from] {
			continue
		}
		v := span{t * kv.TileTokens, min((t+1)*kv.TileTokens, held)}
		loaded += min(v.to, r.load.to) - v.from
		if n := len(r.verified); n > 0 && r.verified[n-1].to == v.from {
			r.verified[n-1].to = v.to
		} else {
			r.verified = append(r.verified, v)
		}
	}
	return loaded
}

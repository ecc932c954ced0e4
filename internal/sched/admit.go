package sched

import "tandem/internal/kv"

// sure is the number of preemptions after which a request is admitted only when
// nobody above it can need its blocks any more.
const sure = 3

// maxAhead bounds the output tokens for which a request's lists have room from
// the start; longer ones grow.
const maxAhead = 4096

// waits is what start returns for a request that stays in the queue.
const waits = -1

// admit starts queued requests by rank, as long as budget tokens last for those
// that compute. A request that cannot start holds back all behind it, except
// the parked ones: they hold their blocks already.
func (s *Scheduler) admit(budget int) {
	open := true // the head of the queue may still start
	for {
		head := s.queue.first()
		if !open {
			head = nil
		}
		if len(s.parked) > 0 && (head == nil || s.before(s.parked[0], head)) {
			r := s.parked[0]
			if budget == 0 || len(s.running) == s.cfg.MaxSeqs {
				if head == nil {
					return
				}
				// The head ranks below; it may load, not run.
				open = s.start(head, 0) != waits
				continue
			}
			s.parked = remove(s.parked, r)
			budget -= s.run(r, budget)
			continue
		}
		if head == nil {
			return
		}
		used := s.start(head, budget)
		if used == waits {
			open = false
			continue
		}
		budget -= used
	}
}

// run puts r into the batch and plans its first chunk.
func (s *Scheduler) run(r *request, budget int) int {
	r.move(running)
	s.running = s.insert(s.running, r)
	return s.put(r, budget)
}

// start takes r from the queue to run or to load, with blocks for all of its
// tokens. It returns the number of tokens planned, or waits.
func (s *Scheduler) start(r *request, budget int) int {
	cache := !r.NoCache // without PrefixCache the index is empty
	var hits, idle int  // blocks; idle ones count as free
	if cache {
		hits, idle = s.pool.Match(r.tokens, r.Salt)
	}
	hit, promised := hits*s.blockTokens, r.promised()
	load := !r.spent && promised > hit
	if load {
		if len(s.loads)+len(s.parked) >= s.cfg.MaxSeqs {
			return waits
		}
	} else if budget == 0 || len(s.running) >= s.cfg.MaxSeqs {
		return waits
	}
	need := s.blocksFor(len(r.tokens)) - hits
	if need+idle+s.reserve(r) > s.pool.Free() {
		return waits
	}
	s.queue.remove(r, s)
	s.open(r)
	if cache {
		r.blocks, r.chain = s.pool.Lookup(r.blocks, r.tokens, r.Salt)
	}
	r.hits, r.known = hits, hits
	r.blocks, _ = s.pool.Alloc(r.blocks, need)
	r.done, r.sealed = hit, hit/kv.TileTokens
	r.count(hit, 0, promised)
	if r.External > 0 && !r.spent {
		r.spent = true
		if !load {
			s.plan.Unread = append(s.plan.Unread, Item{ID: r.ID, Tag: r.Tag})
		}
	}
	if !load {
		return s.run(r, budget)
	}
	r.load = span{hit, promised}
	r.move(loading)
	s.loads = append(s.loads, r)
	s.plan.Loads = append(s.plan.Loads, Load{ID: r.ID, Tag: r.Tag, Blocks: r.blocks,
		FromTile: hit / kv.TileTokens, ToTile: tilesFor(promised)})
	return 0
}

// promised returns how many tokens of the prompt a load was or is to bring, from
// its start on: at most all but the last, which is always computed.
func (r *request) promised() int {
	if r.NoCache || (r.spent && r.load == span{}) {
		return 0
	}
	return min(r.External, len(r.Prompt)-1)
}

// open gives r's lists room for what it may become.
func (s *Scheduler) open(r *request) {
	room := min(r.most, len(r.tokens)+maxAhead)
	r.tokens = append(make([]kv.Token, 0, room), r.tokens...)
	r.blocks = make([]kv.BlockID, 0, s.blocksFor(room))
}

// reserve returns how many blocks must stay free when r is admitted, so that it
// is not preempted at once by those that decode. When r, or a request above it,
// was preempted often, nobody may be short of blocks to its end.
func (s *Scheduler) reserve(r *request) int {
	var growing, growth int // requests and blocks
	all := r.counts.Preempted >= sure
	for _, list := range [...][]*request{s.running, s.parked, s.loads} {
		for _, x := range list {
			more := s.blocksFor(x.most-1) - len(x.blocks)
			growth += more
			if more > 0 {
				growing++
			}
			all = all || (x.counts.Preempted >= sure && s.before(x, r))
		}
	}
	if all {
		return growth + s.blocksFor(r.most-1) - s.blocksFor(len(r.tokens))
	}
	return min(growth, growing<<r.counts.Preempted)
}

// blocksFor returns the number of blocks that n tokens take.
func (s *Scheduler) blocksFor(n int) int { return (n + s.blockTokens - 1) / s.blockTokens }

// tilesFor returns the number of tiles that n tokens take.
func tilesFor(n int) int { return (n + kv.TileTokens - 1) / kv.TileTokens }

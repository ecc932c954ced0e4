package simulation

import (
	"tandem/internal/connector/core"
	"tandem/internal/kv"
)

// check looks at what must hold after every event of a node's process.
func (w *world) check(n *node) {
	if w.opt.also != nil {
		w.opt.also(w)
	}
	for _, k := range w.calls {
		if k.limit == nil || k.over { // it has not come, or is done
			continue
		}
		if !k.limit.pending() || k.leg != nil && !k.leg.limit.pending() {
			w.fail("request %d waits without a deadline: %v", k.id, k.flow.State())
		}
	}
	if w.failure != nil || n == nil || !n.alive {
		return
	}
	n.blocks()
	n.indexed()
	n.waits()
}

// blocks: every reference of the pool has one owner, and leases are among them:
// so nothing is lost, freed twice, or leased and free.
func (n *node) blocks() {
	leases := map[kv.BlockID]int{}
	n.shell.leases.Held(leases)
	for b := range leases {
		if n.eng.Scheduler().Pool().Refs(b) == 0 {
			n.w.fail("%s: block %d is leased and free", n.name, b)
			return
		}
	}
	for _, list := range n.shell.returned {
		for _, b := range list {
			leases[b]++
		}
	}
	if err := n.eng.Scheduler().Check(leases); err != nil {
		n.w.fail("%s: %v", n.name, err)
	}
	// What a read may still write belongs to nobody else, and nobody reads it.
	pool, tiles := n.eng.Scheduler().Pool(), n.model.BlockTokens/kv.TileTokens
	for _, l := range n.shell.loads {
		if len(l.reads) == 0 {
			continue
		}
		for i := l.spec.FromTile; i < l.spec.ToTile; i++ {
			if b := l.spec.Local[i/tiles]; pool.Refs(b) != 1 || pool.Holds(b) {
				n.w.fail("%s: block %d has %d references while a load writes to it, indexed %t", n.name, b, pool.Refs(b), pool.Holds(b))
				return
			}
		}
	}
}

// indexed: what entered the prefix index is what a lone engine computes.
func (n *node) indexed() {
	pool := n.eng.Scheduler().Pool()
	if pool.Changes() == n.changes {
		return
	}
	n.changes = pool.Changes()
	// Parents are older than their children, so ascending order knows them.
	from := n.newest
	for {
		var next kv.BlockID = -1
		var id kv.Chain
		for b := range pool.Blocks() {
			e, ok := pool.Entry(kv.BlockID(b))
			if ok && e.ID > from && (next < 0 || e.ID < id) {
				next, id = kv.BlockID(b), e.ID
			}
		}
		if next < 0 {
			break
		}
		from = id
		e, _ := pool.Entry(next)
		before, ok := n.chains[e.Parent]
		if !ok {
			n.w.fail("%s: block %d is indexed behind a prefix that never was", n.name, next)
			return
		}
		tiles := n.model.BlockTokens / kv.TileTokens
		for i := range tiles {
			before = before.then(e.Tokens[i*kv.TileTokens : (i+1)*kv.TileTokens])
			if !n.holds(kv.TileID(int(next)*tiles+i), before) {
				n.w.fail("%s: block %d is in the prefix index, and its tile %d is not what a lone engine computes", n.name, next, i)
				return
			}
		}
		n.chains[id] = before
	}
	n.newest = from
}

// holds reports whether a tile has the bytes of the end of a prefix.
func (n *node) holds(t kv.TileID, p prefix) bool {
	want, ok := n.w.ref.tile(p)
	if !ok {
		return false
	}
	per := heads / n.model.TP
	for rank, a := range n.mem.Arenas() {
		for h := range per {
			if kv.SumHead(a.Tile(t), a.Layout(), h) != want[rank*per+h] {
				return false
			}
		}
	}
	return true
}

// genuine checks a tile that a load calls valid.
func (l *load) genuine(i int) {
	end := (i + 1) * kv.TileTokens
	if end > len(l.spec.Prompt) {
		return // the reference has whole tiles
	}
	n := l.s.n
	tiles := n.model.BlockTokens / kv.TileTokens
	t := kv.TileID(int(l.spec.Local[i/tiles])*tiles + i%tiles)
	var at prefix
	for from := 0; from < end; from += kv.TileTokens {
		at = at.then(l.spec.Prompt[from : from+kv.TileTokens])
	}
	if !n.holds(t, at) {
		n.w.fail("%s: tile %d of a load counts as valid, and is not what a lone engine computes", n.name, i)
	}
}

// sealed checks the blocks of a lease that is claimed: they hold what their seals
// say.
func (n *node) sealed(blocks []kv.BlockID, to int) {
	tiles := n.model.BlockTokens / kv.TileTokens
	for i := range to {
		t := kv.TileID(int(blocks[i/tiles])*tiles + i%tiles)
		for _, a := range n.mem.Arenas() {
			for h, sum := range a.Sums(t) {
				if kv.SumHead(a.Tile(t), a.Layout(), h) != sum {
					n.w.fail("%s: tile %d of a claimed lease is not what was sealed", n.name, i)
					return
				}
			}
		}
	}
}

// unpinned: no claim ends while its reader, over a connection that stands, still
// reads.
func (s *shell) unpinned(c core.Running) {
	for _, n := range s.w.dec {
		if !n.alive || n.frozen || n.inc != c.From.Incarnation {
			continue
		}
		for _, l := range n.shell.loads {
			if l.spec.Handoff.Lease != c.ID || l.freezes != n.freezes || l.view == nil || l.view.conn.id != c.From || l.view.conn.ended {
				continue
			}
			for _, r := range l.reads {
				if !r.over {
					s.w.fail("%s lets the claim of lease %s end while %s reads", s.n.name, short(c.ID), n.name)
				}
			}
		}
	}
}

// waits: whatever waits has an event that ends its wait, and whoever can get on
// does.
func (n *node) waits() {
	s, w := n.shell, n.w
	due := func(e *event, at int64, what string) {
		if !e.pending() || e.at > at {
			w.fail("%s: %s waits without a deadline", n.name, what)
		}
	}
	if at, ok := s.leases.Next(); ok {
		due(s.leaseTimer, max(at.UnixNano(), w.clock), "a lease")
	}
	if at, ok := s.peers.Next(); ok {
		due(s.peerTimer, max(at.UnixNano(), w.clock), "a peer")
	}
	const never = 1<<63 - 1
	for _, wt := range s.waiters {
		due(wt.limit, never, "somebody who wants a peer")
	}
	for _, h := range s.shakes {
		due(h.limit, never, "a handshake")
	}
	for _, g := range s.returns {
		due(g.limit, never, "a return")
	}
	for _, l := range s.loads {
		if next := l.core.Next(); !next.IsZero() {
			due(l.timer, max(next.UnixNano(), w.clock), "a load")
			continue
		}
		for _, r := range l.reads {
			if !r.over {
				due(r.stall, never, "a read that was cancelled")
			}
		}
	}
	if len(s.tracked) > 0 {
		due(s.beat, never, "a lease to renew")
	}
	if n.busy || n.turn.pending() {
		return
	}
	st := n.eng.Scheduler().Stats()
	if st.Running+st.Waiting > 0 && st.Loading+st.Held+st.Leased == 0 {
		w.fail("%s rests with work: %d running, %d waiting", n.name, st.Running, st.Waiting)
	}
}

// settled checks a world in which nothing happens any more.
func (w *world) settled() {
	for _, k := range w.calls {
		if !k.over {
			w.fail("request %d never got an answer: %v", k.id, k.flow.State())
			return
		}
	}
	for _, n := range w.nodes {
		if !n.alive {
			continue
		}
		s, st := n.shell, n.eng.Scheduler().Stats()
		switch {
		case st.Running+st.Waiting+st.Loading+st.Held+st.Leased > 0 || st.Free != st.Blocks:
			w.fail("%s is not empty at the end: %+v", n.name, st)
		case s.leases.Len() > 0 || len(s.claims) > 0:
			w.fail("%s has %d leases and %d claims at the end", n.name, s.leases.Len(), len(s.claims))
		case len(s.loads)+len(s.waiters)+len(s.shakes)+len(s.returns)+len(s.tracked) > 0:
			w.fail("%s: %d loads, %d waiters, %d handshakes, %d returns, %d tracked at the end", n.name,
				len(s.loads), len(s.waiters), len(s.shakes), len(s.returns), len(s.tracked))
		case len(s.peers.Peers()) > 0:
			w.fail("%s still knows peers: %+v", n.name, s.peers.Peers())
		case len(n.legs) > 0:
			w.fail("%s still serves %d requests", n.name, len(n.legs))
		}
	}
	if len(w.conns) > 0 {
		w.fail("%d connections are left", len(w.conns))
	}
}

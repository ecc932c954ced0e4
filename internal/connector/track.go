package connector

import (
	"context"
	"sync"
	"time"

	"tandem/internal/connector/core"
)

// A trackChange adds or removes a lease that waits on this engine.
type trackChange struct {
	h   *Handoff
	add bool
}

// Track renews the hand-off's lease with P until Untrack or the end of its load,
// and starts the handshake, so that it is done when the load begins. A hand-off
// that the token does not vouch for is ignored.
func (c *Connector) Track(h *Handoff) {
	if c.cfg.Role.Consumes() && h.Vouched(c.cfg.Token) {
		c.changeTrack(trackChange{h, true})
	}
}

// Untrack ends the renewals. It may be called at any time, more than once.
func (c *Connector) Untrack(h *Handoff) { c.changeTrack(trackChange{h, false}) }

func (c *Connector) changeTrack(t trackChange) {
	select {
	case c.track <- t:
	case <-c.closed:
	}
}

// beat owns the set of waiting leases and sends one renewal to each peer at each
// heartbeat, peers in parallel.
func (c *Connector) beat(ctx context.Context) {
	var calls sync.WaitGroup
	defer calls.Wait()
	waiting := map[LeaseID]*Handoff{}
	tick := time.NewTicker(c.cfg.Heartbeat)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case t := <-c.track:
			if t.add {
				waiting[t.h.Lease] = t.h
				calls.Go(func() { c.peers.warm(t.h.key(), uint64(t.h.Epoch)) })
			} else {
				delete(waiting, t.h.Lease)
			}
			c.mu.Lock()
			c.tracked = len(waiting)
			c.mu.Unlock()
		case <-tick.C:
			byPeer := map[core.PeerKey][]LeaseID{}
			for id, h := range waiting {
				byPeer[h.key()] = append(byPeer[h.key()], id)
			}
			for key, ids := range byPeer {
				calls.Go(func() { c.renew(ctx, key, ids) })
			}
		}
	}
}

// renew tells one peer which leases wait here. What fails shows at the load.
func (c *Connector) renew(ctx context.Context, key core.PeerKey, ids []LeaseID) {
	ctx, cancel := context.WithTimeout(ctx, c.cfg.Heartbeat)
	defer cancel()
	v, err := c.peers.get(ctx, key, 0)
	if err != nil {
		c.cfg.Log.Debug("heartbeat not sent", "remote_addr", key.Addr, "leases", len(ids), "error", err)
		return
	}
	defer v.release()
	for len(ids) > 0 {
		n := min(len(ids), maxRenewals)
		if _, err := v.conn.Call(ctx, KindRenew, encodeLeases(key.Incarnation, ids[:n])); err != nil {
			c.cfg.Log.Debug("heartbeat not answered", "remote_addr", key.Addr, "leases", len(ids), "error", err)
			return
		}
		ids = ids[n:]
	}
}

package connector

import (
	"context"
	"sync"
	"time"

	"tandem/internal/connector/core"
)

// Track renews the hand-off's lease with P until Untrack or the end of its load,
// and starts the handshake, so that it is done when the load begins. A hand-off
// that the token does not vouch for is ignored.
func (c *Connector) Track(h *Handoff) {
	if !c.cfg.Role.Consumes() || !h.Vouched(c.cfg.Token) {
		return
	}
	if c.spawn(func(context.Context) { c.peers.warm(h.key(), uint64(h.Epoch)) }) {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.tracked[h.Lease] = h
	}
}

// Untrack ends the renewals. It may be called at any time, more than once.
func (c *Connector) Untrack(h *Handoff) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.tracked, h.Lease)
}

// beat sends one renewal to each peer at each heartbeat, peers in parallel.
func (c *Connector) beat(ctx context.Context) {
	var calls sync.WaitGroup
	defer calls.Wait()
	tick := time.NewTicker(c.cfg.Heartbeat)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		for key, ids := range c.waiting() {
			calls.Go(func() { c.renew(ctx, key, ids) })
		}
	}
}

// waiting returns the leases that are tracked, by peer.
func (c *Connector) waiting() map[core.PeerKey][]LeaseID {
	c.mu.Lock()
	defer c.mu.Unlock()
	byPeer := map[core.PeerKey][]LeaseID{}
	for id, h := range c.tracked {
		byPeer[h.key()] = append(byPeer[h.key()], id)
	}
	return byPeer
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

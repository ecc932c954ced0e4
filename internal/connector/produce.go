package connector

import (
	"context"
	"crypto/rand"
	"slices"
	"time"

	"tandem/internal/connector/core"
	"tandem/internal/kv"
)

// A LeaseSpec is a finished request whose prompt KV another engine may read.
type LeaseSpec struct {
	ID     kv.RequestID
	Blocks []kv.BlockID // of the prompt, all tiles sealed; the lease takes the references over
	Tokens []kv.Token   // the prompt
}

// Grant makes a lease and returns its hand-off. The lease is in the table before
// Grant returns; its blocks come back through Freed, once. Grant returns nil, and
// the blocks stay the caller's, when the connector does not run, its role does
// not produce, or there is nothing to offer.
func (c *Connector) Grant(s LeaseSpec) *Handoff {
	if !c.cfg.Role.Produces() || len(s.Blocks) == 0 || len(s.Tokens) == 0 ||
		len(s.Tokens) > len(s.Blocks)*c.layout.BlockTokens() || len(s.Tokens) > MaxTokens || len(s.Blocks) > MaxBlocks {
		return nil
	}
	h := &Handoff{
		EngineID: c.cfg.EngineID, RequestID: cut(string(s.ID), maxRequestID), Incarnation: c.incarnation, Epoch: c.epoch,
		TP: c.tp, BlockTokens: c.layout.BlockTokens(), Tokens: len(s.Tokens), Digest: TokenDigest(s.Tokens),
		Blocks: slices.Clone(s.Blocks), Addr: c.net.Addr(), Version: HandoffVersion,
	}
	rand.Read(h.Lease[:])
	h.Host, h.Port = hostPort(h.Addr)
	h.Sign(c.cfg.Token)
	_, err := c.leases.handle(context.Background(), core.GrantEvent{
		ID: h.Lease, Blocks: h.Blocks, Tokens: h.Tokens, Digest: h.Digest, Epoch: h.Epoch,
	})
	if err != nil {
		return nil
	}
	return h
}

func cut(s string, n int) string { return s[:min(len(s), n)] }

// Freed delivers the blocks of each ended lease, once, for the scheduler. The
// lease loop never waits for its reader.
func (c *Connector) Freed() <-chan []kv.BlockID { return c.leases.freed }

// Revoke ends an unclaimed lease of this engine: its request was aborted, or its
// answer could not be delivered. A claimed one ends with its claim.
func (c *Connector) Revoke(h *Handoff) {
	if h != nil && h.Incarnation == c.incarnation {
		_, _ = c.leases.handle(context.Background(), core.RevokeEvent{ID: h.Lease})
	}
}

// ReleaseByHandoff revokes the lease of a hand-off that this engine made, for a
// router whose D was never reached. The error is a *HandoffError, ErrStale when
// another process made the hand-off, or ErrClosed; a lease that has ended is no
// error, and a claimed one ends with its claim.
func (c *Connector) ReleaseByHandoff(raw []byte) error {
	h, err := ParseHandoff(raw)
	switch {
	case err != nil:
		return err
	case h == nil:
		return &HandoffError{FieldRemotePrefill, "not a hand-off", nil}
	case !h.Vouched(c.cfg.Token):
		return &HandoffError{FieldMAC, "the cluster token does not vouch for these fields", ErrMAC}
	case h.Incarnation != c.incarnation:
		return ErrStale
	}
	_, err = c.leases.handle(context.Background(), core.RevokeEvent{ID: h.Lease})
	return err
}

// drainPoll is how often Drain looks whether the last lease has ended.
const drainPoll = 20 * time.Millisecond

// Drain stops renewals and waits until every lease has ended or ctx does. It
// returns how many are left.
func (c *Connector) Drain(ctx context.Context) int {
	if _, err := c.leases.handle(ctx, core.DrainEvent{On: true}); err != nil {
		return c.leases.statistics().Live
	}
	tick := time.NewTicker(drainPoll)
	defer tick.Stop()
	for {
		if n := c.leases.statistics().Live; n == 0 {
			return 0
		}
		select {
		case <-tick.C:
		case <-c.leases.closed:
			return c.leases.statistics().Live
		case <-ctx.Done():
			return c.leases.statistics().Live
		}
	}
}

func (c *Connector) answerHello(_ context.Context, _ CallerID, body []byte) ([]byte, error) {
	if _, err := decodeHello(body); err != nil {
		return nil, err
	}
	h := c.hello()
	for rank := range c.tp {
		h.Ranks = append(h.Ranks, c.net.Describe(rank))
	}
	return h.encode(), nil
}

func (c *Connector) answerClaim(ctx context.Context, from CallerID, body []byte) ([]byte, error) {
	ask, err := decodeClaim(body)
	if err != nil {
		return nil, err
	}
	e, err := c.leases.handle(ctx, core.ClaimEvent{Claim: *ask, From: from})
	if err != nil {
		return nil, err
	}
	return (&claimAnswer{Verdict: e.Verdict, Limit: e.Limit, Sums: e.sums}).encode(), nil
}

// sums returns the sums of tiles [from, to) of a block table: rank, tile, head.
func (c *Connector) sums(blocks []kv.BlockID, from, to int) []uint64 {
	return core.SumsOf(c.cfg.Arenas, blocks, from, to)
}

func (c *Connector) answerRenew(ctx context.Context, _ CallerID, body []byte) ([]byte, error) {
	return c.answerLeases(ctx, body, func(id LeaseID) any { return core.RenewEvent{ID: id} })
}

func (c *Connector) answerReturn(ctx context.Context, from CallerID, body []byte) ([]byte, error) {
	return c.answerLeases(ctx, body, func(id LeaseID) any { return core.ReturnEvent{ID: id, From: from} })
}

func (c *Connector) answerLeases(ctx context.Context, body []byte, event func(LeaseID) any) ([]byte, error) {
	inc, ids, err := decodeLeases(body)
	if err != nil {
		return nil, err
	}
	vs := make([]core.Verdict, len(ids))
	for i, id := range ids {
		if inc != c.incarnation {
			vs[i] = core.VerdictIncarnation
			continue
		}
		e, err := c.leases.handle(ctx, event(id))
		if err != nil {
			return nil, err
		}
		vs[i] = e.Verdict
	}
	return encodeVerdicts(vs), nil
}

package connector

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"sync"
	"time"

	"tandem/internal/connector/core"
	"tandem/internal/kv"
)

// A Connector is one engine's end of every hand-off. All methods are safe for
// concurrent use. What is asked before Run waits for it.
type Connector struct {
	cfg         Config
	net         Network
	layout      kv.Layout
	tp          int
	incarnation Incarnation
	epoch       kv.Epoch
	factors     []Factor
	factorSum   [32]byte

	leases *leaseLoop
	peers  *peerLoop

	failures *failureLog

	reports chan LoadReport
	closed  chan struct{}  // Run has begun to end
	jobs    sync.WaitGroup // loads and returns

	mu      sync.Mutex
	scope   context.Context //nolint:containedctx // the Run scope of loads and returns; ended is set before it ends
	end     context.CancelFunc
	started bool // by Run or Close
	ended   bool
	loads   map[kv.RequestID]context.CancelFunc
	tracked map[LeaseID]*Handoff // leases that wait here and are renewed
}

// firstEpoch is the epoch of an engine's first registration.
const firstEpoch = 1

// New checks cfg, registers the arenas and binds the peer listener. Run must be
// called, or Close when it will not be.
func New(cfg Config) (*Connector, error) {
	if err := cfg.fill(); err != nil {
		return nil, err
	}
	var inc Incarnation
	rand.Read(inc[:])
	n, err := openNetwork(&cfg, inc, firstEpoch)
	if err != nil {
		return nil, err
	}
	if cfg.Decorate != nil {
		n = cfg.Decorate(n)
	}
	return newConnector(cfg, inc, n), nil
}

// newConnector puts a connector on a network. cfg is filled.
func newConnector(cfg Config, inc Incarnation, n Network) *Connector {
	c := &Connector{
		cfg: cfg, net: n, layout: cfg.Arenas[0].Layout(), tp: len(cfg.Arenas), incarnation: inc, epoch: firstEpoch,
		reports: make(chan LoadReport, 256), closed: make(chan struct{}),
		loads: map[kv.RequestID]context.CancelFunc{}, tracked: map[LeaseID]*Handoff{}, failures: newFailureLog(cfg.Log),
	}
	c.leases = newLeaseLoop(cfg.Metrics, c.sums)
	c.scope, c.end = context.WithCancel(context.Background())
	c.factors = fingerprint(cfg.Fingerprint, c.layout, c.tp)
	c.factorSum = factorSum(c.factors)
	c.peers = newPeerLoop(c.shake, cfg.HandshakeTimeout, cfg.Metrics)
	n.Handle(KindHello, c.answerHello)
	n.Handle(KindClaim, c.answerClaim)
	n.Handle(KindRenew, c.answerRenew)
	n.Handle(KindReturn, c.answerReturn)
	n.Authorize(func(from CallerID, epoch kv.Epoch, id LeaseID, tiles []int32) error {
		return c.leases.authorize(from, epoch, id, tiles, c.layout.BlockTiles)
	})
	n.OnLost(func(from CallerID) {
		_, _ = c.leases.handle(context.Background(), core.LostEvent{From: from})
	})
	return c
}

// Run serves until ctx ends: it then cancels all loads, reports them, gives back
// what D still holds, and ends every lease. Nothing runs after it returned.
func (c *Connector) Run(ctx context.Context) error {
	c.mu.Lock()
	started := c.started
	c.started = true
	c.mu.Unlock()
	if started {
		return ErrClosed
	}
	inner, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()

	var loops sync.WaitGroup
	table := core.NewLeaseTable(c.incarnation, c.epoch, c.factorSum,
		core.LeaseLimits{Lease: c.cfg.LeaseDuration, MaxClaim: c.cfg.MaxClaim})
	loops.Go(func() { c.leases.run(inner, table) })
	loops.Go(func() { c.peers.run(inner, core.NewPeerTable[*view](c.cfg.PeerIdle)) })
	loops.Go(func() { c.beat(inner) })
	loops.Go(func() { c.failures.run(inner) })
	failed := make(chan error, 1)
	loops.Go(func() { failed <- c.net.Run(inner) })

	var err error
	select {
	case <-ctx.Done():
	case err = <-failed:
	}
	c.mu.Lock()
	c.ended = true
	close(c.closed)
	c.mu.Unlock()
	c.end()
	c.jobs.Wait()
	stop()
	loops.Wait()
	if err == nil {
		err = <-failed
	}
	if err != nil {
		return fmt.Errorf("connector: serving peers on %s: %w", c.net.Addr(), err)
	}
	return nil
}

// Close gives back what a Connector that never ran holds. After Run it does
// nothing.
func (c *Connector) Close() error {
	c.mu.Lock()
	started := c.started
	c.started = true
	if !started {
		c.ended = true
		close(c.closed)
		close(c.leases.closed)
		close(c.peers.closed)
	}
	c.mu.Unlock()
	if started {
		return nil
	}
	c.end()
	c.jobs.Wait()
	return c.net.Close()
}

// Addr returns the address that hand-offs name: the advertised one, or where the
// peer listener is bound.
func (c *Connector) Addr() string { return c.net.Addr() }

// Factors returns the whole fingerprint, those of the layout included.
func (c *Connector) Factors() []Factor { return slices.Clone(c.factors) }

// Verify judges what D can judge alone: role, version, bounds and MAC. The error
// is a *HandoffError, a client's mistake. Nothing of a hand-off may be used
// before. A prompt that is not the one the hand-off was made for is no mistake of
// this kind: its load fails.
func (c *Connector) Verify(h *Handoff, prompt []kv.Token) error {
	switch {
	case !c.cfg.Role.Consumes():
		return &HandoffError{FieldRemotePrefill, "this engine only produces hand-offs", ErrRole}
	case h.Version != HandoffVersion:
		return &HandoffError{FieldVersion, fmt.Sprintf("%d is not %d", h.Version, HandoffVersion), nil}
	case !h.Vouched(c.cfg.Token):
		return &HandoffError{FieldMAC, "the cluster token does not vouch for these fields", ErrMAC}
	case h.Tokens < 0 || h.Tokens > len(h.Blocks)*h.BlockTokens:
		return &HandoffError{FieldTokens, "more tokens than its blocks hold", nil}
	case h.Incarnation == c.incarnation:
		return &HandoffError{FieldIncarnation, "made by this engine itself", ErrStale}
	case len(prompt) == 0:
		return &HandoffError{FieldRemotePrefill, "given with an empty prompt", nil}
	}
	return nil
}

// Offers returns how many tokens of prompt a load of h can bring: the last
// prompt token is always computed here. It is never negative.
func (h *Handoff) Offers(prompt []kv.Token) int { return max(min(h.Tokens, len(prompt)-1), 0) }

func (h *Handoff) key() core.PeerKey { return core.PeerKey{Incarnation: h.Incarnation, Addr: h.Addr} }

// spawn runs f as a job that Run waits for, unless the connector is not running.
func (c *Connector) spawn(f func(scope context.Context)) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ended {
		return false
	}
	c.jobs.Go(func() { f(c.scope) })
	return true
}

// hostPort splits a checked address for the fields of foreign tools.
func hostPort(addr string) (string, int) {
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return "", 0
	}
	n, _ := strconv.Atoi(port)
	return host, n
}

// finish delivers the report of a load.
func (c *Connector) finish(l *load, r *core.LoadResult) {
	rep := LoadReport{
		ID: l.spec.ID, From: l.spec.FromTile, To: l.spec.ToTile, Canceled: r.Canceled,
		Bytes: int(l.bytes.Load()), Duration: time.Since(l.start), Path: l.path,
	}
	for i, ok := range r.Valid {
		if ok {
			rep.Valid++
		} else {
			rep.Invalid = append(rep.Invalid, l.spec.FromTile+i)
		}
	}
	h := l.spec.Handoff
	switch {
	case r.Err != nil:
		rep.Err = &LoadError{Peer: h.EngineID, Class: r.Class, Tiles: rep.Invalid, Err: r.Err}
		c.loadFailed(&l.spec, &rep)
		if errors.Is(r.Err, core.ErrExpired) {
			c.cfg.Metrics.Expired()
		}
	case !r.Canceled:
		c.cfg.Metrics.Loaded(rep.Valid, rep.Duration)
	}
	c.mu.Lock()
	delete(c.loads, l.spec.ID)
	delete(c.tracked, h.Lease)
	c.mu.Unlock()
	c.deliver(rep)
}

// deliver hands a report to the engine. Once Run is ending nobody may be there to
// take it.
func (c *Connector) deliver(rep LoadReport) {
	select {
	case c.reports <- rep:
	case <-c.closed:
		select {
		case c.reports <- rep:
		default:
		}
	}
}

package connector

import (
	"context"
	"errors"
	"fmt"
	"time"

	"tandem/internal/connector/core"
	"tandem/internal/kv"
)

// A LoadSpec says what a load reads and where to.
type LoadSpec struct {
	ID       kv.RequestID
	ClientID string // a label for logs
	Handoff  *Handoff
	Prompt   []kv.Token

	// Local is the request's block table. Its blocks from tile FromTile to
	// ToTile-1 belong to the load until its report.
	Local []kv.BlockID

	// FromTile and ToTile are tiles of the sequence: [FromTile, ToTile).
	FromTile, ToTile int
}

// name is what RequestOf returns of the load's messages and reads.
func (s *LoadSpec) name() string {
	if s.ClientID != "" {
		return s.ClientID
	}
	return string(s.ID)
}

// A LoadReport says how a load ended. No byte of the load lands after it.
type LoadReport struct {
	ID       kv.RequestID
	From, To int   // as in the spec
	Valid    int   // tiles that lie in place, checked
	Invalid  []int // the other tiles of [From, To), ascending
	Err      *LoadError
	Canceled bool // CancelLoad or shutdown came first; Err is nil

	Bytes    int // that landed and matched
	Duration time.Duration
	Path     string // transfer path, empty when nothing was read
}

// Load starts reading and returns at once. Exactly one LoadReport follows on
// Reports, also when the load cannot start. The caller has verified the hand-off;
// Load verifies the MAC again before it uses it.
func (c *Connector) Load(s LoadSpec) {
	err := c.start(s)
	if err == nil {
		return
	}
	rep := LoadReport{ID: s.ID, From: s.FromTile, To: s.ToTile}
	for i := range s.ToTile - s.FromTile {
		rep.Invalid = append(rep.Invalid, s.FromTile+i)
	}
	rep.Err = &LoadError{Peer: s.Handoff.EngineID, Class: ClassSetup, Tiles: rep.Invalid, Err: err}
	c.loadFailed(&s, &rep)
	if !c.spawn(func(context.Context) { c.deliver(rep) }) {
		c.deliver(rep)
	}
}

// stallFactor times NoProgress is when a load gives its reads up by itself. The
// transport ends a stalled read at NoProgress, but knows better which reads only
// wait in line, so it goes first.
const stallFactor = 3

// start begins a load whose report will follow, or says why there is none.
func (c *Connector) start(s LoadSpec) error {
	switch {
	case !c.cfg.Role.Consumes():
		return ErrRole
	case !s.Handoff.Vouched(c.cfg.Token):
		return ErrMAC
	case s.FromTile < 0 || s.FromTile >= s.ToTile || s.ToTile > core.TilesOf(s.Handoff.Offers(s.Prompt)):
		return fmt.Errorf("connector: loading tiles [%d, %d) of %s: the hand-off offers %d", s.FromTile, s.ToTile, s.ID,
			core.TilesOf(s.Handoff.Offers(s.Prompt)))
	case s.ToTile > len(s.Local)*c.layout.BlockTiles:
		return fmt.Errorf("connector: loading tiles [%d, %d) of %s: the block table ends at %d", s.FromTile, s.ToTile, s.ID,
			len(s.Local)*c.layout.BlockTiles)
	}
	for _, b := range s.Local[s.FromTile/c.layout.BlockTiles : (s.ToTile-1)/c.layout.BlockTiles+1] {
		if b < 0 || int(b) >= c.cfg.Arenas[0].Blocks() {
			return fmt.Errorf("connector: loading tiles of %s: block %d is not in the arena", s.ID, b)
		}
	}
	now := time.Now()
	l := &load{
		c: c, spec: s, start: now, halt: make(chan struct{}), events: make(chan any, lateEvents),
		core: core.NewLoad(s.ToTile-s.FromTile, core.LoadLimits{
			Whole: c.cfg.LoadTimeout, Answer: c.cfg.NoProgress, Tile: stallFactor * c.cfg.NoProgress,
		}, now),
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ended {
		return ErrClosed
	}
	if _, ok := c.loads[s.ID]; ok {
		return fmt.Errorf("connector: loading tiles of %s: a load of it runs already", s.ID)
	}
	ctx, cancel := context.WithCancel(c.scope)
	c.loads[s.ID] = cancel
	c.jobs.Go(func() {
		defer cancel()
		l.digest = TokenDigest(s.Prompt[:min(s.Handoff.Tokens, len(s.Prompt))])
		l.run(ctx)
	})
	return nil
}

// CancelLoad ends a load early. Its report still comes, once, when no byte can
// land any more. Unknown and ended loads are ignored.
func (c *Connector) CancelLoad(id kv.RequestID) {
	c.mu.Lock()
	cancel := c.loads[id]
	c.mu.Unlock()
	if cancel != nil {
		cancel()
	}
}

// Reports delivers one LoadReport for each started load. A full channel makes
// ended loads wait, nothing else.
func (c *Connector) Reports() <-chan LoadReport { return c.reports }

// ReturnUnread gives a lease back that this engine will not read. It returns at
// once; the return is acknowledged, retried within ReturnTimeout and may be lost,
// in which case the lease ends at its deadline. No client's context bounds it: one
// that left is the usual reason for it. A hand-off that the token does not vouch
// for is ignored.
func (c *Connector) ReturnUnread(h *Handoff) {
	if h == nil || !h.Vouched(c.cfg.Token) || h.Incarnation == c.incarnation {
		return
	}
	c.Untrack(h)
	c.giveBack("", h)
}

// firstRetry is the pause before the second attempt of a return; it doubles.
const firstRetry = 50 * time.Millisecond

// giveBack returns a lease in the background, for a request when a load had it.
func (c *Connector) giveBack(id string, h *Handoff) {
	c.spawnReturn(func(ctx context.Context) {
		ctx, cancel := context.WithTimeout(withRequest(context.WithoutCancel(ctx), id), c.cfg.ReturnTimeout)
		defer cancel()
		pause := firstRetry
		for {
			err := c.sendReturn(ctx, h)
			if err == nil || errors.Is(err, ErrStale) { // or the lease ended with the process that made it
				return
			}
			select {
			case <-ctx.Done():
			case <-c.closed: // one attempt is all that shutdown waits for
			case <-time.After(pause):
				pause *= 2
				continue
			}
			c.returnFailed(h, err)
			return
		}
	})
}

// spawnReturn starts a return even while Run is ending: loads that end then
// still give their leases back, and Run waits for them.
func (c *Connector) spawnReturn(f func(context.Context)) {
	if c.spawn(f) {
		return
	}
	// A load that is ending is itself a job, so the group is not at zero.
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.loads) > 0 {
		c.jobs.Go(func() { f(context.Background()) })
	}
}

func (c *Connector) sendReturn(ctx context.Context, h *Handoff) error {
	v, err := c.peers.get(ctx, h.key(), 0)
	if err != nil {
		return err
	}
	defer v.release()
	body, err := v.conn.Call(ctx, KindReturn, encodeLeases(h.Incarnation, []LeaseID{h.Lease}))
	if err != nil {
		return err
	}
	vs, err := decodeVerdicts(body, 1)
	if err == nil && vs[0] == core.VerdictBusy {
		err = errors.New("another engine has claimed the lease")
	}
	return err
}

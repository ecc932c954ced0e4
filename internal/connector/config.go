package connector

import (
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"tandem/internal/bystander"
	"tandem/internal/kv"
	"tandem/internal/transfer"
)

// A Role says what an engine does with KV. The values are vLLM's kv_role.
type Role string

// The roles.
const (
	Producer Role = "kv_producer" // grants hand-offs
	Consumer Role = "kv_consumer" // loads them
	Both     Role = "kv_both"
)

// Produces reports whether the role grants hand-offs.
func (r Role) Produces() bool { return r == Producer || r == Both }

// Consumes reports whether the role loads hand-offs.
func (r Role) Consumes() bool { return r == Consumer || r == Both }

// A Config says what a Connector is made of. Durations that are zero take the
// default in their comment.
type Config struct {
	EngineID kv.EngineID
	Role     Role
	Arenas   []*kv.Arena // one for each rank, all of one layout; their number is the TP

	// Fingerprint holds what P and D must share beyond the layout: model content,
	// architecture, arithmetic version.
	Fingerprint []Factor

	// Token is the cluster token, at least 16 bytes.
	Token []byte

	Listen    string // host:port of the peer listener; port 0 picks one
	Advertise string // what others dial; empty: where Listen was bound
	UnixDir   string // folder of the peer socket; empty: none, so no memfd path
	Copiers   int    // copy goroutines of each rank's agent; 0: transfer's default

	// Paths are the transfer paths that may be chosen; nil: all. Directory joins
	// the engines of one process, so that they use the mem path; it may be nil.
	Paths     []string
	Directory *transfer.Directory

	// Decorate, when set, returns the network to use in place of the given one,
	// which it wraps. Whatever it does, a Read must keep its promises.
	Decorate func(Network) Network

	LeaseDuration    time.Duration // 30 s: an unclaimed, unrenewed lease; ten of them with renewals
	Heartbeat        time.Duration // a sixth of a lease
	HandshakeTimeout time.Duration // 5 s
	LoadTimeout      time.Duration // 30 s: handshake, claim and reads together
	NoProgress       time.Duration // 5 s without an answer to a claim, or a tile
	MaxClaim         time.Duration // 2 min: what P allows a claim at most
	ReturnTimeout    time.Duration // 5 s: attempts to give a lease back
	PeerIdle         time.Duration // 1 h: an unused peer is closed

	Log     *slog.Logger // nil: discarded
	Metrics Metrics
}

// minToken is the shortest cluster token, in bytes.
const minToken = 16

// fill checks c and sets defaults.
func (c *Config) fill() error {
	switch {
	case !c.Role.Produces() && !c.Role.Consumes():
		return fmt.Errorf("connector: configuring kv_role: %q is not kv_producer, kv_consumer or kv_both", c.Role)
	case len(c.Token) < minToken:
		return fmt.Errorf("connector: configuring the cluster token: %d bytes, at least %d are needed",
			len(c.Token), minToken)
	case c.EngineID == "" || len(c.EngineID) > maxEngineID:
		return fmt.Errorf("connector: configuring engine_id: length %d is not from 1 to %d", len(c.EngineID), maxEngineID)
	case !isPlain(string(c.EngineID)):
		return fmt.Errorf("connector: configuring engine_id: %q is not text without control characters, and no engine takes a hand-off of that name", c.EngineID)
	case len(c.Arenas) == 0 || len(c.Arenas) > MaxTP:
		return fmt.Errorf("connector: configuring ranks: %d is not from 1 to %d", len(c.Arenas), MaxTP)
	case len(c.Fingerprint) > maxFactors-8:
		return errors.New("connector: configuring the fingerprint: too many factors")
	}
	l := c.Arenas[0].Layout()
	for _, a := range c.Arenas {
		if a.Layout() != l || a.Blocks() != c.Arenas[0].Blocks() {
			return errors.New("connector: configuring ranks: their arenas differ in layout or size")
		}
	}
	if !slices.Contains([]int{1, 2, 4}, l.BlockTiles) {
		return fmt.Errorf("connector: configuring block_size: %d is not 16, 32 or 64", l.BlockTokens())
	}
	for _, f := range c.Fingerprint {
		if f.Name == "" || len(f.Name) > maxFactorBytes || len(f.Value) > maxFactorBytes {
			return fmt.Errorf("connector: configuring the fingerprint: factor %.40q is empty or too long", f.Name)
		}
	}
	c.times()
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	c.Metrics.fill(bystander.NewHooks("connector", c.Log))
	return nil
}

// times sets the default of every duration that has none.
func (c *Config) times() {
	or := func(d *time.Duration, def time.Duration) {
		if *d <= 0 {
			*d = def
		}
	}
	or(&c.LeaseDuration, 30*time.Second)
	or(&c.Heartbeat, c.LeaseDuration/6)
	or(&c.HandshakeTimeout, 5*time.Second)
	or(&c.LoadTimeout, 30*time.Second)
	or(&c.NoProgress, 5*time.Second)
	or(&c.MaxClaim, 2*time.Minute)
	or(&c.ReturnTimeout, 5*time.Second)
	or(&c.PeerIdle, time.Hour)
}

// Defaults returns the durations of a Config that sets none, for documents.
func Defaults() Config {
	var c Config
	c.times()
	return c
}

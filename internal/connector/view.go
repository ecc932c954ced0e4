package connector

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"tandem/internal/connector/core"
	"tandem/internal/kv"
	"tandem/internal/transfer"
)

// A view is an immutable snapshot of a peer: its connection, its geometry and
// the plans that bind its ranks to ours. The peer table holds one reference and
// every reader another; the last one out closes it.
type view struct {
	key   core.PeerKey
	hello *hello
	conn  Conn
	links []link
	refs  atomic.Int32
}

// A link binds one local rank to one rank of the peer.
type link struct {
	core.Span
	remote Remote
	plan   ReadPlan
}

// PeerEpoch implements core.View.
func (v *view) PeerEpoch() uint64 { return uint64(v.hello.Epoch) }

func (v *view) retain() { v.refs.Add(1) }

func (v *view) release() {
	if v.refs.Add(-1) > 0 {
		return
	}
	for _, l := range v.links {
		l.remote.Close()
	}
	v.conn.Close()
}

// A handshakeError says that a peer was not reached or is not who it should be.
type handshakeError struct {
	class LoadClass
	err   error
}

func (e *handshakeError) Error() string { return e.err.Error() }
func (e *handshakeError) Unwrap() error { return e.err }

// shake connects to a peer, compares identity and fingerprint and binds the
// memories. ctx bounds all of it. A connection that turns out to have ended, as
// one to the process that listened there before does, is replaced.
func (c *Connector) shake(ctx context.Context, key core.PeerKey) (*view, error) {
	for attempt := 0; ; attempt++ {
		conn, err := c.net.Dial(ctx, key.Addr)
		if err != nil {
			return nil, &handshakeError{ClassHandshake, fmt.Errorf("connector: connecting to %s: %w", key.Addr, err)}
		}
		v := &view{key: key, conn: conn}
		v.refs.Store(1)
		if err = c.introduce(ctx, v); err == nil {
			return v, nil
		}
		again := attempt < redials && v.ended(err)
		v.release()
		if !again {
			return nil, err
		}
		select { // the network may still be forgetting the old connection
		case <-ctx.Done():
			return nil, err
		case <-time.After(time.Millisecond << attempt):
		}
	}
}

// redials is how often a handshake replaces a connection that had ended.
const redials = 5

// ended reports that err is the end of v's connection, which nobody had noticed.
func (v *view) ended(err error) bool {
	select {
	case <-v.conn.Done():
		return true
	default:
		return errors.Is(err, transfer.ErrPeerGone)
	}
}

// introduce fills v from the peer's answer to our hello. It speaks before it
// judges: only an answer shows that the connection still leads to the process
// that proved its incarnation.
func (c *Connector) introduce(ctx context.Context, v *view) error {
	body, err := v.conn.Call(ctx, KindHello, c.hello().encode())
	if err == nil {
		v.hello, err = decodeHello(body)
	}
	if err != nil {
		return &handshakeError{ClassHandshake, fmt.Errorf("connector: greeting %s: %w", v.key.Addr, err)}
	}
	if got := v.conn.Incarnation(); got != v.key.Incarnation || v.hello.Incarnation != got {
		return &handshakeError{ClassHandshake, fmt.Errorf(
			"connector: comparing engines: %s is %s, incarnation %v, the hand-off names incarnation %v: %w",
			v.key.Addr, v.hello.Engine, got, v.key.Incarnation, ErrStale)}
	}
	if err := compareFactors(c.factors, v.hello.Factors); err != nil {
		return &handshakeError{ClassIncompatible, err}
	}
	return c.bind(ctx, v)
}

// bind joins the peer's ranks and makes one plan for each pair of ranks that
// share heads.
func (c *Connector) bind(ctx context.Context, v *view) error {
	bt := v.hello.BlockTokens
	if bt != kv.TileTokens && bt != 2*kv.TileTokens && bt != 4*kv.TileTokens {
		return &handshakeError{ClassIncompatible, fmt.Errorf(
			"connector: comparing engines: block size %d here and %d there cannot be mapped: %w",
			c.layout.BlockTokens(), bt, ErrIncompatible)}
	}
	tp := len(v.hello.Ranks)
	if v.hello.Heads*tp != c.layout.Heads*c.tp {
		return &handshakeError{ClassIncompatible, fmt.Errorf(
			"connector: comparing engines: %d ranks of %d KV heads here and %d of %d there: %w",
			c.tp, c.layout.Heads, tp, v.hello.Heads, ErrIncompatible)}
	}
	all, err := core.Spans(c.layout.Heads*c.tp, c.tp, tp)
	if err != nil { // equal sums of heads have a mapping
		return &handshakeError{ClassIncompatible, errors.Join(err, ErrIncompatible)}
	}
	for _, s := range all {
		remote, err := v.conn.Join(ctx, s.Local, v.hello.Ranks[s.Remote])
		if err != nil {
			return &handshakeError{ClassHandshake, fmt.Errorf(
				"connector: joining rank %d of %s: %w", s.Remote, v.hello.Engine, err)}
		}
		v.links = append(v.links, link{Span: s, remote: remote})
		plan, err := remote.Plan(s.Local, s.Strides(c.layout, v.hello.Heads))
		if err != nil {
			return &handshakeError{ClassSetup, fmt.Errorf(
				"connector: planning reads from rank %d of %s: %w", s.Remote, v.hello.Engine, err)}
		}
		v.links[len(v.links)-1].plan = plan
	}
	return nil
}

// hello returns what this engine says of itself when it asks. An answer tells of
// the ranks as well.
func (c *Connector) hello() *hello {
	return &hello{
		Engine: c.cfg.EngineID, Incarnation: c.incarnation, Factors: c.factors, Epoch: c.epoch,
		BlockTokens: c.layout.BlockTokens(), Heads: c.layout.Heads,
	}
}

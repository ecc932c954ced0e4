package fault

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"tandem/internal/connector"
	"tandem/internal/kv"
	"tandem/internal/transfer"
)

// MaxHold is how long P holds one answer back at most. A frozen process holds
// all of them until the plan changes.
const MaxHold = 30 * time.Second

// errInjected is the cause of what fails here.
var errInjected = errors.New("fault: injected")

// refusedFault is the code of refusals that are injected.
const refusedFault = "fault"

// Network returns n with the faults of i. The arenas are those of the engine
// that n belongs to, by rank.
func Network(n connector.Network, i *Injector, arenas []*kv.Arena) connector.Network {
	return &network{Network: n, in: i, arenas: arenas, ended: make(chan struct{})}
}

type network struct {
	connector.Network
	in     *Injector
	arenas []*kv.Arena
	ended  chan struct{} // closed when Run shall end

	mu      sync.Mutex
	closing bool
	reads   sync.WaitGroup
	frozen  freeze
}

// A freeze is a time in which P serves nothing.
type freeze struct {
	on      bool
	until   time.Time // zero: no end of its own
	changed <-chan struct{}
}

// Run implements connector.Network.
func (n *network) Run(ctx context.Context) error {
	stop := context.AfterFunc(ctx, n.end)
	err := n.Network.Run(ctx)
	stop()
	n.end()
	n.reads.Wait()
	return err
}

// Close implements connector.Network.
func (n *network) Close() error {
	n.end()
	return n.Network.Close()
}

// end lets go what is held.
func (n *network) end() {
	n.mu.Lock()
	defer n.mu.Unlock()
	if !n.closing {
		n.closing = true
		close(n.ended)
	}
}

// spawn runs f in a goroutine that Run waits for, unless it is ending.
func (n *network) spawn(f func()) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.closing {
		return false
	}
	n.reads.Go(f)
	return true
}

// pause is the package's, until the network ends.
func (n *network) pause(ctx context.Context, d time.Duration, changed, gone <-chan struct{}) (letGo bool, err error) {
	return pause(ctx, d, changed, gone, n.ended)
}

// pause waits for d; 0 is without end. A plan's change ends it early, and letGo
// says so. Gone is the end of a connection, ended that of a network; both may be
// nil.
func pause(ctx context.Context, d time.Duration, changed, gone, ended <-chan struct{}) (letGo bool, err error) {
	var timer <-chan time.Time
	if d > 0 {
		t := time.NewTimer(d)
		defer t.Stop()
		timer = t.C
	}
	select {
	case <-timer:
		return false, nil
	case <-changed:
		return true, nil
	case <-ctx.Done():
		return false, context.Cause(ctx)
	case <-gone:
		return false, transfer.ErrPeerGone
	case <-ended:
		return false, transfer.ErrClosed
	}
}

// lose is the package's, until the network ends.
func (n *network) lose(ctx context.Context, limit time.Duration, changed <-chan struct{}) error {
	return lose(ctx, limit, changed, n.ended)
}

// lose waits as somebody does whose message or answer is lost.
func lose(ctx context.Context, limit time.Duration, changed, ended <-chan struct{}) error {
	if _, err := pause(ctx, limit, changed, nil, ended); err != nil {
		return err
	}
	return fmt.Errorf("%w: the answer is lost", errInjected)
}

// Dial implements connector.Network.
func (n *network) Dial(ctx context.Context, addr string) (connector.Conn, error) {
	f, changed, hit := n.in.decide(Handshake, Subject{Peer: addr})
	if hit {
		switch {
		case f.Action == Error && (f.Class == "" || f.Class == connector.ClassHandshake):
			return nil, fmt.Errorf("%w: %s is not reached", errInjected, addr)
		case f.Action == Blackhole:
			return nil, n.lose(ctx, 0, changed)
		case f.Action == Delay:
			if _, err := n.pause(ctx, time.Duration(f.Delay), changed, nil); err != nil {
				return nil, err
			}
		default: // hits the hello or the plans
		}
	}
	inner, err := n.Network.Dial(ctx, addr)
	if err != nil {
		return nil, err
	}
	return &conn{Conn: inner, n: n, addr: addr, spoil: f, changed: changed}, nil
}

// A conn is D's end of a connection.
type conn struct {
	connector.Conn
	n       *network
	addr    string
	spoil   Fault // of the handshake
	changed <-chan struct{}
	gone    atomic.Bool
	once    sync.Once
}

// Close implements connector.Conn.
func (c *conn) Close() { c.once.Do(c.Conn.Close) }

// cut ends the connection: here at once, and for the peer when nobody else
// stands on it.
func (c *conn) cut() {
	c.gone.Store(true)
	c.Close()
}

// Call implements connector.Conn.
func (c *conn) Call(ctx context.Context, k connector.Kind, body []byte) ([]byte, error) {
	if c.gone.Load() {
		return nil, transfer.ErrPeerGone
	}
	point := Claim
	switch k {
	case connector.KindHello:
		return c.hello(ctx, body)
	case connector.KindClaim:
	case connector.KindReturn:
		point = Return
	case connector.KindRenew:
		point = Heartbeat
	default:
		return c.Conn.Call(ctx, k, body)
	}
	f, changed, hit := c.n.in.decide(point, c.subject(ctx))
	if !hit {
		return c.Conn.Call(ctx, k, body)
	}
	switch f.Action {
	case Error:
		return c.fail(ctx, k, body, f)
	case Blackhole:
		return nil, c.n.lose(ctx, 0, changed)
	case Cut:
		_, err := c.Conn.Call(ctx, k, body)
		c.cut()
		return nil, errors.Join(transfer.ErrPeerGone, err)
	case Drop:
		if _, err := c.Conn.Call(ctx, k, body); err != nil {
			return nil, err
		}
		return nil, c.n.lose(ctx, 0, changed)
	case Duplicate:
		out, err := c.Conn.Call(ctx, k, body)
		if err == nil {
			_, _ = c.Conn.Call(ctx, k, body) // its answer has nobody who waits for it
		}
		return out, err
	case Flip:
		body = flipClaim(body, f.Draw)
	case Delay:
		if _, err := c.n.pause(ctx, time.Duration(f.Delay), changed, nil); err != nil {
			return nil, err
		}
	default:
	}
	return c.Conn.Call(ctx, k, body)
}

// subject is what a call under ctx is decided by.
func (c *conn) subject(ctx context.Context) Subject {
	return Subject{Request: requestName(connector.RequestOf(ctx)), Peer: c.addr}
}

// requestName returns the part of a completion's id that the client chose, as the
// router knows it, too.
func requestName(id string) string {
	return strings.TrimPrefix(strings.TrimPrefix(id, "chatcmpl-"), "cmpl-")
}

// fail is action error of a message.
func (c *conn) fail(ctx context.Context, k connector.Kind, body []byte, f Fault) ([]byte, error) {
	switch {
	case k != connector.KindClaim || f.Class == connector.ClassHandshake:
		return nil, fmt.Errorf("%w: the message is not sent", errInjected)
	case f.Class == connector.ClassGone:
		// The lease really ends, so that what P and D think of it is the same.
		if _, err := c.Conn.Call(ctx, connector.KindReturn, connector.ReturnOf(body)); err != nil {
			return nil, err
		}
		return c.Conn.Call(ctx, k, body)
	}
	return nil, &transfer.RefusedError{Code: refusedFault, Text: "injected"}
}

// hello greets the peer, with what the handshake's fault leaves of it.
func (c *conn) hello(ctx context.Context, body []byte) ([]byte, error) {
	switch c.spoil.Action {
	case Stall:
		return nil, c.n.lose(ctx, 0, c.changed)
	case Cut:
		c.cut()
		return nil, transfer.ErrPeerGone
	default:
	}
	out, err := c.Conn.Call(ctx, connector.KindHello, body)
	if err == nil && c.spoil.Class == connector.ClassIncompatible {
		out = connector.EditFactors(out, otherFactor)
	}
	return out, err
}

// Join implements connector.Conn.
func (c *conn) Join(ctx context.Context, rank int, desc []byte) (connector.Remote, error) {
	r, err := c.Conn.Join(ctx, rank, desc)
	if err != nil {
		return nil, err
	}
	return &remote{r, c}, nil
}

type remote struct {
	connector.Remote
	c *conn
}

// Plan implements connector.Remote.
func (r *remote) Plan(rank int, s connector.Strides) (connector.ReadPlan, error) {
	if r.c.spoil.Class == connector.ClassSetup {
		return nil, fmt.Errorf("%w: the memory cannot be planned for", errInjected)
	}
	p, err := r.Remote.Plan(rank, s)
	if err != nil {
		return nil, err
	}
	return &plan{p, r.c, r.c.n.arenas[rank], s}, nil
}

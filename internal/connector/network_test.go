package connector

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// A tapped network notes what passes and for which request.
type tapped struct {
	Network
	mu    sync.Mutex
	calls []tap

	noProgress atomic.Int64 // of reads, in place of what the connector says; 0: that
}

type tap struct {
	what string
	id   string
}

func (n *tapped) note(ctx context.Context, what string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.calls = append(n.calls, tap{what, RequestOf(ctx)})
}

func (n *tapped) Dial(ctx context.Context, addr string) (Conn, error) {
	n.note(ctx, "dial")
	c, err := n.Network.Dial(ctx, addr)
	return tappedConn{c, n}, err
}

type tappedConn struct {
	Conn
	n *tapped
}

func (c tappedConn) Call(ctx context.Context, k Kind, body []byte) ([]byte, error) {
	c.n.note(ctx, map[Kind]string{KindHello: "hello", KindClaim: "claim", KindRenew: "renew", KindReturn: "return"}[k])
	return c.Conn.Call(ctx, k, body)
}

func (c tappedConn) Join(ctx context.Context, rank int, desc []byte) (Remote, error) {
	r, err := c.Conn.Join(ctx, rank, desc)
	return tappedRemote{r, c.n}, err
}

type tappedRemote struct {
	Remote
	n *tapped
}

func (r tappedRemote) Plan(rank int, s Strides) (ReadPlan, error) {
	p, err := r.Remote.Plan(rank, s)
	return tappedPlan{p, r.n}, err
}

type tappedPlan struct {
	ReadPlan
	n *tapped
}

func (p tappedPlan) Read(ctx context.Context, s ReadSpec) Read {
	p.n.note(ctx, "read")
	if d := p.n.noProgress.Load(); d > 0 {
		s.NoProgress = time.Duration(d)
	}
	return p.ReadPlan.Read(ctx, s)
}

// Everything between two engines passes through a decorated network, and says
// whose it is where it is one request's.
func TestDecoratedNetworkCarriesEverything(t *testing.T) {
	for path, opt := range paths(t) {
		t.Run(path, func(t *testing.T) {
			var seen *tapped
			p := hostEngine(t, "p", 1, 1, 8, opt)
			d := hostEngine(t, "d", 1, 1, 8, opt, func(c *Config) {
				c.Decorate = func(n Network) Network { seen = &tapped{Network: n}; return seen }
			})
			tokens := prompt(40, 1)
			h, pb := p.grant(t, tokens, 7)
			db := d.blocksFor(40, 7)
			if r := d.load(t, "the-request", h, tokens, db); r.Err != nil || r.Path != path {
				t.Fatalf("%+v", r)
			}
			sameKV(t, p, d, pb, db, 0, 3)
			p.freedBlocks(t)
			want := []tap{{"dial", ""}, {"hello", ""}, {"claim", "the-request"}, {"read", "the-request"}, {"return", "the-request"}}
			seen.mu.Lock()
			defer seen.mu.Unlock()
			if !slices.Equal(seen.calls, want) {
				t.Errorf("passed %v, want %v", seen.calls, want)
			}
		})
	}
}

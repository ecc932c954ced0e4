package connector

import (
	"context"
	"errors"
	"fmt"

	"tandem/internal/kv"
	"tandem/internal/transfer"
)

// A host is the network of the transfer package: one Host, and for each rank an
// agent with the registered arena.
type host struct {
	*transfer.Host
	agents    []*transfer.Agent
	regions   []*transfer.Region
	authorize func(from CallerID, epoch kv.Epoch, id LeaseID, tiles []int32) error
}

// openNetwork binds the peer listener and registers the arenas.
func openNetwork(cfg *Config, inc Incarnation, epoch kv.Epoch) (Network, error) {
	th, err := transfer.NewHost(transfer.HostConfig{
		Name: string(cfg.EngineID), Incarnation: inc, Listen: cfg.Listen, Advertise: cfg.Advertise,
		UnixDir: cfg.UnixDir, Token: cfg.Token, Directory: cfg.Directory, Log: cfg.Log,
		Limits: transfer.Limits{Handshake: cfg.HandshakeTimeout},
	})
	if err != nil {
		return nil, fmt.Errorf("connector: opening the peer listener: %w", err)
	}
	h := &host{Host: th}
	for rank, arena := range cfg.Arenas {
		a := th.NewAgent(rank, transfer.AgentConfig{Workers: cfg.Copiers, Authorize: h.allow, Paths: cfg.Paths})
		r, err := a.Register(
			transfer.Memory{Bytes: arena.Bytes(), File: arena.File()},
			transfer.Geometry{Tiles: arena.Tiles(), TileBytes: arena.Layout().TileBytes()}, uint64(epoch))
		if err != nil {
			return nil, errors.Join(fmt.Errorf("connector: registering rank %d: %w", rank, err), h.Close())
		}
		h.agents, h.regions = append(h.agents, a), append(h.regions, r)
	}
	return h, nil
}

func caller(c transfer.Caller) CallerID { return CallerID{Incarnation: c.Incarnation, Conn: c.Conn} }

// RefusedLease is the code of a transfer.RefusedError by which P refuses a read
// whose claim it does not know.
const RefusedLease = "lease"

func (h *host) allow(from transfer.Caller, epoch uint64, lease [16]byte, tiles []int32) error {
	if err := h.authorize(caller(from), kv.Epoch(epoch), lease, tiles); err != nil {
		return &transfer.RefusedError{Code: RefusedLease, Text: err.Error()}
	}
	return nil
}

// Authorize implements Network.
func (h *host) Authorize(f func(from CallerID, epoch kv.Epoch, id LeaseID, tiles []int32) error) {
	h.authorize = f
}

// Handle implements Network.
func (h *host) Handle(k Kind, f Handler) {
	h.Host.Handle(transfer.Kind(k), func(ctx context.Context, from transfer.Caller, body []byte) ([]byte, error) {
		return f(ctx, caller(from), body)
	})
}

// OnLost implements Network.
func (h *host) OnLost(f func(from CallerID)) {
	h.OnDisconnect(func(from transfer.Caller) { f(caller(from)) })
}

// Describe implements Network.
func (h *host) Describe(rank int) []byte { return h.agents[rank].Describe() }

// Dial implements Network.
func (h *host) Dial(ctx context.Context, addr string) (Conn, error) {
	p, err := h.Host.Dial(ctx, addr)
	if err != nil {
		return nil, err
	}
	return hostPeer{p, h}, nil
}

// Run implements Network.
func (h *host) Run(ctx context.Context) error {
	err := h.Host.Run(ctx)
	for _, r := range h.regions {
		err = errors.Join(err, r.Close())
	}
	return err
}

// Close implements Network.
func (h *host) Close() error {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return h.Run(ctx)
}

type hostPeer struct {
	*transfer.Peer
	h *host
}

// Incarnation implements Conn.
func (p hostPeer) Incarnation() Incarnation { return p.Peer.Incarnation() }

// Call implements Conn.
func (p hostPeer) Call(ctx context.Context, k Kind, body []byte) ([]byte, error) {
	return p.Peer.Call(ctx, transfer.Kind(k), body)
}

// Join implements Conn.
func (p hostPeer) Join(ctx context.Context, rank int, desc []byte) (Remote, error) {
	r, err := p.h.agents[rank].Join(ctx, p.Peer, desc)
	if err != nil {
		return nil, err
	}
	return hostRemote{r, p.h}, nil
}

type hostRemote struct {
	*transfer.Remote
	h *host
}

// Plan implements Remote.
func (r hostRemote) Plan(rank int, s Strides) (ReadPlan, error) {
	p, err := r.h.agents[rank].Plan(r.h.regions[rank], r.Remote, transfer.Strides(s))
	if err != nil {
		return nil, err
	}
	return hostPlan{p}, nil
}

type hostPlan struct{ p *transfer.Plan }

// Read implements ReadPlan.
func (p hostPlan) Read(ctx context.Context, r ReadSpec) Read {
	return p.p.Read(ctx, transfer.ReadRequest{
		Epoch: uint64(r.Epoch), Lease: r.Lease, Local: r.Local, Remote: r.Remote, Check: r.Check,
		NoProgress: r.NoProgress,
	})
}

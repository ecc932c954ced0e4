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
	authorize func(from callerID, epoch kv.Epoch, id LeaseID, tiles []int32) error
}

// openNetwork binds the peer listener and registers the arenas.
func openNetwork(cfg *Config, inc Incarnation, epoch kv.Epoch) (network, error) {
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

func caller(c transfer.Caller) callerID { return callerID{c.Incarnation, c.Conn} }

// codeLease marks a refusal of the lease table on the wire.
const codeLease = "lease"

func (h *host) allow(from transfer.Caller, epoch uint64, lease [16]byte, tiles []int32) error {
	if err := h.authorize(caller(from), kv.Epoch(epoch), lease, tiles); err != nil {
		return &transfer.RefusedError{Code: codeLease, Text: err.Error()}
	}
	return nil
}

// Authorize implements network.
func (h *host) Authorize(f func(from callerID, epoch kv.Epoch, id LeaseID, tiles []int32) error) {
	h.authorize = f
}

// Handle implements network.
func (h *host) Handle(k kind, f func(ctx context.Context, from callerID, body []byte) ([]byte, error)) {
	h.Host.Handle(transfer.Kind(k), func(ctx context.Context, from transfer.Caller, body []byte) ([]byte, error) {
		return f(ctx, caller(from), body)
	})
}

// OnLost implements network.
func (h *host) OnLost(f func(from callerID)) {
	h.OnDisconnect(func(from transfer.Caller) { f(caller(from)) })
}

// Describe implements network.
func (h *host) Describe(rank int) []byte { return h.agents[rank].Describe() }

// Dial implements network.
func (h *host) Dial(ctx context.Context, addr string) (netPeer, error) {
	p, err := h.Host.Dial(ctx, addr)
	if err != nil {
		return nil, err
	}
	return hostPeer{p, h}, nil
}

// Run implements network.
func (h *host) Run(ctx context.Context) error {
	err := h.Host.Run(ctx)
	for _, r := range h.regions {
		err = errors.Join(err, r.Close())
	}
	return err
}

// Close implements network.
func (h *host) Close() error {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return h.Run(ctx)
}

type hostPeer struct {
	*transfer.Peer
	h *host
}

// Incarnation implements netPeer.
func (p hostPeer) Incarnation() Incarnation { return p.Peer.Incarnation() }

// Call implements netPeer.
func (p hostPeer) Call(ctx context.Context, k kind, body []byte) ([]byte, error) {
	return p.Peer.Call(ctx, transfer.Kind(k), body)
}

// Join implements netPeer.
func (p hostPeer) Join(ctx context.Context, rank int, desc []byte) (netRemote, error) {
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

// Plan implements netRemote.
func (r hostRemote) Plan(rank int, s strides) (netPlan, error) {
	p, err := r.h.agents[rank].Plan(r.h.regions[rank], r.Remote, transfer.Strides(s))
	if err != nil {
		return nil, err
	}
	return hostPlan{p}, nil
}

type hostPlan struct{ p *transfer.Plan }

// Read implements netPlan.
func (p hostPlan) Read(ctx context.Context, r readSpec) netRead {
	return p.p.Read(ctx, transfer.ReadRequest{
		Epoch: uint64(r.Epoch), Lease: r.Lease, Local: r.Local, Remote: r.Remote, Check: r.Check,
		NoProgress: r.NoProgress,
	})
}

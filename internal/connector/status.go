package connector

import (
	"slices"
	"strings"

	"tandem/internal/connector/core"
	"tandem/internal/kv"
)

// A Status is what an operator sees of a connector.
type Status struct {
	Engine      kv.EngineID
	Role        Role
	Addr        string
	Incarnation Incarnation
	Epoch       kv.Epoch
	Peers       []PeerStatus // by address
	Leases      LeaseStats
	Loads       int // running
	Tracked     int // leases that wait here
}

// A PeerStatus is one peer as this engine's loads see it.
type PeerStatus struct {
	Engine kv.EngineID // empty until a handshake succeeded
	Addr   string
	State  string // idle, handshake, reconnecting, ready
	Epoch  kv.Epoch
	Path   string // of the first rank, and why it was chosen
	Why    string
	Err    string // of the last handshake that failed
}

// Status returns a snapshot.
func (c *Connector) Status() Status {
	s := Status{
		Engine: c.cfg.EngineID, Role: c.cfg.Role, Addr: c.net.Addr(), Incarnation: c.incarnation, Epoch: c.epoch,
		Leases: c.leases.statistics(),
	}
	c.peers.mu.Lock()
	s.Peers = append(s.Peers, c.peers.status...)
	c.peers.mu.Unlock()
	slices.SortFunc(s.Peers, func(a, b PeerStatus) int { return strings.Compare(a.Addr, b.Addr) })
	c.mu.Lock()
	s.Loads, s.Tracked = len(c.loads), len(c.tracked)
	c.mu.Unlock()
	return s
}

func peerStatus(p core.PeerInfo[*view]) PeerStatus {
	s := PeerStatus{Addr: p.Key.Addr, State: p.State.String()}
	if p.Err != nil {
		s.Err = p.Err.Error()
	}
	if v := p.View; v != nil && v.hello != nil {
		s.Engine, s.Epoch = v.hello.Engine, v.hello.Epoch
		if len(v.links) > 0 {
			s.Path, s.Why = v.links[0].remote.Path()
		}
	}
	return s
}

package connector

import (
	"context"
	"time"

	"tandem/internal/kv"
)

// A network carries messages and KV between engines. The transfer package is the
// real one; tests script another.
type network interface {
	// Addr is what others dial.
	Addr() string

	// Handle sets what answers messages of kind k. All are set before Run.
	Handle(k kind, f func(ctx context.Context, from callerID, body []byte) ([]byte, error))

	// OnLost is told when a caller's connection has ended.
	OnLost(f func(from callerID))

	// Authorize sets who may read which tiles. It is asked for every read that is
	// served over a connection.
	Authorize(f func(from callerID, epoch kv.Epoch, id LeaseID, tiles []int32) error)

	// Describe returns the description of a rank's agent.
	Describe(rank int) []byte

	// Dial connects to an engine and proves the cluster token on both sides.
	Dial(ctx context.Context, addr string) (netPeer, error)

	// Run serves until ctx ends. Nothing runs after it returned.
	Run(ctx context.Context) error

	// Close gives back what a network that never ran holds.
	Close() error
}

// A netPeer is a connection to one engine.
type netPeer interface {
	Incarnation() Incarnation
	Call(ctx context.Context, k kind, body []byte) ([]byte, error)

	// Join makes the memory behind a description readable for a local rank.
	Join(ctx context.Context, rank int, desc []byte) (netRemote, error)
	Done() <-chan struct{}
	Close()
}

// A netRemote is one rank of a peer as one local rank sees it.
type netRemote interface {
	Path() (name, why string)
	Plan(rank int, s strides) (netPlan, error)
	Close()
}

// A netPlan is a pair of memories and the pieces of their tiles, bound once.
type netPlan interface {
	Read(ctx context.Context, r readSpec) netRead
}

// A readSpec is the tile list of one read.
type readSpec struct {
	Epoch         kv.Epoch
	Lease         LeaseID
	Local, Remote []int32
	// NoProgress ends the read when nothing arrives for so long; time in line
	// behind other reads does not count.
	NoProgress time.Duration

	// Check looks at local tile i right after it landed; an error fails the tile.
	Check func(i int) error
}

// A netRead is one running read. It is terminal when Done is closed: no byte
// lands afterwards.
type netRead interface {
	Done() <-chan struct{}
	Err() error
	Cancel() // returns when no later write can land
}

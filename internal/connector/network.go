package connector

import (
	"context"
	"time"

	"tandem/internal/connector/core"
	"tandem/internal/kv"
)

// A Kind numbers a message of this package within the peer protocol.
type Kind uint8

// The messages. Each is answered.
const (
	KindHello  Kind = 1 + iota // fingerprint, geometry and descriptions
	KindClaim                  // start of reading under a lease
	KindRenew                  // heartbeat for leases that wait on D
	KindReturn                 // a lease given back, claimed or not
)

// A Handler answers a message. Its context ends with the caller's connection.
type Handler func(ctx context.Context, from CallerID, body []byte) ([]byte, error)

// A Network carries messages and KV between engines. The transfer package is the
// real one. It is the border at which Config.Decorate may put another in between;
// all it needs to know of what passes is in these types.
type Network interface {
	// Addr is what others dial.
	Addr() string

	// Handle sets what answers messages of kind k. All are set before Run.
	Handle(k Kind, f Handler)

	// OnLost is told when a caller's connection has ended.
	OnLost(f func(from CallerID))

	// Authorize sets who may read which tiles. It is asked for every read that is
	// served over a connection.
	Authorize(f func(from CallerID, epoch kv.Epoch, id LeaseID, tiles []int32) error)

	// Describe returns the description of a rank's agent.
	Describe(rank int) []byte

	// Dial connects to an engine and proves the cluster token on both sides.
	Dial(ctx context.Context, addr string) (Conn, error)

	// Run serves until ctx ends. Nothing runs after it returned.
	Run(ctx context.Context) error

	// Close gives back what a network that never ran holds.
	Close() error
}

// A Conn is a connection to one engine. Those of one address may share what they
// stand on; it ends when all of them are closed.
type Conn interface {
	Incarnation() Incarnation

	// Call sends a message and returns its answer. It ends with ctx, with the
	// connection (transfer.ErrPeerGone) or with the peer's refusal (a
	// *transfer.RefusedError). See RequestOf.
	Call(ctx context.Context, k Kind, body []byte) ([]byte, error)

	// Join makes the memory behind a description readable for a local rank.
	Join(ctx context.Context, rank int, desc []byte) (Remote, error)

	// Done is closed when the connection has ended. It does not come back.
	Done() <-chan struct{}
	Close()
}

// A Remote is one rank of a peer as one local rank sees it.
type Remote interface {
	Path() (name, why string)
	Plan(rank int, s Strides) (ReadPlan, error)
	Close()
}

// Strides is where the pieces of a tile lie on either side.
type Strides = core.Strides

// A CallerID names a peer's connection: a claim ends with it.
type CallerID = core.CallerID

// A ReadPlan is a pair of memories and the pieces of their tiles, bound once.
type ReadPlan interface {
	// Read posts a read and returns at once. See RequestOf.
	Read(ctx context.Context, r ReadSpec) Read
}

// A ReadSpec is the tile list of one read: remote tile Remote[i] goes to local
// tile Local[i]. The lists do not change while it runs.
type ReadSpec struct {
	Epoch         kv.Epoch
	Lease         LeaseID
	Local, Remote []int32
	// NoProgress ends the read when nothing arrives for so long; time in line
	// behind other reads does not count.
	NoProgress time.Duration

	// Check looks at local tile i right after it landed, maybe at several tiles at
	// once; an error fails the tile.
	Check func(i int) error
}

// A Read is one running read. It is terminal when Done is closed: no byte lands
// and no tile is checked afterwards.
type Read interface {
	Done() <-chan struct{}
	Err() error // after Done: nil when every tile landed and matched
	Cancel()    // returns when no later write can land
}

type requestKey struct{}

// withRequest names the request that the messages and reads under ctx serve.
func withRequest(ctx context.Context, id string) context.Context {
	return context.WithValue(ctx, requestKey{}, id)
}

// RequestOf returns the name of the request that a claim, a read or a return
// serves: the client's, where the load has one, or else the engine's. It is "" for
// what serves several, such as handshakes and renewals. It is there to be shown
// and matched; nothing in this package decides by it.
func RequestOf(ctx context.Context) string {
	id, _ := ctx.Value(requestKey{}).(string)
	return id
}

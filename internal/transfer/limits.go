package transfer

import "time"

// Sizes that the protocol fixes.
const (
	// MaxBody bounds the body of a call, its answer and a notice, in bytes.
	MaxBody = 4<<20 + 64<<10

	// MaxTiles bounds the tiles of one read, so that its request fits a frame.
	MaxTiles = 250_000

	maxHello    = 256     // body of a frame before authentication, bytes
	maxName     = 64      // bytes of a host's name
	segment     = 2 << 20 // bytes of a data frame, rounded up to a whole tile
	maxTile     = 1 << 28 // bytes of a tile
	maxPieces   = 1 << 16 // of a tile
	probeBytes  = 256 << 10
	copyPiece   = 1 << 20 // bytes copied between two looks at the stop flag
	maxErrCode  = 32
	maxErrText  = 400
	maxDescribe = 1024
)

// Limits bounds what a host does. A zero field takes its default.
type Limits struct {
	Handshake  time.Duration // of a connection's first frames; 5 s
	KeepAlive  time.Duration // between pings; a connection silent for three ends; 5 s
	NoProgress time.Duration // of a read or of a write to a socket; 5 s
	Pending    int           // connections that have not proved the token; the oldest makes room; 256
	Conns      int           // authenticated incoming control connections; 1024
	Attached   int           // data and descriptor connections of each of them; 64
	Calls      int           // served at once for each connection; 64
	Lanes      int           // data connections for each remote on path tcp; 2
	BackOff    time.Duration // before a second attempt to dial, doubling to 32 times as much; 50 ms
}

func (l Limits) withDefaults() Limits {
	duration := func(v *time.Duration, d time.Duration) {
		if *v <= 0 {
			*v = d
		}
	}
	count := func(v *int, d int) {
		if *v <= 0 {
			*v = d
		}
	}
	duration(&l.Handshake, 5*time.Second)
	duration(&l.KeepAlive, 5*time.Second)
	duration(&l.NoProgress, 5*time.Second)
	duration(&l.BackOff, 50*time.Millisecond)
	count(&l.Pending, 256)
	count(&l.Conns, 1024)
	count(&l.Attached, 64)
	count(&l.Calls, 64)
	count(&l.Lanes, 2)
	return l
}

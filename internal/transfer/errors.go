package transfer

import (
	"errors"
	"fmt"
)

// Outcomes that a caller decides on.
var (
	// ErrPeerGone says that the connection to the peer ended. Dial again.
	ErrPeerGone = errors.New("transfer: peer is gone")

	// ErrSocketDir says what a directory that was refused for sockets is not.
	ErrSocketDir = errors.New("want a directory of mode 0700 that belongs to this user")

	// ErrSocketPath says why a directory is not taken for sockets.
	ErrSocketPath = errors.New("the path of the unix socket is too long")

	// ErrReleased says that the region's memory is released: its owner sleeps.
	ErrReleased = errors.New("transfer: region is released")

	// ErrCanceled says that the reader called Cancel.
	ErrCanceled = errors.New("transfer: read is canceled")

	// ErrStalled says that no byte arrived within the no-progress limit.
	ErrStalled = errors.New("transfer: no progress")

	// ErrClosed says that the host, agent, region or remote was closed here.
	ErrClosed = errors.New("transfer: closed")
)

// An EpochError says that a read names another epoch than the region has. Join
// or Update with a new description.
type EpochError struct {
	Have uint64 // of the region
	Want uint64 // of the read
}

// Error names both epochs.
func (e *EpochError) Error() string {
	return fmt.Sprintf("transfer: region has epoch %d, the read wants %d", e.Have, e.Want)
}

// A BoundsError says that a read or plan leaves its region. It is a fault of
// the caller.
type BoundsError struct{ What string }

// Error says what is out of bounds.
func (e *BoundsError) Error() string { return "transfer: out of bounds: " + e.What }

// A ProtocolError says that a peer sent what the protocol does not allow, or
// something else than it described.
type ProtocolError struct{ What string }

// Error says what was wrong.
func (e *ProtocolError) Error() string { return "transfer: protocol: " + e.What }

// Codes of a RefusedError that this package itself sends. Handlers and
// Authorize hooks send their own.
const (
	RefusedToken   = "token"   // the other side does not hold the cluster token
	RefusedVersion = "version" // no common protocol version
	RefusedSelf    = "self"    // the address leads back to this host
	RefusedKind    = "kind"    // no handler for this kind of call
	RefusedBusy    = "busy"    // too many calls or connections at once
	RefusedSession = "session" // data connection without its control connection
	RefusedRank    = "rank"    // no such agent, or it has no region
	RefusedFault   = "error"   // a handler's error without a code of its own
)

// A RefusedError is a peer's answer that it will not do what was asked. A
// handler or Authorize hook that returns one decides its code, at most 32
// bytes, and its text, at most 400.
type RefusedError struct {
	Code string
	Text string
}

// Error gives code and text.
func (e *RefusedError) Error() string { return "transfer: refused (" + e.Code + "): " + e.Text }

// A CheckError says that every byte of a read arrived and some tiles did not
// pass its Check.
type CheckError struct {
	Tiles int   // how many failed
	Err   error // of one of them
}

// Error counts the tiles.
func (e *CheckError) Error() string {
	return fmt.Sprintf("transfer: %d tiles fail their check: %v", e.Tiles, e.Err)
}

// Unwrap returns one tile's error.
func (e *CheckError) Unwrap() error { return e.Err }

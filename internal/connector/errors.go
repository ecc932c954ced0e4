package connector

import (
	"errors"
	"fmt"

	"tandem/internal/connector/core"
	"tandem/internal/kv"
)

// Decisions that callers make.
var (
	// ErrClosed says that the connector is not running.
	ErrClosed = errors.New("connector: not running")

	// ErrRole says that the connector's role excludes the call.
	ErrRole = errors.New("connector: the role of this engine excludes this")

	// ErrStale says that a hand-off belongs to another incarnation or epoch.
	ErrStale = errors.New("connector: hand-off of another incarnation or epoch")

	// ErrLeaseGone says that the lease has ended or never existed.
	ErrLeaseGone = core.ErrLeaseGone

	// ErrIncompatible says that the two engines cannot share KV.
	ErrIncompatible = errors.New("connector: engines are incompatible")

	// ErrMAC says that the cluster token did not vouch for a hand-off.
	ErrMAC = errors.New("connector: hand-off is not vouched for by the cluster token")
)

// A LoadClass says at which point a load failed. It is also the label of the
// failure metric.
type LoadClass = core.LoadClass

// The classes of load failures.
const (
	ClassHandshake    = core.ClassHandshake    // the peer was not reached, or is not who the hand-off names
	ClassIncompatible = core.ClassIncompatible // a factor of the fingerprint differs
	ClassSetup        = core.ClassSetup        // the reads could not be prepared
	ClassRefused      = core.ClassRefused      // the claim was refused
	ClassRead         = core.ClassRead         // a read broke off
	ClassTimeout      = core.ClassTimeout      // the deadline or the no-progress limit passed
	ClassSum          = core.ClassSum          // bytes arrived that are not the ones P sealed
	ClassGone         = core.ClassGone         // the lease had ended
)

// LoadClasses lists every class.
func LoadClasses() []LoadClass {
	return []LoadClass{
		ClassHandshake, ClassIncompatible, ClassSetup, ClassRefused,
		ClassRead, ClassTimeout, ClassSum, ClassGone,
	}
}

// A LoadError says that D could not obtain all of a request's KV from a peer.
type LoadError struct {
	Peer  kv.EngineID
	Class LoadClass
	Tiles []int // tiles of the sequence that are not valid, ascending
	Err   error
}

// Error names the class, the peer, the number of tiles and the cause.
func (e *LoadError) Error() string {
	return fmt.Sprintf("connector: loading %d tiles from %s: %s: %v", len(e.Tiles), e.Peer, e.Class, e.Err)
}

// Unwrap returns the cause.
func (e *LoadError) Unwrap() error { return e.Err }

// A HandoffError says which field of a hand-off is unusable, and why. It is the
// client's (or a router's) mistake, never a failure of this engine.
type HandoffError struct {
	Field  string // wire name
	Reason string
	Err    error // sentinel or nil
}

// Error names the field and the reason.
func (e *HandoffError) Error() string {
	return fmt.Sprintf("connector: reading %s of a hand-off: %s", e.Field, e.Reason)
}

// Unwrap returns the sentinel behind e, or nil.
func (e *HandoffError) Unwrap() error { return e.Err }

// A FactorError says which factor of the fingerprints of two engines differs.
type FactorError struct {
	Factor       string
	Local, Other string
}

// Error names the factor and both values.
func (e *FactorError) Error() string {
	return fmt.Sprintf("connector: comparing engines: %s is %q here and %q there", e.Factor, e.Local, e.Other)
}

// Is reports that a FactorError is an ErrIncompatible.
func (e *FactorError) Is(target error) bool { return target == ErrIncompatible }

// Package core holds what a hand-off decides: the table of leases on the engine
// that made the KV, and a load and the table of peers on the engine that reads it.
//
// All are values with a method that takes an event and the time, and returns
// effects: no goroutine, lock, clock or I/O. The same events at the same times
// give the same effects. The connector is their shell; simulations are another.
// The package also holds the arithmetic of tiles that both sides must agree on. Its
// sums are read and noted in arenas that the caller has and nobody else writes.
//
//	held ──▶ claimed ──▶ held           a claim ended without a return
//	claimed ──▶ leaving ──▶ ended       released under a claim, which goes on
//	claimed ──▶ ended                   returned, or the claim outlived the lease
//	held ──▶ ended                      returned, revoked, run out
//
//	idle ──▶ handshake ──▶ ready ──▶ idle        the connection ended
//	ready ──▶ handshake                          registered again since
//	handshake ──▶ idle ──▶ reconnecting          failed; wanted again before its time
//	reconnecting ──▶ handshake
//	reconnecting ──▶ idle                        nobody waits any more
//
//	shaking ──▶ claiming ──▶ reading ──▶ ended
//	shaking ──▶ ended                            no peer, or no time left
//	claiming ──▶ ended                           refused, or no time left
package core

import (
	"encoding/hex"
	"errors"
	"fmt"
	"time"

	"tandem/internal/kv"
)

type (
	// An Incarnation is the random identity of one process start.
	Incarnation [16]byte

	// A LeaseID is the random name of a lease. Knowing it is not enough to
	// claim the lease: the connection must have proved the cluster token.
	LeaseID [16]byte

	// A Digest is the SHA-256 of token ids, each as four bytes, big-endian.
	Digest [32]byte
)

// String returns i in hexadecimal digits.
func (i Incarnation) String() string { return hex.EncodeToString(i[:]) }

// String returns l in hexadecimal digits.
func (l LeaseID) String() string { return hex.EncodeToString(l[:]) }

// A CallerID names a peer's connection: a claim ends with it.
type CallerID struct {
	Incarnation Incarnation
	Conn        uint64
}

// A Claim asks to read tiles [From, To) of the sequence under a lease.
type Claim struct {
	Incarnation Incarnation // of P
	Lease       LeaseID
	Epoch       kv.Epoch
	From, To    int
	Digest      Digest // of the tokens that D has
	Tokens      int    // how many of them the digest covers
	Factors     [32]byte
	Want        time.Duration // how long D's load may last
}

// A Verdict is P's answer to a claim, a renewal or a return.
type Verdict uint8

// The verdicts.
const (
	VerdictOK          Verdict = iota
	VerdictGone                // the lease never existed here or has ended
	VerdictExpired             // it ended at its deadline
	VerdictBusy                // another claim is running
	VerdictIncarnation         // the hand-off is of another process
	VerdictEpoch               // the hand-off is of another registration
	VerdictTiles               // tiles that the lease does not cover
	VerdictDigest              // D has other tokens
	VerdictFingerprint         // D compared another fingerprint
	VerdictDraining            // P renews nothing while it drains
	VerdictEnd                 // one past the last
)

var verdictNames = [VerdictEnd]string{
	"ok", "lease gone", "lease expired", "busy", "other incarnation", "other epoch",
	"tiles outside the lease", "token digest differs", "fingerprint differs", "draining",
}

// String returns the verdict in words.
func (v Verdict) String() string {
	if v < VerdictEnd {
		return verdictNames[v]
	}
	return fmt.Sprintf("verdict %d", uint8(v))
}

// ErrLeaseGone says that the lease has ended or never existed.
var ErrLeaseGone = errors.New("connector: lease is gone")

// ErrExpired is an ErrLeaseGone whose lease ran out.
var ErrExpired = fmt.Errorf("%w: it ran out", ErrLeaseGone)

// A LoadClass says at which point a load failed. It is also the label of the
// failure metric.
type LoadClass string

// The classes of load failures.
const (
	ClassHandshake    LoadClass = "handshake"    // the peer was not reached, or is not who the hand-off names
	ClassIncompatible LoadClass = "incompatible" // a factor of the fingerprint differs
	ClassSetup        LoadClass = "setup"        // the reads could not be prepared
	ClassRefused      LoadClass = "refused"      // the claim was refused
	ClassRead         LoadClass = "read"         // a read broke off
	ClassTimeout      LoadClass = "timeout"      // the deadline or the no-progress limit passed
	ClassSum          LoadClass = "sum"          // bytes arrived that are not the ones P sealed
	ClassGone         LoadClass = "gone"         // the lease had ended
)

package main

import (
	"time"

	"tandem/internal/fault"
)

// Limits of the engines of the matrix. They are short, so that a fault that ends
// at a limit does so soon.
const (
	matrixLoad      stretch = stretch(time.Second)             // of a load
	matrixHandshake stretch = stretch(400 * time.Millisecond)  // of a handshake
	matrixStall     stretch = stretch(800 * time.Millisecond)  // without an answer to a claim, or a tile
	matrixLease     stretch = stretch(1500 * time.Millisecond) // of an unclaimed lease; a claim ends with the load's limit and a quarter
	matrixLeg       stretch = stretch(500 * time.Millisecond)  // of a leg without its next byte
)

// A way says how a cell's traffic runs.
type way uint8

const (
	together way = iota // all requests at once
	apart               // at each D one after the other: a cut connection is shared
	meeting             // one after the other, each over a new connection
	waiting             // behind a request that fills D
	rounds              // P as a whole is hit once in each round
	legs                // at the routers
)

// A trial is what is known of a cell before it is tried.
type trial struct {
	way    way
	faults []fault.Fault // point and action are the cell's

	// classes are those with which a load may fail. None: it may not. At least
	// fails do, in each round, and under either policy.
	classes []string
	fails   int

	behind bool // the fault hits what follows the answer
	dies   bool // P ends, and with it legs of its own

	// lasts is the deadline after which what was lost comes back on its own, since
	// no message can tell; 0: nothing waits for a deadline.
	lasts time.Duration
}

func hit(when fault.When) []fault.Fault { return []fault.Fault{{When: when}} }

// byClass returns a fault for each class, in turn.
func byClass(point fault.Point) (out []fault.Fault, classes []string) {
	all := fault.Classes(point)
	for i, c := range all {
		pattern := make([]byte, len(all))
		for k := range pattern {
			pattern[k] = 'O'
		}
		pattern[i] = 'X'
		out = append(out, fault.Fault{Class: c, When: fault.When{Pattern: string(pattern)}})
		classes = append(classes, string(c))
	}
	return out, classes
}

const (
	delay    = 120 * time.Millisecond // of action delay
	asked    = 12                     // requests of a cell
	askedAll = 8                      // of a round in which P is hit
)

// trialOf returns the trial of a cell; a new cell that nobody thought about gets
// plain traffic in which no load may fail.
func trialOf(c fault.Cell) trial {
	t := trial{faults: hit(fault.When{})}
	switch c.Point {
	case fault.Handshake:
		t.handshake(c.Action)
	case fault.Claim:
		t.claim(c.Action)
	case fault.Seal:
		t.seal(c.Action)
	case fault.ReadPost, fault.ReadPiece:
		t.read(c)
	case fault.Notice:
		t.behind = true
	case fault.Return:
		t.behind = true
		// What a message that was lost would have given back ends with its claim.
		if c.Action == fault.Error || c.Action == fault.Blackhole {
			t.lasts = matrixLoad.limit() + matrixLoad.limit()/4
		}
		if c.Action == fault.Cut { // others use the connection
			t.classes = []string{"read", "handshake"}
		}
	case fault.Heartbeat:
		t.way = waiting
		switch c.Action {
		case fault.Error, fault.Blackhole:
			t.classes, t.fails = []string{"gone"}, least // not the one that D takes next, whose load is early
		case fault.Cut:
			t.classes = []string{"read", "handshake"}
		default:
		}
	case fault.Process:
		t.way = rounds
		t.faults = hit(fault.When{Nth: []uint64{1}})
		switch c.Action {
		case fault.Blackhole:
			t.classes, t.fails = []string{"timeout", "handshake"}, askedAll
		case fault.Kill:
			t.classes, t.fails, t.dies = []string{"handshake", "read", "gone"}, 1, true
		default:
			t.faults[0].Delay = fault.Duration(delay)
		}
	case fault.HTTP:
		t.way = legs
		if c.Action != fault.Delay { // a hand-off, or its release, is lost
			t.lasts = matrixLease.limit()
		}
		if c.Action == fault.Duplicate { // the second decode leg comes to a lease that is used
			t.classes = []string{"gone", "refused"}
		}
	}
	if c.Action == fault.Cut && t.way == together {
		t.way = apart
	}
	if c.Action == fault.Delay && c.Point != fault.Process {
		t.faults = []fault.Fault{{Delay: fault.Duration(delay)}}
		if c.Point == fault.Heartbeat { // a heartbeat has a sixth of a lease
			t.faults[0].Delay /= 3
		}
	}
	return t
}

func (t *trial) handshake(a fault.Action) {
	t.way, t.lasts = meeting, matrixLease.limit() // the lease of a peer that is not reached
	// Two attempts fail and two do not, so that either policy is hit, and the
	// back-off of failures in a row does not take the place of the fault.
	t.faults = hit(fault.When{Pattern: "XXOO"})
	switch a {
	case fault.Error:
		t.faults, t.classes = nil, nil
		for i, c := range fault.Classes(fault.Handshake) {
			pattern := []byte("OOOOOOOOOOOO")
			pattern[4*i], pattern[4*i+1] = 'X', 'X'
			t.faults = append(t.faults, fault.Fault{Class: c, When: fault.When{Pattern: string(pattern)}})
			t.classes = append(t.classes, string(c))
		}
		t.fails = least
	case fault.Blackhole, fault.Stall:
		t.classes, t.fails = []string{"handshake", "timeout"}, least
	case fault.Cut:
		t.faults = hit(fault.When{Pattern: "XOXXXXXXO"}) // healed by the second dial, and by none
		t.classes, t.fails = []string{"handshake"}, 2
	default:
	}
}

func (t *trial) claim(a fault.Action) {
	switch a {
	case fault.Error:
		t.faults, t.classes = byClass(fault.Claim)
		t.fails = asked
	case fault.Blackhole, fault.Drop:
		t.classes, t.fails = []string{"timeout"}, asked
	case fault.Cut:
		t.faults = hit(fault.When{Pattern: "XOXXXX"}) // healed by a second claim, and not
		t.classes, t.fails = []string{"handshake", "refused"}, 2
	case fault.Flip:
		t.classes, t.fails = []string{"refused", "gone"}, asked
	default:
	}
}

func (t *trial) seal(a fault.Action) {
	switch a {
	case fault.Error, fault.Duplicate, fault.Drop:
		t.classes, t.fails = []string{"refused"}, asked
	case fault.Blackhole:
		t.classes, t.fails = []string{"timeout"}, asked
	case fault.Flip, fault.OtherTile:
		t.classes, t.fails = []string{"sum"}, asked
	default:
	}
}

func (t *trial) read(c fault.Cell) {
	switch c.Action {
	case fault.Error:
		t.faults, t.classes = byClass(c.Point)
		t.fails = asked
	case fault.Blackhole, fault.Stall:
		t.classes, t.fails = []string{"timeout"}, asked
	case fault.Cut:
		t.classes, t.fails = []string{"read"}, asked
	case fault.Flip, fault.OtherTile, fault.Drop:
		t.classes, t.fails = []string{"sum"}, asked
	default:
	}
	if c.Point == fault.ReadPiece && (c.Action == fault.Error || c.Action == fault.Stall || c.Action == fault.Cut) {
		for i := range t.faults {
			t.faults[i].Bytes = 6000 // a tile and a half
		}
	}
}

// Package moves holds drawings of state machines: which states a machine has and
// from which to which it may move. A machine that makes another move has a bug,
// so that panics where it happens. Moves can be counted, so that a test sees
// which edges of a drawing it has walked.
//
// It knows nothing of any machine and imports none.
package moves

import (
	"fmt"
	"slices"
)

// A State is one state of a machine, numbered from 0. String is its name in the
// drawing.
type State interface {
	~uint8
	fmt.Stringer
}

// most is the number of states that a drawing can have.
const most = 8

// A Drawing says which moves one kind of machine may make.
type Drawing[S State] struct {
	name string
	to   [][]S
}

// Draw returns the drawing of a machine called name, for panics and reports: to[s]
// lists the states that may follow state s. It panics with more states than a
// Count holds.
func Draw[S State](name string, to ...[]S) *Drawing[S] {
	if len(to) > most {
		panic(fmt.Sprintf("moves: %s has %d states, more than %d", name, len(to), most))
	}
	return &Drawing[S]{name, to}
}

// Name returns the name of the machine.
func (d *Drawing[S]) Name() string { return d.name }

// May reports whether a machine may move from one state to another.
func (d *Drawing[S]) May(from, to S) bool {
	return int(from) < len(d.to) && slices.Contains(d.to[from], to)
}

// Move returns the state to, counts the move in n unless that is nil, and panics
// when the drawing does not have it. Who says whose move it is.
func (d *Drawing[S]) Move(from, to S, n *Count, who any) S {
	if !d.May(from, to) {
		panic(fmt.Sprintf("%s %v: %v to %v", d.name, who, from, to))
	}
	if n != nil {
		n[from][to]++
	}
	return to
}

// An Edge is one allowed move.
type Edge struct {
	From, To string
	from, to uint8
}

// Edges lists every allowed move, by the states' numbers.
func (d *Drawing[S]) Edges() []Edge {
	var out []Edge
	for from, tos := range d.to {
		for _, to := range tos {
			out = append(out, Edge{S(from).String(), to.String(), uint8(from), uint8(to)})
		}
	}
	return out
}

// A Count is how often each move was made. Its zero value is ready.
type Count [most][most]uint64

// Of returns how often e was made.
func (n *Count) Of(e Edge) uint64 { return n[e.from][e.to] }

// Add adds the counts of o.
func (n *Count) Add(o *Count) {
	for i := range n {
		for j := range n[i] {
			n[i][j] += o[i][j]
		}
	}
}

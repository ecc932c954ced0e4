package fault

import (
	"slices"

	"tandem/internal/connector"
)

// A Point is where a fault can happen.
type Point string

// The points, in the order in which a request meets them.
const (
	Handshake Point = "handshake"
	Claim     Point = "claim"
	Seal      Point = "seal"
	ReadPost  Point = "read_post"
	ReadPiece Point = "read_piece"
	Return    Point = "return"
	Heartbeat Point = "heartbeat"
	Notice    Point = "notice"
	Process   Point = "process"
	HTTP      Point = "http"
)

// A Side is the kind of process that meets a point.
type Side string

// The sides.
const (
	SideDecode  Side = "decode"
	SidePrefill Side = "prefill"
	SideRouter  Side = "router"
)

// Side returns who meets p: no other process ever comes there.
func (p Point) Side() Side {
	switch p {
	case Seal, Notice, Process:
		return SidePrefill
	case HTTP:
		return SideRouter
	default:
		return SideDecode
	}
}

// An Action is what goes wrong there.
type Action string

// The actions.
const (
	Error     Action = "error"     // it fails at once, with a class or a status
	Blackhole Action = "blackhole" // it never arrives, and nothing comes back
	Stall     Action = "stall"     // after so many bytes nothing more comes
	Cut       Action = "cut"       // after so many bytes the connection ends
	Flip      Action = "flip"      // a bit is wrong
	OtherTile Action = "othertile" // a tile is another one
	Duplicate Action = "duplicate" // it happens twice
	Delay     Action = "delay"     // it happens late
	Drop      Action = "drop"      // it was due and is lost, and nobody says so
	Kill      Action = "kill"      // the process ends
)

// A Cell is a point and an action that makes sense there.
type Cell struct {
	Point  Point
	Action Action
}

// cells are all cells. doc.go says what each does.
var cells = []struct {
	point   Point
	actions []Action
}{
	{Handshake, []Action{Error, Blackhole, Stall, Cut, Delay}},
	{Claim, []Action{Error, Blackhole, Cut, Flip, Duplicate, Delay, Drop}},
	{Seal, []Action{Error, Blackhole, Flip, OtherTile, Duplicate, Delay, Drop}},
	{ReadPost, []Action{Error, Blackhole, Cut, Delay}},
	{ReadPiece, []Action{Error, Stall, Cut, Flip, OtherTile, Duplicate, Delay, Drop}},
	{Return, []Action{Error, Blackhole, Cut, Duplicate, Delay, Drop}},
	{Heartbeat, []Action{Error, Blackhole, Cut, Duplicate, Delay, Drop}},
	{Notice, []Action{Error, Duplicate, Delay, Drop}},
	{Process, []Action{Blackhole, Delay, Kill}},
	{HTTP, []Action{Error, Blackhole, Stall, Cut, Duplicate, Delay, Drop}},
}

// Points returns every point.
func Points() []Point {
	out := make([]Point, 0, len(cells))
	for _, c := range cells {
		out = append(out, c.point)
	}
	return out
}

// Actions returns what can go wrong at p; nil when there is no such point.
func Actions(p Point) []Action {
	for _, c := range cells {
		if c.point == p {
			return slices.Clone(c.actions)
		}
	}
	return nil
}

// Cells returns every pair that makes sense, in a fixed order.
func Cells() []Cell {
	var out []Cell
	for _, c := range cells {
		for _, a := range c.actions {
			out = append(out, Cell{c.point, a})
		}
	}
	return out
}

// Classes returns the classes that action Error can have at p, the default
// first; nil where it has none.
func Classes(p Point) []connector.LoadClass {
	switch p {
	case Handshake:
		return []connector.LoadClass{connector.ClassHandshake, connector.ClassIncompatible, connector.ClassSetup}
	case Claim:
		return []connector.LoadClass{connector.ClassRefused, connector.ClassGone, connector.ClassHandshake}
	case ReadPost, ReadPiece:
		return []connector.LoadClass{connector.ClassRead, connector.ClassTimeout, connector.ClassGone}
	default:
		return nil
	}
}

// named reports whether calls at p know which request of this engine they serve.
func named(p Point) bool {
	switch p {
	case Claim, ReadPost, ReadPiece, Return, HTTP:
		return true
	default:
		return false
	}
}

// addressed reports whether calls at p know the address of the other side.
func addressed(p Point) bool {
	switch p {
	case Seal, Notice, Process:
		return false
	default:
		return true
	}
}

// sized reports whether c takes a number of bytes.
func sized(c Cell) bool {
	switch c.Point {
	case ReadPiece:
		return c.Action == Error || c.Action == Stall || c.Action == Cut
	case HTTP:
		return c.Action == Stall || c.Action == Cut
	default:
		return false
	}
}

// spread reports whether c can hit every k-th tile in place of one.
func spread(c Cell) bool {
	switch c.Point {
	case ReadPiece:
		return c.Action == Flip || c.Action == OtherTile || c.Action == Duplicate || c.Action == Delay || c.Action == Drop
	case Seal:
		return c.Action == Flip || c.Action == OtherTile
	default:
		return false
	}
}

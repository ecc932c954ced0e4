package fault

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"tandem/internal/connector"
)

// What a fault makes a call wait for: brief where nothing else must happen in that
// time, short where a message must arrive.
const (
	brief = 50 * time.Millisecond
	short = time.Second
)

// tiles is how many tiles the loads of these tests have, all that D asks for.
const tiles = 6

// A cellTest is a fault and what the connector makes of it.
type cellTest struct {
	name   string // more than point and action
	fault  Fault
	limits func(*connector.Config) // of D
	class  connector.LoadClass     // "": the load succeeds
	valid  int                     // tiles, when it does not
	lost   bool                    // D gives the return up
	keeps  bool                    // nobody tells P that the lease has ended: it lasts to its deadline
}

func loadLimit(c *connector.Config)      { c.LoadTimeout = short }
func handshakeLimit(c *connector.Config) { c.HandshakeTimeout = brief }
func unsentLimit(c *connector.Config)    { c.ReturnTimeout = brief }
func returnLimit(c *connector.Config)    { c.ReturnTimeout = short }

// progressLimit limits what a fault holds back, and nothing else.
func progressLimit(c *connector.Config) {
	decorate := c.Decorate
	c.Decorate = func(n connector.Network) connector.Network {
		return limited{decorate(limited{n, long}), brief}
	}
}

// A limited network gives its reads a no-progress limit of its own.
type limited struct {
	connector.Network
	limit time.Duration
}

func (n limited) Dial(ctx context.Context, addr string) (connector.Conn, error) {
	c, err := n.Network.Dial(ctx, addr)
	return limitedConn{c, n.limit}, err
}

type limitedConn struct {
	connector.Conn
	limit time.Duration
}

func (c limitedConn) Join(ctx context.Context, rank int, desc []byte) (connector.Remote, error) {
	r, err := c.Conn.Join(ctx, rank, desc)
	return limitedRemote{r, c.limit}, err
}

type limitedRemote struct {
	connector.Remote
	limit time.Duration
}

func (r limitedRemote) Plan(rank int, s connector.Strides) (connector.ReadPlan, error) {
	p, err := r.Remote.Plan(rank, s)
	return limitedPlan{p, r.limit}, err
}

type limitedPlan struct {
	connector.ReadPlan
	limit time.Duration
}

func (p limitedPlan) Read(ctx context.Context, s connector.ReadSpec) connector.Read {
	s.NoProgress = p.limit
	return p.ReadPlan.Read(ctx, s)
}

var (
	tileBytes = int64(layout.TileBytes())
	first     = When{Nth: []uint64{1}}
	soon      = Duration(time.Millisecond)
)

// cellTests are the cells of a load, in the order of Cells.
var cellTests = []cellTest{
	{fault: Fault{Point: Handshake, Action: Error}, class: "handshake", keeps: true},
	{fault: Fault{Point: Handshake, Action: Error, Class: "handshake"}, class: "handshake", keeps: true},
	{fault: Fault{Point: Handshake, Action: Error, Class: "incompatible", When: first}, class: "incompatible"},
	{fault: Fault{Point: Handshake, Action: Error, Class: "setup", When: first}, class: "setup"},
	{fault: Fault{Point: Handshake, Action: Blackhole}, limits: handshakeLimit, class: "handshake", keeps: true},
	{fault: Fault{Point: Handshake, Action: Stall}, limits: handshakeLimit, class: "handshake", keeps: true},
	{name: "again and again", fault: Fault{Point: Handshake, Action: Cut}, class: "handshake", keeps: true},
	{name: "once", fault: Fault{Point: Handshake, Action: Cut, When: first}},
	{fault: Fault{Point: Handshake, Action: Delay, Delay: soon}},
	{fault: Fault{Point: Claim, Action: Error}, class: "refused"},
	{fault: Fault{Point: Claim, Action: Error, Class: "gone"}, class: "gone"},
	{fault: Fault{Point: Claim, Action: Error, Class: "handshake"}, class: "handshake"},
	{fault: Fault{Point: Claim, Action: Blackhole}, limits: loadLimit, class: "timeout"},
	{name: "again and again", fault: Fault{Point: Claim, Action: Cut}, class: "handshake"},
	{name: "once", fault: Fault{Point: Claim, Action: Cut, When: first}},
	{fault: Fault{Point: Claim, Action: Flip}, class: "refused"},
	{fault: Fault{Point: Claim, Action: Duplicate}},
	{fault: Fault{Point: Claim, Action: Delay, Delay: soon}},
	{fault: Fault{Point: Claim, Action: Drop}, limits: loadLimit, class: "timeout"},
	{fault: Fault{Point: Seal, Action: Error}, class: "refused"},
	{fault: Fault{Point: Seal, Action: Blackhole}, limits: loadLimit, class: "timeout"},
	{fault: Fault{Point: Seal, Action: Flip}, class: "sum", valid: tiles - 1},
	{name: "every second", fault: Fault{Point: Seal, Action: Flip, Every: 2}, class: "sum", valid: tiles / 2},
	{fault: Fault{Point: Seal, Action: OtherTile}, class: "sum", valid: tiles - 1},
	{name: "all", fault: Fault{Point: Seal, Action: OtherTile, Every: 1}, class: "sum"},
	{fault: Fault{Point: Seal, Action: Duplicate}, class: "refused"},
	{fault: Fault{Point: Seal, Action: Delay, Delay: soon}},
	{fault: Fault{Point: Seal, Action: Drop}, class: "refused"},
	{fault: Fault{Point: ReadPost, Action: Error}, class: "read"},
	{fault: Fault{Point: ReadPost, Action: Error, Class: "timeout"}, class: "timeout"},
	{fault: Fault{Point: ReadPost, Action: Error, Class: "gone"}, class: "gone"},
	{fault: Fault{Point: ReadPost, Action: Blackhole}, limits: progressLimit, class: "timeout"},
	{fault: Fault{Point: ReadPost, Action: Cut}, class: "read"},
	{fault: Fault{Point: ReadPost, Action: Delay, Delay: soon}},
	{name: "too late", fault: Fault{Point: ReadPost, Action: Delay, Delay: Duration(brief)}, limits: progressLimit, class: "timeout"},
	{fault: Fault{Point: ReadPiece, Action: Error, Bytes: 2*tileBytes + 5}, class: "read", valid: 2},
	{fault: Fault{Point: ReadPiece, Action: Error, Class: "timeout"}, class: "timeout"},
	{name: "behind the end", fault: Fault{Point: ReadPiece, Action: Error, Class: "gone", Bytes: maxBytes}, class: "gone", valid: tiles - 1},
	{fault: Fault{Point: ReadPiece, Action: Stall, Bytes: 4 * tileBytes}, limits: progressLimit, class: "timeout", valid: 4},
	{name: "at once", fault: Fault{Point: ReadPiece, Action: Stall}, limits: progressLimit, class: "timeout"},
	{fault: Fault{Point: ReadPiece, Action: Cut, Bytes: 3 * tileBytes}, class: "read", valid: 3},
	{fault: Fault{Point: ReadPiece, Action: Flip}, class: "sum", valid: tiles - 1},
	{name: "every second", fault: Fault{Point: ReadPiece, Action: Flip, Every: 2}, class: "sum", valid: tiles / 2},
	{fault: Fault{Point: ReadPiece, Action: OtherTile}, class: "sum", valid: tiles - 1},
	{name: "all", fault: Fault{Point: ReadPiece, Action: OtherTile, Every: 1}, class: "sum"},
	{fault: Fault{Point: ReadPiece, Action: Duplicate}},
	{fault: Fault{Point: ReadPiece, Action: Delay, Delay: soon}},
	{name: "all, too late", fault: Fault{Point: ReadPiece, Action: Delay, Delay: Duration(brief), Every: 1}, limits: progressLimit, class: "timeout"},
	{fault: Fault{Point: ReadPiece, Action: Drop}, class: "sum", valid: tiles - 1},
	{name: "every third", fault: Fault{Point: ReadPiece, Action: Drop, Every: 3}, class: "sum", valid: tiles - tiles/3},
	{name: "once", fault: Fault{Point: Return, Action: Error, When: first}},
	{name: "again and again", fault: Fault{Point: Return, Action: Error}, limits: unsentLimit, lost: true, keeps: true},
	{fault: Fault{Point: Return, Action: Blackhole}, limits: unsentLimit, lost: true, keeps: true},
	{name: "once", fault: Fault{Point: Return, Action: Cut, When: first}},
	{fault: Fault{Point: Return, Action: Duplicate}},
	{fault: Fault{Point: Return, Action: Delay, Delay: soon}},
	{fault: Fault{Point: Return, Action: Drop}, limits: returnLimit, lost: true},
	{name: "once", fault: Fault{Point: Notice, Action: Error, When: first}},
	{fault: Fault{Point: Notice, Action: Duplicate}},
	{fault: Fault{Point: Notice, Action: Delay, Delay: soon}},
	{fault: Fault{Point: Notice, Action: Drop}, limits: returnLimit, lost: true},
}

// Every cell of a load fires, on every path, and becomes what it should: the
// right class, every tile verified or marked, nothing written after the report,
// and, unless it cannot be told, P's blocks back.
func TestCellsOfALoad(t *testing.T) {
	for path, opt := range paths(t) {
		for _, c := range cellTests {
			name := fmt.Sprintf("%s/%s %s %s %s", path, c.fault.Point, c.fault.Action, c.fault.Class, c.name)
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				p := newEngine(t, "p", opt)
				d := newEngine(t, "d", opt, func(cfg *connector.Config) {
					if c.limits != nil {
						c.limits(cfg)
					}
				})
				at := d
				if c.fault.Point == Seal || c.fault.Point == Notice {
					at = p
				}
				switch c.fault.Point {
				case Handshake, Return, Notice:
				default: // meets a peer that is known, so that short limits are for the fault alone
					warm := promptOf(2*16+1, 2)
					d.pull(p, "warm", p.grant(warm), warm)
				}
				prompt := promptOf(tiles*16+1, 1)
				h := p.grant(prompt)
				at.set(c.fault)
				r := d.pull(p, "the-request", h, prompt)
				switch {
				case c.class == "" && (r.Err != nil || r.Valid != tiles):
					t.Errorf("%d valid, %v", r.Valid, r.Err)
				case c.class != "" && (r.Err == nil || r.Err.Class != c.class || r.Valid != c.valid):
					t.Errorf("%d valid, %v; want %d and class %s", r.Valid, r.Err, c.valid, c.class)
				}
				if c.lost {
					wait(t, "a return that is given up", d.lost)
				}
				if !c.keeps {
					p.back(h)
				}
				wait(t, "the fault", at.fired) // P frees a lease before it answers
				if n := at.in.Counts(); len(n) != 1 || (Cell{n[0].Point, n[0].Action}) != c.fault.Cell() {
					t.Fatalf("injected: %v", n)
				}
				e := at.in.Events()[0]
				if named(c.fault.Point) && e.Request != "the-request" || addressed(c.fault.Point) && e.Peer != p.Addr() {
					t.Errorf("recorded as of %q and %q", e.Request, e.Peer)
				}
				at.in.Off()
				// No limit that a slow machine could meet, nor a cut that may come late.
				if c.limits == nil && c.fault.Cell() != (Cell{Return, Cut}) {
					again := promptOf(tiles*16+1, 3)
					if r := d.pull(p, "again", p.grant(again), again); r.Err != nil {
						t.Errorf("chaos is off, and %v", r.Err)
					}
					return
				}
				d.stop()
				r.untouched(d)
			})
		}
	}
	var untested []Cell
	for _, c := range Cells() {
		elsewhere := c.Point == Heartbeat || c.Point == Process || c.Point == HTTP
		if !elsewhere && !slices.ContainsFunc(cellTests, func(t cellTest) bool { return t.fault.Cell() == c }) {
			untested = append(untested, c)
		}
	}
	if len(untested) > 0 {
		t.Errorf("cellTests has no row for %v", untested)
	}
}

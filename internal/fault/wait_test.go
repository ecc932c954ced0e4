package fault

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"tandem/internal/connector"
)

// pair starts P and D, which have met.
func pair(t *testing.T, opts ...func(*connector.Config)) (p, d *engine) {
	t.Helper()
	p, d = newEngine(t, "p"), newEngine(t, "d", opts...)
	warm := promptOf(2*16+1, 2)
	h := p.grant(warm)
	p.set(Fault{Point: Notice, Action: Delay, Delay: soon})
	d.pull(p, "warm", h, warm)
	wait(t, "the answer to the return", p.fired) // P frees a lease before it answers
	p.back(h)
	p.in.Off()
	return p, d
}

// A load whose read is stalled is over as soon as it is cancelled, and the engine
// stops whatever hangs: in both cases no byte lands any more.
func TestHeldReadsEndWithTheirLoad(t *testing.T) {
	for _, f := range []Fault{
		{Point: ReadPiece, Action: Stall, Bytes: 3 * tileBytes},
		{Point: ReadPiece, Action: Delay, Delay: Duration(maxDelay)},
		{Point: ReadPost, Action: Blackhole},
		{Point: Claim, Action: Drop},
		{Point: Claim, Action: Blackhole},
		{Point: Handshake, Action: Stall},
		{Point: Handshake, Action: Blackhole},
	} {
		for _, how := range []string{"cancel", "stop"} {
			t.Run(fmt.Sprintf("%s %s/%s", f.Point, f.Action, how), func(t *testing.T) {
				t.Parallel()
				p, d := newEngine(t, "p"), newEngine(t, "d")
				prompt := promptOf(tiles*16+1, 1)
				h := p.grant(prompt)
				d.set(f)
				d.Load(connector.LoadSpec{ID: "r", Handoff: h, Prompt: prompt, Local: h.Blocks, ToTile: tiles})
				wait(t, "the fault", d.fired)
				stopped := make(chan struct{})
				if how == "cancel" {
					d.CancelLoad("r")
					close(stopped)
				} else {
					go func() { d.stop(); close(stopped) }()
				}
				if r := wait(t, "the report", d.Reports()); !r.Canceled || r.Err != nil {
					t.Errorf("%+v", r)
				}
				if f.Point == Handshake { // a return waits for one that runs, and Run for the return
					d.in.Off()
				}
				wait(t, "the end", stopped)
			})
		}
	}
}

// What a plan holds goes on when the plan changes: a stalled read reads the
// rest, a frozen P thaws, what waits its delay is sent at once.
func TestChangesLetGoWhatIsHeld(t *testing.T) {
	for _, c := range []struct {
		atP   bool
		fault Fault
	}{
		{false, Fault{Point: ReadPiece, Action: Stall, Bytes: 3 * tileBytes}},
		{false, Fault{Point: ReadPiece, Action: Delay, Delay: Duration(30 * time.Second), Every: 2}},
		{false, Fault{Point: ReadPost, Action: Blackhole}},
		{false, Fault{Point: ReadPost, Action: Delay, Delay: Duration(30 * time.Second)}},
		{false, Fault{Point: Claim, Action: Delay, Delay: Duration(maxDelay)}},
		{false, Fault{Point: Handshake, Action: Delay, Delay: Duration(maxDelay)}},
		{true, Fault{Point: Seal, Action: Delay, Delay: Duration(maxDelay)}},
		{true, Fault{Point: Process, Action: Blackhole, When: first}},
		{true, Fault{Point: Process, Action: Delay, Delay: Duration(maxDelay), When: first}},
		{true, Fault{Point: Process, Action: Kill, When: first}},
	} {
		t.Run(fmt.Sprintf("%s %s", c.fault.Point, c.fault.Action), func(t *testing.T) {
			t.Parallel()
			p, d := newEngine(t, "p"), newEngine(t, "d")
			at := d
			if c.atP {
				at = p
			}
			prompt := promptOf(tiles*16+1, 1)
			h := p.grant(prompt)
			at.set(c.fault)
			done := make(chan pulled, 1)
			go func() { done <- d.pull(p, "r", h, prompt) }()
			wait(t, "the fault", at.fired)
			select {
			case r := <-done:
				t.Errorf("nothing was held: %+v", r.LoadReport)
			default:
			}
			if c.fault.Action == Kill {
				wait(t, "the kill", p.killed)
			}
			at.in.Off()
			if r := wait(t, "the load", done); r.Err != nil || r.Valid != tiles {
				t.Errorf("%+v", r.LoadReport)
			}
			p.back(h)
		})
	}
}

// A P that answers nothing lets D's load end at D's own limit, and serves again
// when the plan is off.
func TestFrozenProcess(t *testing.T) {
	for _, f := range []Fault{
		{Point: Process, Action: Blackhole}, {Point: Process, Action: Kill}, {Point: Process, Action: Delay, Delay: Duration(maxDelay)},
	} {
		t.Run(string(f.Action), func(t *testing.T) {
			t.Parallel()
			p, d := pair(t, loadLimit)
			prompt := promptOf(tiles*16+1, 1)
			h := p.grant(prompt)
			p.set(f)
			if r := d.pull(p, "r", h, prompt); r.Err == nil || r.Err.Class != connector.ClassTimeout || r.Valid != 0 {
				t.Fatalf("%+v", r.LoadReport)
			}
			if n := p.in.Status().Calls[Process]; n != 1 {
				t.Errorf("a frozen P served %d calls", n)
			}
			p.in.Off()
			p.back(h) // D's return waited for the thaw
		})
	}
}

// Reads that P serves are calls of the process, too.
func TestProcessCountsReads(t *testing.T) {
	p, d := pair(t)
	prompt := promptOf(tiles*16+1, 1)
	h := p.grant(prompt)
	p.set(Fault{Point: Process, Action: Delay, Delay: soon, When: When{Nth: []uint64{2}}})
	if r := d.pull(p, "r", h, prompt); r.Err != nil {
		t.Fatal(r.Err)
	}
	p.back(h)
	if s := p.in.Status(); s.Calls[Process] != 3 || s.Fired != 1 { // claim, read, return
		t.Errorf("%+v", s)
	}
}

// Heartbeats may go wrong in every way: those that follow keep the lease, and
// the load works.
func TestHeartbeatFaults(t *testing.T) {
	for _, a := range Actions(Heartbeat) {
		for _, at := range []Point{Heartbeat, Notice} {
			f := Fault{Point: at, Action: a, When: first}
			if a == Delay {
				f.Delay = soon
			}
			if !slices.Contains(Actions(at), a) {
				continue
			}
			t.Run(fmt.Sprintf("%s %s", at, a), func(t *testing.T) {
				t.Parallel()
				shook := make(chan struct{}, 64)
				p, d := pair(t, func(c *connector.Config) {
					c.Heartbeat = 20 * time.Millisecond
					c.Metrics.Handshake = func(bool, time.Duration) { shook <- struct{}{} }
				})
				wait(t, "the handshake", shook)
				e := d
				if at == Notice {
					e = p
				}
				prompt := promptOf(tiles*16+1, 1)
				h := p.grant(prompt)
				e.set(f, Fault{Point: at, Action: Duplicate, When: When{Nth: []uint64{2}}})
				d.Track(h)
				wait(t, "the first heartbeat", e.fired)
				wait(t, "the second heartbeat", e.fired)
				if a == Cut {
					wait(t, "the handshake after the cut", shook) // a load could meet the cut before
				}
				if n := e.in.Counts(); (a == Duplicate && n[0].Fired != 2) || (a != Duplicate && len(n) != 2) {
					t.Error(n)
				}
				if r := d.pull(p, "r", h, prompt); r.Err != nil {
					t.Error(r.Err)
				}
				p.back(h)
			})
		}
	}
}

// A request's id chooses its calls, and a peer's address too.
func TestFaultsMeetTheirRequestAndPeerOnly(t *testing.T) {
	p, d := pair(t)
	load := func(id string) *connector.LoadError {
		prompt := promptOf(tiles*16+1, 1)
		h := p.grant(prompt)
		r := d.pull(p, id, h, prompt)
		p.back(h)
		return r.Err
	}
	d.set(Fault{Point: Claim, Action: Error, When: When{RequestID: "abc-*"}},
		Fault{Point: ReadPost, Action: Error, When: When{Peer: "127.0.0.1:1"}})
	if err := load("abd-1"); err != nil {
		t.Error(err)
	}
	if err := load("abc-1"); err == nil || err.Class != connector.ClassRefused {
		t.Error(err)
	}
	d.set(Fault{Point: ReadPost, Action: Error, When: When{Peer: p.Addr()}})
	if err := load("abd-2"); err == nil || err.Class != connector.ClassRead {
		t.Error(err)
	}
}

// A request is known by the name that its client gave it.
func TestRequestsHaveTheirClientsName(t *testing.T) {
	for id, want := range map[string]string{"cmpl-abc-1": "abc-1", "chatcmpl-abc": "abc", "r": "r", "": ""} {
		if got := requestName(id); got != want {
			t.Errorf("%q is %q", id, got)
		}
	}
	p, d := pair(t)
	prompt := promptOf(tiles*16+1, 1)
	h := p.grant(prompt)
	d.set(Fault{Point: ReadPost, Action: Error, When: When{RequestID: "abc-?"}})
	d.Load(connector.LoadSpec{ID: "internal", ClientID: "chatcmpl-abc-1", Handoff: h, Prompt: prompt, Local: h.Blocks, ToTile: tiles})
	if r := wait(t, "the report", d.Reports()); r.Err == nil || r.Err.Class != connector.ClassRead || d.in.Events()[0].Request != "abc-1" {
		t.Errorf("%+v, %v", r, d.in.Events())
	}
	p.back(h)
}

// The same plan over the same loads does the same, and so does its record.
func TestRunsReplayOverRealLoads(t *testing.T) {
	plan := Plan{Seed: 9, Faults: []Fault{
		{Point: Claim, Action: Flip, When: When{Probability: 0.3}},
		{Point: ReadPiece, Action: OtherTile, When: When{Probability: 0.3}},
		{Point: ReadPiece, Action: Drop, Every: 2, When: When{Pattern: "OX"}},
	}}
	run := func(start func(*engine) error) (string, []Event) {
		p, d := pair(t)
		if err := start(d); err != nil {
			t.Fatal(err)
		}
		out := ""
		for n := range 20 {
			prompt := promptOf(tiles*16+1, n)
			h := p.grant(prompt)
			r := d.pull(p, fmt.Sprint("r", n), h, prompt)
			p.back(h)
			out += fmt.Sprint(r.Invalid)
			if r.Err != nil {
				out += string(r.Err.Class)
			}
			out += "\n"
		}
		events := d.in.Events()
		for i := range events {
			events[i].Peer = "" // a port is drawn anew
		}
		return out, events
	}
	first, record := run(func(e *engine) error { return e.in.Set(plan) })
	again, _ := run(func(e *engine) error { return e.in.Set(plan) })
	replayed, events := run(func(e *engine) error { return e.in.Replay(record) })
	if first != again || first != replayed || fmt.Sprint(record) != fmt.Sprint(events) || len(record) < 10 {
		t.Errorf("first:\n%s\nagain:\n%s\nreplayed:\n%s\n%d events", first, again, replayed, len(record))
	}
}

// A slowLoss network notices the end of a connection only when a second claim
// has been answered.
type slowLoss struct {
	connector.Network
	claims atomic.Int64
	second chan struct{}
	once   sync.Once
}

func (n *slowLoss) OnLost(f func(connector.CallerID)) {
	n.Network.OnLost(func(from connector.CallerID) {
		<-n.second
		f(from)
	})
}

func (n *slowLoss) Handle(k connector.Kind, f connector.Handler) {
	n.Network.Handle(k, func(ctx context.Context, from connector.CallerID, body []byte) ([]byte, error) {
		out, err := f(ctx, from, body)
		if k == connector.KindClaim && n.claims.Add(1) == 2 {
			n.release()
		}
		return out, err
	})
}

func (n *slowLoss) release() { n.once.Do(func() { close(n.second) }) }

// A claim whose connection ended is sent again over a new one. While P still
// holds the first, the lease is busy; D tries until P has noticed.
func TestClaimAgainWaitsForPToNotice(t *testing.T) {
	loss := &slowLoss{second: make(chan struct{})}
	p := newEngine(t, "p", func(c *connector.Config) {
		c.Decorate = func(n connector.Network) connector.Network { loss.Network = n; return loss }
	})
	t.Cleanup(loss.release)
	d := newEngine(t, "d")
	prompt := promptOf(tiles*16+1, 1)
	h := p.grant(prompt)
	d.set(Fault{Point: Claim, Action: Cut, When: first})
	if r := d.pull(p, "r", h, prompt); r.Err != nil || loss.claims.Load() < 3 {
		t.Errorf("%+v after %d claims", r.LoadReport, loss.claims.Load())
	}
	p.back(h)
}

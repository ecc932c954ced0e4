package simulation

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"slices"
	"time"

	"tandem/internal/connector"
	"tandem/internal/connector/core"
	"tandem/internal/engine"
	"tandem/internal/fault"
	"tandem/internal/kv"
	"tandem/internal/sim"
)

// A node is a place where engines run, one process after the other.
type node struct {
	w      *world
	name   string
	addr   string
	index  int
	role   connector.Role
	model  sim.Config
	config engine.Config
	lease  time.Duration
	faults *fault.Injector

	gen     int // of the process or its registration: events of an earlier one are lost
	life    uint64
	alive   bool
	silent  bool // answers no peer
	frozen  bool
	freezes int
	parked  []*event // of a frozen process

	inc   core.Incarnation
	epoch kv.Epoch
	mem   *sim.Model
	eng   *engine.Engine
	shell *shell

	busy bool   // a step runs
	turn *event // the next turn of the step loop
	legs []*exchange

	// Of the prefix index, as far as it was checked.
	changes uint64
	chains  map[kv.Chain]prefix
	newest  kv.Chain
}

// Name implements flow.Backend.
func (n *node) Name() string { return n.name }

// start begins a process.
func (n *node) start() {
	n.life++
	n.alive, n.silent, n.epoch = true, false, 1
	binary.BigEndian.PutUint64(n.inc[:], uint64(n.index+1))
	binary.BigEndian.PutUint64(n.inc[8:], n.life)
	n.open()
}

// open makes what a process and its registration consist of.
func (n *node) open() {
	n.gen++
	n.mem = n.w.models.take(n.model)
	n.shell = newShell(n)
	cfg := n.config
	cfg.Model, cfg.Connector = n.mem, n.shell
	e, err := engine.New(cfg)
	if err != nil {
		panic(err)
	}
	n.eng, n.busy, n.turn, n.legs = e, false, nil, nil
	n.changes, n.newest, n.chains = 0, 0, map[kv.Chain]prefix{0: {}}
}

// collect counts what the present process went through.
func (n *node) collect() {
	c := n.w.cover
	s := n.eng.Scheduler()
	c.Sched.Add(s.Moves())
	c.Lease.Add(n.shell.leases.Moves())
	c.Peer.Add(n.shell.peers.Moves())
	t := s.Stats().Totals
	if t.Prompt != t.Local+t.Loaded+t.Recomputed+t.Computed {
		n.w.fail("%s: prompt tokens do not add up: %+v", n.name, t)
	}
	c.Add(&Coverage{Totals: t})
	for _, l := range n.shell.loads {
		c.Load.Add(l.core.Moves())
	}
}

// lose ends the process's engine and what others had of it.
func (n *node) lose() {
	n.collect()
	legs := n.legs
	n.gen++
	for _, x := range legs {
		x.broken()
	}
	for _, k := range n.w.calls { // requests that had not arrived
		if l := k.leg; l != nil && l.n == n && l.x == nil {
			n.w.after(nil, n.w.latency(), "", l.cut)
		}
	}
}

// kill ends the process. Another one takes its place after a while.
func (n *node) kill(down time.Duration) {
	n.w.logf(n, "killed, back in %v", down)
	n.lose()
	n.alive, n.frozen, n.parked = false, false, nil
	for _, c := range slices.Clone(n.w.conns) {
		if c.from == n || c.to == n {
			c.end("process killed")
		}
	}
	n.w.after(nil, down, "", func() {
		n.start()
		n.w.logf(n, "started as process %d", n.life)
	})
}

// register stands for a sleep and a wake: the same process with new memory and a
// newer epoch, and nothing that the old one held.
func (n *node) register() {
	n.w.logf(n, "registers anew, epoch %d", n.epoch+1)
	n.lose()
	for _, a := range n.mem.Arenas() {
		clear(a.Bytes()) // peers that still read there must notice
	}
	n.epoch++
	n.open()
}

// drain makes the process renew no leases for a while.
func (n *node) drain(d time.Duration) {
	n.w.after(n, 0, "", func() { n.shell.lease(core.DrainEvent{On: true}) })
	n.w.after(n, d, "", func() { n.shell.lease(core.DrainEvent{On: false}) })
}

// freeze stops the process for a while. Its connections stay.
func (n *node) freeze(d time.Duration) {
	if n.frozen || !n.alive {
		return
	}
	n.w.logf(n, "frozen for %v", d)
	n.frozen = true
	n.freezes++
	gen := n.life
	n.w.after(nil, d, "", func() {
		if n.life != gen || !n.frozen {
			return
		}
		n.frozen = false
		n.w.logf(n, "thawed")
		for _, e := range n.parked {
			if e.over {
				continue
			}
			late := n.w.after(n, 0, e.what, nil)
			late.gen = e.gen
			// Whoever holds e must see that it will happen.
			f := e.run
			late.run = func() {
				if !e.over {
					e.over = true
					f()
				}
			}
		}
		n.parked = nil
	})
}

// kick makes the step loop take a turn.
func (n *node) kick() {
	if n.alive && !n.busy && !n.turn.pending() {
		n.turn = n.w.after(n, 5*time.Microsecond, "", n.step)
	}
}

var gone = func() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}()

// step is a turn of the step loop.
func (n *node) step() {
	n.busy = true
	b := n.eng.Begin(n.w.now())
	s := n.shell // what Begin took is the scheduler's again
	s.returned = s.returned[len(s.returned)-len(s.freed):]
	n.pump()
	if b == nil {
		n.busy = false
		if len(s.freed)+len(s.reports) > 0 {
			n.kick()
		}
		return
	}
	tokens := b.Tokens()
	n.w.logf(n, "step of %d tokens, %d sequences", tokens, len(b.Seqs))
	var rows [][]float32
	compute := func() {
		var err error
		if rows, err = n.mem.Step(b); err != nil {
			n.w.fail("%s: %v", n.name, err)
		}
	}
	early := n.w.chance(0.5) // the memory changes somewhere between begin and end
	if early {
		compute()
	}
	d := 500*time.Microsecond + time.Duration(tokens)*20*time.Microsecond + n.w.between(0, 3*time.Millisecond)
	n.w.after(n, d, "", func() {
		n.busy = false
		if !early {
			compute()
		}
		if n.w.failure != nil {
			return
		}
		n.eng.Finish(rows, n.w.now())
		n.pump()
		n.kick()
	})
}

// pump gives outputs to the legs that wait for them.
func (n *node) pump() {
	for _, x := range slices.Clone(n.legs) {
		for !x.slow {
			out, err := x.stream.Next(gone)
			if errors.Is(err, io.EOF) {
				n.legs = slices.DeleteFunc(n.legs, func(o *exchange) bool { return o == x })
				break
			}
			if err != nil {
				break
			}
			x.output(out)
		}
	}
}

package main

import (
	"math"
	"net"
	"sync"
	"testing"
	"time"
)

// A mishap is one thing that goes wrong on a connection, behind so many bytes of
// one direction.
type mishap struct {
	kind    string
	conn    int // which connection from now on; -1: the first that gets so far
	answers bool
	after   int
	bit     byte
}

var mishapKinds = []string{"flip", "cut", "stall", "repeat", "skip"}

// A relay passes the connections of peers on and spoils one of them.
type relay struct {
	ln net.Listener
	to string

	mu    sync.Mutex
	conns []net.Conn
	plan  *mishap
	seen  int // connections since the plan
	fired int
}

// newRelay returns a relay, and the address that it passes connections on to.
func newRelay(t testing.TB) (*relay, error) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	free, err := net.Listen("tcp", home()+":0")
	if err != nil {
		return nil, err
	}
	r := &relay{ln: ln, to: free.Addr().String()}
	free.Close()
	t.Cleanup(func() { ln.Close(); r.cut() })
	go r.run()
	return r, nil
}

func (r *relay) run() {
	for {
		a, err := r.ln.Accept()
		if err != nil {
			return
		}
		b, err := net.Dial("tcp", r.to)
		if err != nil {
			a.Close()
			continue
		}
		r.mu.Lock()
		r.conns = append(r.conns, a, b)
		var own *mishap
		if r.plan != nil && (r.plan.conn < 0 || r.seen == r.plan.conn) {
			own = r.plan
		}
		r.seen++
		r.mu.Unlock()
		go r.pass(a, b, own, false)
		go r.pass(b, a, own, true)
	}
}

// pass copies one direction until either end is closed.
func (r *relay) pass(from, to net.Conn, m *mishap, answers bool) {
	defer from.Close()
	defer to.Close()
	if m != nil && m.answers != answers {
		m = nil
	}
	buf := make([]byte, 4096)
	for n := 0; ; {
		k, err := from.Read(buf)
		if err != nil {
			return
		}
		p := buf[:k]
		if at := 0; m != nil && n+k > m.after {
			at = m.after - n
			kind := ""
			if r.take(m) {
				kind = m.kind
			}
			switch kind {
			case "flip":
				p[at] ^= 1 << m.bit
			case "cut":
				_, _ = to.Write(p[:at])
				return
			case "stall":
				_, _ = to.Write(p[:at])
				for err == nil { // until somebody gives up
					_, err = from.Read(buf)
				}
				return
			case "repeat":
				p = append(append([]byte(nil), p[:at+1]...), p[at:]...)
			case "skip":
				p = append(append([]byte(nil), p[:at]...), p[at+1:]...)
			}
			m = nil
		}
		n += k
		if _, err := to.Write(p); err != nil {
			return
		}
	}
}

// take reports whether m is still to happen, which it then does.
func (r *relay) take(m *mishap) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.plan != m {
		return false
	}
	r.plan = nil
	r.fired++
	return true
}

// cut ends every connection.
func (r *relay) cut() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, c := range r.conns {
		c.Close()
	}
	r.conns = nil
}

// arm sets the next mishap and ends the connections there are.
func (r *relay) arm(m *mishap) {
	r.mu.Lock()
	r.plan, r.seen = m, 0
	r.mu.Unlock()
	r.cut()
}

func (r *relay) count() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.fired
}

// probes is how many bytes a data connection brings before the first tile: those
// by which its rate is measured.
const probes = 2 * 256 << 10

// wire spoils single bytes of the connections between D and P, wherever they
// fall: in a proof, a length, a claim, a sum or a tile.
func wire(c *campaign, t testing.TB) error {
	relay, err := newRelay(t)
	if err != nil {
		return err
	}
	const load = stretch(time.Second)
	claim := load.limit() + load.limit()/4 // of one that nobody can give back
	f, err := c.start(t, parts{
		prefill: []string{"--peer-listen", relay.to, "--peer-advertise", relay.ln.Addr().String(), stretch(time.Second).flag("kv_lease_duration")},
		decode: []string{
			stretch(400 * time.Millisecond).flag("handshake_timeout"), stretch(800 * time.Millisecond).flag("no_progress_timeout"), load.flag("load_timeout"),
		},
	})
	if err != nil {
		return err
	}
	for _, kind := range mishapKinds {
		r := row{what: "wire: " + kind + " somewhere"}
		for range c.scale(40, 12) {
			m := &mishap{kind: kind, conn: f.intn(3), answers: f.intn(2) == 1, bit: byte(f.intn(8))}
			switch m.after = int(math.Exp2(float64(f.intn(1200)) / 100)); f.intn(3) {
			case 0:
				m.conn, m.answers, m.after = -1, true, f.intn(probes)
			case 1:
				m.conn, m.answers, m.after = -1, true, probes+f.intn(100_000) // bytes of tiles, nearly all
			}
			ex, err := f.exam(4, 60, 400)
			if err != nil {
				return err
			}
			before := relay.count()
			relay.arm(m)
			ex.together()
			hit := relay.count() > before
			if hit {
				r.fired++
			}
			for i := range ex.replies {
				rep, was := &ex.replies[i], len(r.missed)
				note(&r, rep, ex.wants[i], load.limit()+grace)
				how := rep.judge(ex.wants[i])
				switch {
				case rep.class != "" && (ex.policy[i] == "fail") != (how == refused):
					r.wrong("policy %s: %s", ex.policy[i], rep)
				case rep.class == "" && (how != right || rep.kv.Loaded != len(ex.asks[i].prompt)-1):
					r.wrong("no load failed: %s", rep)
				}
				if len(r.missed) > was {
					r.wrong("that was %+v", *m)
				}
			}
		}
		relay.arm(nil)
		after := c.pulse.start()
		settleIn(&r, after, claim+backLimit, f.engines()...)
		f.alive(&r)
		ex, err := f.exam(4, 60, 400)
		if err != nil {
			return err
		}
		ex.together()
		for i := range ex.replies {
			if rep := &ex.replies[i]; rep.judge(ex.wants[i]) != right || rep.kv.Loaded != len(ex.asks[i].prompt)-1 {
				r.wrong("afterwards: %s", rep)
			}
		}
		if r.fired < 3 {
			r.wrong("it fired %d times", r.fired)
		}
		c.table.add(r)
	}
	return nil
}

package simulation

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"time"

	"tandem/internal/connector"
	"tandem/internal/engine"
	"tandem/internal/fault"
	"tandem/internal/kv"
	"tandem/internal/sample"
	"tandem/internal/sim"
)

// A Runner runs seeds one after the other. Runners of one reference may work at
// the same time.
type Runner struct {
	ref    *reference
	models *modelCache
}

// A modelCache keeps the memory of models from seed to seed.
type modelCache struct {
	free map[sim.Config][]*sim.Model
	used map[*sim.Model]sim.Config
}

// take returns a model whose memory is all zero.
func (c *modelCache) take(cfg sim.Config) *sim.Model {
	var m *sim.Model
	if list := c.free[cfg]; len(list) > 0 {
		m = list[len(list)-1]
		c.free[cfg] = list[:len(list)-1]
		for _, a := range m.Arenas() {
			clear(a.Bytes())
			for t := range a.Tiles() {
				clear(a.Sums(kv.TileID(t)))
			}
		}
	} else {
		var err error
		if m, err = sim.New(cfg); err != nil {
			panic(err)
		}
	}
	c.used[m] = cfg
	return m
}

// giveBack takes all models of a world back.
func (c *modelCache) giveBack() {
	for m, cfg := range c.used {
		c.free[cfg] = append(c.free[cfg], m)
	}
	clear(c.used)
}

// Runners returns n runners, and what gives their memory back.
func Runners(n int) ([]*Runner, func() error, error) {
	ref, err := newReference()
	if err != nil {
		return nil, nil, err
	}
	var out []*Runner
	for range n {
		out = append(out, &Runner{ref, &modelCache{map[sim.Config][]*sim.Model{}, map[*sim.Model]sim.Config{}}})
	}
	return out, func() error {
		err := ref.close()
		for _, r := range out {
			for _, list := range r.models.free {
				for _, m := range list {
					if e := m.Close(); e != nil {
						err = e
					}
				}
			}
		}
		return err
	}, nil
}

// stream returns the random numbers of one purpose of a seed.
func stream(seed, purpose uint64) *rand.Rand { return rand.New(rand.NewPCG(seed, purpose)) }

// The purposes.
const (
	forWorld = iota
	forNet
	forFaults
	forActs
	forRequests // and what follows
)

// build draws the world of a seed.
func (r *Runner) build(seed uint64, opt Options, cover *Coverage) *world {
	w := &world{
		seed: seed, opt: opt, ref: r.ref, models: r.models, cover: cover, trace: opt.Trace,
		net: stream(seed, forNet), http: fault.New(fault.Config{}),
	}
	d := stream(seed, forWorld)
	w.mapped = d.IntN(2) == 0
	w.loadLimit = []time.Duration{2 * time.Second, 30 * time.Second, 30 * time.Second}[d.IntN(3)]
	w.noProgress = []time.Duration{300 * time.Millisecond, 5 * time.Second}[d.IntN(2)]
	w.maxClaim = []time.Duration{1500 * time.Millisecond, 2 * time.Minute}[d.IntN(2)]
	roles := []struct {
		name string
		role connector.Role
	}{{"P1", connector.Producer}, {"P2", connector.Producer}, {"D1", connector.Consumer}, {"D2", connector.Consumer}}
	w.both = d.IntN(6) == 0
	grids := [2]struct{ tp, bt int }{}
	for i := range grids {
		grids[i].tp, grids[i].bt = 1<<d.IntN(3), kv.TileTokens<<d.IntN(3)
	}
	lease := []time.Duration{1500 * time.Millisecond, 5 * time.Second, 30 * time.Second}[d.IntN(3)]
	policy := [...]engine.FailPolicy{engine.PolicyRecompute, engine.PolicyRecompute, engine.PolicyFail}[d.IntN(3)]
	// Engines of both roles may wait for each other's leases until those reach
	// their cap, so not even calm ones answer everybody in time.
	w.calm = d.IntN(12) == 0 && !w.both
	most := 64 // requests of an engine
	if !w.calm && d.IntN(4) == 0 {
		most = 5
	}
	room := []int{0, 160}[d.IntN(2)] // tokens of a pool beyond one whole sequence
	for i, role := range roles {
		g := grids[0]
		if role.role == connector.Consumer {
			g = grids[1]
		}
		if w.both { // what one loads and computes, another one loads from there
			role.role = connector.Both
		}
		blocks := (longest+g.bt-1)/g.bt + d.IntN(max(2, room/g.bt))
		n := &node{
			w: w, name: role.name, addr: fmt.Sprintf("10.0.0.%d:7000", i+1), index: i, role: role.role,
			model: modelConfig(g.tp, g.bt, blocks), lease: lease, faults: fault.New(fault.Config{}),
			config: engine.Config{
				ID: kv.EngineID(role.name), MaxBatchedTokens: 16 << d.IntN(4), MaxSeqs: 2 + d.IntN(8), MaxRequests: most,
				MaxOutputs: []int{4, 1024, 1024}[d.IntN(3)], Priority: d.IntN(3) == 0, Policy: policy, Seed: seed | 1, NoPrefixCache: d.IntN(8) == 0,
			},
		}
		w.nodes = append(w.nodes, n)
		if role.role.Produces() {
			w.pre = append(w.pre, n)
		}
		if role.role.Consumes() {
			w.dec = append(w.dec, n)
		}
		n.start()
	}
	if !w.calm {
		w.drawFaults()
		w.drawActs()
	}
	w.drawRequests()
	return w
}

// prompts is the number of prompts, over all seeds.
const prompts = 48

// prompt returns prompt number i. Many begin alike.
func prompt(i int) []kv.Token {
	d := stream(99, uint64(i))
	n := 2 + d.IntN(120)
	if d.IntN(4) == 0 {
		n = kv.TileTokens*(1+d.IntN(6)) + d.IntN(3) - 1
	}
	base := stream(98, uint64(i%4))
	out := make([]kv.Token, n)
	for j := range out {
		out[j] = kv.Token('a' + base.IntN(26))
	}
	for j := min(n/2, 16*(i%5)); j < n; j++ {
		out[j] = kv.Token('a' + d.IntN(26))
	}
	return out
}

func (w *world) drawRequests() {
	d := stream(w.seed, forWorld+1000)
	n := w.opt.Requests
	n += d.IntN(n/2 + 1)
	pace := []time.Duration{2 * time.Millisecond, 20 * time.Millisecond, 400 * time.Millisecond}[d.IntN(3)]
	long := d.IntN(2) == 0
	few := 2 + d.IntN(prompts-2) // prompts of this seed
	at := time.Duration(0)
	for i := range n {
		d := stream(w.seed, forRequests+uint64(i))
		at += time.Duration(float64(pace) * d.ExpFloat64())
		p := d.IntN(few)
		q := &request{key: fmt.Sprint(p), prompt: prompt(p), params: sample.Default(), at: at}
		q.params.Temperature = 0
		q.params.MaxTokens = 1 + d.IntN(10)
		if long && d.IntN(2) == 0 {
			q.params.MaxTokens = outputs/2 + d.IntN(outputs/2)
		}
		if d.IntN(3) == 0 {
			s := int64(d.IntN(3))
			q.params.Temperature, q.params.Seed = 1, &s
		}
		q.whole = d.IntN(12) == 0
		switch d.IntN(6) {
		case 0:
			q.policy = string(engine.PolicyFail)
		case 1:
			q.policy = string(engine.PolicyRecompute)
		}
		if d.IntN(6) == 0 {
			x := d.Float64()
			q.leaves = time.Millisecond + time.Duration(x*x*float64(300*time.Millisecond))
			if d.IntN(6) == 0 {
				q.leaves *= 100
			}
		}
		if w.opt.Mask.Requests[i] {
			continue
		}
		n := 1
		if d.IntN(12) == 0 {
			n += 1 + d.IntN(2)
		}
		for choice := range n {
			a, err := w.ref.answer(q.key, q.prompt, q.params, choice)
			if err != nil {
				panic(err)
			}
			q.want = append(q.want, a)
		}
		if d.IntN(10) == 0 {
			q.stopAt = 1 + d.IntN(6)
		}
		if d.IntN(10) == 0 {
			q.slow = time.Duration(1+d.IntN(100)) * time.Millisecond
		}
		q.salt = []string{"", "", "a", "b"}[d.IntN(4)]
		q.rank, q.probe = d.IntN(3), d.IntN(25) == 0
		q.stolen = !w.calm && d.IntN(30) == 0
		q.forged = !w.calm && d.IntN(30) == 0
		w.client(i, q)
	}
}

// drawFaults sets the plans of all injectors.
func (w *world) drawFaults() {
	d := stream(w.seed, forFaults)
	cells := fault.Cells()
	n := d.IntN(7)
	if d.IntN(2) == 0 {
		n += 3
	}
	plan := fault.Plan{Seed: w.seed}
	var lied fault.Point
	for i := range n {
		c := cells[d.IntN(len(cells))]
		f := fault.Fault{Point: c.Point, Action: c.Action}
		if cs := fault.Classes(c.Point); c.Action == fault.Error && len(cs) > 0 {
			f.Class = cs[d.IntN(len(cs))]
		}
		if c.Action == fault.Delay {
			f.Delay = fault.Duration(time.Millisecond << d.IntN(14))
		}
		if c.Action == fault.Error && c.Point == fault.HTTP {
			f.Status = []int{500, 503, 429, 400}[d.IntN(4)]
		}
		bytes, every := int64(d.IntN(1500)), d.IntN(3)
		if sized(c) {
			f.Bytes = bytes
		}
		if spread(c) {
			f.Every = every
		}
		switch d.IntN(3) {
		case 0:
			f.When.Probability = 0.05 + 0.5*d.Float64()
		case 1:
			f.When.Nth = []uint64{uint64(1 + d.IntN(8)), uint64(1 + d.IntN(20))}
		default:
			f.When.Pattern = []string{"OX", "OOOX", "XO", "OOXX"}[d.IntN(4)]
		}
		if c.Point == fault.Handshake && d.IntN(2) == 0 {
			f.When = fault.When{Pattern: "XXXXXXXO"} // so that the back-off grows
		}
		if c.Point == fault.Process {
			f.When = fault.When{Nth: []uint64{uint64(1 + d.IntN(30))}}
		}
		// A peer that has both the sums and the bytes of another tile tells a lie
		// that no sum can find.
		if c.Action == fault.OtherTile {
			if lied != "" && lied != c.Point {
				continue
			}
			lied = c.Point
		}
		if w.opt.Mask.Faults[i] {
			continue
		}
		plan.Faults = append(plan.Faults, f)
		if w.trace != nil {
			raw, err := json.Marshal(f)
			if err != nil {
				panic(err)
			}
			w.logf(nil, "fault %d: %s", i, raw)
		}
	}
	for k, n := range w.nodes {
		p := plan
		p.Seed += uint64(k)
		if err := n.faults.Set(p); err != nil {
			panic(err)
		}
	}
	if err := w.http.Set(plan); err != nil {
		panic(err)
	}
}

// drawActs lets processes die, freeze and register anew.
func (w *world) drawActs() {
	d := stream(w.seed, forActs)
	n := max(0, d.IntN(6)-2)
	if d.IntN(5) == 0 {
		n += 4
	}
	for i := range n {
		at := time.Duration(d.Float64() * float64(2*time.Second))
		node := w.nodes[d.IntN(len(w.nodes))]
		kind, long, quick := d.IntN(5), time.Duration(d.Float64()*float64(12*time.Second)), d.IntN(2) == 0
		if quick {
			long /= 100
		}
		if w.opt.Mask.Acts[i] {
			continue
		}
		what := [...]string{"kill", "kill", "freeze", "register", "drain"}[kind]
		w.logf(nil, "act %d: %s %s at %v for %v", i, what, node.name, at, long)
		w.after(nil, at, "", func() {
			switch {
			case !node.alive:
			case what == "kill":
				node.kill(long)
			case what == "freeze":
				node.freeze(long)
			case what == "drain":
				node.drain(long)
			case !node.role.Consumes():
				node.register()
			}
		})
	}
}

// sized reports whether c takes a number of bytes.
func sized(c fault.Cell) bool {
	switch c.Point {
	case fault.ReadPiece:
		return c.Action == fault.Error || c.Action == fault.Stall || c.Action == fault.Cut
	case fault.HTTP:
		return c.Action == fault.Stall || c.Action == fault.Cut
	default:
		return false
	}
}

// spread reports whether c can hit every k-th tile.
func spread(c fault.Cell) bool {
	switch c.Point {
	case fault.ReadPiece:
		return !sized(c)
	case fault.Seal:
		return c.Action == fault.Flip || c.Action == fault.OtherTile
	default:
		return false
	}
}

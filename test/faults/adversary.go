package main

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"tandem/internal/connector"
	"tandem/internal/kv"
	"tandem/test/cluster"
)

// A line is a row that many goroutines write.
type line struct {
	mu sync.Mutex
	row
}

func (l *line) do(f func(r *row)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	f(&l.row)
}

// A stale hand-off is a genuine one whose lease has ended.
type stale struct {
	prompt []int
	params json.RawMessage
	blocks []kv.BlockID
}

// An attack is the adversarial section: bad references among valid ones.
type attack struct {
	*fleet

	world   world
	damages []damage
	valid   *line
	lines   map[string]*line
	order   []string
}

// The kinds of bad references.
const (
	kindExpired  = "reference whose lease ran out"
	kindReused   = "ran out, blocks hold another prompt"
	kindReleased = "released, blocks hold another prompt"
	kindReplayed = "used before"
	kindForeign  = "another prompt's"
	kindUnsigned = "damaged by one without the token"
	kindSigned   = "damaged and signed anew"
)

// leaseTime is long enough for a valid read on a machine that stalls.
const leaseTime = stretch(4 * time.Second)

// adversary reads 1,000 times with bad references among as many valid reads.
func adversary(c *campaign, t testing.TB) error {
	f, err := c.start(t, parts{
		prefill: []string{"--num-gpu-blocks-override", "2048", leaseTime.flag("kv_lease_duration")},
		decode:  []string{"--no-enable-prefix-caching", peerHandshake.flag("handshake_timeout"), extra + "load_timeout=5"},
	})
	if err != nil {
		return err
	}
	a := &attack{fleet: f, damages: damages(), valid: &line{row: row{what: "valid reads among the bad ones"}}, lines: map[string]*line{}}
	if err := a.explore(); err != nil {
		return err
	}
	defer func() {
		c.table.add(a.valid.row)
		for _, kind := range a.order {
			c.table.add(a.lines[kind].row)
		}
	}()
	ran, freed := c.scale(300, 60), c.scale(100, 20)
	old, err := a.prepare(ran + freed)
	if err != nil {
		return err
	}
	for _, s := range old[ran:] {
		if err := f.release(f.p, s.params); err != nil {
			return err
		}
	}

	// First the references that are damaged, used or another's.
	var tasks []func()
	for i := range c.scale(340, 88) {
		tasks = append(tasks, func() { a.damaged(i, kindSigned) })
	}
	for i := range c.scale(150, 80) {
		tasks = append(tasks, func() { a.damaged(i, kindUnsigned) })
	}
	used := make([]stale, c.scale(70, 15))
	for i := range used {
		tasks = append(tasks, func() { used[i] = a.use(i) })
	}
	for i := range c.scale(40, 10) {
		tasks = append(tasks, func() { a.foreign(i) })
	}
	a.mix(tasks)

	// Then the ones whose lease ran out, and those whose lease is back since they
	// were used.
	cluster.Eventually(t, "the leases have run out, and are back", func() bool {
		b, err := read(f.p)
		return err == nil && b.Leases == 0 && f.p.Metric(t, "vllm:nixl_num_kv_expired_reqs_total") >= float64(ran)
	})
	tasks = nil
	for i, s := range used {
		tasks = append(tasks, func() { a.stale(i, kindReplayed, s) })
	}
	for i, s := range old[:ran/2] {
		tasks = append(tasks, func() { a.stale(i, kindExpired, s) })
	}
	a.mix(tasks)

	// And the ones whose blocks hold other prompts. Those of the last reads, too, must
	// be there to be taken.
	cluster.Eventually(t, "every block is back", func() bool {
		b, err := read(f.p)
		return err == nil && b.settled()
	})
	if err := a.refill(old); err != nil {
		return err
	}
	tasks = nil
	for i, s := range old[ran/2:] {
		kind := kindReused
		if i >= ran-ran/2 {
			kind = kindReleased
		}
		tasks = append(tasks, func() { a.stale(i, kind, s) })
	}
	a.mix(tasks)
	w := c.pulse.start()
	a.valid.do(func(r *row) { settle(r, w, f.engines()...); f.alive(r) })
	return nil
}

// explore finds the addresses that a forger would use.
func (a *attack) explore() error {
	_, other, err := addresses(a.prefill("Q").Ready(a.t))
	if err != nil {
		return err
	}
	b, err := read(a.p)
	if err != nil {
		return err
	}
	var addrs []string
	for _, keep := range []bool{true, false} {
		ln, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return err
		}
		if keep {
			a.t.Cleanup(func() { ln.Close() }) // connections wait in its queue for ever
		} else {
			ln.Close()
		}
		addrs = append(addrs, ln.Addr().String())
	}
	a.world = world{silent: addrs[0], closed: addrs[1], other: other, blocks: b.Blocks}
	return nil
}

// line returns the row of a kind.
func (a *attack) line(kind string) *line {
	a.mu.Lock()
	defer a.mu.Unlock()
	l := a.lines[kind]
	if l == nil {
		l = &line{row: row{what: "bad: " + kind}}
		a.lines[kind] = l
		a.order = append(a.order, kind)
	}
	return l
}

// mix runs tasks in random order with a valid read for each.
func (a *attack) mix(tasks []func()) {
	bad := len(tasks)
	for i := range bad {
		tasks = append(tasks, func() { a.good(i) })
	}
	rand.New(rand.NewPCG(a.c.seed, uint64(len(tasks)))).Shuffle(len(tasks), func(i, k int) { tasks[i], tasks[k] = tasks[k], tasks[i] })
	each(len(tasks), 6, func(i int) { tasks[i]() })
}

// prepare makes n hand-offs that nobody reads.
func (a *attack) prepare(n int) ([]stale, error) {
	out, errs := make([]stale, n), make([]error, n)
	each(n, 6, func(i int) {
		s := stale{prompt: a.prompt(40 + a.intn(40))}
		if s.params, errs[i] = a.handoff(a.p, s.prompt); errs[i] != nil {
			return
		}
		h, err := connector.ParseHandoff(s.params)
		if err != nil {
			errs[i] = err
			return
		}
		s.blocks, out[i] = h.Blocks, s
		out[i].blocks = h.Blocks
	})
	for _, err := range errs {
		if err != nil {
			return nil, err
		}
	}
	return out, nil
}

// refill gives every block of the hand-offs to other prompts, which it holds
// until all are there.
func (a *attack) refill(old []stale) error {
	taken := map[kv.BlockID]bool{}
	var held []json.RawMessage
	for {
		b, err := read(a.p)
		if err != nil {
			return err
		}
		n := min(1900, b.Free*kv.TileTokens-kv.TileTokens)
		if n <= 0 {
			break
		}
		params, err := a.handoff(a.p, a.prompt(n))
		if err != nil {
			return err
		}
		held = append(held, params)
		h, err := connector.ParseHandoff(params)
		if err != nil {
			return err
		}
		for _, id := range h.Blocks {
			taken[id] = true
		}
	}
	for _, params := range held {
		if err := a.release(a.p, params); err != nil {
			return err
		}
	}
	missed := 0
	for _, s := range old {
		if slices.ContainsFunc(s.blocks, func(id kv.BlockID) bool { return !taken[id] }) {
			missed++
		}
	}
	if missed > len(old)/50 { // the pool's last blocks stay free
		return fmt.Errorf("%d of %d stale hand-offs have blocks that no other prompt got", missed, len(old))
	}
	return nil
}

// good reads with a valid reference: right, and loaded from P to the last token.
func (a *attack) good(i int) {
	prompt := a.prompt(20 + a.intn(100))
	want, err := a.want(prompt)
	var params json.RawMessage
	if err == nil {
		params, err = a.handoff(a.p, prompt)
	}
	if err != nil {
		a.valid.do(func(r *row) { r.wrong("%v", err) })
		return
	}
	d, policy := a.pick(i)
	rep := a.c.send(ask{url: d.URL, prompt: prompt, tokens: output, stream: i/4%2 == 0, policy: policy, params: params})
	a.valid.do(func(r *row) {
		r.fired++
		how := rep.judge(want)
		r.outcome.add(how)
		if how != right || rep.kv.Loaded != len(prompt)-1 || rep.class != "" {
			r.wrong("%s, %s, %d tokens: %s: %s", d.path, policy, len(prompt), how, &rep)
			return
		}
		r.surfaced.add("loaded to the last token")
	})
}

// bad reads with a bad reference. It must be refused: with a 400, or with a load
// failure of one of the classes; then lost tokens are computed again, -1 all.
func (a *attack) bad(i int, kind, name string, prompt []int, params json.RawMessage, classes []string, lost int) {
	want, err := a.want(prompt)
	if err != nil {
		a.line(kind).do(func(r *row) { r.wrong("%v", err) })
		return
	}
	d, policy := a.pick(i)
	rep := a.c.send(ask{url: d.URL, prompt: prompt, tokens: output, stream: i/4%2 == 0, policy: policy, params: params})
	if lost < 0 || rep.class == "gone" { // over TCP, P itself refuses blocks that are not the lease's
		lost = len(prompt) - 1
	}
	a.line(kind).do(func(r *row) {
		r.fired++
		how := rep.judge(want)
		r.outcome.add(how)
		ok := false
		switch {
		case len(classes) == 0:
			ok = how == refused && rep.status == http.StatusBadRequest && strings.HasPrefix(rep.param, "kv_transfer_params")
			r.surfaced.add("400")
		case policy == "fail":
			ok = how == refused && rep.status == http.StatusInternalServerError && rep.reason == "kv_load_"+rep.class && slices.Contains(classes, rep.class)
			r.surfaced.add(rep.class)
		default:
			ok = how == right && slices.Contains(classes, rep.class) && rep.kv.Recomputed == lost && rep.kv.Loaded == len(prompt)-1-lost
			r.surfaced.add(rep.class)
		}
		if !ok {
			r.wrong("%s, %s, %s, %d tokens: want %v and %d lost: %s: %s", name, d.path, policy, len(prompt), classes, lost, how, &rep)
		}
	})
}

// damaged reads with a hand-off of which one thing is changed.
func (a *attack) damaged(i int, kind string) {
	var list []damage
	for _, d := range a.damages {
		if (d.raw == nil) == (kind == kindSigned) {
			list = append(list, d)
		}
	}
	// Every path and policy meets every damage; those that cost a deadline come once.
	d := list[i/4%len(list)]
	if d.few && i/4 >= len(list) {
		d = list[0]
	}
	prompt, twin := a.prompt(50+a.intn(60)), []int(nil)
	twin = a.prompt(len(prompt))
	params, err := a.handoff(a.p, prompt)
	if err != nil {
		a.line(kind).do(func(r *row) { r.wrong("%v", err) })
		return
	}
	other, err := a.handoff(a.p, twin)
	if err != nil {
		a.line(kind).do(func(r *row) { r.wrong("%v", err) })
		return
	}
	forged, err := d.apply(params, other, a.secret, &a.world)
	if err != nil {
		a.line(kind).do(func(r *row) { r.wrong("%s: %v", d.name, err) })
		return
	}
	var classes []string
	if d.want != "" {
		classes = strings.Split(d.want, ",")
	}
	lost := -1
	if d.lost != nil {
		h, err := connector.ParseHandoff(params)
		if err != nil {
			a.line(kind).do(func(r *row) { r.wrong("%v", err) })
			return
		}
		lost = d.lost(h, len(prompt))
	}
	a.bad(i, kind, d.name, prompt, forged, classes, lost)
	for _, h := range []json.RawMessage{params, other} {
		if err := a.release(a.p, h); err != nil {
			a.line(kind).do(func(r *row) { r.wrong("%v", err) })
		}
	}
}

// use reads with a new hand-off and returns it.
func (a *attack) use(i int) stale {
	s := stale{prompt: a.prompt(40 + a.intn(60))}
	params, err := a.handoff(a.p, s.prompt)
	s.params = params
	if err == nil {
		rep := a.c.send(ask{url: a.d[i%2].URL, prompt: s.prompt, tokens: output, params: params})
		if rep.status != http.StatusOK || rep.kv.Loaded != len(s.prompt)-1 {
			err = fmt.Errorf("first use: %s", &rep)
		}
	}
	if err != nil {
		a.line(kindReplayed).do(func(r *row) { r.wrong("%v", err) })
	}
	return s
}

// foreign uses a hand-off for another prompt of the same length.
func (a *attack) foreign(i int) {
	prompt := a.prompt(40 + a.intn(60))
	params, err := a.handoff(a.p, prompt)
	if err != nil {
		a.line(kindForeign).do(func(r *row) { r.wrong("%v", err) })
		return
	}
	other := slices.Clone(prompt)
	other[a.intn(len(other))] ^= 1
	a.bad(i, kindForeign, "one other token", other, params, []string{"refused"}, -1)
	if err := a.release(a.p, params); err != nil {
		a.line(kindForeign).do(func(r *row) { r.wrong("%v", err) })
	}
}

// stale uses a hand-off whose lease has ended.
func (a *attack) stale(i int, kind string, s stale) {
	a.bad(i, kind, "stale", s.prompt, s.params, []string{"gone"}, -1)
}

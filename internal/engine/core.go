package engine

import (
	"cmp"
	"slices"
	"strconv"
	"time"

	"tandem/internal/connector"
	"tandem/internal/kv"
	"tandem/internal/sample"
	"tandem/internal/sched"
)

// A group is one request with all its choices.
type group struct {
	req     Request
	stream  *Stream
	id      kv.RequestID
	arrival uint64
	seed    uint64
	max     int // tokens of each choice

	choices []*choice // those that were submitted to the scheduler, by index
	left    int       // choices that have not ended
	forked  bool      // the choices behind the first were submitted
	over    bool      // ended, removed from the core
	tracked bool      // the connector keeps the hand-off's lease alive, unless the core is stuck

	prompt []sample.TokenLogprobs // collected prompt log-probabilities
	usage  Usage

	submitted, planned, first time.Time
}

// A choice is one output of a group, a request of the scheduler.
type choice struct {
	g     *group
	index int
	id    kv.RequestID
	state *sample.State
	over  bool
	last  time.Time // of the latest token

	// Of the step being applied.
	out Output
	fin sched.Finished // set when over
}

// effectKind says what the loop does for the core.
type effectKind uint8

const (
	doEmit    effectKind = iota + 1 // out to the group's stream; last ends the request
	doGrant                         // lease of fin, then out
	doLoad                          // start load
	doCancel                        // cancel the load of id
	doTrack                         // hand-off of g needs renewals
	doUntrack                       // hand-off of g needs no renewal any more
	doReturn                        // give the hand-off of g back unread
)

// An effect is something that the core decided and the loop carries out.
type effect struct {
	kind effectKind
	g    *group
	id   kv.RequestID
	out  Output
	last bool
	load connector.LoadSpec
	fin  sched.Finished
}

// A core decides what an engine does. It belongs to one goroutine; it has no
// clock, lock or I/O. Methods leave what is to be done in effects, in order.
type core struct {
	sched   *sched.Scheduler
	policy  FailPolicy
	eos     []kv.Token
	metrics *Metrics

	groups   map[*group]struct{}
	loads    map[kv.RequestID]*group // under way, those of aborted requests too
	arrivals uint64
	stuck    bool // nothing moves before peers return leases

	sampler sample.Sampler
	results []sched.Result
	plan    *sched.Plan
	made    []*choice // choices that got a token in the step being applied
	effects []effect
}

func newCore(s *sched.Scheduler, policy FailPolicy, eos []kv.Token, m *Metrics) *core {
	return &core{
		sched: s, policy: policy, eos: eos, metrics: m,
		groups: make(map[*group]struct{}), loads: make(map[kv.RequestID]*group),
	}
}

func (c *core) do(e effect) { c.effects = append(c.effects, e) }

// submit takes a checked request. The error is the scheduler's refusal.
func (c *core) submit(g *group, now time.Time) error {
	c.arrivals++
	g.arrival, g.left, g.submitted = c.arrivals, g.req.N, now
	g.max = c.sched.Limit() - len(g.req.Prompt)
	if m := g.req.Params.MaxTokens; m > 0 {
		g.max = min(g.max, m)
	}
	g.usage.Prompt = len(g.req.Prompt)
	if err := c.add(g, 0); err != nil {
		return err
	}
	c.groups[g] = struct{}{}
	if h := g.req.Handoff; h != nil && h.Tokens == 0 {
		c.giveBack(g)
	}
	return nil
}

// add submits choice i of g to the scheduler. Only the first may load and lease.
func (c *core) add(g *group, i int) error {
	ch := &choice{g: g, index: i, id: g.id + kv.RequestID("."+strconv.Itoa(i))}
	ch.state = sample.NewState(g.req.Params, g.req.Prompt, c.eos, g.max, i, g.seed)
	r := sched.Request{
		ID: ch.id, Prompt: g.req.Prompt, MaxTokens: g.max, Priority: g.req.Priority,
		Arrival: g.arrival, Salt: g.req.Salt, Tag: ch,
	}
	if i == 0 {
		r.NoCache, r.Lease = g.req.PromptLogprobs >= 0, g.req.RemoteDecode
		if g.req.Handoff != nil {
			r.External = g.req.Handoff.Tokens
		}
	}
	if err := c.sched.Add(r); err != nil {
		return err
	}
	g.choices = append(g.choices, ch)
	return nil
}

// next plans a step and reports whether there is anything to compute.
func (c *core) next(now time.Time) bool {
	c.plan = c.sched.Plan()
	for i := range c.plan.Loads {
		l := &c.plan.Loads[i]
		ch := l.Tag.(*choice)
		c.start(ch.g, now)
		c.loads[l.ID] = ch.g
		c.do(effect{kind: doLoad, load: connector.LoadSpec{
			ID: l.ID, ClientID: ch.g.req.ClientID, Handoff: ch.g.req.Handoff, Prompt: ch.g.req.Prompt,
			Local: l.Blocks, FromTile: l.FromTile, ToTile: l.ToTile,
		}})
	}
	for _, it := range c.plan.Unread {
		c.giveBack(it.Tag.(*choice).g)
	}
	for _, it := range c.plan.Items {
		c.start(it.Tag.(*choice).g, now)
	}
	if n := len(c.plan.Preempted); n > 0 {
		c.metrics.Preempted(n)
	}
	c.renewals()
	return len(c.plan.Batch.Seqs) > 0
}

func (c *core) start(g *group, now time.Time) {
	if g.planned.IsZero() {
		g.planned = now
	}
}

// renewals stops the renewals of all hand-offs while the core is stuck. Its peers
// may be stuck too, each waiting for the leases that the other keeps alive; then
// the leases end at their deadlines, and somebody goes on.
func (c *core) renewals() {
	stuck := c.sched.Stuck()
	if stuck == c.stuck {
		return
	}
	c.stuck = stuck
	kind := doTrack
	if stuck {
		kind = doUntrack
	}
	var all []*group
	for g := range c.groups {
		if g.tracked {
			all = append(all, g)
		}
	}
	slices.SortFunc(all, func(a, b *group) int { return cmp.Compare(a.arrival, b.arrival) })
	for _, g := range all {
		c.do(effect{kind: kind, g: g})
	}
}

// giveBack returns g's hand-off unread.
func (c *core) giveBack(g *group) {
	c.untrack(g)
	c.do(effect{kind: doReturn, g: g})
}

func (c *core) untrack(g *group) {
	if g.tracked {
		g.tracked = false
		c.do(effect{kind: doUntrack, g: g})
	}
}

// apply samples from the rows of the planned step and ends it.
func (c *core) apply(rows [][]float32, now time.Time) {
	items, seqs := c.plan.Items, c.plan.Batch.Seqs
	c.results = c.results[:0]
	for i := range items {
		ch := items[i].Tag.(*choice)
		n := seqs[i].Logits
		c.results = append(c.results, c.sampleSeq(ch, &seqs[i], items[i].Sample, rows[:n]))
		rows = rows[n:]
	}
	for _, f := range c.sched.Apply(c.results) {
		ch := f.Tag.(*choice)
		ch.over, ch.fin = true, f
		ch.out.Finish = FinishReason(f.Why.String())
	}
	for i, ch := range c.made {
		c.emit(ch, now)
		c.made[i] = nil
	}
	c.made = c.made[:0]
}

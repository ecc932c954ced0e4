package engine

import (
	"errors"
	"fmt"
	"time"

	"tandem/internal/connector"
	"tandem/internal/kv"
	"tandem/internal/sample"
	"tandem/internal/sched"
)

// sampleSeq makes the result of one sequence of a step from its rows.
func (c *core) sampleSeq(ch *choice, seq *kv.Seq, last bool, rows [][]float32) sched.Result {
	g := ch.g
	if g.over { // since the step was planned
		return sched.Result{}
	}
	if err := c.probe(g, seq.Pos+len(seq.Tokens)-len(rows), rows); err != nil {
		c.fail(g, err)
		return sched.Result{}
	}
	if !last {
		return sched.Result{}
	}
	row := rows[len(rows)-1]
	t, err := c.sampler.Next(ch.state, row)
	if err != nil {
		c.fail(g, fmt.Errorf("engine: sampling token %d of %s: %w", ch.state.Tokens()+1, ch.id, err))
		return sched.Result{}
	}
	ch.out = Output{Choice: ch.index, Tokens: g.stream.one(t)}
	if n := g.req.Params.Logprobs; n >= 0 {
		lp, err := c.sampler.Logprobs(row, t, n)
		if err != nil { // Next would have refused the row
			c.fail(g, fmt.Errorf("engine: log-probabilities of %s: %w", ch.id, err))
			return sched.Result{}
		}
		ch.out.Logprobs = []sample.TokenLogprobs{lp}
	}
	c.made = append(c.made, ch)
	g.usage.Completion++
	res := sched.Result{Token: t}
	switch ch.state.Accept(t) {
	case sample.StopEOS:
		res.Finish = sched.Stop
	case sample.StopToken:
		res.Finish = sched.Stop
		ch.out.StopToken = &ch.out.Tokens[0]
	case sample.Length, sample.Continue: // the scheduler counts them
	}
	return res
}

// probe collects the log-probabilities of the prompt tokens that follow the
// positions pos, pos+1, … of rows. Rows before the last of a prompt come once
// each, and only where they are asked for.
func (c *core) probe(g *group, pos int, rows [][]float32) error {
	for i, row := range rows {
		at := pos + i + 1
		if at >= len(g.req.Prompt) {
			break
		}
		lp, err := c.sampler.Logprobs(row, g.req.Prompt[at], g.req.PromptLogprobs)
		if err != nil {
			return fmt.Errorf("engine: log-probabilities of prompt token %d of %s: %w", at, g.id, err)
		}
		g.prompt = append(g.prompt, lp)
	}
	return nil
}

// emit sends the token that ch got in this step, and what comes with it.
func (c *core) emit(ch *choice, now time.Time) {
	g := ch.g
	if g.over { // another choice failed in the same step
		return
	}
	if ch.last.IsZero() {
		c.opened(ch, now)
	} else {
		c.metrics.InterToken(now.Sub(ch.last))
	}
	ch.last = now
	if !ch.over {
		c.do(effect{kind: doEmit, g: g, out: ch.out})
		return
	}
	e := effect{kind: doEmit, fin: ch.fin}
	if len(ch.fin.Blocks) > 0 {
		e.kind = doGrant
	}
	c.ended(ch, ch.out, e)
}

// opened takes note of the first token of ch: the prompt's counts stand, and
// the other choices can start on its blocks.
func (c *core) opened(ch *choice, now time.Time) {
	g := ch.g
	if ch.index != 0 {
		return
	}
	g.first = now
	counts := ch.fin.Counts
	if !ch.over {
		counts, _ = c.sched.Counts(ch.id)
	}
	g.counts(counts)
	c.metrics.FirstToken(now.Sub(g.submitted))
	c.metrics.Admitted(g.usage)
	ch.out.PromptLogprobs, g.prompt = g.prompt, nil
	ch.out.Usage = g.usage
	g.forked = true
	for i := 1; i < g.req.N; i++ {
		if err := c.add(g, i); err != nil {
			// The same prompt was accepted as choice 0.
			panic(fmt.Sprintf("engine: choice %d of %s: %v", i, g.id, err))
		}
	}
}

func (g *group) counts(n sched.Counts) {
	g.usage.LocalHit, g.usage.Loaded = n.Local, n.Loaded
	g.usage.Recomputed, g.usage.Computed = n.Recomputed, n.Computed
}

// ended sends the last output of ch by effect e, and ends the group with its
// last choice.
func (c *core) ended(ch *choice, out Output, e effect) {
	g := ch.g
	ch.over = true
	g.left--
	out.Usage = g.usage
	e.g, e.out, e.last = g, out, g.left == 0
	c.do(e)
	if e.last {
		c.close(g)
	}
}

// close takes g out of the core.
func (c *core) close(g *group) {
	g.over = true
	c.untrack(g)
	delete(c.groups, g)
}

// fail ends g, which is not over, with err, in whatever state its choices are.
func (c *core) fail(g *group, err error) {
	c.withdraw(g)
	c.cut(g, FinishError, err)
}

// abort ends g because its reader gave up, or because the engine stops.
func (c *core) abort(g *group, err error) {
	if g.over {
		return
	}
	c.withdraw(g)
	c.cut(g, FinishAbort, err)
}

// kill ends g with err and leaves the scheduler alone, whose state may be
// broken. Loads are cancelled, since they write to memory.
func (c *core) kill(g *group, err error) {
	for _, ch := range g.choices {
		if c.loads[ch.id] != nil {
			c.do(effect{kind: doCancel, id: ch.id})
		}
	}
	c.cut(g, FinishError, err)
}

// cut ends g with an output that says why.
func (c *core) cut(g *group, why FinishReason, err error) {
	c.do(effect{kind: doEmit, g: g, last: true, out: Output{Finish: why, Usage: g.usage, Err: err}})
	c.close(g)
}

// withdraw takes the choices of g out of the scheduler, those that are there.
func (c *core) withdraw(g *group) {
	for _, ch := range g.choices {
		c.drop(ch)
	}
}

func (c *core) drop(ch *choice) {
	a := c.sched.Abort(ch.id)
	if a.Loading {
		c.do(effect{kind: doCancel, id: ch.id})
	}
	if a.Unread {
		c.giveBack(ch.g)
	}
}

// stop ends choice i of g with reason "stop".
func (c *core) stop(g *group, i int) {
	if g.over || i < 0 || i >= len(g.choices) || g.choices[i].over || !g.forked {
		return
	}
	ch := g.choices[i]
	c.drop(ch)
	c.ended(ch, Output{Choice: i, Finish: FinishStop}, effect{kind: doEmit})
}

// errCut is the cause of a load that ended by the connector's own doing.
var errCut = errors.New("the load was ended before its time")

// loaded takes the report of a load. It returns how many tokens of a request
// that goes on are computed here instead, or 0.
func (c *core) loaded(rep connector.LoadReport) (missing int) {
	g := c.loads[rep.ID]
	if g == nil {
		return 0
	}
	delete(c.loads, rep.ID)
	policy := c.policy
	if g.req.Policy != "" {
		policy = g.req.Policy
	}
	res := c.sched.LoadDone(rep.ID, sched.LoadReport{Invalid: rep.Invalid, Fail: policy == PolicyFail})
	c.untrack(g)
	err := rep.Err
	if err != nil { // also when its request has gone: the connector's log and counts have it too
		c.metrics.LoadFailed(err.Class)
	}
	if res.Missing == 0 { // or nobody's any more
		return 0
	}
	if err == nil { // it was cancelled, though not by us: its connector is ending
		err = &connector.LoadError{
			Peer: g.req.Handoff.EngineID, Class: connector.ClassRead, Tiles: rep.Invalid, Err: errCut,
		}
		c.metrics.LoadFailed(err.Class)
	}
	g.usage.Failure = err.Class
	if !res.Finished {
		return res.Missing
	}
	g.counts(res.Counts)
	c.fail(g, err)
	return 0
}

package main

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"tandem/internal/fault"
	"tandem/test/cluster"
)

// gale is a plan with every cell of the given points, each now and then. What
// ends P, or silences it for good, is left out.
func gale(seed uint64, probability float64, points ...fault.Point) fault.Plan {
	plan := fault.Plan{Seed: seed}
	for _, c := range fault.Cells() {
		if !slices.Contains(points, c.Point) || c.Point == fault.Process && c.Action != fault.Delay {
			continue
		}
		f := fault.Fault{Point: c.Point, Action: c.Action, When: fault.When{Probability: probability}}
		if c.Action == fault.Delay {
			f.Delay = fault.Duration(20 * time.Millisecond)
		}
		plan.Faults = append(plan.Faults, f)
	}
	return plan
}

// storm lets everything go wrong at once: every fault now and then, clients that
// leave, prompts that share beginnings, pools that are too small for what runs,
// engines of different block sizes and ranks.
func storm(c *campaign, t testing.TB) error {
	f, err := c.chaos(t, parts{
		prefill: []string{"--block-size", "32", "--num-gpu-blocks-override", "60", matrixLease.flag("kv_lease_duration")},
		decode: []string{
			matrixLoad.flag("load_timeout"), matrixHandshake.flag("handshake_timeout"), matrixStall.flag("no_progress_timeout"), "--max-num-batched-tokens", "64",
		},
		router: []string{"--leg-timeout", "5s", "--silence-timeout", "5s"},
		own:    [][]string{{"--block-size", "64", "--num-gpu-blocks-override", "30"}, {"--block-size", "16", "--tensor-parallel-size", "2", "--num-gpu-blocks-override", "110"}},
	})
	if err != nil {
		return err
	}
	n := c.scale(1500, 300)
	r := row{what: fmt.Sprintf("storm: all faults at once, %d requests", n)}
	defer func() { c.table.add(r) }()
	var roots [][]int
	for range 6 {
		roots = append(roots, f.prompt(300))
	}
	asks, wants, errs := make([]ask, n), make([][]int, n), make([]error, n)
	each(n, 8, func(i int) {
		d, policy := f.pick(i)
		prompt := f.prompt(1 + f.intn(300))
		if f.intn(2) == 0 {
			prompt = slices.Concat(roots[f.intn(len(roots))][:f.intn(300)], prompt)
		}
		asks[i] = ask{url: d.router.URL, prompt: prompt, tokens: 1 + f.intn(40), stream: f.intn(2) == 0, policy: policy}
		wants[i], errs[i] = f.wants(prompt, asks[i].tokens)
	})
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	armed := map[*cluster.Proc]fault.Plan{
		f.p: gale(c.seed, .01, fault.Seal, fault.Notice, fault.Process),
	}
	for _, d := range f.d {
		armed[d.Proc] = gale(c.seed+1, .015, fault.Handshake, fault.Claim, fault.ReadPost, fault.ReadPiece, fault.Return, fault.Heartbeat)
		armed[d.router] = gale(c.seed+2, .003, fault.HTTP)
	}
	for p, plan := range armed {
		if err := arm(p, plan); err != nil {
			return err
		}
	}
	var mu sync.Mutex
	each(n, 12, func(i int) {
		a, left := asks[i], context.CancelFunc(func() {})
		if f.intn(4) == 0 {
			a.ctx, left = context.WithTimeout(context.Background(), time.Duration(f.intn(60))*time.Millisecond)
		}
		rep := c.send(a)
		left()
		mu.Lock()
		defer mu.Unlock()
		how := rep.judge(wants[i])
		if a.ctx != nil && a.ctx.Err() != nil && how == broken {
			r.outcome.add("left")
			return
		}
		note(&r, &rep, wants[i], 0)
		r.slowest = max(r.slowest, rep.took)
	})
	for p := range armed {
		k, err := firedAll(p)
		if err != nil {
			return err
		}
		r.fired += k
		if err := disarm(p); err != nil {
			return err
		}
	}
	settleIn(&r, c.pulse.start(), matrixLease.limit()+backLimit, f.engines()...)
	f.alive(&r)
	if r.fired < n/10 {
		r.wrong("%d faults fired", r.fired)
	}
	ex, err := f.exam(40, 60, 400)
	if err != nil {
		return err
	}
	ex.apart(func(*decoder) {})
	for i := range ex.replies {
		if rep := &ex.replies[i]; rep.judge(ex.wants[i]) != right || rep.kv.Loaded != len(ex.asks[i].prompt)-1 {
			r.wrong("afterwards: %s", rep)
		}
	}
	// What the storm left in the prefix caches is right.
	each(min(n, 300), 4, func(i int) {
		a := asks[i]
		rep := c.send(a)
		mu.Lock()
		defer mu.Unlock()
		if how := rep.judge(wants[i]); how != right {
			r.wrong("afterwards, from the caches: %s: %s", how, &rep)
		}
	})
	return nil
}

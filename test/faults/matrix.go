package main

import (
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"tandem/internal/fault"
	"tandem/test/cluster"
)

// least is how often a cell's fault must fire, and leastAll all together.
const (
	least    = 5
	leastAll = 500
)

// A matrix is the section that tries every cell of the fault package.
type matrix struct {
	c     *campaign
	plain *fleet
	meet  *fleet // whose connections end when they are not used
	wait  *fleet // whose decode engines run one request at a time
	// routers have short limits: one for each D of plain, and one for both.
	routers []*cluster.Proc
	number  int
}

// every cell, each with its own traffic.
func everyCell(c *campaign, t testing.TB) error {
	m := &matrix{c: c}
	limits := []string{
		matrixLoad.flag("load_timeout"), matrixHandshake.flag("handshake_timeout"), matrixStall.flag("no_progress_timeout"),
	}
	lease := matrixLease.flag("kv_lease_duration")
	var err error
	if m.plain, err = c.chaos(t, parts{prefill: []string{lease}, decode: limits}); err != nil {
		return err
	}
	if m.meet, err = c.chaos(t, parts{prefill: []string{lease}, decode: append([]string{extra + "engine_ttl=0.02"}, limits...)}); err != nil {
		return err
	}
	beats := waitLease.flag("kv_lease_duration")
	if m.wait, err = c.chaos(t, parts{
		prefill: []string{beats}, decode: append([]string{beats, "--max-num-seqs", "1", "--sim-token-time", waitToken.limit().String()}, limits...),
	}); err != nil {
		return err
	}
	p, d := m.plain.p.URL, m.plain.d
	for i, decode := range [][]string{{d[0].URL}, {d[1].URL}, {d[0].URL, d[1].URL}} {
		args := []string{
			"route", "--port", "0", "--enable-chaos", "--leg-timeout", matrixLeg.limit().String(), "--silence-timeout", matrixLeg.limit().String(),
			"--retries", strconv.Itoa(len(decode) - 1), "--prefill", p,
		}
		for _, url := range decode {
			args = append(args, "--decode", url)
		}
		m.routers = append(m.routers, cluster.Start(t, fmt.Sprintf("router-legs-%d", i), args...).Ready(t))
	}
	all := 0
	for _, cell := range fault.Cells() {
		r := row{what: fmt.Sprintf("%s %s", cell.Point, cell.Action)}
		if err := m.try(&r, cell, trialOf(cell)); err != nil {
			r.wrong("%v", err)
		}
		select {
		case <-m.plain.p.Done(): // r says so; the other cells need one
			m.plain.again("P", m.plain.addr)
		default:
		}
		if all += r.fired; r.fired < least {
			r.wrong("it fired %d times, want at least %d", r.fired, least)
		}
		c.table.add(r)
	}
	sum := row{what: "all cells", fired: all}
	if all < leastAll {
		sum.wrong("%d faults fired, want at least %d", all, leastAll)
	}
	c.table.add(sum)
	return nil
}

// try tries one cell.
func (m *matrix) try(r *row, cell fault.Cell, t trial) error {
	m.number++
	for i := range t.faults {
		t.faults[i].Point, t.faults[i].Action = cell.Point, cell.Action
	}
	plan := fault.Plan{Seed: m.c.seed + uint64(m.number), Faults: t.faults}
	f := m.plain
	switch t.way {
	case meeting:
		f = m.meet
	case waiting:
		f = m.wait
	case rounds:
		return m.rounds(r, cell, t, plan)
	case legs:
		return m.legs(r, cell, t)
	default:
	}
	targets := []*cluster.Proc{f.d[0].Proc, f.d[1].Proc}
	if cell.Point == fault.Seal || cell.Point == fault.Notice {
		targets = []*cluster.Proc{f.p}
	}
	n := asked
	if t.way == meeting {
		n *= 2
	}
	ex, err := f.exam(n, 60, 200)
	if err != nil {
		return err
	}
	for _, p := range targets {
		if err := arm(p, plan); err != nil {
			return err
		}
	}
	var filled time.Duration
	switch t.way {
	case apart:
		ex.apart(func(*decoder) {})
	case meeting:
		ex.apart(func(d *decoder) { alone(d.Proc) })
	case waiting:
		filled, err = ex.behind()
	default:
		ex.together()
	}
	if err != nil {
		return err
	}
	after := m.c.pulse.start()
	if t.behind { // the fault is behind the answer
		m.back(r, f, after, t.lasts)
	}
	for _, p := range targets {
		n, err := fired(p, cell)
		if err != nil {
			return err
		}
		r.fired += n
		if err := disarm(p); err != nil {
			return err
		}
	}
	ex.mark(r, &t, filled+matrixLoad.limit()+grace)
	if !t.behind {
		m.back(r, f, after, t.lasts)
	}
	return m.control(r, f)
}

// back waits until everything is free again. What ends by a deadline alone has
// its time from there.
func (m *matrix) back(r *row, f *fleet, after watch, lasts time.Duration) {
	settleIn(r, after, lasts+backLimit, f.engines()...)
	f.alive(r)
}

// control asks again without a fault: right, and loaded from P.
func (m *matrix) control(r *row, f *fleet) error {
	ex, err := f.exam(4, 30, 90)
	if err != nil {
		return err
	}
	ex.together()
	for i := range ex.replies {
		if rep := &ex.replies[i]; rep.judge(ex.wants[i]) != right || rep.kv.Loaded != len(ex.asks[i].prompt)-1 {
			r.wrong("afterwards, %s: %s", ex.on[i].path, rep)
		}
	}
	return nil
}

// alone waits until a decode engine has no connection to a peer.
func alone(p *cluster.Proc) {
	for deadline := time.Now().Add(5 * time.Second); time.Now().Before(deadline); time.Sleep(2 * time.Millisecond) {
		if n, err := peerCount(p); err == nil && n == 0 {
			return
		}
	}
}

// rounds hits P as a whole, once in each round.
func (m *matrix) rounds(r *row, cell fault.Cell, t trial, plan fault.Plan) error {
	f := m.plain
	for round := range least + 1 {
		ex, err := f.exam(askedAll, 60, 200)
		if err != nil {
			return err
		}
		if cell.Action == fault.Kill { // loads are there to be hit, half of them
			if err := f.handoffs(ex); err != nil {
				return err
			}
		}
		if err := arm(f.p, plan); err != nil {
			return err
		}
		ex.together()
		after := m.c.pulse.start()
		if cell.Action == fault.Kill {
			// Its counts ended with it: it was killed, and not from here.
			select {
			case <-f.p.Done():
			case <-time.After(5 * time.Second):
				return errors.New("nothing killed P")
			}
			if f.p.ExitCode() == -1 {
				r.fired++
			}
			ex.mark(r, &t, matrixLoad.limit()+grace)
			settle(r, after, f.d[0].Proc, f.d[1].Proc)
			f.again("P", f.addr)
			good := row{}
			f.first(&good, round)
			r.missed = append(r.missed, good.missed...)
			continue
		}
		n, err := fired(f.p, cell)
		if err != nil {
			return err
		}
		r.fired += n
		if err := disarm(f.p); err != nil {
			return err
		}
		ex.mark(r, &t, matrixLoad.limit()+grace)
		m.back(r, f, after, t.lasts)
		if err := m.control(r, f); err != nil {
			return err
		}
	}
	return nil
}

// legs hits the router's calls: of prefill legs every other one, of decode legs
// every other one that comes so far; once with one D, and once with a second one
// that may answer in its place.
func (m *matrix) legs(r *row, cell fault.Cell, t trial) error {
	f := m.plain
	host := func(p *cluster.Proc) string {
		u, err := url.Parse(p.URL)
		if err != nil {
			return p.URL
		}
		return u.Host
	}
	var after watch
	for i, router := range m.routers {
		// With a second D, only the first one fails: there is no second P.
		plan, peers, limit := fault.Plan{}, []*cluster.Proc{f.p, f.d[i%2].Proc}, 2*matrixLeg.limit()
		if i == len(f.d) {
			peers, limit = peers[1:], 2*limit
		}
		for _, peer := range peers {
			x := t.faults[0]
			x.Point, x.Action, x.When = cell.Point, cell.Action, fault.When{Pattern: "XO", Peer: host(peer)}
			if cell.Action == fault.Cut || cell.Action == fault.Stall {
				x.Bytes = 40
			}
			plan.Faults = append(plan.Faults, x)
		}
		ex, err := f.exam(asked, 60, 200)
		if err != nil {
			return err
		}
		for k := range ex.asks {
			ex.asks[k].url = router.URL
		}
		before := router.Metric(f.t, "tandem_router_failed_legs_total")
		if err := arm(router, plan); err != nil {
			return err
		}
		ex.together()
		after = m.c.pulse.start()
		n, err := fired(router, cell)
		if err != nil {
			return err
		}
		r.fired += n
		if err := disarm(router); err != nil {
			return err
		}
		ex.mark(r, &t, limit+grace)
		for range int(router.Metric(f.t, "tandem_router_failed_legs_total") - before) {
			r.surfaced.add("failed leg")
		}
	}
	m.back(r, f, after, t.lasts)
	return m.control(r, f)
}

// How long requests wait in the fleet that runs one at a time: longer than a
// lease that nobody renews.
const (
	waitLease  = stretch(900 * time.Millisecond)
	waitToken  = stretch(time.Millisecond)
	waitTokens = 1400
)

// behind sends all while a long request fills each D, and returns how long that
// did.
func (ex *exam) behind() (filled time.Duration, err error) {
	var wg sync.WaitGroup
	replies := make([]reply, len(ex.f.d))
	for i, d := range ex.f.d {
		over := make(chan struct{})
		wg.Go(func() {
			defer close(over)
			replies[i] = ex.f.c.send(ask{url: d.URL, prompt: []int{20}, tokens: waitTokens})
		})
		for running := 0; running == 0; {
			select {
			case <-over:
				return 0, fmt.Errorf("the request that fills %s was over before it was seen: %s", d.Name, &replies[i])
			case <-time.After(time.Millisecond):
			}
			b, err := read(d.Proc)
			if err != nil {
				return 0, err
			}
			running = b.Running
		}
	}
	ex.together()
	wg.Wait()
	for i := range replies {
		if len(replies[i].ids) != waitTokens {
			return 0, fmt.Errorf("the request that fills %s: %s", ex.f.d[i].Name, &replies[i])
		}
		filled = max(filled, replies[i].took)
	}
	return filled, nil
}

// mark notes what came of all in r.
func (ex *exam) mark(r *row, t *trial, limit time.Duration) {
	failed, by := 0, map[string]int{}
	for i := range ex.replies {
		rep := &ex.replies[i]
		note(r, rep, ex.wants[i], limit)
		how := rep.judge(ex.wants[i])
		switch {
		case rep.class != "" && !slices.Contains(t.classes, rep.class):
			r.wrong("its load failed otherwise than as %v: %s", t.classes, rep)
		case rep.class != "" && (ex.policy[i] == "fail") != (how == refused):
			r.wrong("policy %s: %s: %s", ex.policy[i], how, rep)
		case rep.class == "" && how == right && t.way != legs && rep.kv.Loaded != len(ex.asks[i].prompt)-1:
			r.wrong("without a failure, not all is loaded: %s", rep)
		case rep.class == "" && how == refused && t.way != legs && !t.dies:
			r.wrong("an error that no load made: %s", rep)
		}
		if rep.class != "" {
			failed++
			by[ex.policy[i]]++
		} else if how == right {
			r.surfaced.add("loaded")
		}
	}
	if failed < t.fails {
		r.wrong("%d of %d loads failed, want at least %d", failed, len(ex.replies), t.fails)
	}
	if t.fails > 1 && len(by) < len(policies) {
		r.wrong("loads failed under one policy only: %v", by)
	}
}

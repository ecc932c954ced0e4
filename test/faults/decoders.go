package main

import (
	"net/url"
	"sync"
	"syscall"
	"testing"
	"time"
)

// claimTime returns how long P keeps a claim whose D says nothing more: the load's
// limit and a quarter.
func claimTime() time.Duration { return peerLoad.limit() + peerLoad.limit()/4 }

// deadLease is how long P keeps what a dead D did not give back.
const deadLease = stretch(2 * time.Second)

// decoders kills and starts each D, and freezes and thaws it, while it reads.
func decoders(c *campaign, t testing.TB) error {
	f, err := c.start(t, parts{
		prefill: []string{deadLease.flag("kv_lease_duration")},
		decode:  []string{"--host", home(), peerHandshake.flag("handshake_timeout"), peerLoad.flag("load_timeout")},
	})
	if err != nil {
		return err
	}
	killed := row{what: "D killed and started again while it reads"}
	good := row{what: "first good request of the new D"}
	frozen := row{what: "D frozen and thawed while it reads"}
	defer func() { c.table.add(killed); c.table.add(good); c.table.add(frozen) }()
	for i := range c.scale(20, 6) {
		if err := f.killD(&killed, &good, i); err != nil {
			return err
		}
	}
	for i := range c.scale(10, 4) {
		if err := f.freezeD(&frozen, i); err != nil {
			return err
		}
	}
	f.alive(&frozen)
	return nil
}

// crowd sends n requests of some length through the router of d and returns soon
// after, with a function that waits for the answers.
func (f *fleet) crowd(d *decoder, n int) (wait func() ([]reply, [][]int), err error) {
	const tokens = 60
	asks, wants, replies := make([]ask, n), make([][]int, n), make([]reply, n)
	for i := range n {
		asks[i] = ask{url: d.router.URL, prompt: f.prompt(200 + f.intn(700)), tokens: tokens, stream: i%2 == 0, policy: policies[i/2%2]}
		if wants[i], err = f.wants(asks[i].prompt, tokens); err != nil {
			return nil, err
		}
	}
	var wg sync.WaitGroup
	for i := range asks {
		wg.Go(func() { replies[i] = f.c.send(asks[i]) })
	}
	time.Sleep(time.Duration(f.intn(20_000)) * time.Microsecond)
	return func() ([]reply, [][]int) { wg.Wait(); return replies, wants }, nil
}

func (f *fleet) killD(r, good *row, round int) error {
	d := f.d[round%len(f.d)]
	wait, err := f.crowd(d, 8)
	if err != nil {
		return err
	}
	u, err := url.Parse(d.URL)
	if err != nil {
		return err
	}
	d.Kill()
	r.fired++
	replies, wants := wait()
	w := f.c.pulse.start()
	for i := range replies {
		note(r, &replies[i], wants[i], peerLoad.limit()+grace)
	}
	// A D that had read, and died before its return left, has lost it: that lease
	// ends at its deadline.
	settleIn(r, w, deadLease.limit()+backLimit, f.p)
	d.Proc = f.engine(d.Name, "kv_consumer", append(d.args, "--port", u.Port())...).Ready(f.t)
	f.first(good, round)
	settle(good, f.c.pulse.start(), f.engines()...)
	f.alive(r)
	return nil
}

func (f *fleet) freezeD(r *row, round int) error {
	d := f.d[round%len(f.d)]
	wait, err := f.crowd(d, 8)
	if err != nil {
		return err
	}
	if err := stop(f.t, d.Proc); err != nil {
		return err
	}
	r.fired++
	// Half of the rounds outlast the claims, which then end without D.
	time.Sleep(time.Duration(round%2+1) * peerLoad.limit() * 3 / 4)
	d.Signal(f.t, syscall.SIGCONT)
	w := f.c.pulse.start()
	replies, wants := wait()
	r.took(w.took(), peerLoad.limit()+grace)
	for i := range replies {
		note(r, &replies[i], wants[i], 0)
	}
	settleIn(r, f.c.pulse.start(), claimTime()+backLimit, f.engines()...)
	return nil
}

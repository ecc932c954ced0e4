package main

import (
	"fmt"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"
)

// Limits of the engines of this section: how long a load, and a handshake, may take.
const (
	peerLoad      = stretch(time.Second)
	peerHandshake = stretch(500 * time.Millisecond)
)

// grace is what an answer may take beyond its deadline.
const grace = 500 * time.Millisecond

// firstGood is how long the first good request may take after a peer is ready.
const firstGood = time.Second

// A comeback is the section in which P comes and goes.
type comeback struct {
	*fleet

	pids []int // of the decode engines
	own  []map[uint64]int64
}

// peers kills and starts P, and freezes and thaws it, again and again.
func peers(c *campaign, t testing.TB) error {
	f, err := c.start(t, parts{
		prefill: []string{"--num-gpu-blocks-override", "4096"},
		decode:  []string{peerHandshake.flag("handshake_timeout"), peerLoad.flag("load_timeout")},
	})
	if err != nil {
		return err
	}
	b := &comeback{fleet: f}
	for _, d := range f.d {
		b.pids = append(b.pids, d.PID)
		own, err := memoryFiles(d.PID)
		if err != nil {
			return err
		}
		b.own = append(b.own, own)
	}
	if err := b.kills(c.scale(30, 8)); err != nil {
		return err
	}
	return b.freezes(c.scale(10, 3))
}

// kills runs n rounds of SIGKILL and a new P.
func (b *comeback) kills(n int) error {
	r := row{what: fmt.Sprintf("P killed and started again, %d rounds", n)}
	maps := row{what: "D's maps of the dead P's memory", limit: time.Second}
	good := row{what: "first good request of the new P, both Ds", limit: firstGood}
	defer func() { b.c.table.add(r); b.c.table.add(good); b.c.table.add(maps) }()
	start, err := shmem()
	if err != nil {
		return err
	}
	var fell []float64
	for i := range n {
		if err := b.warm(); err != nil {
			return err
		}
		files, err := memoryFiles(b.p.PID)
		if err != nil {
			return err
		}
		held, err := memoryFiles(b.d[0].PID)
		if err != nil {
			return err
		}
		mapped := int64(0)
		for inode := range files {
			mapped += held[inode]
		}
		if mapped == 0 {
			maps.wrong("round %d: D had no map of P's memory", i)
		}

		flight, err := b.inFlight(&r, 8)
		if err != nil {
			return err
		}
		before, err := shmem()
		if err != nil {
			return err
		}
		size, err := resident(b.p.PID)
		if err != nil {
			return err
		}
		w := b.c.pulse.start()
		b.p.Kill()
		r.fired++
		took, err := gone(b.d[0].PID, files, w)
		if err != nil {
			return err
		}
		maps.fired++
		maps.took(took, time.Second)
		after, err := shmem()
		if err != nil {
			return err
		}
		fell = append(fell, float64(before-after)/float64(size))
		flight()
		settle(&r, b.c.pulse.start(), b.d[0].Proc, b.d[1].Proc)

		name, listen := "P", b.addr
		if i%2 == 1 {
			name, listen = fmt.Sprintf("P%d", i), home()+":0"
		}
		b.again(name, listen, "--num-gpu-blocks-override", []string{"8192", "2048", "4096"}[i%3])
		b.first(&good, i)
		settle(&good, b.c.pulse.start(), b.engines()...)
	}
	end, err := shmem()
	if err != nil {
		return err
	}
	slices.Sort(fell)
	maps.note = fmt.Sprintf("the machine's Shmem fell at each kill by %.0f to %.0f %% of P's memory, median %.0f; over all rounds it changed by %+.1f MiB",
		100*fell[0], 100*fell[n-1], 100*fell[n/2], float64(end-start)/(1<<20))
	if fell[n/2] < 0.9 && patience == 1 { // CI's machine may have other programs
		maps.wrong("the machine's Shmem did not fall by P's memory: %.2f", fell)
	}
	b.same(&r)
	return nil
}

// same notes whether the decode engines are the ones they were, with no memory
// but their own and the present P's.
func (b *comeback) same(r *row) {
	b.alive(r)
	present, err := memoryFiles(b.p.PID)
	if err != nil {
		r.wrong("%v", err)
	}
	for i, d := range b.d {
		now, err := memoryFiles(d.PID)
		if err != nil || d.PID != b.pids[i] {
			r.wrong("D over %s is process %d, was %d: %v", d.path, d.PID, b.pids[i], err)
		}
		for inode := range now {
			_, own := b.own[i][inode]
			if _, peer := present[inode]; !own && !peer {
				r.wrong("D over %s still has the memory file %d of nobody", d.path, inode)
			}
		}
	}
}

// warm makes each D read from P.
func (b *comeback) warm() error {
	for _, d := range b.d {
		prompt := b.prompt(50)
		rep := b.c.send(ask{url: d.router.URL, prompt: prompt, tokens: output})
		if rep.kv.Loaded != len(prompt)-1 {
			return fmt.Errorf("before the fault, over %s: %s", d.path, &rep)
		}
	}
	return nil
}

// inFlight sends n requests, every other one as a decode leg whose hand-off is
// there, and returns soon after, with a function that waits for their answers and
// notes them in r. They may fail; they may not be wrong, late or lost.
func (b *comeback) inFlight(r *row, n int) (wait func(), err error) {
	asks, wants, replies := make([]ask, n), make([][]int, n), make([]reply, n)
	for i := range n {
		d, policy := b.pick(i / 2)
		a := ask{url: d.router.URL, prompt: b.prompt(300 + b.intn(700)), tokens: output, stream: i%3 == 0, policy: policy}
		if i%2 == 1 {
			a.url = d.URL
			if a.params, err = b.handoff(b.p, a.prompt); err != nil {
				return nil, err
			}
		}
		asks[i] = a
		if wants[i], err = b.want(a.prompt); err != nil {
			return nil, err
		}
	}
	var wg sync.WaitGroup
	for i := range asks {
		wg.Go(func() { replies[i] = b.c.send(asks[i]) })
	}
	time.Sleep(time.Duration(b.intn(4000)) * time.Microsecond)
	return func() {
		wg.Wait()
		for i := range replies {
			note(r, &replies[i], wants[i], peerLoad.limit()+grace)
		}
	}, nil
}

// note adds a reply to a row: it must be right, or a typed error, and within
// limit; 0 is none.
func note(r *row, rep *reply, want []int, limit time.Duration) {
	how := rep.judge(want)
	r.outcome.add(how)
	switch {
	case how == wrong || how == broken:
		r.wrong("%s: %s", how, rep)
	case rep.class != "":
		r.surfaced.add(rep.class)
	case how == refused:
		r.surfaced.add(rep.reason)
	}
	if limit > 0 {
		r.took(rep.took, limit)
	}
}

// freezes stops P with work in every place and lets it go on.
func (b *comeback) freezes(n int) error {
	r := row{what: fmt.Sprintf("P frozen and thawed, %d rounds", n)}
	good := row{what: "first good request after a thaw, both Ds", limit: firstGood}
	defer func() { b.c.table.add(r); b.c.table.add(good) }()
	for i := range n {
		if err := b.warm(); err != nil {
			return err
		}
		if err := b.freeze(&r, &good, i); err != nil {
			return err
		}
	}
	b.same(&r)
	return nil
}

func (b *comeback) freeze(r, good *row, round int) error {
	const n = 8
	asks, wants, replies := make([]ask, n), make([][]int, n), make([]reply, n)
	for i := range n {
		d, policy := b.pick(i)
		prompt := b.prompt(100 + b.intn(300))
		want, err := b.want(prompt)
		if err != nil {
			return err
		}
		params, err := b.handoff(b.p, prompt)
		if err != nil {
			return err
		}
		wants[i] = want
		asks[i] = ask{url: d.URL, prompt: prompt, tokens: output, stream: i >= 4, policy: policy, params: params}
	}
	prompt := b.prompt(80)
	want, err := b.want(prompt)
	if err != nil {
		return err
	}
	if err := stop(b.t, b.p); err != nil {
		return err
	}
	r.fired++
	var wg, leg sync.WaitGroup
	for i := range asks {
		wg.Go(func() { replies[i] = b.c.send(asks[i]) })
	}
	// Meanwhile P's own leg of another request waits for the thaw.
	var whole reply
	leg.Go(func() {
		whole = b.c.send(ask{url: b.d[round%2].router.URL, prompt: prompt, tokens: output})
	})
	wg.Wait()
	for i := range replies {
		note(r, &replies[i], wants[i], peerLoad.limit()+grace)
		if replies[i].class == "" {
			r.wrong("a load from a frozen P succeeded: %s", &replies[i])
		}
	}
	b.p.Signal(b.t, syscall.SIGCONT)
	w := b.c.pulse.start()
	b.first(good, round)
	leg.Wait()
	if how := whole.judge(want); how != right {
		good.wrong("a prefill leg over the freeze: %s: %s", how, &whole)
	}
	settle(r, w, b.engines()...)
	return nil
}

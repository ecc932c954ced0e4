package main

import "sync"

// An exam is requests with their right answers.
type exam struct {
	f       *fleet
	asks    []ask
	on      []*decoder
	policy  []string
	wants   [][]int
	replies []reply
}

// exam draws n requests of from to to tokens: every path, policy and form in turn.
func (f *fleet) exam(n, from, to int) (*exam, error) {
	ex := &exam{f: f, replies: make([]reply, n)}
	for i := range n {
		d, policy := f.pick(i)
		a := ask{url: d.router.URL, prompt: f.prompt(from + f.intn(to-from)), tokens: output, stream: i/4%2 == 1, policy: policy}
		want, err := f.want(a.prompt)
		if err != nil {
			return nil, err
		}
		ex.asks, ex.on, ex.policy, ex.wants = append(ex.asks, a), append(ex.on, d), append(ex.policy, policy), append(ex.wants, want)
	}
	return ex, nil
}

// handoffs makes every second request a decode leg whose hand-off is there.
func (f *fleet) handoffs(ex *exam) (err error) {
	for i := range ex.asks {
		if a := &ex.asks[i]; i/2%2 == 1 {
			a.url = ex.on[i].URL
			if a.params, err = f.handoff(f.p, a.prompt); err != nil {
				return err
			}
		}
	}
	return nil
}

func (ex *exam) send(i int) { ex.replies[i] = ex.f.c.send(ex.asks[i]) }

// together sends all at once.
func (ex *exam) together() {
	var wg sync.WaitGroup
	for i := range ex.asks {
		wg.Go(func() { ex.send(i) })
	}
	wg.Wait()
}

// apart sends to each D one after the other, before each.
func (ex *exam) apart(before func(*decoder)) {
	var wg sync.WaitGroup
	for _, d := range ex.f.d {
		wg.Go(func() {
			for i := range ex.asks {
				if ex.on[i] == d {
					before(d)
					ex.send(i)
				}
			}
		})
	}
	wg.Wait()
}

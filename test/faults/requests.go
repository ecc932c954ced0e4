package main

import (
	"fmt"
	"net/http"
	"testing"

	"tandem/internal/connector"
	"tandem/internal/fault"
	"tandem/internal/kv"
	"tandem/test/cluster"
)

// mishaps make about three loads of ten fail, each in one of several ways, all of
// which concern one load alone.
func mishaps(seed uint64) fault.Plan {
	return fault.Plan{Seed: seed, Faults: []fault.Fault{
		{Point: fault.Claim, Action: fault.Error, Class: connector.ClassRefused, When: fault.When{Probability: .05}},
		{Point: fault.Claim, Action: fault.Error, Class: connector.ClassGone, When: fault.When{Probability: .05}},
		{Point: fault.Claim, Action: fault.Flip, When: fault.When{Probability: .02}},
		{Point: fault.ReadPost, Action: fault.Error, Class: connector.ClassRead, When: fault.When{Probability: .06}},
		{Point: fault.ReadPiece, Action: fault.Error, Class: connector.ClassTimeout, Bytes: 5000, When: fault.When{Probability: .04}},
		{Point: fault.ReadPiece, Action: fault.Flip, When: fault.When{Probability: .06}},
		{Point: fault.ReadPiece, Action: fault.OtherTile, When: fault.When{Probability: .04}},
		{Point: fault.ReadPiece, Action: fault.Drop, When: fault.When{Probability: .04}},
	}}
}

// requests sends 1,000 requests under each policy while three loads of ten fail.
func requests(c *campaign, t testing.TB) error {
	f, err := c.chaos(t, parts{
		decode: []string{"--no-enable-prefix-caching", extra + "load_timeout=5"},
		router: []string{"--retries", "0"},
	})
	if err != nil {
		return err
	}
	n := c.scale(1000, 200)
	for i, policy := range []string{"recompute", "fail"} {
		r := row{what: fmt.Sprintf("%d requests, 30 %% of loads fail, %s", n, policy)}
		if err := f.thousand(&r, n, policy, c.seed+uint64(i)); err != nil {
			r.wrong("%v", err)
		}
		c.table.add(r)
	}
	return nil
}

func (f *fleet) thousand(r *row, n int, policy string, seed uint64) error {
	for _, d := range f.d {
		if err := arm(d.Proc, mishaps(seed)); err != nil {
			return err
		}
	}
	wants, replies, errs := make([][]int, n), make([]reply, n), make([]error, n)
	name := func(i int) string { return fmt.Sprintf("%s-%d", policy, i) }
	each(n, 8, func(i int) {
		a := ask{
			url: f.d[i%2].router.URL, id: name(i), prompt: f.prompt(40 + f.intn(150)), tokens: output, stream: i/2%2 == 0, policy: policy,
		}
		if wants[i], errs[i] = f.want(a.prompt); errs[i] == nil {
			replies[i] = f.c.send(a)
		}
	})
	after := f.c.pulse.start()
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	struck := map[string]string{} // what the injectors say, by request
	for _, d := range f.d {
		events, err := record(d.Proc)
		if err != nil {
			return err
		}
		for _, e := range events {
			id := e.Request
			if struck[id] != "" {
				r.wrong("%s was hit twice", id)
			}
			struck[id] = fmt.Sprintf("%s %s", e.Point, e.Action)
			r.fired++
		}
		if err := disarm(d.Proc); err != nil {
			return err
		}
	}
	for i := range replies {
		rep, how := &replies[i], replies[i].judge(wants[i])
		r.outcome.add(how)
		if rep.class != "" {
			r.surfaced.add(rep.class)
		}
		by, is := struck[name(i)]
		want := right
		if is && policy == "fail" {
			want = refused
		}
		if how != want || is != (rep.class != "") {
			r.wrong("%s, hit by %q: %s, want %s: %s", name(i), by, how, want, rep)
		}
	}
	if part := float64(r.fired) / float64(n); part < .25 || part > .35 {
		r.wrong("%.0f %% of the loads were hit, want about 30", 100*part)
	}
	settle(r, after, f.engines()...)
	f.alive(r)
	return nil
}

// exact checks that recovery computes the tokens that were lost and no others.
func exact(c *campaign, t testing.TB) error {
	f, err := c.chaos(t, parts{decode: []string{"--no-enable-prefix-caching", extra + "load_timeout=5"}})
	if err != nil {
		return err
	}
	second := func(n int) int { return lostTokens(n, func(tile int) bool { return tile%2 == 1 }) }
	for _, x := range []struct {
		what string
		on   []*cluster.Proc
		f    fault.Fault
		lost func(prompt int) int
	}{
		{"every second tile is another one", f.decoders(), fault.Fault{Point: fault.ReadPiece, Action: fault.OtherTile, Every: 2}, second},
		{"every second tile has a wrong bit", f.decoders(), fault.Fault{Point: fault.ReadPiece, Action: fault.Flip, Every: 2}, second},
		{"every second tile never came", f.decoders(), fault.Fault{Point: fault.ReadPiece, Action: fault.Drop, Every: 2}, second},
		{"every second sum is wrong", []*cluster.Proc{f.p}, fault.Fault{Point: fault.Seal, Action: fault.Flip, Every: 2}, second},
		{"every third tile is another one", f.decoders(), fault.Fault{Point: fault.ReadPiece, Action: fault.OtherTile, Every: 3}, func(n int) int {
			return lostTokens(n, func(tile int) bool { return tile%3 == 2 })
		}},
		{"every tile is another one", f.decoders(), fault.Fault{Point: fault.ReadPiece, Action: fault.OtherTile, Every: 1}, func(n int) int { return n - 1 }},
		{"the claim is refused", f.decoders(), fault.Fault{Point: fault.Claim, Action: fault.Error}, func(n int) int { return n - 1 }},
		{"every second request's claim is refused", f.decoders(), fault.Fault{Point: fault.Claim, Action: fault.Error, When: fault.When{Pattern: "OX"}}, nil},
	} {
		r := row{what: "exact: " + x.what}
		if err := f.exactly(&r, x.on, x.f, x.lost, c.scale(24, 8)); err != nil {
			r.wrong("%v", err)
		}
		c.table.add(r)
	}
	return nil
}

func (f *fleet) decoders() []*cluster.Proc { return []*cluster.Proc{f.d[0].Proc, f.d[1].Proc} }

// lostTokens returns how many tokens of a prompt lie in the tiles that are lost.
// The last token is computed in any case.
func lostTokens(prompt int, lost func(tile int) bool) (n int) {
	for tile := 0; tile*kv.TileTokens < prompt-1; tile++ {
		if lost(tile) {
			n += min(kv.TileTokens, prompt-1-tile*kv.TileTokens)
		}
	}
	return n
}

// exactly sends n requests, one after the other at each D, and compares the
// account of each, and the counters of the Ds, with what was lost. With lost nil a
// load loses nothing or all.
func (f *fleet) exactly(r *row, on []*cluster.Proc, x fault.Fault, lost func(prompt int) int, n int) error {
	ex, err := f.exam(n, 40, 700)
	if err != nil {
		return err
	}
	sum := func(name string, with ...string) (v float64) {
		for _, d := range f.d {
			v += d.Metric(f.t, name, with...)
		}
		return v
	}
	const bySource, external = "vllm:prompt_tokens_by_source_total", `source="external_kv_transfer"`
	recomputed, loaded := sum("tandem_kv_load_recomputed_tokens_total"), sum(bySource, external)
	for _, p := range on {
		if err := arm(p, fault.Plan{Seed: f.c.seed, Faults: []fault.Fault{x}}); err != nil {
			return err
		}
	}
	for i := range ex.asks {
		ex.asks[i].policy = "recompute"
	}
	ex.apart(func(*decoder) {})
	after := f.c.pulse.start()
	for _, p := range on {
		k, err := fired(p, x.Cell())
		if err != nil {
			return err
		}
		r.fired += k
		if err := disarm(p); err != nil {
			return err
		}
	}
	again, came := 0, 0
	for i := range ex.replies {
		rep, size := &ex.replies[i], len(ex.asks[i].prompt)
		want := 0
		switch {
		case lost != nil:
			want = lost(size)
		case rep.class != "":
			want = size - 1
		}
		how := rep.judge(ex.wants[i])
		r.outcome.add(how)
		if rep.class != "" {
			r.surfaced.add(rep.class)
		}
		again, came = again+want, came+size-1-want
		if how != right || rep.status != http.StatusOK || rep.kv.Recomputed != want || rep.kv.Loaded != size-1-want || rep.kv.Computed != 1 {
			r.wrong("%d tokens over %s, %d of them lost: %s: %s", size, ex.on[i].path, want, how, rep)
		}
	}
	if lost != nil && r.fired != n || lost == nil && r.fired != n/2 {
		r.wrong("%d of %d requests were hit", r.fired, n)
	}
	r.note = fmt.Sprintf("%d tokens lost and %d computed again, %d loaded", again,
		int(sum("tandem_kv_load_recomputed_tokens_total")-recomputed), int(sum(bySource, external)-loaded))
	if got := int(sum("tandem_kv_load_recomputed_tokens_total") - recomputed); got != again {
		r.wrong("the engines counted %d tokens as computed again, want %d", got, again)
	}
	if got := int(sum(bySource, external) - loaded); got != came {
		r.wrong("the engines counted %d tokens as loaded, want %d", got, came)
	}
	settle(r, after, f.engines()...)
	return nil
}

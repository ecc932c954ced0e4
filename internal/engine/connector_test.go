package engine

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"tandem/internal/connector"
	"tandem/internal/sim"
)

// startLinked is an engine with a real connector on a free port.
func startLinked(t *testing.T, mc sim.Config, role connector.Role, cfg Config) bench {
	t.Helper()
	m, err := sim.New(mc)
	if err != nil {
		t.Fatal(err)
	}
	info := m.Info()
	cc := connector.Config{
		EngineID: "engine", Role: role, Arenas: m.Arenas(), Token: []byte("a token of the cluster"),
		Listen: "127.0.0.1:0", LeaseDuration: time.Hour,
		HandshakeTimeout: guard, LoadTimeout: guard, NoProgress: guard, // a busy machine is no failure
	}
	for _, f := range info.Fingerprint {
		cc.Fingerprint = append(cc.Fingerprint, connector.Factor(f))
	}
	c, err := connector.New(cc)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- c.Run(ctx) }()
	cfg.Model, cfg.Connector = m, c
	e, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	ectx, ecancel := context.WithCancel(context.Background())
	go func() { _ = e.Run(ectx) }()
	halt := func() {
		ecancel()
		<-e.Done()
	}
	t.Cleanup(func() {
		halt()
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		if err := m.Close(); err != nil {
			t.Error(err)
		}
	})
	return bench{e, m, halt}
}

// P and D over the real connector give the tokens of one engine; afterwards all
// blocks are free without waiting for a lease.
func TestPrefillAndDecodeOverTheConnector(t *testing.T) {
	lengths := []int{5, 16, 17, 40, 64, 100, 333}
	one := start(t, sim.Config{}, Config{})
	var want []answer
	for i, n := range lengths {
		want = append(want, one.run(t, seeded(prompt(n, i), 12, 5)))
	}
	shapes := [][2]sim.Config{
		{{}, {}},
		{{TP: 2}, {TP: 4, BlockTokens: 32}},
		{{BlockTokens: 64}, {TP: 2}},
	}
	for i, sh := range shapes {
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			p := startLinked(t, sh[0], connector.Producer, Config{})
			d := startLinked(t, sh[1], connector.Consumer, Config{})
			x := pair{p: p, d: d}
			var wg sync.WaitGroup
			for k, n := range lengths {
				wg.Go(func() {
					got := x.both(t, seeded(prompt(n, k), 12, 5))
					equal(t, fmt.Sprintf("prompt of %d", n), got.tokens, want[k].tokens)
					if u := got.last.Usage; u.Loaded != n-1-u.LocalHit || u.Recomputed != 0 {
						t.Errorf("prompt of %d: usage %+v", n, u)
					}
				})
			}
			wg.Wait()
			d.settled(t)
			p.settled(t)
		})
	}
}

// A hand-off is read once; a second reader is told, or computes by itself.
func TestAHandoffIsReadOnce(t *testing.T) {
	p := startLinked(t, sim.Config{}, connector.Producer, Config{})
	d := startLinked(t, sim.Config{}, connector.Consumer, Config{NoPrefixCache: true, Policy: PolicyRecompute})
	x := pair{p: p, d: d}
	r := greedy(prompt(90, 1), 6)
	want := p.run(t, r)
	r.Handoff = x.prefill(t, r)
	equal(t, "first reader", d.run(t, r).tokens, want.tokens)
	again := d.run(t, r)
	equal(t, "second reader", again.tokens, want.tokens)
	if u := again.last.Usage; u.Loaded != 0 || u.Recomputed != 89 {
		t.Errorf("second reader: usage %+v", u)
	}
	bad := *r.Handoff
	bad.Tokens--
	r.Handoff = &bad
	var he *connector.HandoffError
	if _, err := d.Submit(t.Context(), r); !errors.As(err, &he) {
		t.Errorf("a changed hand-off: %v", err)
	}
	// P revokes what was not delivered.
	q := greedy(prompt(50, 3), 1)
	q.RemoteDecode = true
	s, err := p.Submit(t.Context(), q)
	if err != nil {
		t.Fatal(err)
	}
	next(t, s, 1)
	s.Abort("write failed")
	d.settled(t)
	p.settled(t)
}

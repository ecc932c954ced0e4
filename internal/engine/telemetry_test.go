package engine

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"testing"
	"time"

	"tandem/internal/bystander"
	"tandem/internal/bystander/logtest"
	"tandem/internal/connector"
	"tandem/internal/sim"
)

// Whatever metrics do, panic or dawdle, the answers are those without metrics.
func TestMetricsDecideNothing(t *testing.T) {
	var mu sync.Mutex
	calls := map[string]int{}
	boom := func(what string) {
		mu.Lock()
		calls[what]++
		n := calls[what]
		mu.Unlock()
		if n%2 == 0 {
			<-time.After(100 * time.Microsecond)
		}
		panic(what)
	}
	bad := Metrics{
		Step: func(int, int, time.Duration) { boom("step") }, FirstToken: func(time.Duration) { boom("first") },
		InterToken: func(time.Duration) { boom("inter") }, Preempted: func(int) { boom("preempted") },
		Admitted: func(Usage) { boom("admitted") }, LoadFailed: func(connector.LoadClass) { boom("failed") },
		Recovered: func(int, int) { boom("recovered") }, Finished: func(RequestStats) { boom("finished") },
	}
	var out logtest.Book
	log := slog.New(slog.NewTextHandler(&out, nil))
	one := start(t, sim.Config{}, Config{})
	// A pool in which two requests do not fit to their end.
	x, g := startGated(t, sim.Config{Blocks: 8}, Config{Metrics: bad, Log: log, Policy: PolicyRecompute, NoPrefixCache: true})
	x.dl.bad = func(i int) bool { return i == 1 }
	for round := range 3 {
		var wants []answer
		var streams []*Stream
		for i := range 2 {
			r := seeded(prompt(40, 10*round+i), 50, 3)
			wants = append(wants, one.run(t, r))
			r.Handoff = x.prefill(t, r)
			streams = append(streams, x.submit(t, r))
		}
		if round == 0 { // so that they meet, and one gives way
			x.meet(g, 2)
		}
		for i, s := range streams {
			got, _ := read(t, s, 1)
			equal(t, fmt.Sprintf("round %d, request %d", round, i), got[0].tokens, wants[i].tokens)
			if last := got[0].last; last.Usage.Recomputed != 16 || last.Finish != FinishLength {
				t.Errorf("%+v", last)
			}
		}
	}
	x.settled(t)
	for _, what := range []string{"step", "first", "inter", "preempted", "admitted", "failed", "recovered", "finished"} {
		if calls[what] == 0 {
			t.Errorf("%s did not panic", what)
		}
	}
}

// A stuckLog takes one line and never comes back with it.
type stuckLog struct {
	slog.Handler
	let chan struct{}
}

func (s stuckLog) Enabled(context.Context, slog.Level) bool { return true }

func (s stuckLog) Handle(context.Context, slog.Record) error {
	<-s.let
	panic("the log is broken as well")
}

// A log that stands still, behind the handler that the command puts in front of
// it, holds up no answer.
func TestALogThatStandsStillHoldsUpNothing(t *testing.T) {
	let := make(chan struct{})
	logs := bystander.NewLogs(stuckLog{let: let})
	one := start(t, sim.Config{}, Config{})
	x := startPair(t, sim.Config{}, sim.Config{}, Config{}, Config{Log: slog.New(logs), Policy: PolicyRecompute, NoPrefixCache: true})
	x.dl.bad = func(i int) bool { return i == 1 }
	const n = 1100 // lines about ended requests: more than may wait
	for i := range n {
		r := greedy(prompt(40, i%50), 2)
		want := one.run(t, r)
		r.Handoff = x.prefill(t, r)
		got := x.d.run(t, r)
		equal(t, fmt.Sprintf("request %d", i), got.tokens, want.tokens)
		if got.last.Usage.Recomputed != 16 {
			t.Fatalf("%+v", got.last.Usage)
		}
	}
	x.settled(t)
	if logs.Lost() == 0 {
		t.Error("the log took every line")
	}
	close(let)
	logs.Close()
}

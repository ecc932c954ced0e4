package engine

import (
	"fmt"
	"log/slog"
	"regexp"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"tandem/internal/bystander/logtest"
	"tandem/internal/sim"
)

var recoveredLine = regexp.MustCompile(`Recovered from KV load failure: (\d+) request\(s\) rescheduled \((\d+) tokens affected\)\.`)

// recoveredIn returns the lines of a log and their sums.
func recoveredIn(log string) (lines, requests, tokens int) {
	for _, m := range recoveredLine.FindAllStringSubmatch(log, -1) {
		r, _ := strconv.Atoi(m[1])
		n, _ := strconv.Atoi(m[2])
		lines, requests, tokens = lines+1, requests+r, tokens+n
	}
	return lines, requests, tokens
}

// Many failed loads are few lines, and nothing is lost: neither when the engine
// rests afterwards nor when it ends.
func TestRecoveriesAreSummedUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out logtest.Book
		x := startPair(t, sim.Config{}, sim.Config{}, Config{}, Config{
			Policy: PolicyRecompute, NoPrefixCache: true, Log: slog.New(slog.NewTextHandler(&out, nil)),
		})
		x.dl.bad = func(i int) bool { return i == 0 }
		storm := func(n int) {
			for i := range n {
				if u := x.both(t, greedy(prompt(40, i), 2)).last.Usage; u.Recomputed != 16 {
					t.Fatalf("usage %+v", u)
				}
			}
		}
		expect := func(what string, lines, requests int) {
			t.Helper()
			synctest.Wait()
			l, r, n := recoveredIn(out.String())
			if l != lines || r != requests || n != 16*requests {
				t.Errorf("%s: %d lines, %d requests, %d tokens; want %d, %d, %d:\n%s", what, l, r, n, lines, requests, 16*requests, out.String())
			}
		}
		storm(1)
		expect("the first", 1, 1)
		storm(20)
		expect("within a second", 1, 1)
		<-time.After(recoveredEvery)
		expect("a second later, at rest", 2, 21)
		storm(3)
		expect("within the next second", 2, 21)
		x.settled(t)
		expect("at the end", 3, 24)
	})
}

// H017: a failed load on an engine that rests is made good at once: no timer and
// no other request is needed. The clock stands still while anything can run.
func TestRecoveryNeedsNoOtherEvent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := startPair(t, sim.Config{}, sim.Config{}, Config{}, Config{Policy: PolicyRecompute, NoPrefixCache: true})
		x.dl.bad = func(i int) bool { return i%3 != 1 }
		for i := range 100 {
			x.dl.hold = make(chan struct{})
			r := seeded(prompt(100, i), 3, int64(i))
			want := x.p.run(t, r)
			r.Handoff = x.prefill(t, r)
			s := x.submit(t, r)
			synctest.Wait() // D rests: its only request loads
			if st := x.d.Status(); st.Stats.Loading != 1 || st.Stalled != 0 {
				t.Fatalf("round %d: %+v", i, st)
			}
			begun := time.Now()
			close(x.dl.hold)
			got, _ := read(t, s, 1)
			equal(t, fmt.Sprintf("round %d", i), got[0].tokens, want.tokens)
			if took := time.Since(begun); took != 0 || got[0].last.Usage.Recomputed == 0 {
				t.Fatalf("round %d: %v, %+v", i, took, got[0].last.Usage)
			}
		}
		x.settled(t)
	})
}

// The class of a failed load is in the usage, whatever the policy; a request's
// own policy goes before the engine's.
func TestRequestsOwnPolicy(t *testing.T) {
	for _, of := range []FailPolicy{PolicyFail, PolicyRecompute} {
		x := startPair(t, sim.Config{}, sim.Config{}, Config{}, Config{Policy: of, NoPrefixCache: true})
		x.dl.bad = func(i int) bool { return i == 1 }
		for i, own := range []FailPolicy{"", PolicyFail, PolicyRecompute} {
			r := greedy(prompt(60, i), 3)
			r.Handoff, r.Policy = x.prefill(t, r), own
			fails := own == PolicyFail || own == "" && of == PolicyFail
			o, err := x.submit(t, r).Next(t.Context())
			if err != nil || (o.Err != nil) != fails {
				t.Errorf("engine %s, request %q: %+v, %v", of, own, o, err)
			}
			if u := o.Usage; u.Failure != "sum" || u.Loaded != 43 || u.Recomputed != 16 || u.Computed != 1 {
				t.Errorf("engine %s, request %q: usage %+v", of, own, u)
			}
		}
		r := greedy(prompt(60, 9), 3)
		r.Policy = "maybe"
		if _, err := x.d.Submit(t.Context(), r); fmt.Sprint(err) != `engine: kv_load_failure_policy: must be "fail" or "recompute"` {
			t.Errorf("another word: %v", err)
		}
		x.d.Drain(t.Context())
		x.settled(t)
	}
}

package core

import (
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"tandem/internal/kv"
)

var (
	testSelf   = Incarnation{1}
	testCaller = CallerID{Incarnation{2}, 7}
	testLimits = LeaseLimits{Lease: 30 * time.Second, MaxClaim: 2 * time.Minute}
)

// What testLimits make of a renewal: two thirds of a lease, and ten leases in all.
const (
	testExtension = 20 * time.Second
	testLongest   = 300 * time.Second
)

func newTestTable() *LeaseTable { return NewLeaseTable(testSelf, 1, [32]byte{9}, testLimits) }

func grantOf(n byte) GrantEvent {
	return GrantEvent{ID: LeaseID{n}, Blocks: []kv.BlockID{kv.BlockID(n)}, Tokens: 40, Digest: Digest{n}, Epoch: 1}
}

func claimOf(n byte) ClaimEvent {
	return ClaimEvent{Claim{
		Incarnation: testSelf, Lease: LeaseID{n}, Epoch: 1, To: 3, Tokens: 40, Digest: Digest{n},
		Factors: [32]byte{9}, Want: 10 * time.Second,
	}, testCaller}
}

func TestClaimIsJudged(t *testing.T) {
	for _, c := range []struct {
		name string
		edit func(*ClaimEvent)
		want Verdict
	}{
		{"genuine", func(*ClaimEvent) {}, VerdictOK},
		{"other process", func(c *ClaimEvent) { c.Incarnation[3]++ }, VerdictIncarnation},
		{"older epoch", func(c *ClaimEvent) { c.Epoch = 0 }, VerdictEpoch},
		{"newer epoch", func(c *ClaimEvent) { c.Epoch = 2 }, VerdictEpoch},
		{"other fingerprint", func(c *ClaimEvent) { c.Factors[0]++ }, VerdictFingerprint},
		{"unknown lease", func(c *ClaimEvent) { c.Lease[5]++ }, VerdictGone},
		{"other tokens", func(c *ClaimEvent) { c.Digest[0]++ }, VerdictDigest},
		{"other count", func(c *ClaimEvent) { c.Tokens-- }, VerdictDigest},
		{"no tiles", func(c *ClaimEvent) { c.To = 0 }, VerdictTiles},
		{"reversed tiles", func(c *ClaimEvent) { c.Claim.From, c.To = 2, 1 }, VerdictTiles},
		{"tile behind the prompt", func(c *ClaimEvent) { c.To = 4 }, VerdictTiles},
		{"nobody's connection", func(c *ClaimEvent) { c.From = CallerID{} }, VerdictIncarnation},
		{"negative tile", func(c *ClaimEvent) { c.Claim.From = -1 }, VerdictTiles},
	} {
		t.Run(c.name, func(t *testing.T) {
			table, now := newTestTable(), time.Unix(0, 0)
			table.Handle(grantOf(1), now)
			ev := claimOf(1)
			c.edit(&ev)
			e := table.Handle(ev, now)
			if e.Verdict != c.want || (e.Claimed != nil) != (c.want == VerdictOK) || len(e.Ended) != 0 {
				t.Fatalf("%v, want %v", e.Verdict, c.want)
			}
		})
	}
}

func TestOneClaimAtATime(t *testing.T) {
	table, now := newTestTable(), time.Unix(0, 0)
	table.Handle(grantOf(1), now)
	e := table.Handle(claimOf(1), now)
	if e.Verdict != VerdictOK || e.Limit < 10*time.Second {
		t.Fatalf("%+v", e)
	}
	other := claimOf(1)
	other.From = CallerID{Incarnation{3}, 8}
	if e := table.Handle(other, now); e.Verdict != VerdictBusy {
		t.Fatal(e.Verdict)
	}
	if e := table.Handle(ReturnEvent{LeaseID{1}, other.From}, now); e.Verdict != VerdictBusy || len(e.Ended) != 0 {
		t.Fatal("a stranger returned a claimed lease")
	}
	e = table.Handle(LostEvent{testCaller}, now)
	if len(e.Ended) != 0 || len(e.Unclaim) != 1 {
		t.Fatalf("%+v", e)
	}
	if e := table.Handle(other, now); e.Verdict != VerdictOK {
		t.Fatal(e.Verdict)
	}
}

func TestLeaseOutlastsItsDeadlineWhileClaimed(t *testing.T) {
	table, now := newTestTable(), time.Unix(0, 0)
	table.Handle(grantOf(1), now)
	now = now.Add(29 * time.Second)
	limit := table.Handle(claimOf(1), now).Limit
	now = now.Add(limit - 1)
	if e := table.Handle(TickEvent{}, now); len(e.Ended) != 0 {
		t.Fatal("ended under a Claim")
	}
	e := table.Handle(TickEvent{}, now.Add(1))
	if len(e.Ended) != 1 || e.Ended[0].Why != EndExpired || len(e.Unclaim) != 1 {
		t.Fatalf("%+v", e)
	}
	if e := table.Handle(claimOf(1), now); e.Verdict != VerdictExpired {
		t.Fatal(e.Verdict)
	}
}

func TestReleaseOfAClaimedLeaseWaitsForTheClaim(t *testing.T) {
	table, now := newTestTable(), time.Unix(0, 0)
	table.Handle(grantOf(2), now)
	other := claimOf(2)
	other.From.Conn++
	table.Handle(other, now)
	for range 2 { // released once more, it waits all the same
		if e := table.Handle(RevokeEvent{ID: LeaseID{2}}, now); len(e.Ended) != 0 {
			t.Fatal("ended under a claim")
		}
	}
	if e := table.Handle(RevokeEvent{ID: LeaseID{2}, Now: true}, now); len(e.Ended) != 1 || len(e.Unclaim) != 1 {
		t.Fatalf("the memory goes, and the lease stays: %+v", e)
	}
	table.Handle(grantOf(1), now)
	table.Handle(claimOf(1), now)
	if e := table.Handle(RevokeEvent{ID: LeaseID{1}}, now); len(e.Ended) != 0 {
		t.Fatal("ended under a Claim")
	}
	if e := table.Handle(LostEvent{testCaller}, now); len(e.Ended) != 1 || e.Ended[0].Why != EndRevoked {
		t.Fatalf("%+v", e)
	}
}

func TestRenewalIsCappedAndNeverShortens(t *testing.T) {
	table, start := newTestTable(), time.Unix(0, 0)
	table.Handle(grantOf(1), start)
	table.Handle(RenewEvent{LeaseID{1}}, start.Add(time.Second)) // 21 s < 30 s
	if at, _ := table.Next(); !at.Equal(start.Add(30 * time.Second)) {
		t.Fatal("a renewal shortened the lease")
	}
	now := start
	for range 100 {
		now = now.Add(5 * time.Second)
		if e := table.Handle(RenewEvent{LeaseID{1}}, now); e.Verdict == VerdictExpired {
			break
		}
	}
	if !now.Equal(start.Add(300 * time.Second)) {
		t.Fatalf("expired after %v", now.Sub(start))
	}
	table.Handle(grantOf(2), now)
	table.Handle(DrainEvent{true}, now)
	if e := table.Handle(RenewEvent{LeaseID{2}}, now.Add(29*time.Second)); e.Verdict != VerdictDraining {
		t.Fatal(e.Verdict)
	}
	if e := table.Handle(TickEvent{}, now.Add(30*time.Second)); len(e.Ended) != 1 {
		t.Fatal("renewed while draining")
	}
}

func TestRenewedLeaseHidesNoExpiredOne(t *testing.T) {
	table, now := newTestTable(), time.Unix(0, 0)
	for n := range byte(100) {
		table.Handle(grantOf(n), now.Add(time.Duration(n)*100*time.Millisecond))
	}
	ended := map[LeaseID]time.Duration{}
	for step := range 500 {
		at := now.Add(time.Duration(step+1) * 100 * time.Millisecond)
		e := table.Handle(RenewEvent{LeaseID{0}}, at)
		for _, l := range e.Ended {
			ended[l.ID] = at.Sub(now)
		}
	}
	if _, held := table.byID[LeaseID{0}]; !held || len(ended) != 99 {
		t.Fatalf("first held: %v, others ended: %d", held, len(ended))
	}
	for n := byte(1); n < 100; n++ {
		if want := 30*time.Second + time.Duration(n)*100*time.Millisecond; ended[LeaseID{n}] != want {
			t.Fatalf("lease %d ended after %v, want %v", n, ended[LeaseID{n}], want)
		}
	}
}

// permutations calls f with every order of n things.
func permutations(n int, f func([]int)) {
	var rec func(done []int, used uint)
	rec = func(done []int, used uint) {
		if len(done) == n {
			f(done)
			return
		}
		for i := range n {
			if used&(1<<i) == 0 {
				rec(append(slices.Clone(done), i), used|1<<i)
			}
		}
	}
	rec(nil, 0)
}

func TestLateAndDoubleEventsEndALeaseOnce(t *testing.T) {
	id := LeaseID{1}
	kinds := []func() any{
		func() any { return claimOf(1) },
		func() any { return ReturnEvent{id, testCaller} },
		func() any { return RevokeEvent{ID: id} },
		func() any { return LostEvent{testCaller} },
		func() any { return TickEvent{} }, // ten minutes later
	}
	runs := 0
	permutations(len(kinds), func(order []int) {
		for double := range 1 << len(kinds) {
			table, now := newTestTable(), time.Unix(0, 0)
			table.Handle(grantOf(1), now)
			ends, open := 0, 0
			step := func(ev any) {
				if _, ok := ev.(TickEvent); ok {
					now = now.Add(10 * time.Minute)
				}
				e := table.Handle(ev, now)
				ends += len(e.Ended)
				if e.Claimed != nil {
					open++
				}
				open -= len(e.Unclaim)
			}
			for _, k := range order {
				step(kinds[k]())
				if double&(1<<k) != 0 {
					step(kinds[k]())
				}
			}
			step(TickEvent{})
			if ends != 1 || open != 0 || len(table.byID) != 0 || len(table.due) != 0 {
				t.Fatalf("order %v double %b: %d ends, %d claims, %d leases", order, double, ends, open, len(table.byID))
			}
			runs++
		}
	})
	if runs != 120*32 {
		t.Fatal(runs)
	}
}

// TestLeaseTableAgainstAModel compares the table with a slow list.
func TestLeaseTableAgainstAModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		table, now := newTestTable(), time.Unix(0, 0)
		type model struct{ deadline, cap, until time.Time }
		live := map[LeaseID]*model{}
		seen := map[LeaseID]int{}
		for n := range rapid.IntRange(1, 60).Draw(t, "steps") {
			now = now.Add(time.Duration(rapid.IntRange(0, 20_000).Draw(t, "ms")) * time.Millisecond)
			for id, m := range live {
				if !m.until.IsZero() && !m.until.After(now) {
					m.until = time.Time{}
				}
				if m.until.IsZero() && !m.deadline.After(now) {
					delete(live, id)
				}
			}
			pick := byte(rapid.IntRange(1, max(n, 1)).Draw(t, "lease"))
			id := LeaseID{pick}
			m := live[id]
			var e LeaseEffects
			switch rapid.IntRange(0, 5).Draw(t, "event") {
			case 0:
				if id = (LeaseID{byte(n + 1)}); live[id] == nil && seen[id] == 0 {
					e = table.Handle(grantOf(byte(n+1)), now)
					live[id] = &model{deadline: now.Add(testLimits.Lease), cap: now.Add(testLongest)}
				}
			case 1:
				e = table.Handle(claimOf(pick), now)
				if (e.Verdict == VerdictOK) != (m != nil && m.until.IsZero()) {
					t.Fatalf("Claim: %v", e.Verdict)
				}
				if e.Verdict == VerdictOK {
					m.until = now.Add(e.Limit)
				}
			case 2:
				e = table.Handle(RenewEvent{id}, now)
				if (e.Verdict == VerdictOK) != (m != nil) {
					t.Fatalf("renew: %v", e.Verdict)
				}
				if to := now.Add(testExtension); m != nil && to.After(m.deadline) {
					m.deadline = to
					if to.After(m.cap) {
						m.deadline = m.cap
					}
				}
			case 3:
				e = table.Handle(ReturnEvent{id, testCaller}, now)
				delete(live, id)
			case 4:
				e = table.Handle(LostEvent{testCaller}, now)
				for id, m := range live {
					if m.until = (time.Time{}); !m.deadline.After(now) {
						delete(live, id)
					}
				}
			case 5:
				e = table.Handle(TickEvent{}, now)
			}
			for _, end := range e.Ended {
				if seen[end.ID]++; seen[end.ID] > 1 {
					t.Fatalf("lease %v ended twice", end.ID)
				}
			}
			got, want := slices.Collect(maps.Keys(table.byID)), slices.Collect(maps.Keys(live))
			if len(e.Ended) > 0 || len(got) == len(want) {
				less := func(a, b LeaseID) int { return int(a[0]) - int(b[0]) }
				slices.SortFunc(got, less)
				slices.SortFunc(want, less)
			}
			// The table expires when it is asked; ask it.
			table.Handle(TickEvent{}, now)
			if fmt.Sprint(len(table.byID)) != fmt.Sprint(len(live)) {
				t.Fatalf("%d leases, want %d", len(table.byID), len(live))
			}
		}
	})
}

package core

import (
	"cmp"
	"fmt"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"tandem/internal/kv"
)

// slowLease is what the rules say of one lease, without heap or states.
type slowLease struct {
	GrantEvent
	granted, deadline time.Time
	claimed, leaving  bool
	claimer           CallerID
	until             time.Time
	over              EndReason // 0: lives
}

// slowTable looks at every lease at every event.
type slowTable struct {
	leases   []*slowLease
	draining bool
}

func (t *slowTable) get(id LeaseID) *slowLease {
	for _, l := range t.leases {
		if l.ID == id && l.over == 0 {
			return l
		}
	}
	return nil
}

func (t *slowTable) gone(id LeaseID) Verdict {
	for _, l := range t.leases {
		if l.ID == id && l.over == EndExpired {
			return VerdictExpired
		}
	}
	return VerdictGone
}

// finish ends a lease's claim, if one runs, and then the lease when why says so.
func (t *slowTable) finish(l *slowLease, why EndReason, e *LeaseEffects) {
	if l.claimed {
		e.Unclaim = append(e.Unclaim, l.ID)
	}
	l.claimed, l.claimer = false, CallerID{}
	if l.over = why; why != 0 {
		e.Ended = append(e.Ended, EndedLease{l.ID, l.Blocks, why})
	}
}

// fate is what becomes of a lease when its claim ends at now.
func (l *slowLease) fate(now time.Time) EndReason {
	switch {
	case l.leaving:
		return EndRevoked
	case now.Before(l.deadline):
		return 0
	}
	return EndExpired
}

func (t *slowTable) handle(event any, now time.Time) (e LeaseEffects) {
	for _, l := range t.leases {
		if l.over == 0 && l.claimed && !now.Before(l.until) {
			t.finish(l, l.fate(now), &e)
		}
		if l.over == 0 && !l.claimed && !now.Before(l.deadline) {
			t.finish(l, EndExpired, &e)
		}
	}
	switch ev := event.(type) {
	case GrantEvent:
		t.leases = append(t.leases, &slowLease{GrantEvent: ev, granted: now, deadline: now.Add(testLimits.Lease)})
	case ClaimEvent:
		l := t.get(ev.Lease)
		switch e.Verdict = VerdictOK; {
		case ev.Incarnation != testSelf:
			e.Verdict = VerdictIncarnation
		case ev.Epoch != 1:
			e.Verdict = VerdictEpoch
		case l == nil:
			e.Verdict = t.gone(ev.Lease)
		case l.Epoch != 1:
			e.Verdict = VerdictEpoch
		case l.claimed:
			e.Verdict = VerdictBusy
		case ev.Digest != l.Digest:
			e.Verdict = VerdictDigest
		case ev.To > (l.Tokens+15)/16 || ev.Claim.From >= ev.To:
			e.Verdict = VerdictTiles
		default:
			e.Limit = max(time.Second, min(ev.Want*5/4, testLimits.MaxClaim))
			l.claimed, l.claimer, l.until = true, ev.From, now.Add(e.Limit)
			e.Claimed = &Running{l.ID, ev.From, l.Epoch, l.Blocks}
		}
	case RenewEvent:
		switch l := t.get(ev.ID); {
		case l == nil:
			e.Verdict = t.gone(ev.ID)
		case t.draining:
			e.Verdict = VerdictDraining
		default:
			age := min(now.Sub(l.granted)+testExtension, testLongest)
			if at := l.granted.Add(age); at.After(l.deadline) {
				l.deadline = at
			}
		}
	case ReturnEvent:
		switch l := t.get(ev.ID); {
		case l == nil:
			e.Verdict = t.gone(ev.ID)
		case l.claimed && l.claimer.Incarnation != ev.From.Incarnation:
			e.Verdict = VerdictBusy
		default:
			t.finish(l, EndReturned, &e)
		}
	case RevokeEvent:
		switch l := t.get(ev.ID); {
		case l == nil:
			e.Verdict = t.gone(ev.ID)
		case l.claimed && !ev.Now:
			l.leaving = true
		default:
			t.finish(l, EndRevoked, &e)
		}
	case LostEvent:
		for _, l := range t.leases {
			if l.claimed && l.claimer == ev.From {
				t.finish(l, l.fate(now), &e)
			}
		}
	case DrainEvent:
		t.draining = ev.On
	}
	return e
}

// next returns when the first lease or claim ends on its own.
func (t *slowTable) next() (at time.Time, ok bool) {
	for _, l := range t.leases {
		due := l.deadline
		if l.claimed {
			due = l.until
		}
		if l.over == 0 && (!ok || due.Before(at)) {
			at, ok = due, true
		}
	}
	return at, ok
}

// sorted puts effects that may come in any order into one.
func sorted(e LeaseEffects) LeaseEffects {
	byID := func(a, b LeaseID) int { return cmp.Compare(a.String(), b.String()) }
	slices.SortFunc(e.Unclaim, byID)
	slices.SortFunc(e.Ended, func(a, b EndedLease) int { return byID(a.ID, b.ID) })
	return e
}

// Any history of a lease table is that of the slow one, effect for effect:
// claims of several connections and processes, renewals with and without a
// drain, returns, revocations, lost connections, events that come late, early,
// twice or for nobody, at any times.
func TestLeaseTableEqualsTheSlowOne(t *testing.T) {
	callers := []CallerID{{Incarnation{2}, 7}, {Incarnation{2}, 8}, {Incarnation{3}, 7}}
	rapid.Check(t, func(t *rapid.T) {
		table, slow, now := newTestTable(), &slowTable{}, time.Unix(0, 0)
		granted := byte(0)
		for range rapid.IntRange(1, 80).Draw(t, "events") {
			// Often to the very moment at which something is due, or just before.
			step := time.Duration(rapid.IntRange(0, 15_000).Draw(t, "ms")) * time.Millisecond
			if at, ok := table.Next(); ok && rapid.IntRange(0, 3).Draw(t, "due") == 0 {
				step = at.Sub(now) - time.Duration(rapid.IntRange(0, 1).Draw(t, "early"))
			}
			now = now.Add(max(step, 0))
			id := LeaseID{byte(rapid.IntRange(1, int(granted)+1).Draw(t, "lease"))}
			from := rapid.SampledFrom(callers).Draw(t, "caller")
			var ev any
			switch rapid.IntRange(0, 9).Draw(t, "event") {
			case 0, 1:
				granted++
				g := grantOf(granted)
				g.Epoch = kv.Epoch(rapid.SampledFrom([]int{1, 1, 1, 0}).Draw(t, "epoch"))
				ev = g
			case 2, 3:
				c := claimOf(id[0])
				c.From = from
				c.Want = time.Duration(rapid.IntRange(0, 200_000).Draw(t, "want")) * time.Millisecond
				switch rapid.IntRange(0, 9).Draw(t, "damage") {
				case 0:
					c.Epoch = 2
				case 1:
					c.Digest[3]++
				case 2:
					c.To = 4
				case 3:
					c.Incarnation[1]++
				case 4:
					c.Claim.From = 3
				}
				ev = c
			case 4:
				ev = RenewEvent{id}
			case 5:
				ev = ReturnEvent{id, from}
			case 6:
				ev = RevokeEvent{ID: id, Now: rapid.Bool().Draw(t, "now")}
			case 7:
				ev = LostEvent{from}
			case 8:
				ev = DrainEvent{rapid.Bool().Draw(t, "drain")}
			default:
				ev = TickEvent{}
			}
			for range rapid.SampledFrom([]int{1, 1, 1, 2}).Draw(t, "times") {
				if _, grant := ev.(GrantEvent); grant && table.byID[LeaseID{granted}] != nil {
					break // a lease's name is random: it is never given twice
				}
				got, want := sorted(table.Handle(ev, now)), sorted(slow.handle(ev, now))
				if a, b := show(got), show(want); a != b {
					t.Fatalf("%T %+v:\n got %s\nwant %s", ev, ev, a, b)
				}
			}
			at, ok := table.Next()
			if want, has := slow.next(); at != want || ok != has {
				t.Fatalf("after %T: next at %v %t, want %v %t", ev, at, ok, want, has)
			}
			compareHeld(t, table, slow)
		}
		// Whatever happened, time alone brings every block back.
		now = now.Add(testLongest + testLimits.MaxClaim)
		table.Handle(TickEvent{}, now)
		if _, ok := table.Next(); ok || table.Len() != 0 {
			t.Fatalf("%d leases live for ever", table.Len())
		}
	})
}

// show words effects, with what they point to.
func show(e LeaseEffects) string {
	claimed := "none"
	if e.Claimed != nil {
		claimed = fmt.Sprintf("%+v", *e.Claimed)
	}
	return fmt.Sprintf("%v limit %v claimed %s unclaim %v ended %v", e.Verdict, e.Limit, claimed, e.Unclaim, e.Ended)
}

func compareHeld(t *rapid.T, table *LeaseTable, slow *slowTable) {
	held, n := map[kv.BlockID]int{}, 0
	table.Held(held)
	for _, l := range slow.leases {
		if l.over == 0 {
			n++
			for _, b := range l.Blocks {
				held[b]--
			}
		}
	}
	for b, refs := range held {
		if refs != 0 {
			t.Fatalf("block %d is held %d times too often", b, refs)
		}
	}
	if table.Len() != n {
		t.Fatalf("%d leases, want %d", table.Len(), n)
	}
}

// The table explains the last ends and forgets older ones: its memory has a
// bound, however many leases it has seen.
func TestEndsAreRememberedForAWhile(t *testing.T) {
	table, now := newTestTable(), time.Unix(0, 0)
	name := func(i int) LeaseID { return LeaseID{1, byte(i), byte(i >> 8)} }
	end := func(i int) {
		g := grantOf(1)
		g.ID = name(i)
		table.Handle(g, now)
		now = now.Add(testLimits.Lease)
		if e := table.Handle(TickEvent{}, now); len(e.Ended) != 1 {
			t.Fatalf("%d ended", len(e.Ended))
		}
	}
	verdict := func(i int) Verdict { return table.Handle(RenewEvent{name(i)}, now).Verdict }
	for i := range 2*remembered + 3 {
		end(i)
		first := max(0, i+1-remembered)
		if v := verdict(first); v != VerdictExpired {
			t.Fatalf("after %d ends, end %d: %v", i+1, first, v)
		}
		if v := verdict(first - 1); v != VerdictGone {
			t.Fatalf("after %d ends, end %d: %v", i+1, first-1, v)
		}
	}
	if len(table.ends) != remembered || len(table.ring) != remembered {
		t.Fatalf("remembers %d of %d", len(table.ends), len(table.ring))
	}
}

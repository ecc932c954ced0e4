package core

import (
	"errors"
	"testing"
	"time"
)

// A busy lease says nothing of what it holds: D keeps what another reads, so it
// must not hear of tokens or tiles first.
func TestBusyIsToldBeforeContent(t *testing.T) {
	table, now := newTestTable(), time.Unix(0, 0)
	table.Handle(grantOf(1), now)
	table.Handle(claimOf(1), now)
	for name, edit := range map[string]func(*ClaimEvent){
		"other tokens": func(c *ClaimEvent) { c.Digest[0]++ },
		"other count":  func(c *ClaimEvent) { c.Tokens-- },
		"other tiles":  func(c *ClaimEvent) { c.To = 9 },
	} {
		c := claimOf(1)
		edit(&c)
		if e := table.Handle(c, now); e.Verdict != VerdictBusy {
			t.Errorf("%s: %v", name, e.Verdict)
		}
	}
}

// The first failure names the class, wrong bytes before the error of their read,
// and a cancelled load has none.
func TestFirstCauseNamesTheClass(t *testing.T) {
	now, cut := time.Unix(0, 0), errors.New("cut")
	bad := LoadReadEvent{Verified: []bool{true, false}, Bad: 1, Err: cut, Class: ClassRead}
	broken := LoadReadEvent{Read: 1, Verified: []bool{true, false}, Err: cut, Class: ClassGone}
	for _, c := range []struct {
		name   string
		events []any
		want   LoadClass
	}{
		{"wrong bytes, then a broken read", []any{bad, broken}, ClassSum},
		{"a broken read, then wrong bytes", []any{broken, bad}, ClassGone},
		{"nobody wants it any more", []any{LoadCancelEvent{}, bad, broken}, ""},
	} {
		l := readingLoad(2, 2, now)
		var r *LoadResult
		for _, ev := range c.events {
			if e := l.Handle(ev, now); e.Report != nil {
				r = e.Report
			}
		}
		if r == nil || r.Class != c.want || r.Valid[1] {
			t.Errorf("%s: %+v", c.name, r)
		}
	}
}

// A peer that was reached starts afresh: its next failure is the first again.
func TestPeerThatCameBackStartsAfresh(t *testing.T) {
	table, now := NewPeerTable[*view](time.Hour), time.Unix(0, 0)
	key := PeerKey{Addr: "p:1"}
	shake := func() bool { return len(table.Handle(WantEvent{key, 1, 1}, now).Shake) == 1 }
	fail := func() { table.Handle(ShookEvent[*view]{Key: key, Err: errors.New("no")}, now) }
	shake()
	for range 5 {
		fail()
		now = now.Add(time.Hour)
		if !shake() {
			table.Handle(PeerTickEvent{}, now)
		}
	}
	v := testView(1)
	table.Handle(ShookEvent[*view]{Key: key, View: v}, now)
	table.Handle(PeerLostEvent[*view]{key, v}, now)
	if !shake() {
		t.Fatal("a peer that was there is not tried at once")
	}
	fail()
	if !shake() {
		t.Fatal("one failure after it was there, and the peer is left alone")
	}
}

// A connection's claims end in the order in which their leases were granted,
// whatever the order in which they were claimed or are due: the same history
// gives the same effects.
func TestLostClaimsEndInTheOrderOfTheirGrants(t *testing.T) {
	for _, leaving := range []bool{false, true} {
		table, now := newTestTable(), time.Unix(0, 0)
		for n := range byte(9) {
			table.Handle(grantOf(n), now)
		}
		if e := table.Handle(LostEvent{}, now); len(e.Unclaim)+len(e.Ended) != 0 {
			t.Fatal("leases that nobody claimed were nobody's")
		}
		for i := range byte(9) {
			c := claimOf(i * 5 % 9)
			c.Want = time.Duration(1+i*7%9) * 10 * time.Second
			table.Handle(c, now)
			if leaving {
				table.Handle(RevokeEvent{ID: LeaseID{i * 5 % 9}}, now)
			}
		}
		e := table.Handle(LostEvent{testCaller}, now)
		if len(e.Unclaim) != 9 || leaving != (len(e.Ended) == 9) {
			t.Fatalf("%d claims and %d leases ended", len(e.Unclaim), len(e.Ended))
		}
		for n := range byte(9) {
			if e.Unclaim[n] != (LeaseID{n}) || leaving && e.Ended[n].ID != (LeaseID{n}) {
				t.Fatalf("in the order %v", e.Unclaim)
			}
		}
	}
}

// Every move of a lease is counted, its last one too: simulations tell by the
// counts what they have walked.
func TestEveryMoveOfALeaseIsCounted(t *testing.T) {
	table, now := newTestTable(), time.Unix(0, 0)
	for _, ev := range []any{
		grantOf(1), claimOf(1), LostEvent{testCaller}, claimOf(1), ReturnEvent{LeaseID{1}, testCaller},
		grantOf(2), claimOf(2), RevokeEvent{ID: LeaseID{2}}, LostEvent{testCaller},
		grantOf(3), ReturnEvent{LeaseID{3}, testCaller},
	} {
		table.Handle(ev, now)
	}
	want := map[string]uint64{
		"held claimed": 3, "claimed held": 1, "claimed ended": 1, "claimed leaving": 1, "leaving ended": 1, "held ended": 1,
	}
	for _, e := range LeaseMoves.Edges() {
		if got := table.Moves().Of(e); got != want[e.From+" "+e.To] {
			t.Errorf("%s to %s: %d times, want %d", e.From, e.To, got, want[e.From+" "+e.To])
		}
	}
}

// An answer to a claim that comes when P may end it before we would notice is of
// no use: nothing is read, and the lease is given back.
func TestLateAnswerToAClaimReadsNothing(t *testing.T) {
	start := time.Unix(0, 0)
	for _, c := range []struct {
		after time.Duration
		read  bool
	}{{35*time.Second - 1, true}, {35*time.Second + 1, false}, {35*time.Second + 500*time.Millisecond, false}} {
		l := NewLoad(1, LoadLimits{time.Hour, time.Hour, time.Hour}, start)
		l.Handle(LoadPeerEvent{Reads: 1}, start)
		e := l.Handle(LoadClaimEvent{Verdict: VerdictOK, Limit: 40 * time.Second, Sums: true}, start.Add(c.after))
		if e.Read != c.read || c.read != (e.Report == nil) || !c.read && (e.Report.Class != ClassTimeout || !e.Return || e.Stop) {
			t.Errorf("after %v: %+v", c.after, e)
		}
	}
}

package core

import (
	"errors"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// usual are the limits that the connector has by default.
var usual = LoadLimits{Whole: 30 * time.Second, Answer: 5 * time.Second, Tile: 15 * time.Second}

func readingLoad(tiles, reads int, now time.Time) *Load {
	l := NewLoad(tiles, usual, now)
	l.Handle(LoadPeerEvent{Reads: reads}, now)
	l.Handle(LoadClaimEvent{Verdict: VerdictOK, Limit: time.Minute, Sums: true}, now)
	return l
}

// TestReadsReportOnceAfterTheLastOne walks 4 reads, each ending good or bad, in
// every order: 16 × 24 = 384 cases, each with all events sent twice as well.
func TestReadsReportOnceAfterTheLastOne(t *testing.T) {
	cases := 0
	for outcome := range 1 << 4 {
		permutations(4, func(order []int) {
			cases++
			for _, twice := range []bool{false, true} {
				now := time.Unix(0, 0)
				l := readingLoad(3, 4, now)
				var report *LoadResult
				for n, r := range order {
					ev := LoadReadEvent{Read: r, Verified: []bool{true, true, true}}
					if outcome&(1<<r) != 0 {
						ev.Verified, ev.Err, ev.Class = []bool{true, false, r%2 == 0}, errors.New("cut"), ClassRead
					}
					for range map[bool]int{false: 1, true: 2}[twice] {
						e := l.Handle(ev, now)
						if e.Report == nil {
							continue
						}
						if report != nil || n != 3 {
							t.Fatalf("outcome %b order %v: report after %d reads, before: %v", outcome, order, n+1, report)
						}
						report = e.Report
						if !e.Return {
							t.Fatal("the lease was kept")
						}
					}
				}
				if report == nil || (report.Err == nil) != (outcome == 0) {
					t.Fatalf("outcome %b order %v: %+v", outcome, order, report)
				}
				want := []bool{true, outcome == 0, outcome&0b1010 == 0}
				if !slices.Equal(report.Valid, want) {
					t.Fatalf("outcome %b: valid %v, want %v", outcome, report.Valid, want)
				}
			}
		})
	}
	if cases != 384 {
		t.Fatal(cases)
	}
}

func TestLoadEventsInAnyOrderReportOnce(t *testing.T) {
	events := []any{
		LoadPeerEvent{Reads: 1},
		LoadClaimEvent{Verdict: VerdictOK, Limit: time.Minute, Sums: true},
		LoadReadEvent{Read: 0, Verified: []bool{true}},
		LoadCancelEvent{},
		LoadTickEvent{},
	}
	permutations(len(events), func(order []int) {
		for double := range 1 << len(events) {
			now := time.Unix(0, 0)
			l := NewLoad(1, usual, now)
			reports, reading := 0, false
			step := func(ev any) {
				e := l.Handle(ev, now)
				reading = reading || e.Read
				if e.Report != nil {
					reports++
					if reading && l.open != 0 {
						t.Fatalf("order %v: reported with a read running", order)
					}
				}
			}
			for _, k := range order {
				step(events[k])
				if double&(1<<k) != 0 {
					step(events[k])
				}
			}
			now = now.Add(time.Hour)
			step(LoadTickEvent{})
			if reading {
				step(LoadReadEvent{Read: 0, Verified: []bool{false}, Err: errors.New("cancelled"), Class: ClassRead})
			}
			if reports != 1 {
				t.Fatalf("order %v double %b: %d reports", order, double, reports)
			}
		}
	})
}

func TestLoadDeadlines(t *testing.T) {
	start := time.Unix(0, 0)
	t.Run("before the claim", func(t *testing.T) {
		l := NewLoad(2, usual, start)
		if e := l.Handle(LoadTickEvent{}, start.Add(30*time.Second-1)); e.Report != nil {
			t.Fatal("early")
		}
		e := l.Handle(LoadTickEvent{}, start.Add(30*time.Second))
		if e.Report == nil || e.Report.Class != ClassTimeout || !e.Stop {
			t.Fatalf("%+v", e)
		}
	})
	t.Run("shorter than the claim", func(t *testing.T) {
		l := NewLoad(2, LoadLimits{30 * time.Second, 30 * time.Second, 30 * time.Second}, start)
		l.Handle(LoadPeerEvent{Reads: 1}, start)
		l.Handle(LoadClaimEvent{Verdict: VerdictOK, Limit: 8 * time.Second, Sums: true}, start.Add(time.Second))
		if at := l.Next(); !at.Equal(start.Add(7 * time.Second)) {
			t.Fatalf("gives up after %v; P's claim began later and lasts 8 s", at.Sub(start))
		}
	})
	t.Run("no answer", func(t *testing.T) {
		l := NewLoad(2, usual, start)
		l.Handle(LoadPeerEvent{Reads: 1}, start.Add(3*time.Second))
		if at := l.Next(); !at.Equal(start.Add(8 * time.Second)) {
			t.Fatalf("gives up after %v; the claim left after 3 s", at.Sub(start))
		}
		if e := l.Handle(LoadTickEvent{}, start.Add(8*time.Second-1)); e.Stop {
			t.Fatal("early")
		}
		e := l.Handle(LoadTickEvent{}, start.Add(8*time.Second))
		if e.Report == nil || e.Report.Class != ClassTimeout || !errors.Is(e.Report.Err, errNoAnswer) || !e.Stop || !e.Return {
			t.Fatalf("%+v", e)
		}
	})
	t.Run("no progress", func(t *testing.T) {
		l := readingLoad(2, 1, start)
		l.Handle(LoadProgressEvent{1}, start.Add(4*time.Second))
		if e := l.Handle(LoadProgressEvent{1}, start.Add(19*time.Second-1)); e.Stop {
			t.Fatal("early")
		}
		e := l.Handle(LoadTickEvent{}, start.Add(19*time.Second))
		if !e.Stop || e.Report != nil {
			t.Fatalf("%+v: must wait for the read", e)
		}
		cut := LoadReadEvent{Verified: []bool{true, false}, Err: errors.New("x"), Class: ClassRead}
		e = l.Handle(cut, start.Add(20*time.Second))
		if e.Report == nil || e.Report.Class != ClassTimeout || !errors.Is(e.Report.Err, errNoProgress) || !slices.Equal(e.Report.Valid, []bool{true, false}) {
			t.Fatalf("%+v", e.Report)
		}
	})
}

// What goes wrong when every tile is there, or when nobody wants them any more, is
// no failure.
func TestLateTroubleIsNoFailure(t *testing.T) {
	now := time.Unix(0, 0)
	for _, canceled := range []bool{false, true} {
		l := readingLoad(2, 2, now)
		l.Handle(LoadReadEvent{Read: 0, Verified: []bool{true, !canceled}, Err: errors.New("cut"), Class: ClassRead}, now)
		if canceled {
			l.Handle(LoadCancelEvent{}, now)
		}
		r := l.Handle(LoadReadEvent{Read: 1, Verified: []bool{true, true}}, now).Report
		if r == nil || r.Class != "" || r.Err != nil || r.Canceled != canceled || !slices.Equal(r.Valid, []bool{true, !canceled}) {
			t.Errorf("canceled %v: %+v", canceled, r)
		}
	}
}

func TestClaimVerdictsBecomeClasses(t *testing.T) {
	now := time.Unix(0, 0)
	for v := VerdictGone; v < VerdictEnd; v++ {
		l := NewLoad(1, usual, now)
		l.Handle(LoadPeerEvent{Reads: 1}, now)
		e := l.Handle(LoadClaimEvent{Verdict: v}, now)
		want, back := ClassRefused, true
		switch v {
		case VerdictGone, VerdictExpired, VerdictIncarnation:
			want, back = ClassGone, false
		case VerdictBusy:
			back = false
		default:
		}
		if e.Report == nil || e.Report.Class != want || e.Return != back {
			t.Fatalf("%v: %+v", v, e)
		}
		if err := e.Report.Err; errors.Is(err, ErrLeaseGone) != (want == ClassGone) || errors.Is(err, ErrExpired) != (v == VerdictExpired) {
			t.Fatalf("%v: %v", v, err)
		}
	}
}

// TestLoadNeverValidatesWhatARankDidNotBring feeds random events.
func TestLoadNeverValidatesWhatARankDidNotBring(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		now := time.Unix(0, 0)
		tiles, reads := rapid.IntRange(1, 5).Draw(t, "tiles"), rapid.IntRange(1, 4).Draw(t, "reads")
		l := NewLoad(tiles, usual, now)
		brought := make([]map[int]bool, tiles)
		for i := range brought {
			brought[i] = map[int]bool{}
		}
		ended := map[int]bool{}
		reports := 0
		for range 30 {
			now = now.Add(time.Duration(rapid.IntRange(0, 3000).Draw(t, "ms")) * time.Millisecond)
			var ev any
			switch rapid.IntRange(0, 6).Draw(t, "event") {
			case 0:
				ev = LoadPeerEvent{Reads: reads}
			case 1:
				ev = LoadClaimEvent{Verdict: VerdictOK, Limit: time.Minute, Sums: true}
			case 2, 3:
				r := rapid.IntRange(-1, reads).Draw(t, "read")
				v := rapid.SliceOfN(rapid.Bool(), tiles, tiles).Draw(t, "verified")
				ev = LoadReadEvent{Read: r, Verified: v}
				if l.state == LoadReading && r >= 0 && r < reads && !ended[r] {
					ended[r] = true
					for i, ok := range v {
						brought[i][r] = ok
					}
				}
			case 4:
				ev = LoadCancelEvent{}
			case 5:
				ev = LoadProgressEvent{rapid.IntRange(0, 20).Draw(t, "landed")}
			default:
				ev = LoadTickEvent{}
			}
			e := l.Handle(ev, now)
			if e.Report == nil {
				continue
			}
			if reports++; reports > 1 {
				t.Fatal("two reports")
			}
			for i, ok := range e.Report.Valid {
				n := 0
				for _, b := range brought[i] {
					if b {
						n++
					}
				}
				if ok != (n == reads) {
					t.Fatalf("tile %d valid %v with %d of %d reads", i, ok, n, reads)
				}
			}
			if len(ended) > 0 && len(ended) < reads {
				t.Fatal("reported while reads ran")
			}
		}
	})
}

package core

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// slowLoad is what the rules say of a load, kept as the story of what happened.
type slowLoad struct {
	tiles  int
	start  time.Time
	limit  time.Duration // of the whole load
	answer time.Duration // of the claim
	tile   time.Duration // of the reads

	met, reading, over, stopped, canceled bool

	asked  time.Time // when the claim was sent
	moved  time.Time // last progress of the reads
	landed int
	reads  int
	ended  []bool
	good   [][]bool // by read and tile
	class  LoadClass
	owed   bool // the lease is to be given back
}

func (l *slowLoad) blame(c LoadClass) {
	if l.class == "" && !l.canceled {
		l.class = c
	}
}

// due returns when the load gives up if nothing happens.
func (l *slowLoad) due() time.Time {
	at := l.start.Add(l.limit)
	quiet := at
	switch {
	case l.reading:
		quiet = l.moved.Add(l.tile)
	case l.met:
		quiet = l.asked.Add(l.answer)
	}
	if quiet.Before(at) {
		at = quiet
	}
	return at
}

// report is what the story comes to.
func (l *slowLoad) report() *LoadResult {
	r := &LoadResult{Valid: make([]bool, l.tiles), Class: l.class, Canceled: l.canceled}
	all := l.reading
	for i := range r.Valid {
		r.Valid[i] = l.reading && l.reads > 0
		for _, g := range l.good {
			r.Valid[i] = r.Valid[i] && g[i]
		}
		all = all && r.Valid[i]
	}
	switch {
	case all || l.canceled:
		r.Class = ""
	case r.Class == "":
		r.Class = ClassRead
	}
	l.over = true
	return r
}

func (l *slowLoad) handle(event any, now time.Time) (e LoadEffects) {
	if l.over {
		return e
	}
	end := func() { e.Report, e.Return = l.report(), l.owed }
	stop := func() {
		if !l.stopped {
			l.stopped, e.Stop = true, true
		}
		if !l.reading {
			end()
		}
	}
	switch ev := event.(type) {
	case LoadPeerEvent:
		switch {
		case l.met:
		case ev.Err != nil:
			l.blame(ev.Class)
			l.owed = ev.Class != ClassHandshake
			end()
		default:
			l.met, l.asked, l.reads, e.Claim = true, now, ev.Reads, true
		}
	case LoadClaimEvent:
		if !l.met || l.reading {
			break
		}
		// P began its clock later than we began ours.
		left := l.start.Add(ev.Limit * 7 / 8)
		switch {
		case ev.Err != nil:
			l.blame(ev.Class)
			end()
		case slices.Contains([]Verdict{VerdictGone, VerdictExpired, VerdictIncarnation}, ev.Verdict):
			l.blame(ClassGone)
			l.owed = false
			end()
		case ev.Verdict != VerdictOK || !ev.Sums:
			l.blame(ClassRefused)
			l.owed = ev.Verdict != VerdictBusy
			end()
		case now.After(left):
			l.blame(ClassTimeout)
			end()
		default:
			l.limit = min(l.limit, left.Sub(l.start))
			l.reading, l.moved, e.Read = true, now, true
			l.ended, l.good = make([]bool, l.reads), make([][]bool, l.reads)
			for i := range l.good {
				l.good[i] = make([]bool, l.tiles)
			}
		}
	case LoadReadEvent:
		if !l.reading || ev.Read < 0 || ev.Read >= l.reads || l.ended[ev.Read] {
			break
		}
		l.ended[ev.Read] = true
		copy(l.good[ev.Read], ev.Verified)
		if ev.Bad > 0 {
			l.blame(ClassSum)
		} else if ev.Err != nil {
			l.blame(ev.Class)
		}
		if !slices.Contains(l.ended, false) {
			end()
		}
	case LoadProgressEvent:
		if ev.Landed > l.landed {
			l.landed, l.moved = ev.Landed, now
		}
	case LoadCancelEvent:
		l.canceled = true
		stop()
	}
	if !l.over && !l.stopped && !now.Before(l.due()) {
		l.blame(ClassTimeout)
		stop()
	}
	return e
}

// Any story of a load ends as the slow one does, effect for effect: peers that
// fail, every verdict, reads that bring any pattern of tiles and end in any way
// and order, progress, cancellation, events that come twice, too early or after
// the end, at any times, often at the very moment at which something is due.
func TestLoadEqualsTheSlowOne(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		now := time.Unix(0, 0)
		limit := time.Duration(rapid.IntRange(1, 40).Draw(t, "limit")) * time.Second
		answer := time.Duration(rapid.IntRange(1, 40).Draw(t, "answer")) * time.Second
		tile := time.Duration(rapid.IntRange(1, 40).Draw(t, "tile")) * time.Second
		tiles, reads := rapid.IntRange(1, 6).Draw(t, "tiles"), rapid.IntRange(1, 4).Draw(t, "reads")
		l := NewLoad(tiles, LoadLimits{limit, answer, tile}, now)
		slow := &slowLoad{tiles: tiles, start: now, limit: limit, answer: answer, tile: tile, owed: true}
		classes := []LoadClass{ClassHandshake, ClassIncompatible, ClassSetup, ClassRead, ClassTimeout, ClassGone}
		reports, stops := 0, 0
		for n := range rapid.IntRange(1, 25).Draw(t, "events") {
			step := time.Duration(rapid.IntRange(0, 4000).Draw(t, "ms")) * time.Millisecond
			if at := l.Next(); !at.IsZero() && rapid.IntRange(0, 4).Draw(t, "due") == 0 {
				step = at.Sub(now) - time.Duration(rapid.IntRange(0, 1).Draw(t, "early"))
			}
			now = now.Add(max(step, 0))
			var broken error
			class := LoadClass("")
			if rapid.IntRange(0, 5).Draw(t, "fails") == 0 {
				broken, class = errors.New("broken"), rapid.SampledFrom(classes).Draw(t, "class")
			}
			var ev any
			kind := rapid.IntRange(0, 9).Draw(t, "event")
			if n < 2 && rapid.IntRange(0, 3).Draw(t, "in order") > 0 {
				kind = n
			}
			switch kind {
			case 0:
				ev = LoadPeerEvent{Reads: reads, Class: class, Err: broken}
			case 1:
				v := Verdict(0)
				if rapid.IntRange(0, 5).Draw(t, "refused") == 0 {
					v = Verdict(rapid.IntRange(1, int(VerdictEnd)-1).Draw(t, "verdict"))
				}
				ev = LoadClaimEvent{Verdict: v, Limit: time.Duration(rapid.IntRange(1, 60).Draw(t, "of P")) * time.Second,
					Sums: rapid.IntRange(0, 9).Draw(t, "sums") > 0, Class: class, Err: broken}
			case 2, 3, 4, 5:
				n := tiles + rapid.SampledFrom([]int{0, 0, 0, -1, 2}).Draw(t, "more or fewer")
				ev = LoadReadEvent{Read: rapid.IntRange(-1, reads).Draw(t, "read"), Class: class, Err: broken,
					Verified: rapid.SliceOfN(rapid.SampledFrom([]bool{true, true, true, false}), n, n).Draw(t, "verified"),
					Bad:      rapid.SampledFrom([]int{0, 0, 0, 2}).Draw(t, "bad")}
			case 6:
				ev = LoadProgressEvent{rapid.IntRange(0, 20).Draw(t, "landed")}
			case 7:
				if rapid.IntRange(0, 3).Draw(t, "really") == 0 {
					ev = LoadCancelEvent{}
				}
			default:
				ev = LoadTickEvent{}
			}
			for range rapid.SampledFrom([]int{1, 1, 2}).Draw(t, "times") {
				got, want := l.Handle(ev, now), slow.handle(ev, now)
				if a, b := showLoad(got), showLoad(want); a != b {
					t.Fatalf("%T %+v:\n got %s\nwant %s", ev, ev, a, b)
				}
				if got.Report != nil {
					reports++
					if (got.Report.Err == nil) != (got.Report.Class == "") {
						t.Fatalf("class %q with error %v", got.Report.Class, got.Report.Err)
					}
				}
				if got.Stop {
					stops++
				}
			}
			want := slow.due()
			if slow.over || slow.stopped {
				want = time.Time{}
			}
			if at := l.Next(); !at.Equal(want) {
				t.Fatalf("after %T: next at %v, want %v", ev, at, want)
			}
		}
		if reports > 1 || stops > 1 {
			t.Fatalf("%d reports, stopped %d times", reports, stops)
		}
		// Time alone ends a load, but for reads that still run: their ends do.
		for range 2 {
			now = now.Add(41 * time.Second)
			if l.Handle(LoadTickEvent{}, now).Report != nil {
				reports++
			}
		}
		for r := range reads {
			if l.Handle(LoadReadEvent{Read: r, Err: errors.New("cancelled"), Class: ClassRead}, now).Report != nil {
				reports++
			}
		}
		if reports != 1 || l.State() != LoadEnded {
			t.Fatalf("%d reports, %v", reports, l.State())
		}
	})
}

// showLoad words effects, but for the text of errors.
func showLoad(e LoadEffects) string {
	report := "none"
	if r := e.Report; r != nil {
		report = fmt.Sprintf("%v %q canceled %t", r.Valid, r.Class, r.Canceled)
	}
	return fmt.Sprintf("claim %t read %t stop %t return %t report %s", e.Claim, e.Read, e.Stop, e.Return, report)
}

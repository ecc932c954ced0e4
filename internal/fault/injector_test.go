package fault

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

// A step is one call of a run.
type step struct {
	point Point
	sub   Subject
}

func anySteps(t *rapid.T, name string) []step {
	return rapid.SliceOfN(rapid.Custom(func(t *rapid.T) step {
		p := rapid.SampledFrom(Points()).Draw(t, "point")
		s := step{point: p}
		if named(p) {
			s.sub.Request = rapid.SampledFrom([]string{"ab", "aa", "b"}).Draw(t, "request")
		}
		if addressed(p) {
			s.sub.Peer = rapid.SampledFrom([]string{"p:1", "q:1"}).Draw(t, "peer")
		}
		return s
	}), 0, 60).Draw(t, name)
}

func run(i *Injector, steps []step) []Event {
	var out []Event
	for _, s := range steps {
		f, ok := i.Decide(s.point, s.sub)
		if ok {
			out = append(out, newEvent(0, s.sub, f))
		} else {
			out = append(out, Event{})
		}
	}
	return out
}

func set(t interface{ Fatal(...any) }, p Plan) *Injector {
	i := New(Config{})
	if err := i.Set(p); err != nil {
		t.Fatal(err)
	}
	return i
}

// slowHits says, the long way round, whether the schedule hits call n.
func slowHits(w When, n int) bool {
	ok := true
	if w.Pattern != "" {
		line := strings.Repeat(w.Pattern, n)
		if w.Once {
			line = w.Pattern + strings.Repeat("O", n)
		}
		ok = ok && line[n-1] == 'X'
	}
	if len(w.Nth) > 0 {
		found := false
		for _, m := range w.Nth {
			found = found || m == uint64(n)
		}
		ok = ok && found
	}
	return ok
}

// What hits a call is what a slow reading of the plan says. Probabilities have
// their own test.
func TestScheduleIsWhatThePlanSays(t *testing.T) {
	matches := func(pattern, s string) bool {
		if pattern == "" {
			return true
		}
		re := strings.NewReplacer(`\*`, ".*", `\?`, ".").Replace(regexp.QuoteMeta(pattern))
		return regexp.MustCompile("^(?s:" + re + ")$").MatchString(s)
	}
	hits := 0
	rapid.Check(t, func(t *rapid.T) {
		p := anyPlan(t)
		for i := range p.Faults {
			p.Faults[i].When.Probability = 0
		}
		steps := anySteps(t, "steps")
		got := run(set(t, p), steps)
		seen := make([]int, len(p.Faults))
		for at, s := range steps {
			want := -1
			for i, f := range p.Faults {
				if f.Point != s.point || !matches(f.When.RequestID, s.sub.Request) || !matches(f.When.Peer, s.sub.Peer) {
					continue
				}
				seen[i]++
				if want < 0 && slowHits(f.When, seen[i]) {
					want = i
				}
			}
			switch {
			case want < 0 && got[at] != Event{}:
				t.Fatalf("call %d is hit by %+v", at, got[at])
			case want >= 0:
				hits++
				f := p.Faults[want]
				f.Draw = got[at].Draw
				if d := cmp.Diff(newEvent(0, s.sub, f), got[at]); d != "" {
					t.Fatalf("call %d: %s", at, d)
				}
			}
		}
	})
	if hits == 0 {
		t.Error("no call was hit")
	}
}

func TestGlobsMatchLikeExpressions(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		pattern := rapid.StringMatching(`[ab*?]{1,8}`).Draw(t, "pattern")
		s := rapid.StringMatching(`[ab]{0,10}`).Draw(t, "text")
		re := regexp.MustCompile("^" + strings.NewReplacer("*", ".*", "?", ".").Replace(pattern) + "$")
		if got, want := glob(pattern, s), re.MatchString(s); got != want {
			t.Fatalf("%q on %q: %v", pattern, s, got)
		}
	})
	if !glob("abc-*", "abc-") || glob("abc-*", "abc") || !glob("", "x") {
		t.Error("simple globs")
	}
}

// The order of calls at different points changes nothing: each point has its own
// numbers.
func TestPointsDoNotDisturbEachOther(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := anyPlan(t)
		steps := anySteps(t, "steps")
		sorted := slices.Clone(steps)
		slices.SortStableFunc(sorted, func(a, b step) int { return strings.Compare(string(a.point), string(b.point)) })
		one, other := set(t, p), set(t, p)
		byPoint := func(events []Event) map[Point][]Event {
			out := map[Point][]Event{}
			for _, e := range events {
				out[e.Point] = append(out[e.Point], e)
			}
			return out
		}
		run(one, steps)
		run(other, sorted)
		if d := cmp.Diff(byPoint(one.Events()), byPoint(other.Events())); d != "" {
			t.Fatal(d)
		}
	})
}

// Goroutines may come in any order: which numbers are hit, and how, stays.
func TestDecisionsDoNotDependOnGoroutines(t *testing.T) {
	p := Plan{Seed: 11, Faults: []Fault{
		{Point: ReadPiece, Action: Flip, When: When{Probability: 0.3}},
		{Point: ReadPiece, Action: Drop, When: When{Pattern: "OOX"}},
	}}
	const calls = 2000
	want := set(t, p)
	for range calls {
		want.Decide(ReadPiece, Subject{})
	}
	got := set(t, p)
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range calls / 8 {
				got.Decide(ReadPiece, Subject{})
			}
		})
	}
	wg.Wait()
	if d := cmp.Diff(want.Events(), got.Events()); d != "" {
		t.Error(d)
	}
	if d := cmp.Diff(want.Counts(), got.Counts()); d != "" || len(got.Counts()) != 2 {
		t.Error(got.Counts(), d)
	}
}

func TestProbabilityIsKept(t *testing.T) {
	for _, p := range []float64{0.01, 0.3, 0.9} {
		i := set(t, Plan{Seed: 3, Faults: []Fault{{Point: Claim, Action: Cut, When: When{Probability: p}}}})
		const n = 20_000
		hit := 0
		for range n {
			if _, ok := i.Decide(Claim, Subject{}); ok {
				hit++
			}
		}
		if got := float64(hit) / n; got < p*0.85 || got > p*1.15 { // the seed is fixed: no luck is involved
			t.Errorf("%v of the calls are hit in place of %v", got, p)
		}
	}
	i := set(t, Plan{Faults: []Fault{{Point: Claim, Action: Cut, When: When{Probability: 1}}}})
	for n := range 1000 {
		if _, ok := i.Decide(Claim, Subject{}); !ok {
			t.Fatalf("call %d passes", n)
		}
	}
}

// Two faults of one plan, and one fault under two seeds, draw for themselves.
func TestDrawsAreIndependent(t *testing.T) {
	half := When{Probability: 0.5}
	hits := func(seed uint64, p Point) (out []bool) {
		i := set(t, Plan{Seed: seed, Faults: []Fault{{Point: Claim, Action: Cut, When: half}, {Point: Return, Action: Cut, When: half}}})
		for range 64 {
			_, ok := i.Decide(p, Subject{})
			out = append(out, ok)
		}
		return out
	}
	a, b, c := hits(1, Claim), hits(1, Return), hits(2, Claim)
	if slices.Equal(a, b) || slices.Equal(a, c) || slices.Equal(b, c) || !slices.Equal(a, hits(1, Claim)) {
		t.Error(a, b, c)
	}
}

// A replayed record gives the same calls the same faults, to the bit.
func TestReplayRepeats(t *testing.T) {
	fired := 0
	rapid.Check(t, func(t *rapid.T) {
		steps := anySteps(t, "steps")
		first := set(t, anyPlan(t))
		want := run(first, steps)
		fired += len(first.Events())
		var file bytes.Buffer
		if err := WriteEvents(&file, first.Events()); err != nil {
			t.Fatal(err)
		}
		events, err := ReadEvents(&file)
		if err != nil {
			t.Fatal(err)
		}
		again := New(Config{})
		if err := again.Replay(events); err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(want, run(again, steps)); d != "" {
			t.Fatal(d)
		}
		if d := cmp.Diff(first.Events(), again.Events()); d != "" {
			t.Fatal(d)
		}
		if d := cmp.Diff(first.Counts(), again.Counts()); d != "" {
			t.Fatal(d)
		}
	})
	if fired == 0 {
		t.Error("nothing was ever injected")
	}
}

func TestRecordsAreChecked(t *testing.T) {
	for _, c := range []struct{ record, field string }{
		{"{}", "event 1.point"},
		{`{"point":"claim","action":"cut","call":1,"draw":1,"when":{}}`, "line 1.when"},
		{"\n" + `{"point":"claim","action":"cut","draw":1}`, "event 1.call"},
		{`{"point":"claim","action":"stall","call":1,"draw":1}`, "event 1.action"},
		{`{"point":"claim","action":"cut","call":1,"draw":1}` + "\n" + `{"point":"claim","action":"drop","call":1,"draw":1}`, "event 2.call"},
		{strings.Repeat(" ", MaxPlan+1), "the record"},
		{strings.Repeat(strings.Repeat(" ", MaxPlan/2)+"\n", 2*MaxRecord/MaxPlan), "the record"},
	} {
		_, err := ReadEvents(strings.NewReader(c.record))
		if pe, ok := errors.AsType[*PlanError](err); !ok || pe.Field != c.field {
			t.Errorf("%.80q: %v, want %s", c.record, err, c.field)
		}
	}
	broken := errors.New("broken")
	if _, err := ReadEvents(failing{broken}); !errors.Is(err, broken) {
		t.Error(err)
	}
	if err := New(Config{}).Replay(make([]Event, MaxEvents+1)); err == nil {
		t.Error("a record of any length is taken")
	}
}

type failing struct{ err error }

func (f failing) Read([]byte) (int, error) { return 0, f.err }

func TestSetStartsAnewAndOffKeepsTheCounts(t *testing.T) {
	i := New(Config{})
	if _, ok := i.Decide(Claim, Subject{}); ok || i.Status().Mode != ModeOff || len(i.Status().Calls) != 0 {
		t.Fatal("a new injector is not off")
	}
	always := Plan{Faults: []Fault{{Point: Claim, Action: Cut}}}
	if err := i.Set(always); err != nil {
		t.Fatal(err)
	}
	_, changed, ok := i.decide(Claim, Subject{Request: "r"})
	if s := i.Status(); !ok || s.Mode != ModePlan || s.Fired != 1 || s.Calls[Claim] != 1 || s.Recorded != 1 || len(s.Plan.Faults) != 1 {
		t.Fatalf("%v %+v", ok, s)
	}
	select {
	case <-changed:
		t.Fatal("nothing has changed")
	default:
	}
	if err := i.Set(Plan{Faults: []Fault{{Point: "x"}}}); err == nil || i.Status().Fired != 1 {
		t.Fatalf("%v, %+v", err, i.Status())
	}
	if err := i.Replay([]Event{{Point: "x"}}); err == nil || i.Status().Mode != ModePlan {
		t.Fatalf("%v, %+v", err, i.Status())
	}
	i.Off()
	<-changed
	if _, ok := i.Decide(Claim, Subject{}); ok {
		t.Fatal("off, and a call is hit")
	}
	if s := i.Status(); s.Mode != ModeOff || s.Fired != 1 || s.Plan != nil || len(i.Events()) != 1 {
		t.Fatalf("%+v", s)
	}
	if err := i.Replay(i.Events()); err != nil {
		t.Fatal(err)
	}
	if s := i.Status(); s.Mode != ModeReplay || s.Fired != 0 || s.Replaying != 1 || s.Recorded != 0 {
		t.Fatalf("%+v", s)
	}
	if err := i.Set(always); err != nil || i.Status().Mode != ModePlan {
		t.Fatalf("%v %+v", err, i.Status())
	}
}

func TestRecordIsBounded(t *testing.T) {
	i := set(t, Plan{Faults: []Fault{{Point: Claim, Action: Cut}}})
	for range MaxEvents + 5 {
		i.Decide(Claim, Subject{})
	}
	if s := i.Status(); s.Recorded != MaxEvents || s.Unrecorded != 5 || s.Fired != MaxEvents+5 {
		t.Errorf("%+v", s)
	}
}

func TestEachFaultIsLogged(t *testing.T) {
	var out bytes.Buffer
	i := New(Config{Log: slog.New(slog.NewTextHandler(&out, nil))})
	if err := i.Set(Plan{Faults: []Fault{{Point: Claim, Action: Error, Class: "gone", When: When{Nth: []uint64{2}}}}}); err != nil {
		t.Fatal(err)
	}
	for n := range 3 {
		i.Decide(Claim, Subject{fmt.Sprint("r", n), "p:1"})
	}
	if got := out.String(); strings.Count(got, "\n") != 1 ||
		!strings.Contains(got, `msg="fault injected" point=claim action=error call=2 class=gone request_id=r1 peer=p:1`) {
		t.Error(got)
	}
}

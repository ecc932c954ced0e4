package fault

import (
	"encoding/json"
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

// anyFault draws a fault that makes sense.
func anyFault(t *rapid.T) Fault {
	c := rapid.SampledFrom(Cells()).Draw(t, "cell")
	f := Fault{Point: c.Point, Action: c.Action}
	some := func(name string) bool { return rapid.Bool().Draw(t, name) }
	if classes := Classes(c.Point); c.Action == Error && classes != nil && some("has class") {
		f.Class = rapid.SampledFrom(classes).Draw(t, "class")
	}
	if c == (Cell{HTTP, Error}) && some("has status") {
		f.Status = rapid.IntRange(400, 599).Draw(t, "status")
	}
	if sized(c) {
		f.Bytes = rapid.Int64Range(0, maxBytes).Draw(t, "bytes")
	}
	if c.Action == Delay {
		f.Delay = Duration(rapid.Int64Range(1, int64(maxDelay)).Draw(t, "delay"))
	}
	if spread(c) && some("has every") {
		f.Every = rapid.IntRange(1, 9).Draw(t, "every")
	}
	w := &f.When
	if some("has probability") {
		w.Probability = rapid.Float64Range(0.001, 1).Draw(t, "probability")
	}
	if some("has pattern") {
		w.Pattern = rapid.StringMatching(`[OX]{0,9}X[OX]{0,9}`).Draw(t, "pattern")
		w.Once = some("once")
	}
	if some("has nth") {
		w.Nth = rapid.SliceOfN(rapid.Uint64Range(1, 40), 1, 20).Draw(t, "nth")
	}
	if named(c.Point) && some("has request") {
		w.RequestID = rapid.SampledFrom([]string{"*", "a*", "?b", "ab", "z"}).Draw(t, "request")
	}
	if addressed(c.Point) && some("has peer") {
		w.Peer = rapid.SampledFrom([]string{"*", "p:*", "q:1"}).Draw(t, "peer")
	}
	return f
}

func anyPlan(t *rapid.T) Plan {
	return Plan{
		Seed:   rapid.Uint64().Draw(t, "seed"),
		Faults: rapid.SliceOfN(rapid.Custom(anyFault), 1, 6).Draw(t, "faults"),
	}
}

func TestPlansSurviveTheirJSON(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := anyPlan(t)
		if err := p.Check(); err != nil {
			t.Fatal(err)
		}
		raw, err := json.Marshal(p)
		if err != nil {
			t.Fatal(err)
		}
		back, err := ParsePlan(raw)
		if err != nil {
			t.Fatalf("%v in %s", err, raw)
		}
		if d := cmp.Diff(p, back); d != "" {
			t.Fatal(d)
		}
	})
}

func TestPlanOfTheManualIsRead(t *testing.T) {
	p, err := ParsePlan([]byte(`{"seed": 7, "faults": [
		{"point": "claim", "action": "error", "class": "refused", "when": {"pattern": "OOOX"}},
		{"point": "read_piece", "action": "stall", "bytes": 65536, "when": {"probability": 0.3}},
		{"point": "handshake", "action": "blackhole", "when": {"nth": [1, 3]}},
		{"point": "http", "action": "cut", "bytes": 100, "when": {"request_id": "abc-*"}},
		{"point": "return", "action": "delay", "delay": "1.5s", "when": {"pattern": "XO", "once": true}}]}`))
	if err != nil {
		t.Fatal(err)
	}
	want := Plan{Seed: 7, Faults: []Fault{
		{Point: Claim, Action: Error, Class: "refused", When: When{Pattern: "OOOX"}},
		{Point: ReadPiece, Action: Stall, Bytes: 65536, When: When{Probability: 0.3}},
		{Point: Handshake, Action: Blackhole, When: When{Nth: []uint64{1, 3}}},
		{Point: HTTP, Action: Cut, Bytes: 100, When: When{RequestID: "abc-*"}},
		{Point: Return, Action: Delay, Delay: Duration(1500 * time.Millisecond), When: When{Pattern: "XO", Once: true}},
	}}
	if d := cmp.Diff(want, p); d != "" {
		t.Error(d)
	}
}

// Every mistake names its field and what to do.
func TestMistakesNameFieldAndRemedy(t *testing.T) {
	one := func(f string) string { return `{"faults":[{"point":"claim","action":"drop"},` + f + `]}` }
	when := func(w string) string { return one(`{"point":"claim","action":"cut","when":` + w + `}`) }
	for _, c := range []struct{ plan, field, remedy string }{
		{`[]`, "the plan", "want a JSON object"},
		{`null`, "the plan", "want a JSON object"},
		{`{`, "the plan", "byte 1"},
		{`{}`, "faults", "tandem chaos off"},
		{`{"faults":[]}`, "faults", "tandem chaos off"},
		{`{"seeds":1}`, "seeds", "want one of faults, seed"},
		{`{"seed":-1}`, "seed", "not negative"},
		{`{"faults":{}}`, "faults", "want a list"},
		{one(`7`), "faults[1]", "want a JSON object"},
		{one(`{}`), "faults[1].point", "want one of handshake, claim,"},
		{one(`{"point":"clam","action":"cut"}`), "faults[1].point", `"clam" is none`},
		{one(`{"point":"claim","action":"stall"}`), "faults[1].action", "want one of error, blackhole, cut,"},
		{one(`{"point":"claim","action":"cut","byts":1}`), "faults[1].byts", "want one of action, bytes,"},
		{one(`{"point":"claim","action":"cut","draw":1}`), "faults[1].draw", "no such field"},
		{one(`{"point":"claim","action":"cut","class":"refused"}`), "faults[1].class", "leave it out"},
		{one(`{"point":"return","action":"error","class":"refused"}`), "faults[1].class", "leave it out"},
		{one(`{"point":"claim","action":"error","class":"sum"}`), "faults[1].class", "want one of refused, gone, handshake"},
		{one(`{"point":"claim","action":"error","status":500}`), "faults[1].status", "leave it out"},
		{one(`{"point":"http","action":"error","status":200}`), "faults[1].status", "from 400 to 599"},
		{one(`{"point":"http","action":"error","status":"500"}`), "faults[1].status", "want a whole number"},
		{one(`{"point":"claim","action":"cut","bytes":1}`), "faults[1].bytes", "leave it out"},
		{one(`{"point":"http","action":"cut","bytes":-1}`), "faults[1].bytes", "from 0"},
		{one(`{"point":"claim","action":"delay"}`), "faults[1].delay", "200ms"},
		{one(`{"point":"claim","action":"delay","delay":200}`), "faults[1].delay", `"200ms"`},
		{one(`{"point":"claim","action":"delay","delay":"-1s"}`), "faults[1].delay", "from 0"},
		{one(`{"point":"claim","action":"delay","delay":"11m"}`), "faults[1].delay", "to 10m"},
		{one(`{"point":"claim","action":"cut","delay":"1s"}`), "faults[1].delay", "leave it out"},
		{one(`{"point":"claim","action":"cut","every":2}`), "faults[1].every", "leave it out"},
		{one(`{"point":"seal","action":"flip","every":-2}`), "faults[1].every", "from 0"},
		{when(`[]`), "faults[1].when", "want a JSON object"},
		{when(`{"often":1}`), "faults[1].when.often", "want one of nth,"},
		{when(`{"probability":1.5}`), "faults[1].when.probability", "from 0 to 1"},
		{when(`{"probability":0}`), "faults[1].when.probability", "leave the fault out"},
		{when(`{"probability":"0.5"}`), "faults[1].when.probability", "want a number"},
		{when(`{"pattern":"OOx"}`), "faults[1].when.pattern", "O (passes) and X (is hit)"},
		{when(`{"pattern":"OO"}`), "faults[1].when.pattern", "put an X"},
		{when(`{"pattern":"` + strings.Repeat("X", maxPattern+1) + `"}`), "faults[1].when.pattern", "at most 1024"},
		{when(`{"once":true}`), "faults[1].when.once", "use nth"},
		{when(`{"once":1}`), "faults[1].when.once", "true or false"},
		{when(`{"nth":[0]}`), "faults[1].when.nth", "from 1"},
		{when(`{"nth":[]}`), "faults[1].when.nth", "leave the fault out"},
		{when(`{"nth":3}`), "faults[1].when.nth", "such as [1, 3]"},
		{when(`{"nth":[1` + strings.Repeat(",1", maxNth) + `]}`), "faults[1].when.nth", "at most 1024"},
		{when(`{"request_id":"` + strings.Repeat("a", maxGlob+1) + `"}`), "faults[1].when.request_id", "at most 256"},
		{when(`{"peer":"` + strings.Repeat("a", maxGlob+1) + `"}`), "faults[1].when.peer", "at most 256"},
		{when(`{"peer":"nohost"}`), "faults[1].when.peer", "no host:port"},
		{one(`{"point":"seal","action":"drop","when":{"request_id":"a"}}`), "faults[1].when.request_id", "use nth or pattern"},
		{one(`{"point":"seal","action":"drop","when":{"peer":"a"}}`), "faults[1].when.peer", "on the other engine"},
		{`{"faults":[` + strings.Repeat(`{"point":"claim","action":"cut"},`, maxFaults) + `{"point":"claim","action":"cut"}]}`, "faults", "at most 64"},
		{`{"seed":1` + strings.Repeat(" ", MaxPlan) + `}`, "the plan", "at most 65536"},
	} {
		_, err := ParsePlan([]byte(c.plan))
		pe, ok := errors.AsType[*PlanError](err)
		if !ok || pe.Field != c.field || !strings.Contains(pe.Want, c.remedy) {
			t.Errorf("%.120s: got %v; want field %s and %q", c.plan, err, c.field, c.remedy)
		}
	}
}

// The table of the package comment has each cell once, and no other.
func TestPackageCommentHasEveryCell(t *testing.T) {
	raw, err := os.ReadFile("doc.go")
	if err != nil {
		t.Fatal(err)
	}
	var got []Cell
	for line := range strings.Lines(string(raw)) {
		rest, ok := strings.CutPrefix(line, "//\t")
		if !ok {
			continue
		}
		f := strings.Fields(rest)
		if len(f) < 4 {
			t.Errorf("%q says too little", line)
			continue
		}
		got = append(got, Cell{Point(f[0]), Action(f[1])})
	}
	if d := cmp.Diff(Cells(), got); d != "" {
		t.Errorf("the table in doc.go is not that of point.go (-point.go +doc.go):\n%s", d)
	}
	for _, p := range Points() {
		if !strings.Contains(string(raw), string(p)) || len(Actions(p)) == 0 {
			t.Errorf("doc.go says nothing of point %s, or it has no action", p)
		}
	}
}

func FuzzPlan(f *testing.F) {
	f.Add([]byte(`{"seed": 7, "faults": [{"point": "claim", "action": "error", "class": "refused", "when": {"pattern": "OOOX"}}]}`))
	f.Add([]byte(`{"faults":[{"point":"http","action":"delay","delay":"1h"}]}`))
	f.Fuzz(func(t *testing.T, raw []byte) {
		p, err := ParsePlan(raw)
		if err != nil {
			if _, ok := errors.AsType[*PlanError](err); !ok {
				t.Fatalf("%T: %v", err, err)
			}
			return
		}
		again, err := json.Marshal(p)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := ParsePlan(again); err != nil && len(again) <= MaxPlan {
			t.Fatalf("%s became %s: %v", raw, again, err)
		}
	})
}

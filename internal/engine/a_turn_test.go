package engine

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"tandem/internal/bystander/logtest"
	"tandem/internal/connector"
	"tandem/internal/kv"
	"tandem/internal/sched"
	"tandem/internal/sim"
)

// The name of this file has its tests run first: what breaks the core makes many
// others wait for what never comes, and these see it at once.

// A diary is a Connector that notes what it is told. Nothing else comes of it.
type diary struct {
	name    string // prefix of request ids, which is left out
	calls   []string
	deny    bool               // Grant gives nothing
	cancel  func(kv.RequestID) // called by CancelLoad
	reports chan connector.LoadReport
	freed   chan []kv.BlockID
}

func (d *diary) note(format string, args ...any) {
	d.calls = append(d.calls, strings.ReplaceAll(fmt.Sprintf(format, args...), d.name+"-", ""))
}

func (d *diary) Verify(*connector.Handoff, []kv.Token) error { return nil }
func (d *diary) Track(h *connector.Handoff)                  { d.note("track %s", h.RequestID) }
func (d *diary) Untrack(h *connector.Handoff)                { d.note("untrack %s", h.RequestID) }
func (d *diary) ReturnUnread(h *connector.Handoff)           { d.note("return %s", h.RequestID) }
func (d *diary) Revoke(h *connector.Handoff)                 { d.note("revoke %s", h.RequestID) }
func (d *diary) Reports() <-chan connector.LoadReport        { return d.reports }
func (d *diary) Freed() <-chan []kv.BlockID                  { return d.freed }

func (d *diary) Load(s connector.LoadSpec) {
	d.note("load %s of %s from %s: tiles %d to %d of %d tokens into %d blocks",
		s.ID, s.ClientID, s.Handoff.RequestID, s.FromTile, s.ToTile, len(s.Prompt), len(s.Local))
}

func (d *diary) CancelLoad(id kv.RequestID) {
	d.note("cancel %s", id)
	if d.cancel != nil {
		d.cancel(id)
	}
}

func (d *diary) Grant(s connector.LeaseSpec) *connector.Handoff {
	d.note("grant %s: %d blocks, %d tokens", s.ID, len(s.Blocks), len(s.Tokens))
	if d.deny {
		return nil
	}
	return &connector.Handoff{RequestID: strings.ReplaceAll(string(s.ID), d.name+"-", "")}
}

// turns is an engine whose turns the test takes one by one, with a clock of its
// own. A step takes a second.
type turns struct {
	*Engine
	t     *testing.T
	m     *sim.Model
	d     *diary
	book  *logtest.Book
	began time.Time
	now   time.Time
	told  []string // what metrics were told of
	stats []RequestStats
	edit  func(rows [][]float32)
}

func newTurns(t *testing.T, mc sim.Config, cfg Config) *turns {
	t.Helper()
	m, err := sim.New(mc)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = m.Close() })
	x := &turns{
		t: t, m: m, book: &logtest.Book{}, began: time.Unix(1000, 0), now: time.Unix(1000, 0),
		d: &diary{reports: make(chan connector.LoadReport, 9), freed: make(chan []kv.BlockID, 9)},
	}
	tell := func(format string, args ...any) { x.told = append(x.told, fmt.Sprintf(format, args...)) }
	cfg.Model, cfg.Connector = m, x.d
	cfg.Log = slog.New(slog.NewTextHandler(x.book, &slog.HandlerOptions{Level: slog.LevelDebug}))
	cfg.Metrics = Metrics{
		FirstToken: func(d time.Duration) { tell("first token after %v", d) },
		InterToken: func(d time.Duration) { tell("next token after %v", d) },
		Admitted:   func(u Usage) { tell("admitted %d of %d loaded", u.Loaded, u.Prompt) },
		Preempted:  func(n int) { tell("preempted %d", n) },
		LoadFailed: func(c connector.LoadClass) { tell("load failed: %s", c) },
		Recovered:  func(requests, tokens int) { tell("recovered %d, %d tokens", requests, tokens) },
		Finished:   func(s RequestStats) { x.stats = append(x.stats, s) },
	}
	if x.Engine, err = New(cfg); err != nil {
		t.Fatal(err)
	}
	x.d.name = x.name
	return x
}

// turn takes a turn and reports whether there was anything to compute.
func (x *turns) turn() bool {
	x.t.Helper()
	b := x.Begin(x.now)
	if b == nil {
		return false
	}
	rows, err := x.m.Step(b)
	if err != nil {
		x.t.Fatal(err)
	}
	if x.edit != nil {
		x.edit(rows)
	}
	x.now = x.now.Add(time.Second)
	x.Finish(rows, x.now)
	return true
}

// rest takes turns until there is nothing to compute.
func (x *turns) rest() {
	x.t.Helper()
	for range 1000 {
		if !x.turn() {
			return
		}
	}
	x.t.Fatal("it goes on for ever")
}

func (x *turns) submit(r Request) *Stream {
	x.t.Helper()
	s, err := x.Submit(x.t.Context(), r)
	if err != nil {
		x.t.Fatal(err)
	}
	return s
}

// read returns the outputs that are there, and whether they are all.
func (x *turns) read(s *Stream) (outs []Output, ended bool) {
	x.t.Helper()
	for s.pending() {
		o, err := s.Next(x.t.Context())
		if errors.Is(err, io.EOF) {
			return outs, true
		}
		if err != nil {
			x.t.Fatal(err)
		}
		outs = append(outs, o)
	}
	return outs, false
}

// last returns the last output of a stream that has ended.
func (x *turns) last(s *Stream) Output {
	x.t.Helper()
	outs, ended := x.read(s)
	if !ended || len(outs) == 0 {
		x.t.Fatalf("%d outputs, ended %t", len(outs), ended)
	}
	return outs[len(outs)-1]
}

// calls says what the connector was told since the last time.
func (x *turns) calls(when string, want ...string) {
	x.t.Helper()
	if d := cmp.Diff(want, x.d.calls, cmpopts.EquateEmpty()); d != "" {
		x.t.Errorf("%s, the connector is told: %s", when, d)
	}
	x.d.calls = nil
}

// metrics says what the metrics were told since the last time, in this or
// another order.
func (x *turns) metrics(when string, want ...string) {
	x.t.Helper()
	if d := cmp.Diff(want, x.told, cmpopts.EquateEmpty()); d != "" {
		x.t.Errorf("%s, the metrics are told: %s", when, d)
	}
	x.told = nil
}

// report has the connector report a load that lost tiles.
func (x *turns) report(id string, tiles int, class connector.LoadClass, lost ...int) *connector.LoadError {
	rep := connector.LoadReport{ID: kv.RequestID(x.name + "-" + id), To: tiles, Valid: tiles - len(lost), Invalid: lost}
	if class != "" {
		rep.Err = &connector.LoadError{Peer: "p", Class: class, Tiles: lost, Err: errors.New("lost")}
	}
	x.d.reports <- rep
	return rep.Err
}

// gone verifies that nothing is left of any request.
func (x *turns) gone() {
	x.t.Helper()
	x.turn()
	s := x.core.sched.Stats()
	if x.live.Load() != 0 || len(x.core.groups)+len(x.core.loads) != 0 || s.Free != s.Blocks {
		x.t.Errorf("%d choices, %d requests, %d loads are left: %+v", x.live.Load(), len(x.core.groups), len(x.core.loads), s)
	}
}

// offered is a request with a hand-off of its prompt's first tokens.
func offered(name string, r Request, tokens int) Request {
	r.ClientID = name
	r.Handoff = &connector.Handoff{EngineID: "p", RequestID: name, Tokens: tokens}
	return r
}

// In every life of a request the connector hears what it is to do for it, once,
// and nothing else.
func TestWhatTheConnectorIsTold(t *testing.T) {
	x := newTurns(t, sim.Config{}, Config{})
	x.submit(offered("a", greedy(prompt(100, 1), 2), 100))
	x.turn()
	x.calls("a hand-off comes", "track a", "load 1.0 of a from a: tiles 0 to 7 of 100 tokens into 7 blocks")
	x.report("1.0", 7, "")
	x.turn()
	x.calls("it is loaded", "untrack a")
	x.rest()
	x.calls("it is answered")

	s := x.submit(offered("b", greedy(prompt(100, 2), 2), 100))
	x.turn()
	x.d.calls = nil
	s.Abort("test")
	x.turn()
	x.calls("its reader leaves during the load", "cancel 2.0", "untrack b")
	x.report("2.0", 7, "", 0, 1, 2, 3, 4, 5, 6)
	x.rest()
	x.calls("the load has ended")

	s = x.submit(offered("c", greedy(prompt(100, 3), 2), 100))
	s.Abort("test")
	x.rest()
	x.calls("its reader leaves at once", "track c", "untrack c", "return c")

	x.submit(offered("d", greedy(prompt(100, 1), 2), 96))
	x.rest()
	x.calls("all is here", "track d", "untrack d", "return d")

	x.submit(offered("d2", greedy(prompt(100, 1), 2), 100))
	x.turn()
	x.report("5.0", 7, "")
	x.rest()
	x.calls("all but the end is here", "track d2", "load 5.0 of d2 from d2: tiles 6 to 7 of 100 tokens into 7 blocks", "untrack d2")

	x.submit(offered("d3", greedy(prompt(100, 7), 2), 1))
	x.turn()
	x.report("6.0", 1, "")
	x.rest()
	x.calls("one token is offered", "track d3", "load 6.0 of d3 from d3: tiles 0 to 1 of 100 tokens into 7 blocks", "untrack d3")

	x.submit(offered("e", greedy(prompt(100, 4), 2), 0))
	x.rest()
	x.calls("nothing is offered", "track e", "untrack e", "return e")

	r := offered("f", greedy(prompt(100, 5), 2), 100)
	r.PromptLogprobs = 0
	x.submit(r)
	x.rest()
	x.calls("every position is computed here", "track f", "untrack f", "return f")

	r = offered("g", seeded(prompt(20, 6), 2, 1), 20)
	r.N = 3
	s = x.submit(r)
	x.turn()
	x.report("9.0", 2, "")
	x.rest()
	x.calls("three choices", "track g", "load 9.0 of g from g: tiles 0 to 2 of 20 tokens into 2 blocks", "untrack g")
	if outs, ended := x.read(s); len(outs) != 6 || !ended {
		t.Errorf("%d outputs, ended %t", len(outs), ended)
	}

	s = x.submit(offered("h", greedy(prompt(20, 8), 2), -1)) // Verify would not let it pass
	x.rest()
	x.calls("the scheduler refuses it", "track h", "return h", "untrack h")
	if o := x.last(s); !errors.Is(o.Err, sched.ErrInvalid) || o.Finish != FinishError {
		t.Errorf("%+v", o)
	}
	x.metrics("in all", "first token after 1s", "admitted 99 of 100 loaded", "next token after 1s",
		"first token after 1s", "admitted 0 of 100 loaded", "next token after 1s",
		"first token after 1s", "admitted 3 of 100 loaded", "next token after 1s",
		"first token after 1s", "admitted 1 of 100 loaded", "next token after 1s",
		"first token after 1s", "admitted 0 of 100 loaded", "next token after 1s",
		"first token after 2s", "admitted 0 of 100 loaded", "next token after 1s", // every position in chunks of 64
		"first token after 1s", "admitted 19 of 20 loaded", "next token after 1s", "next token after 1s", "next token after 1s")
	x.gone()
}

// A lease is made when an answer is there that names it, and for nobody else.
func TestLeases(t *testing.T) {
	x := newTurns(t, sim.Config{}, Config{})
	r := greedy(prompt(40, 1), 1)
	r.RemoteDecode = true
	s := x.submit(r)
	x.turn()
	x.calls("P's leg", "grant 1.0: 3 blocks, 40 tokens")
	o := x.last(s)
	if o.Handoff == nil || o.Handoff.RequestID != "1.0" || o.Finish != FinishLength || o.Err != nil {
		t.Errorf("%+v", o)
	}
	if st := x.core.sched.Stats(); st.Leased != 3 {
		t.Errorf("%+v", st)
	}
	s.Abort("not delivered")
	x.turn()
	x.calls("the answer is not delivered", "revoke 1.0")
	x.d.freed <- []kv.BlockID{0, 1, 2}
	x.gone()

	x.d.deny = true
	s = x.submit(r)
	x.turn()
	x.calls("there is no lease", "grant 2.0: 3 blocks, 40 tokens")
	if o := x.last(s); o.Handoff != nil || o.Finish != FinishError || !errors.Is(o.Err, ErrNoConnector) {
		t.Errorf("%+v", o)
	}
	if st := x.stats[1]; st.Finish != FinishError || !errors.Is(st.Err, ErrNoConnector) {
		t.Errorf("without a lease it counts as %+v", st)
	}
	x.gone()

	s = x.submit(r)
	x.edit = func([][]float32) { s.Abort("left") }
	x.turn()
	x.calls("the reader has left")
	if o := x.last(s); o.Handoff != nil || o.Finish != FinishAbort || !errors.Is(o.Err, ErrAborted) {
		t.Errorf("%+v", o)
	}
	if st := x.stats[2]; st.Finish != FinishAbort || !errors.Is(st.Err, ErrAborted) {
		t.Errorf("without a reader it counts as %+v", st)
	}
	x.gone()
}

// What becomes of a load is told once, to the client, the metrics and the log,
// and they say the same.
func TestWhatIsToldOfALoad(t *testing.T) {
	for _, c := range []struct {
		name    string
		policy  FailPolicy // of the engine
		own     FailPolicy // of the request
		prompt  int
		class   connector.LoadClass // of the report; "": it has no error
		lost    []int
		steps   int // of the prompt
		want    Usage
		metrics []string
	}{
		{"complete", PolicyFail, "", 60, "", nil, 1, Usage{Loaded: 59, Computed: 1}, nil},
		{
			"one lost token is computed", PolicyRecompute, "", 18, "sum", []int{1}, 1,
			Usage{Loaded: 16, Recomputed: 1, Computed: 1, Failure: "sum"},
			[]string{"load failed: sum", "recovered 1, 1 tokens"},
		},
		{
			"lost tokens are computed", PolicyFail, PolicyRecompute, 60, "timeout", []int{1, 3}, 2,
			Usage{Loaded: 32, Recomputed: 27, Computed: 1, Failure: "timeout"},
			[]string{"load failed: timeout", "recovered 1, 27 tokens"},
		},
		{
			"lost tokens end it", PolicyFail, "", 60, "sum", []int{1}, 0,
			Usage{Loaded: 43, Recomputed: 16, Computed: 1, Failure: "sum"}, []string{"load failed: sum"},
		},
		{
			"the same, by its own policy", PolicyRecompute, PolicyFail, 60, "gone", []int{0, 1, 2, 3}, 0,
			Usage{Recomputed: 59, Computed: 1, Failure: "gone"}, []string{"load failed: gone"},
		},
		{
			"it was cut short", PolicyFail, "", 60, "", []int{2}, 0,
			Usage{Loaded: 43, Recomputed: 16, Computed: 1, Failure: "read"}, []string{"load failed: read"},
		},
		{
			"it was cut short, and is made good", PolicyRecompute, "", 60, "", []int{2}, 2,
			Usage{Loaded: 43, Recomputed: 16, Computed: 1, Failure: "read"},
			[]string{"load failed: read", "recovered 1, 16 tokens"},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			x := newTurns(t, sim.Config{}, Config{Policy: c.policy})
			r := offered("a", greedy(prompt(c.prompt, 1), 2), c.prompt)
			r.Policy = c.own
			s := x.submit(r)
			x.turn()
			x.now = x.now.Add(2 * time.Second) // the load takes them
			err := x.report("1.0", tilesOf(c.prompt-1), c.class, c.lost...)
			x.report("1.0", tilesOf(c.prompt-1), "") // once more
			x.report("7.0", 3, "")                   // of nobody
			more := x.turn()
			x.calls("the load has ended", "track a",
				fmt.Sprintf("load 1.0 of a from a: tiles 0 to %d of %d tokens into %[1]d blocks", tilesOf(c.prompt-1), c.prompt), "untrack a")
			c.want.Prompt = c.prompt
			fails := len(c.lost) > 0 && (c.own == PolicyFail || c.own == "" && c.policy == PolicyFail)
			if more == fails {
				t.Errorf("it goes on: %t", more)
			}
			if !fails {
				c.want.Completion = 2
				c.metrics = append(c.metrics, fmt.Sprintf("first token after %ds", 2+c.steps),
					fmt.Sprintf("admitted %d of %d loaded", c.want.Loaded, c.prompt), "next token after 1s")
			}
			x.rest()
			x.metrics("at the end", c.metrics...)
			o := x.last(s)
			if st := x.stats[0]; st.Queue != 0 || !fails && st.Prefill != time.Duration(2+c.steps)*time.Second {
				t.Errorf("%+v", st)
			}
			if o.Usage != c.want || x.stats[0].Usage != c.want || len(x.stats) != 1 {
				t.Errorf("usage %+v, in the metrics %+v, want %+v", o.Usage, x.stats, c.want)
			}
			var le *connector.LoadError
			switch {
			case !fails:
				if o.Err != nil || o.Finish != FinishLength {
					t.Errorf("%+v", o)
				}
			case !errors.As(o.Err, &le) || o.Finish != FinishError || x.stats[0].Finish != FinishError || !errors.Is(x.stats[0].Err, le):
				t.Errorf("%+v, in the metrics %+v", o, x.stats[0])
			case err == nil && (le.Peer != "p" || le.Class != "read" || !slices.Equal(le.Tiles, c.lost) || !errors.Is(le, errCut)):
				t.Errorf("%+v", le)
			case err != nil && le != err:
				t.Errorf("%v is not the connector's", le)
			}
			if lines := x.book.Lines("request finished", "load_failure="+quoted(string(c.want.Failure)), " err="); (len(lines) == 1) != fails {
				t.Errorf("log lines with an error: %q", lines)
			}
			x.gone()
		})
	}
}

func quoted(s string) string {
	if s == "" {
		return `""`
	}
	return s
}

func tilesOf(n int) int { return (n + kv.TileTokens - 1) / kv.TileTokens }

// The times of a request are those of its turns: what did not happen took none.
func TestTimesOfARequest(t *testing.T) {
	x := newTurns(t, sim.Config{}, Config{MaxBatchedTokens: 50, MaxSeqs: 1})
	a := greedy(prompt(100, 1), 3)
	a.ClientID = "a"
	x.submit(a)                                  // 0 s, first token at 2 s, end at 4 s
	x.submit(greedy(prompt(10, 2), 2))           // starts at 4 s, ends at 6 s
	c := x.submit(greedy(prompt(10, 3), 0))      // leaves at 3 s, queued
	d := x.submit(greedy(prompt(200, 4), 1<<30)) // starts at 6 s, leaves at 8 s
	for range 3 {
		x.turn()
	}
	c.Abort("left")
	for range 5 {
		x.turn()
	}
	d.Abort("left")
	x.rest()
	x.metrics("of times", "first token after 2s", "admitted 0 of 100 loaded", "next token after 1s", "next token after 1s",
		"first token after 5s", "admitted 0 of 10 loaded", "next token after 1s")
	const s = time.Second
	want := []RequestStats{
		{ID: "3", Finish: FinishAbort, Err: ErrAborted, N: 1, Max: 4086, Usage: Usage{Prompt: 10}, Total: 3 * s},
		{ID: "1", ClientID: "a", Finish: FinishLength, N: 1, Max: 3, Usage: Usage{Prompt: 100, Completion: 3, Computed: 100}, Total: 4 * s, Prefill: 2 * s, Decode: 2 * s},
		{ID: "2", Finish: FinishLength, N: 1, Max: 2, Usage: Usage{Prompt: 10, Completion: 2, Computed: 10}, Total: 6 * s, Queue: 4 * s, Prefill: s, Decode: s},
		{ID: "4", Finish: FinishAbort, Err: ErrAborted, N: 1, Max: 3896, Usage: Usage{Prompt: 200}, Total: 8 * s, Queue: 6 * s},
	}
	for i := range x.stats {
		x.stats[i].ID = kv.RequestID(strings.TrimPrefix(string(x.stats[i].ID), x.name+"-"))
	}
	if d := cmp.Diff(want, x.stats, cmpopts.EquateErrors()); d != "" {
		t.Error(d)
	}
	if n := len(x.book.Lines("request finished", "client_id=a", "finish=length", "prompt=100", "completion=3", "prefill=2s", "total=4s")); n != 1 {
		t.Errorf("%d lines of request a:\n%s", n, x.book)
	}
	if n := len(x.book.Lines("request finished", "finish=abort", "engine: aborted: left")); n != 2 {
		t.Errorf("%d lines say why a request was aborted:\n%s", n, x.book)
	}
	x.gone()
}

// What shows no request as live shows its blocks as free, whenever one looks, and
// whoever has an answer finds its end in all numbers, and room for the next.
func TestStatusAtTheEndOfARequest(t *testing.T) {
	x := newTurns(t, sim.Config{EOSEvery: -1}, Config{MaxRequests: 1})
	look := func(when string, live, free int) {
		t.Helper()
		if st := x.Status(); st.Live != live || st.Stats.Blocks-st.Stats.Free != free {
			t.Errorf("%s: %d requests live and %d blocks taken, want %d and %d", when, st.Live, st.Stats.Blocks-st.Stats.Free, live, free)
		}
	}
	ends := func(n uint64) {
		t.Helper()
		var total uint64
		for _, k := range x.Status().Stats.Finished {
			total += k
		}
		if total != n || len(x.stats) != int(n) {
			t.Errorf("%d ends in the status, %d in the metrics, want %d", total, len(x.stats), n)
		}
	}
	s := x.submit(greedy(prompt(20, 1), 1))
	told := 0
	x.cfg.Metrics.Finished = func(st RequestStats) {
		x.stats = append(x.stats, st)
		if told++; s.pending() {
			t.Error("an answer is there before its end is counted")
		}
	}
	look("submitted", 1, 0)
	b := x.Begin(x.now)
	look("planned", 1, 2)
	rows, err := x.m.Step(b)
	if err != nil {
		t.Fatal(err)
	}
	x.Finish(rows, x.now)
	look("finished", 0, 0)
	ends(1)
	x.last(s)

	s = x.submit(greedy(prompt(20, 1), 0))
	x.turn()
	x.read(s)
	s.Abort("left")
	x.Begin(x.now)
	look("aborted", 0, 0)
	ends(2)

	// One that comes and goes within a turn leaves the numbers of blocks as they are.
	s = x.submit(greedy(prompt(20, 1), 0))
	s.Abort("left")
	x.Begin(x.now)
	look("gone at once", 0, 0)
	ends(3)
	if told != 3 {
		t.Errorf("%d ends were told", told)
	}
}

// The first output of choice 0 says where the prompt's KV came from, and the last
// of each choice all that was made so far.
func TestUsageOfOutputs(t *testing.T) {
	x := newTurns(t, sim.Config{}, Config{})
	r := seeded(prompt(40, 1), 3, 1)
	r.N = 2
	s := x.submit(r)
	x.rest()
	outs, _ := x.read(s)
	made := map[int]int{}
	for i, o := range outs {
		made[o.Choice]++
		want := Usage{}
		if o.Finish != "" || i == 0 {
			want = Usage{Prompt: 40, Computed: 40, Completion: o.Usage.Completion}
		}
		if o.Usage != want || (o.Finish != "") != (made[o.Choice] == 3) {
			t.Errorf("output %d: %+v", i, o)
		}
	}
	if len(outs) != 6 || outs[0].Usage.Completion != 1 || outs[5].Usage.Completion != 6 {
		t.Errorf("%+v", outs)
	}
	x.gone()
}

// One choice whose row is not finite ends its request, with the outputs that
// were there before, and no other.
func TestOneChoiceThatFailsEndsItsRequest(t *testing.T) {
	for _, bad := range [][]int{{0}, {1}, {0, 1}} {
		x := newTurns(t, sim.Config{}, Config{})
		r := seeded(prompt(40, 1), 5, 1)
		r.N = 2
		s, beside := x.submit(r), x.submit(greedy(prompt(30, 2), 5))
		for range 3 {
			x.turn()
		}
		outs, _ := x.read(s)
		made := len(outs)
		x.edit = func(rows [][]float32) {
			if len(rows) != 3 {
				t.Fatalf("%d rows", len(rows))
			}
			for _, i := range bad {
				rows[i][5] = float32(math.NaN())
			}
			x.edit = nil
		}
		x.told = nil
		x.turn()
		x.metrics("of the one beside it", "next token after 1s")
		outs, ended := x.read(s)
		if len(outs) != 1 || !ended || outs[0].Finish != FinishError || outs[0].Err == nil {
			t.Fatalf("choices %d: %+v, ended %t", bad, outs, ended)
		}
		x.rest()
		if u := x.stats[0].Usage; len(x.stats) != 2 || u.Completion < made || u.Completion > made+bad[0] || u != outs[0].Usage {
			t.Errorf("choices %d: %d tokens were sent, %+v", bad, made, x.stats)
		}
		if outs, ended := x.read(beside); len(outs) != 5 || !ended {
			t.Errorf("its neighbour has %d outputs", len(outs))
		}
		x.gone()
	}
}

// A prompt with a row that is not finite ends its request too, where its rows are
// asked for.
func TestPromptRowThatIsNotFinite(t *testing.T) {
	x := newTurns(t, sim.Config{}, Config{})
	r := greedy(prompt(20, 1), 3)
	r.PromptLogprobs = 1
	s := x.submit(r)
	x.edit = func(rows [][]float32) { rows[3][5] = float32(math.NaN()) }
	x.turn()
	if o := x.last(s); o.Finish != FinishError || o.Err == nil || !strings.Contains(o.Err.Error(), "prompt token 4 ") {
		t.Errorf("%+v", o)
	}
	x.gone()
}

// Tokens have log-probabilities when they are asked for, with as many others as
// are asked for.
func TestLogprobsAsAskedFor(t *testing.T) {
	x := newTurns(t, sim.Config{}, Config{})
	for _, n := range []int{-1, 0, 1, 3} {
		r := greedy(prompt(20, 1), 3)
		r.Params.Logprobs = n
		s := x.submit(r)
		x.rest()
		outs, _ := x.read(s)
		for _, o := range outs {
			if len(o.Logprobs) != min(1, n+1) || n >= 0 && (o.Logprobs[0].Token != o.Tokens[0] || len(o.Logprobs[0].Top) != n) {
				t.Errorf("%d asked for: %+v", n, o)
			}
		}
	}
	x.gone()
}

// A stop ends the choice that it names, when that has begun and goes on.
func TestStops(t *testing.T) {
	x := newTurns(t, sim.Config{}, Config{})
	r := seeded(prompt(40, 1), 4, 1)
	r.N = 2
	s := x.submit(r)
	s.Stop(0) // nothing is there yet
	x.turn()
	x.turn()
	if outs, _ := x.read(s); len(outs) != 3 {
		t.Fatalf("%+v", outs)
	}
	for _, i := range []int{-1, 2, 17} {
		s.Stop(i)
	}
	s.Stop(1)
	s.Stop(1)
	x.turn()
	outs, ended := x.read(s)
	if len(outs) != 2 || ended || outs[0].Choice != 1 || outs[0].Finish != FinishStop || outs[0].Usage.Completion != 3 || outs[1].Choice != 0 {
		t.Fatalf("%+v", outs)
	}
	x.rest()
	if o := x.last(s); o.Choice != 0 || o.Finish != FinishLength || o.Usage.Completion != 5 {
		t.Errorf("%+v", o)
	}
	s.Stop(0)
	x.turn()

	s = x.submit(r)
	x.turn()
	x.turn()
	s.Abort("left")
	s.Stop(0)
	s.Stop(1)
	x.turn()
	if o := x.last(s); !errors.Is(o.Err, ErrAborted) || len(x.stats) != 2 || x.stats[1].Finish != FinishAbort {
		t.Errorf("%+v", o)
	}
	x.gone()
}

// A reader that is too slow loses its request, also with the last output.
func TestReaderThatIsTooSlow(t *testing.T) {
	for _, tokens := range []int{3, 5} {
		x := newTurns(t, sim.Config{}, Config{MaxOutputs: 2})
		s := x.submit(greedy(prompt(20, 1), tokens))
		x.rest()
		outs, ended := x.read(s)
		want := Output{Finish: FinishAbort, Err: ErrSlowReader, Usage: Usage{Prompt: 20, Completion: 3, Computed: 20}}
		if d := cmp.Diff(want, outs[len(outs)-1], cmpopts.EquateErrors()); len(outs) != 3 || !ended || d != "" {
			t.Errorf("%d tokens: %d outputs, ended %t: %s", tokens, len(outs), ended, d)
		}
		if len(x.stats) != 1 || x.stats[0].Finish != FinishAbort || !errors.Is(x.stats[0].Err, ErrSlowReader) {
			t.Errorf("%d tokens: it counts as %+v", tokens, x.stats)
		}
		x.gone()
	}
}

// One that aborts with its stream full, and missed nothing, is told of the abort.
func TestAbortOfAFullStream(t *testing.T) {
	x := newTurns(t, sim.Config{EOSEvery: -1}, Config{MaxOutputs: 2})
	s := x.submit(greedy(prompt(20, 1), 10))
	x.turn()
	x.turn()
	s.Abort("test")
	x.turn()
	if o := x.last(s); o.Finish != FinishAbort || !errors.Is(o.Err, ErrAborted) || o.Usage.Completion != 2 {
		t.Errorf("told %+v", o)
	}
	x.gone()
}

// One that missed an output is told so, though it has read since and the last
// output would find room.
func TestReaderThatMissedAnOutput(t *testing.T) {
	s := newStream(nil, "s", 2)
	for i := range 3 {
		if ok := s.push(Output{Choice: i}); ok != (i < 2) || s.behind() != (i > 0) {
			t.Errorf("output %d is taken: %t, behind %t", i, ok, s.behind())
		}
	}
	for range 2 {
		if _, err := s.Next(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if s.push(Output{}) || !s.behind() {
		t.Error("what was missed is forgotten")
	}
}

// The end of an engine ends every request, those of the last moment too, and it
// waits for the loads. One that failed leaves the scheduler as it is.
func TestEndOfAnEngine(t *testing.T) {
	for _, cause := range []error{nil, ErrDead} {
		x := newTurns(t, sim.Config{}, Config{})
		lent := greedy(prompt(40, 9), 1)
		lent.RemoteDecode = true
		leased, undelivered := x.submit(lent), x.submit(lent)
		x.turn()
		if o := x.last(leased); o.Handoff == nil {
			t.Fatalf("%+v", o)
		}
		streams := []*Stream{
			x.submit(offered("loads", greedy(prompt(100, 1), 2), 100)),
			x.submit(greedy(prompt(30, 2), 9)),
		}
		x.turn()
		streams = append(streams, x.submit(greedy(prompt(30, 3), 9)), x.submit(offered("late", greedy(prompt(100, 4), 9), 100)))
		undelivered.Abort("left")
		leased.Stop(0)
		x.d.calls, x.stats = nil, nil
		x.d.cancel = func(id kv.RequestID) {
			x.d.freed <- []kv.BlockID{0}
			go func() {
				for len(x.d.freed) > 0 {
					runtime.Gosched()
				}
				x.report("3.0", 7, "", 0)
			}()
		}
		x.shut(cause)
		slices.Sort(x.d.calls)
		x.calls("the end", "cancel 3.0", "return late", "revoke 2.0", "untrack loads")
		want, finish := ErrClosed, FinishAbort
		if cause != nil {
			want, finish = cause, FinishError
		}
		for i, s := range streams {
			if o := x.last(s); !errors.Is(o.Err, want) || o.Finish != finish {
				t.Errorf("request %d: %+v", i, o)
			}
		}
		for _, st := range x.stats {
			if st.Finish != finish || !errors.Is(st.Err, want) || st.Total > time.Since(x.began) {
				t.Errorf("%+v", st)
			}
			if strings.HasSuffix(string(st.ID), "-6") && st.Total != 0 {
				t.Errorf("one of the last moment took %v", st.Total)
			}
		}
		st := x.Status()
		if x.live.Load() != 0 || len(x.stats) != 4 || len(x.core.loads) != 0 || !errors.Is(x.Err(), cause) || (st.Dead != "") != (cause != nil) {
			t.Errorf("%d choices and %d loads are left, %d were told of: %+v", x.live.Load(), len(x.core.loads), len(x.stats), st)
		}
		was := 0
		if cause != nil {
			was = 1
		}
		if k := st.Stats; k.Running != was || k.Loading != was || k.Held != 0 || k.Leased != 6-1+was {
			t.Errorf("cause %v: %+v", cause, k)
		}
		if n := len(x.book.Lines("engine is dead", "level=ERROR")); n != was {
			t.Errorf("%d lines say that it is dead:\n%s", n, x.book)
		}
		if _, err := x.Submit(t.Context(), greedy(prompt(9, 1), 1)); !errors.Is(err, ErrClosed) {
			t.Errorf("a request after the end: %v", err)
		}
	}
}

// Requests go by priority, where that is configured, and by arrival; the choices
// of a request rank with it, not with those that came while its prompt was
// computed.
func TestOrderOfRequests(t *testing.T) {
	for _, byPriority := range []bool{false, true} {
		x := newTurns(t, sim.Config{}, Config{MaxSeqs: 1, Priority: byPriority})
		var streams []*Stream
		for i, priority := range []int{3, 1, 2} {
			r := seeded(prompt(20, i), 2, 1)
			r.Priority, r.N = priority, 2
			streams = append(streams, x.submit(r))
		}
		var order []int
		for x.turn() {
			for i, s := range streams {
				if outs, _ := x.read(s); len(outs) > 0 && (len(order) == 0 || order[len(order)-1] != i) {
					order = append(order, i)
				}
			}
		}
		want := []int{0, 1, 2}
		if byPriority {
			want = []int{1, 2, 0}
		}
		if !slices.Equal(order, want) {
			t.Errorf("by priority %t: outputs of requests %v, want %v", byPriority, order, want)
		}
		x.gone()
	}
}

// A core that is stuck has no hand-off renewed, and goes on with all that still
// wait when it moves again, in the order of their arrival.
func TestRenewalsOfAStuckCore(t *testing.T) {
	x := newTurns(t, sim.Config{Blocks: 4}, Config{})
	lent := greedy(prompt(40, 9), 1)
	lent.RemoteDecode = true
	x.submit(lent)
	x.turn()
	x.d.calls = nil
	x.submit(greedy(prompt(60, 1), 2)) // takes 4 blocks, 1 is free
	var track, untrack, each []string
	for i := range 20 {
		name := fmt.Sprint("d", i)
		x.submit(offered(name, greedy(prompt(30, i), 2), 30))
		each = append(each, "track "+name)
		untrack = append(untrack, "untrack "+name)
		track = append(track, "track "+name)
	}
	x.submit(offered("nothing", greedy(prompt(30, 30), 2), 0))
	x.turn()
	x.calls("nothing moves", slices.Concat(each, []string{"track nothing", "untrack nothing", "return nothing"}, untrack)...)
	x.turn()
	x.calls("nothing moves still")
	x.submit(offered("late", greedy(prompt(30, 31), 2), 30))
	x.turn()
	x.calls("one more comes")
	x.d.freed <- []kv.BlockID{0, 1, 2}
	x.turn()
	x.calls("the blocks are back", append(track, "track late")...)
	x.turn()
	x.turn()
	if len(x.stats) != 2 {
		t.Errorf("%+v", x.stats)
	}
}

package connector

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"tandem/internal/bystander/logtest"
	"tandem/internal/kv"
)

var leftOut = regexp.MustCompile(`suppressed=(\d+)`)

// told returns how many failures lines stand for.
func told(lines []string) int {
	n := len(lines)
	for _, l := range lines {
		if m := leftOut.FindStringSubmatch(l); m != nil {
			k, _ := strconv.Atoi(m[1])
			n += k
		}
	}
	return n
}

// logTo makes an engine log to b.
func logTo(b *logtest.Book) func(*Config) {
	return func(c *Config) { c.Log = slog.New(slog.NewTextHandler(b, nil)) }
}

const failedLine = `msg="KV transfer failure"`

// A storm of failures is one line at once for each peer and class, then one in
// ten seconds with the number of those left out; none is lost, neither when the
// storm ends nor when the engine does.
func TestFailuresAreLoggedOnceAndCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out logtest.Book
		f := newFabric()
		var broken error // of reads; nil: bytes are spoiled
		f.onTile = func(_ context.Context, _, i int) (bool, error) { return i == 1, broken }
		p, q := f.engine(t, "p:1", 1, 1, 64), f.engine(t, "q:1", 1, 1, 64)
		d := f.engine(t, "d:1", 1, 1, 64, logTo(&out))
		tokens := prompt(48, 1)
		n := 0
		load := func(peer *testEngine, class LoadClass, times int) {
			t.Helper()
			for range times {
				n++
				h, _ := peer.grant(t, tokens, 60)
				d.Load(LoadSpec{
					ID: kv.RequestID(fmt.Sprintf("d-%d", n)), ClientID: fmt.Sprintf("client-%d", n), Handoff: h, Prompt: tokens,
					Local: d.blocksFor(48, 63), ToTile: 3,
				})
				if r := d.report(t); r.Err == nil || r.Err.Class != class {
					t.Fatalf("%+v", r)
				}
				peer.freedBlocks(t)
			}
			synctest.Wait()
		}
		expect := func(what string, lines, failures int, words ...string) {
			t.Helper()
			got := out.Lines(append(words, failedLine)...)
			if len(got) != lines || told(got) != failures {
				t.Errorf("%s: %d lines for %d failures, want %d for %d:\n%s", what, len(got), told(got), lines, failures, strings.Join(got, ""))
			}
		}
		load(p, ClassSum, 1)
		expect("the first", 1, 1)
		for _, want := range []string{
			"level=ERROR", "failure_type=sum", "request_id=d-1 ", "client_id=client-1 ", "engine_id=engine-d:1", "remote_engine_id=engine-p:1",
			"remote_request_id=p-request", "remote_addr=p:1", "lease=", "tiles=3", "invalid_tiles=1", `invalid_sample=[1]`, "path=mem", "duration=", "error=",
		} {
			if len(out.Lines(want)) != 1 {
				t.Errorf("the line lacks %s: %s", want, out.Lines(failedLine))
			}
		}
		load(p, ClassSum, 20)
		expect("a storm", 1, 1)
		load(q, ClassSum, 1)
		expect("another peer", 1, 1, "remote_engine_id=engine-q:1")
		broken = errors.New("cable pulled")
		load(p, ClassRead, 1)
		expect("another class", 1, 1, "failure_type=read")
		<-time.After(failuresEvery)
		synctest.Wait()
		expect("after ten quiet seconds", 2, 21, "remote_engine_id=engine-p:1", "failure_type=sum")
		expect("what was alone", 1, 1, "failure_type=read")
		if got := out.Lines("suppressed=19", "request_id=d-21 "); len(got) != 1 {
			t.Errorf("the second line is about the latest: %s", out.Lines(failedLine))
		}
		broken = nil
		load(p, ClassSum, 7)
		expect("within the next ten seconds", 2, 21, "remote_engine_id=engine-p:1", "failure_type=sum")
		d.stop()
		expect("at the end", 3, 28, "remote_engine_id=engine-p:1", "failure_type=sum")
		if all := out.Lines(failedLine); told(all) != n {
			t.Errorf("%d failures are told, %d happened", told(all), n)
		}
	})
}

// Returns that nobody acknowledges are rationed as well.
func TestLostReturnsAreSummedUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out logtest.Book
		var lost int
		var mu sync.Mutex
		f := newFabric()
		f.onCall = func(_ context.Context, _ string, k Kind) error {
			if k == KindReturn {
				return errors.New("lost on the way")
			}
			return nil
		}
		p := f.engine(t, "p:1", 1, 1, 64)
		d := f.engine(t, "d:1", 1, 1, 64, logTo(&out), func(c *Config) {
			c.Metrics.ReturnFailed = func(peer kv.EngineID) {
				mu.Lock()
				defer mu.Unlock()
				if peer == "engine-p:1" {
					lost++
				}
			}
		})
		for i := range 30 {
			h, _ := p.grant(t, prompt(16, i), 60)
			d.ReturnUnread(h)
		}
		<-time.After(d.cfg.ReturnTimeout)
		synctest.Wait()
		if got := out.Lines("KV lease not returned"); len(got) != 1 || told(got) != 1 {
			t.Errorf("at once: %s", got)
		}
		<-time.After(failuresEvery)
		synctest.Wait()
		got := out.Lines("KV lease not returned")
		mu.Lock()
		defer mu.Unlock()
		if len(got) != 2 || told(got) != 30 || lost != 30 || !strings.Contains(got[1], "level=WARN") {
			t.Errorf("%d lost, in all: %s", lost, got)
		}
	})
}

// Failures of more peers than are told apart share a line for each class.
func TestManyPeersAreFewLines(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out logtest.Book
		l := newFailureLog(slog.New(slog.NewTextHandler(&out, nil)))
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { defer close(done); l.run(ctx) }()
		const n = 900
		for i := range n {
			l.add(failure{key: failureKey{kv.EngineID(fmt.Sprint(i)), string(LoadClasses()[i%2])}})
		}
		synctest.Wait()
		cancel()
		<-done
		if got := out.Lines(failedLine); told(got) != n || len(got) > failureKeys+2*2 {
			t.Errorf("%d lines for %d of %d failures", len(got), told(got), n)
		}
	})
}

// A log that stands still keeps no report back; what it did not take is counted.
func TestAStuckLogKeepsNothingBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &stuckLog{let: make(chan struct{})}
		f := newFabric()
		f.onTile = func(context.Context, int, int) (bool, error) { return true, nil }
		p := f.engine(t, "p:1", 1, 1, 8)
		d := f.engine(t, "d:1", 1, 1, 8, func(c *Config) { c.Log = slog.New(s) })
		const n = 3000
		for i := range n {
			h, _ := p.grant(t, prompt(16, i), 7)
			if r := d.load(t, "r", h, prompt(16, i), d.blocksFor(16, 7)); r.Err == nil {
				t.Fatalf("%+v", r)
			}
			p.freedBlocks(t)
		}
		close(s.let)
		d.stop()
		if s.lines+s.more+s.full != n || s.full == 0 {
			t.Errorf("%d lines, %d suppressed, %d not counted of %d", s.lines, s.more, s.full, n)
		}
	})
}

// A stuckLog waits until the test lets it go on, and sums up what it is told.
type stuckLog struct {
	slog.Handler
	let               chan struct{}
	lines, more, full uint64
}

func (s *stuckLog) Enabled(context.Context, slog.Level) bool { return true }

func (s *stuckLog) Handle(_ context.Context, r slog.Record) error {
	<-s.let
	s.lines++
	r.Attrs(func(a slog.Attr) bool {
		if a.Key == "suppressed" {
			s.more += uint64(a.Value.Int64())
		}
		if a.Key == "not_counted" {
			s.full += a.Value.Uint64()
		}
		return true
	})
	return nil
}

// Metrics that panic change no report.
func TestMetricsThatPanicChangeNothing(t *testing.T) {
	var out logtest.Book
	f := newFabric()
	f.onTile = func(_ context.Context, _, i int) (bool, error) { return i == 2, nil }
	calls := map[string]int{}
	var mu sync.Mutex
	boom := func(what string) {
		mu.Lock()
		calls[what]++
		mu.Unlock()
		panic(what)
	}
	bad := func(c *Config) {
		c.Metrics = Metrics{
			Transfer: func(Transfer) { boom("transfer") }, Failed: func(kv.EngineID, LoadClass) { boom("failed") },
			Expired: func() { boom("expired") }, ReturnFailed: func(kv.EngineID) { boom("return") },
			Handshake: func(bool, time.Duration) { boom("handshake") }, Loaded: func(int, time.Duration) { boom("loaded") },
		}
	}
	p := f.engine(t, "p:1", 1, 1, 64, bad)
	brief := f.engine(t, "p:2", 1, 1, 64, bad, func(c *Config) { c.LeaseDuration = time.Millisecond })
	d := f.engine(t, "d:1", 1, 1, 64, bad, logTo(&out))
	for i, n := range []int{32, 48} { // two tiles arrive, of three one does not
		h, pb := p.grant(t, prompt(n, i), 60)
		db := d.blocksFor(n, 63)
		r := d.load(t, "r", h, prompt(n, i), db)
		if (r.Err != nil) != (n == 48) || r.Valid != 2 {
			t.Fatalf("%+v", r)
		}
		sameKV(t, p, d, pb, db, 0, 2)
		p.freedBlocks(t)
	}
	h, _ := brief.grant(t, prompt(32, 9), 60)
	brief.freedBlocks(t) // it ran out
	if r := d.load(t, "r", h, prompt(32, 9), d.blocksFor(32, 63)); r.Err == nil || r.Err.Class != ClassGone {
		t.Fatalf("%+v", r)
	}
	mu.Lock()
	defer mu.Unlock()
	for _, what := range []string{"transfer", "failed", "expired", "handshake", "loaded"} {
		if calls[what] == 0 {
			t.Errorf("%s did not panic", what)
		}
	}
	if n := len(out.Lines("a metric panicked")); n != 1 {
		t.Errorf("%d lines about it", n)
	}
}

// A transfer is counted when it brought all its tiles: once for each pair of
// ranks, with the ranges that were read.
func TestTransfersThatAreCounted(t *testing.T) {
	f := newFabric()
	var spoil atomic.Bool
	f.onTile = func(_ context.Context, rank, i int) (bool, error) { return spoil.Load() && rank == 0 && i == 1, nil }
	var mu sync.Mutex
	var all []Transfer
	p := f.engine(t, "p:1", 4, 1, 16)
	d := f.engine(t, "d:1", 2, 1, 16, func(c *Config) {
		c.Metrics.Transfer = func(x Transfer) {
			mu.Lock()
			defer mu.Unlock()
			all = append(all, x)
		}
	})
	l := p.layout
	for i, want := range []int{4, 2} { // of the second load, both reads of rank 0 are spoiled
		spoil.Store(i == 1)
		h, _ := p.grant(t, prompt(48, i), 15)
		r := d.load(t, "r", h, prompt(48, i), d.blocksFor(48, 15))
		if (r.Err != nil) != (i == 1) {
			t.Fatalf("%+v", r)
		}
		mu.Lock()
		if len(all) != want {
			t.Errorf("load %d: %d transfers, want %d", i, len(all), want)
		}
		for _, x := range all {
			// Three tiles, two ranks of P for one of D: a range for each layer.
			if x.Peer != "engine-p:1" || x.Tiles != 3 || x.Pieces != 3*l.Layers || x.Bytes != 3*l.TileBytes() || x.Path != "mem" {
				t.Errorf("load %d: %+v", i, x)
			}
		}
		all = nil
		mu.Unlock()
		p.freedBlocks(t)
	}
}

package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"tandem/test/cluster"
)

// The limits of an engine process.
const (
	startLimit   = 600.0 // ms from start to first token
	idleLimit    = 1.0   // % of a core
	memoryLimit  = 120.0 // MiB beyond weights and KV
	handoffExtra = 5.0   // ms of a hand-off beyond copy, check and a decode step
	handoffLen   = 1000  // tokens of its prompt
)

// measureEngine measures real processes.
func measureEngine(o *options, t *table) error {
	return errors.Join(
		withTB(func(b testing.TB) error { return o.start(b, t) }),
		withTB(func(b testing.TB) error { return o.idle(b, t) }),
		withTB(func(b testing.TB) error { return o.handoff(b, t) }),
		withTB(func(b testing.TB) error { return o.served(b, t) }),
	)
}

func (o *options) serveArgs() []string {
	return []string{o.model, "--threads", strconv.Itoa(o.threads), "--disable-log-requests"}
}

// start measures from the start of a process to its first token.
func (o *options) start(b testing.TB, t *table) error {
	cluster.Binary(b) // built before the clock runs
	var ms []float64
	for range o.scale(7, 3) {
		err := withTB(func(b testing.TB) error {
			began := time.Now()
			p := cluster.Start(b, "engine", append([]string{"serve", "--port", "0"}, o.serveArgs()...)...)
			s, err := complete(p.URL, "Hello", 1)
			if err != nil {
				return err
			}
			ms = append(ms, millis(s.first.Sub(began)))
			return nil
		})
		if err != nil {
			return err
		}
	}
	t.under("start to first token", median(ms), startLimit, "%.0f ms", fmt.Sprintf("median of %d; llama-server needs about 450", len(ms)))
	return nil
}

// idle measures an engine that is joined to another and does nothing.
func (o *options) idle(b testing.TB, t *table) error {
	s := o.startSet(b)
	// One hand-off, so that the peers have met.
	if _, err := complete(s.Router.URL, "The quick brown fox jumps over the lazy dog. The quick brown fox jumps.", 4); err != nil {
		return err
	}
	weights, err := o.weightBytes()
	if err != nil {
		return err
	}
	time.Sleep(time.Second) // what follows an answer has ended
	for _, p := range []*cluster.Proc{s.P, s.D} {
		pss, arena, err := memoryOf(p.PID)
		if err != nil {
			return err
		}
		t.under("memory of "+p.Name+" beyond weights and KV", mib(pss-arena-weights), memoryLimit, "%.0f MiB",
			fmt.Sprintf("Pss %.0f, weights %.0f, touched KV %.0f MiB", mib(pss), mib(weights), mib(arena)))
	}
	before := map[int]time.Duration{}
	began := time.Now()
	procs := []*cluster.Proc{s.P, s.D, s.Router}
	for _, p := range procs {
		if before[p.PID], err = cpuTime(p.PID); err != nil {
			return err
		}
	}
	time.Sleep(time.Duration(o.scale(10, 4)) * time.Second)
	for _, p := range procs {
		now, err := cpuTime(p.PID)
		if err != nil {
			return err
		}
		share := float64(now-before[p.PID]) / float64(time.Since(began)) * 100
		t.under("idle CPU of "+p.Name, share, idleLimit, "%.2f %%", "of one core, peers joined")
	}
	return nil
}

func (o *options) startSet(b testing.TB) *cluster.Set {
	b.Helper()
	return cluster.StartSet(b, o.serveArgs(), nil, nil)
}

// handoff compares the first token of P and D behind a router with that of one
// engine, on prompts that neither has seen.
func (o *options) handoff(b testing.TB, t *table) error {
	s := o.startSet(b)
	one := cluster.Start(b, "one", append([]string{"serve", "--port", "0"}, o.serveArgs()...)...).Ready(b)
	var alone, pair, beyond, steps []float64
	want, noisy := o.scale(7, 3), false
	for i := 0; len(beyond) < want; i++ {
		prompt := randomPrompt(i, handoffLen)
		var a, p stream
		share, err := foreign(func() (err error) {
			if a, err = complete(one.URL, prompt, 6); err == nil {
				p, err = complete(s.Router.URL, prompt, 6)
			}
			return err
		}, s.P.PID, s.D.PID, s.Router.PID, one.PID)
		if err != nil {
			return err
		}
		if i == 0 {
			continue // connections are made
		}
		if share > foreignLimit {
			if i < 3*want && !o.late() {
				continue
			}
			noisy = true // no quiet moment came
		}
		alone, pair = append(alone, millis(a.ttft())), append(pair, millis(p.ttft()))
		beyond = append(beyond, millis(p.ttft()-a.ttft()))
		steps = append(steps, millis(a.gap()))
	}
	move, err := o.copyAndCheck(handoffLen)
	if err != nil {
		return err
	}
	limit := millis(move) + median(steps) + handoffExtra
	t.plain("first token, 1,000-token prompt, one engine", fmt.Sprintf("%.1f ms", median(alone)), fmt.Sprintf("%d prompts", len(alone)))
	t.plain("same, P to D through the router", fmt.Sprintf("%.1f ms", median(pair)), "")
	t.under("what P to D adds", median(beyond), limit, "%.1f ms",
		fmt.Sprintf("limit: copy and check %.1f, decode step %.1f, %.0f more", millis(move), median(steps), handoffExtra))
	t.rows[len(t.rows)-1].noisy = noisy
	return nil
}

// served measures decoding through the whole server: 32 streams at once.
func (o *options) served(b testing.TB, t *table) error {
	p := cluster.Start(b, "engine", append([]string{"serve", "--port", "0"}, o.serveArgs()...)...).Ready(b)
	const streams = 32
	gen := o.scale(64, 32)
	got := make([]stream, streams)
	errs := make([]error, streams)
	var wg sync.WaitGroup
	for i := range streams {
		wg.Go(func() { got[i], errs[i] = complete(p.URL, randomPrompt(100+i, batchPrompt), gen) })
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		return err
	}
	// While all of them decode: from the last first token to the first last one.
	from, to := got[0].first, got[0].last
	for _, s := range got {
		if s.first.After(from) {
			from = s.first
		}
		if s.last.Before(to) {
			to = s.last
		}
	}
	n := 0
	for _, s := range got {
		for _, at := range s.times {
			if at.After(from) && !at.After(to) {
				n++
			}
		}
	}
	rate := float64(n) / to.Sub(from).Seconds()
	r, err := openRunner(o.model, o.threads)
	if err != nil {
		return err
	}
	defer r.close()
	var bare []float64
	for range 3 {
		s, err := r.decode(streams, batchPrompt, gen)
		if err != nil {
			return err
		}
		bare = append(bare, s.perSecond())
	}
	t.add(row{what: "32 streams through the server", ours: fmt.Sprintf("%.0f tok/s", rate),
		theirs: fmt.Sprintf("forward pass alone %.0f tok/s", median(bare)), ratio: rate / median(bare), note: "one chunk a token and stream, client on the same cores"})
	return nil
}

// A stream is when the pieces of a streamed answer came.
type stream struct {
	sent, first, last time.Time
	times             []time.Time
}

func (s *stream) ttft() time.Duration { return s.first.Sub(s.sent) }

// gap is the mean time between tokens.
func (s *stream) gap() time.Duration {
	return s.last.Sub(s.first) / time.Duration(max(1, len(s.times)-1))
}

var client = &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 64}}

// complete streams a completion of n tokens. prompt is a string or token ids.
func complete(url string, prompt any, n int) (stream, error) {
	body, err := json.Marshal(map[string]any{
		"prompt": prompt, "max_tokens": n, "temperature": 0, "ignore_eos": true, "stream": true,
	})
	if err != nil {
		return stream{}, err
	}
	s := stream{sent: time.Now()}
	resp, err := client.Post(url+"/v1/completions", "application/json", bytes.NewReader(body))
	if err != nil {
		return s, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		b, _ := io.ReadAll(resp.Body)
		return s, fmt.Errorf("%s: %s: %s", url, resp.Status, b)
	}
	sc := bufio.NewScanner(resp.Body)
	sc.Buffer(nil, 1<<20)
	for sc.Scan() {
		if data, ok := strings.CutPrefix(sc.Text(), "data: "); ok && data != "[DONE]" {
			if strings.Contains(data, `"error"`) {
				return s, fmt.Errorf("%s: %s", url, data)
			}
			s.times = append(s.times, time.Now())
		}
	}
	if err := sc.Err(); err != nil {
		return s, err
	}
	if len(s.times) == 0 {
		return s, fmt.Errorf("%s: an answer without tokens", url)
	}
	s.first, s.last = s.times[0], s.times[len(s.times)-1]
	return s, nil
}

// randomPrompt returns n token ids; different i have no common prefix.
func randomPrompt(i, n int) []int {
	p := make([]int, n)
	x := uint64(i+1) * 0x9e3779b97f4a7c15
	for j := range p {
		x ^= x << 13
		x ^= x >> 7
		x ^= x << 17
		p[j] = 1000 + int(x%40000)
	}
	return p
}

func millis(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

func mib(n int64) float64 { return float64(n) / (1 << 20) }

// weightBytes returns the bytes of the model's packed weights.
func (o *options) weightBytes() (int64, error) {
	r, err := openRunner(o.model, o.threads)
	if err != nil {
		return 0, err
	}
	defer r.close()
	return int64(r.model.WeightBytes()), nil
}

// memoryOf returns a process's proportional share of memory in bytes, and what
// of it is KV.
func memoryOf(pid int) (all, arena int64, err error) {
	f, err := os.Open(filepath.Join("/proc", strconv.Itoa(pid), "smaps"))
	if err != nil {
		return 0, 0, err
	}
	defer f.Close()
	s := bufio.NewScanner(f)
	kv := false
	for s.Scan() {
		field := strings.Fields(s.Text())
		switch {
		case len(field) == 3 && field[0] == "Pss:":
			n, err := strconv.ParseInt(field[1], 10, 64)
			if err != nil {
				return 0, 0, err
			}
			all += n << 10
			if kv {
				arena += n << 10
			}
		case len(field) > 1 && strings.Contains(field[0], "-") && !strings.HasSuffix(field[0], ":"):
			kv = strings.Contains(s.Text(), "/memfd:tandem-kv")
		}
	}
	return all, arena, s.Err()
}

// cpuTime returns the processor time of a process.
func cpuTime(pid int) (time.Duration, error) {
	b, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "stat"))
	if err != nil {
		return 0, err
	}
	f := bytes.Fields(b[bytes.LastIndexByte(b, ')')+1:])
	if len(f) < 13 {
		return 0, fmt.Errorf("/proc/%d/stat: %q", pid, b)
	}
	ticks := 0
	for _, v := range f[11:13] {
		n, err := strconv.Atoi(string(v))
		if err != nil {
			return 0, err
		}
		ticks += n
	}
	return time.Duration(ticks) * time.Second / ticksPerSecond, nil
}

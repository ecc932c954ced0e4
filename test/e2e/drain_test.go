package e2e

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"tandem/test/cluster"
)

// H089: SIGTERM to every member in turn, under load: no client sees an error or
// a wrong token, and each member ends with status 0.
func TestMembersDrain(t *testing.T) {
	token := cluster.Token(t)
	slow := append(slices.Clone(sim), "--sim-token-time", "200us")
	one := cluster.Start(t, "one", append([]string{"serve", "--port", "0"}, sim...)...).Ready(t)
	var members []*cluster.Proc
	args := []string{"route", "--port", "0"}
	for i := range 4 {
		name, role, flag := fmt.Sprintf("P%d", i), "kv_producer", "--prefill"
		if i >= 2 {
			name, role, flag = fmt.Sprintf("D%d", i), "kv_consumer", "--decode"
		}
		p := cluster.Engine(t, name, role, token, slow...).Ready(t)
		members, args = append(members, p), append(args, flag, p.URL)
	}
	router := cluster.Start(t, "router", args...).Ready(t)
	for _, p := range members {
		cluster.Eventually(t, "the router has "+p.Name, func() bool { return backendOf(t, router, p.URL).State == "ready" })
	}
	g := &rig{one: one, r: newRand()}
	type job struct {
		prompt, want []int
	}
	var jobs []job
	for i := range 12 {
		p := g.prompt(1 + 37*i)
		jobs = append(jobs, job{p, g.want(t, p, 30)})
	}
	var stop atomic.Bool
	var served atomic.Int64
	var wg sync.WaitGroup
	for w := range 8 {
		wg.Go(func() {
			for i := w; !stop.Load(); i++ {
				j := jobs[i%len(jobs)]
				a, err := ask(router.URL, request(j.prompt, i%2 == 0, 30))
				if err != nil || !slices.Equal(a.ids, j.want) {
					t.Errorf("%d tokens: %v: got %v, want %v", len(j.prompt), err, a.ids, j.want)
				}
				served.Add(1)
			}
		})
	}
	more := func() { // both at the member and past it
		n := served.Load()
		cluster.Eventually(t, "more requests are served", func() bool { return served.Load() >= n+24 })
	}
	for _, p := range []*cluster.Proc{members[0], members[2]} { // one of each role stays
		more()
		p.Signal(t, syscall.SIGTERM)
		if code := p.ExitCode(); code != 0 {
			t.Errorf("%s ended with status %d", p.Name, code)
		}
		more()
	}
	stop.Store(true)
	wg.Wait()
	resp, err := begin(t.Context(), router.URL, request(jobs[3].prompt, true, 1000), "")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	router.Signal(t, syscall.SIGTERM) // with a stream open, which goes on to its end
	rest, err := io.ReadAll(resp.Body)
	if err != nil || !bytes.HasSuffix(rest, []byte("data: [DONE]\n\n")) || bytes.Contains(rest, []byte(`"error":`)) {
		t.Errorf("the stream of a draining router: %v: ...%s", err, rest[max(0, len(rest)-300):])
	}
	if code := router.ExitCode(); code != 0 {
		t.Errorf("the router ended with status %d", code)
	}
	members[1].AllFree(t)
	members[3].AllFree(t)
}

// A seen is what a router's status says of a backend.
type seen struct {
	URL     string `json:"url"`
	State   string `json:"state"`
	Running int    `json:"running"`
}

// backendOf returns what the router sees of the engine at url.
func backendOf(t *testing.T, router *cluster.Proc, url string) seen {
	t.Helper()
	var s struct {
		Backends []seen `json:"backends"`
	}
	if err := json.Unmarshal(router.Get(t, "/status"), &s); err != nil {
		t.Fatal(err)
	}
	for _, b := range s.Backends {
		if b.URL == url {
			return b
		}
	}
	t.Fatalf("the router does not know %s", url)
	return seen{}
}

// H089: P is told to stop while a hand-off is out: it takes nothing new, D reads
// what it was promised, and then P ends, not before and not later.
func TestDrainWaitsForTheLease(t *testing.T) {
	g := newRig(t, nil, nil)
	prompt := g.prompt(150)
	want := g.want(t, prompt, 6)
	h := handoff(t, g.P, prompt)
	g.P.Signal(t, syscall.SIGTERM)
	cluster.Eventually(t, "P is not ready", func() bool { return status(g.P.URL+"/health/ready") != http.StatusOK })
	body, err := json.Marshal(request(prompt, false, 1))
	if err != nil {
		t.Fatal(err)
	}
	if status, out := post(t, g.P.URL+"/v1/completions", body); status != http.StatusServiceUnavailable {
		t.Errorf("a new request: %d %s, want 503", status, out)
	}
	if status, ids, why := decode(t, g.D, prompt, h, 6); status != http.StatusOK || !slices.Equal(ids, want) {
		t.Errorf("%d %v %s, want %v", status, ids, why, want)
	}
	if n := decodeCounts(t, g.D).external; n != 149 {
		t.Errorf("%v tokens were loaded from P, want 149", n)
	}
	if code := g.P.ExitCode(); code != 0 {
		t.Errorf("P ended with status %d", code)
	}
	g.D.AllFree(t)
}

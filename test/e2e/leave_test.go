package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"tandem/test/cluster"
)

// begin sends a request and returns the answer once its header is there.
func begin(ctx context.Context, url string, body map[string]any, id string) (*http.Response, error) {
	raw, err := json.Marshal(body)
	if err != nil {
		return nil, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url+"/v1/completions", bytes.NewReader(raw))
	if err != nil {
		return nil, err
	}
	if id != "" {
		req.Header.Set("X-Request-Id", id)
	}
	return http.DefaultClient.Do(req)
}

// H075, H076, H093: clients leave while P computes, around P's answer, and in the
// middle of D's stream. P and D stop, every block comes back, and no lease has to
// expire for it.
func TestClientsLeave(t *testing.T) {
	pace := []string{"--sim-token-time", "300us", "--max-num-batched-tokens", "64", "--num-gpu-blocks-override", "200"}
	g := newRig(t, pace, pace)
	var wg sync.WaitGroup
	for i := range 60 {
		prompt := g.prompt([]int{1, 30, 100, 700}[i%4])
		wg.Go(func() {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			switch i % 3 {
			case 0: // in the middle of the stream
			case 1: // as soon as P has something to do
				wg.Go(func() {
					cluster.Eventually(t, "P computes", func() bool {
						i := g.P.Info(t)
						return ctx.Err() != nil || i.Running+i.Waiting > 0 || i.Leases > 0
					})
					cancel()
				})
			case 2: // when P has made a hand-off, or the answer began
				wg.Go(func() {
					cluster.Eventually(t, "P granted", func() bool { return ctx.Err() != nil || g.P.Info(t).Leases > 0 })
					cancel()
				})
			}
			resp, err := begin(ctx, g.Router.URL, request(prompt, true, 1000), "")
			if err != nil {
				return
			}
			_, _ = io.ReadFull(resp.Body, make([]byte, 200)) // it may end first
			cancel()
			resp.Body.Close()
		})
	}
	wg.Wait()
	g.noLegs(t)
	g.P.AllFree(t)
	g.D.AllFree(t)
	if n := g.D.Metric(t, "vllm:request_success_total", `finished_reason="abort"`); n == 0 {
		t.Error("no stream was left")
	}
	g.unharmed(t)
}

// H075: a long prefill that nobody waits for any more ends at its next step.
func TestPrefillStopsWhenTheClientLeaves(t *testing.T) {
	g := newRig(t, []string{"--sim-token-time", "20ms", "--max-num-batched-tokens", "16"}, nil) // 40 s, if nobody ends it
	const n = 5
	for range n {
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() {
			resp, err := begin(ctx, g.Router.URL, request(make([]int, 2000), true, 4), "")
			if err == nil {
				resp.Body.Close()
			}
			done <- err
		}()
		cluster.Eventually(t, "P computes", func() bool { return g.P.Info(t).Running == 1 })
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
		g.P.AllFree(t)
	}
	if aborts := g.P.Metric(t, "vllm:request_success_total", `finished_reason="abort"`); aborts != n {
		t.Errorf("P aborted %v requests, want %v", aborts, n)
	}
	if computed := g.P.Metric(t, "vllm:prompt_tokens_by_source_total", `source="local_compute"`); computed >= n*2000/2 {
		t.Errorf("P computed %v prompt tokens for nobody", computed)
	}
	g.unharmed(t)
}

// H015, H101, H105: all requests carry the same id, on both legs and at once; one
// that is aborted takes no other with it.
func TestEqualRequestIDs(t *testing.T) {
	g := newRig(t, nil, nil)
	var wg sync.WaitGroup
	for i := range 100 {
		prompt := g.prompt(20 + i)
		want := g.want(t, prompt, 20)
		wg.Go(func() {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			resp, err := begin(ctx, g.Router.URL, request(prompt, false, 20), "the-same-id")
			if err != nil {
				t.Error(err)
				return
			}
			defer resp.Body.Close()
			if i%10 == 9 {
				return // leaves
			}
			var a chunk
			if err := json.NewDecoder(resp.Body).Decode(&a); err != nil || len(a.Choices) != 1 || !slices.Equal(a.Choices[0].IDs, want) {
				t.Errorf("%v: got %+v, want %v", err, a, want)
			}
			if id := resp.Header.Get("X-Request-Id"); id != "the-same-id" {
				t.Errorf("the answer carries the id %q", id)
			}
		})
	}
	wg.Wait()
	g.unharmed(t)
}

// H106: clients that never read their streams keep nobody waiting, and leave
// nothing behind when they are gone.
func TestClientsThatDoNotRead(t *testing.T) {
	g := newRig(t, nil, []string{"--max-num-seqs", "64", "--sim-token-time", "200us"}) // six seconds for the silent ones
	addr, _ := hostPort(t, g.Router)
	var silent []net.Conn
	for range 20 {
		c, err := net.Dial("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		silent = append(silent, c)
		body, err := json.Marshal(request(g.prompt(40), true, 1500))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(c, "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: "+
			strconv.Itoa(len(body))+"\r\n\r\n"+string(body)); err != nil {
			t.Fatal(err)
		}
	}
	cluster.Eventually(t, "D streams to them", func() bool { return g.D.Info(t).Running > 0 })
	for range 5 {
		g.same(t, g.Router.URL, g.prompt(50), true, 20)
	}
	for _, c := range silent {
		c.Close()
	}
	g.P.AllFree(t)
	g.D.AllFree(t)
	g.noLegs(t)
	g.unharmed(t)
}

// noLegs returns when the router exchanges nothing with an engine.
func (g *rig) noLegs(t *testing.T) {
	t.Helper()
	cluster.Eventually(t, "the router has no leg", func() bool {
		return backendOf(t, g.Router, g.P.URL).Running+backendOf(t, g.Router, g.D.URL).Running == 0
	})
}

// H092: what a request leaves behind does not grow with their number.
func TestManySmallRequests(t *testing.T) {
	g := newRig(t, []string{"--num-gpu-blocks-override", "64"}, []string{"--num-gpu-blocks-override", "64"})
	procs := []*cluster.Proc{g.P, g.D, g.Router}
	round := func(seed int) (fds, goroutines, heap []float64) {
		var wg sync.WaitGroup
		for w := range 4 {
			wg.Go(func() {
				for i := range 150 {
					p := []int{17 + seed, 20 + w, 17 + i%200, 30, 40}
					if _, err := ask(g.Router.URL, request(p, false, 2)); err != nil {
						t.Error(err)
						return
					}
				}
			})
		}
		wg.Wait()
		g.P.AllFree(t)
		g.D.AllFree(t)
		for _, p := range procs {
			fds = append(fds, float64(descriptors(t, p)))
			goroutines = append(goroutines, p.Metric(t, "go_goroutines"))
			heap = append(heap, p.Metric(t, "go_memstats_heap_objects"))
		}
		return fds, goroutines, heap
	}
	f0, g0, h0 := round(0)
	round(1)
	f1, g1, h1 := round(2)
	for i, p := range procs {
		// Connections are pooled, and the heap holds what was not yet collected;
		// a slot for each of 1,200 requests would be seen.
		if f1[i] > f0[i]+16 || g1[i] > g0[i]+40 || h1[i] > 3*h0[i]+60000 {
			t.Errorf("%s: descriptors %v → %v, goroutines %v → %v, heap objects %v → %v", p.Name, f0[i], f1[i], g0[i], g1[i], h0[i], h1[i])
		}
	}
	if strings.Contains(g.D.Log(), "level=ERROR") {
		t.Error("D logged an error")
	}
}

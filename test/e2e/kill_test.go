package e2e

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"tandem/test/cluster"
)

// again are the arguments of an engine that is to come back at its addresses.
var again = []string{"--host", cluster.Loopback(), "--peer-listen", net.JoinHostPort(cluster.Loopback(), "0")}

// kill ends p, an engine of g, and returns when the router knows: what a probe of
// the dead one found would be told of the next.
func (g *rig) kill(t *testing.T, p *cluster.Proc) {
	t.Helper()
	p.Kill()
	cluster.Eventually(t, "the router has lost "+p.Name, func() bool { return backendOf(t, g.Router, p.URL).State == "down" })
}

// H005, H006, H090: P is killed and comes back at the same addresses under the
// same engine id, and with another pool each time. Nobody else is restarted, and
// the first request is read from the new P.
func TestPrefillEngineIsKilledAndComesBack(t *testing.T) {
	g := newRig(t, again, []string{"--no-enable-prefix-caching", "--num-gpu-blocks-override", "48"})
	var h struct {
		Addr string `json:"remote_addr"`
		Inc  string `json:"remote_incarnation"`
	}
	told := func() {
		t.Helper()
		params := handoff(t, g.P, g.prompt(20))
		raw, err := json.Marshal(params)
		if err != nil {
			t.Fatal(err)
		}
		if err := json.Unmarshal(raw, &h); err != nil {
			t.Fatal(err)
		}
		release(t, g.P, params)
	}
	told()
	addr, before := h.Addr, h.Inc
	_, port := hostPort(t, g.P)
	g.unharmed(t)
	const rounds = 10
	for round := range rounds {
		blocks := []string{"64", "32", "256"}[round%3]
		var wg sync.WaitGroup
		for i := range 10 {
			p := g.prompt(100 + i)
			want := g.want(t, p, 4)
			wg.Go(func() {
				// In flight at the kill it may fail; it may not be wrong.
				if a, err := ask(g.Router.URL, request(p, i%2 == 0, 4)); err == nil && !slices.Equal(a.ids, want) {
					t.Errorf("got %v, want %v", a.ids, want)
				}
			})
		}
		g.kill(t, g.P)
		wg.Wait()
		args := slices.Concat(sim, again, []string{"--num-gpu-blocks-override", blocks, "--port", port, "--peer-listen", addr})
		g.P = cluster.Engine(t, "P", "kv_producer", cluster.Token(t), args...).Ready(t)
		cluster.Eventually(t, "the router has a pair", func() bool { return status(g.Router.URL+"/health") == http.StatusOK })
		if told(); h.Addr != addr || h.Inc == before {
			t.Errorf("P is %s at %s, was %s at %s", h.Inc, h.Addr, before, addr)
		}
		before = h.Inc
		g.unharmed(t)
	}
	if n := g.D.Metric(t, "tandem_peer_handshakes_total", `outcome="ok"`); n != 1+rounds {
		t.Errorf("%v handshakes, want one for each of %d processes", n, 1+rounds)
	}
}

// H022: P dies at five points of its leg. The client has a definite answer, and D
// never hears of the request.
func TestPrefillEngineDiesDuringItsLeg(t *testing.T) {
	token := cluster.Token(t)
	d := cluster.Engine(t, "D", "kv_consumer", token, sim...).Ready(t)
	prompt := make([]int, 192) // twelve steps of 0.64 s: the last third is longer than any look at P takes
	slow := append(slices.Clone(sim), "--sim-token-time", "40ms", "--max-num-batched-tokens", "16", "--max-num-seqs", "1")
	steps := func(p *cluster.Proc) float64 { return p.Metric(t, "vllm:iteration_tokens_total_count") }
	var wg sync.WaitGroup
	for name, there := range map[string]func(p *cluster.Proc) bool{
		"in the queue":      func(p *cluster.Proc) bool { return p.Info(t).Waiting == 1 },
		"at its first":      func(p *cluster.Proc) bool { return p.Info(t).Running == 1 },
		"after a third":     func(p *cluster.Proc) bool { return steps(p) >= 4 },
		"half way":          func(p *cluster.Proc) bool { return steps(p) >= 6 },
		"in its last third": func(p *cluster.Proc) bool { return steps(p) >= 8 },
	} {
		p := cluster.Engine(t, "P to die "+name, "kv_producer", token, slow...).Ready(t)
		router := cluster.Start(t, "router", "route", "--port", "0", "--prefill", p.URL, "--decode", d.URL).Ready(t)
		if name == "in the queue" {
			go func() { _, _ = ask(p.URL, request(prompt, false, 1)) }() // it is in front, and dies too
			cluster.Eventually(t, "P computes", func() bool { return p.Info(t).Running == 1 })
		}
		wg.Go(func() {
			_, err := ask(router.URL, request(prompt, true, 4))
			if err == nil || !strings.Contains(err.Error(), "status 502") {
				t.Errorf("%s: %v, want status 502", name, err)
			}
			if _, err := ask(router.URL, request([]int{20, 21, 22}, false, 1)); err == nil || !strings.Contains(err.Error(), "status 50") {
				t.Errorf("%s: without P: %v, want 502 or 503", name, err)
			}
		})
		wg.Go(func() {
			cluster.Eventually(t, "P is "+name, func() bool { return there(p) })
			p.Kill()
		})
	}
	wg.Wait()
	d.AllFree(t)
	got := func() float64 { return d.Metric(t, "http_requests_total", "/v1/completions") }
	if n := got(); n != 0 {
		t.Errorf("D got %v requests, want none", n)
	}
	if _, err := ask(d.URL, request(prompt, false, 1)); err != nil {
		t.Error(err)
	}
	cluster.Eventually(t, "the request to D itself is counted", func() bool { return got() == 1 })
}

// D dies with streams open: they end with an error, never as if they were whole,
// and P holds nothing for it. A new D at the same address serves.
func TestDecodeEngineIsKilledAndComesBack(t *testing.T) {
	g := newRig(t, nil, append(slices.Clone(again), "--sim-token-time", "2ms"))
	_, port := hostPort(t, g.D)
	const n = 8
	started, results := make(chan struct{}, n), make(chan error, n)
	for range n {
		body, err := json.Marshal(request(g.prompt(90), true, 1000))
		if err != nil {
			t.Fatal(err)
		}
		go func() {
			resp, err := http.Post(g.Router.URL+"/v1/completions", "application/json", bytes.NewReader(body))
			if err != nil {
				started <- struct{}{}
				results <- err
				return
			}
			defer resp.Body.Close()
			first := make([]byte, 1)
			_, err = io.ReadFull(resp.Body, first)
			started <- struct{}{}
			rest, rerr := io.ReadAll(resp.Body)
			switch err = errors.Join(err, rerr); {
			case err != nil:
			case !bytes.Contains(rest, []byte(`"error":`)) || bytes.Contains(rest, []byte(`"finish_reason":"length"`)):
				err = errors.New("the stream ends as if it were whole: " + string(rest[max(0, len(rest)-300):]))
			}
			results <- err
		}()
	}
	for range n {
		<-started
	}
	// What D read is given back behind the first token; what it kept would have to expire.
	cluster.Eventually(t, "D has returned its leases", func() bool { return g.P.Info(t).Leases == 0 })
	g.kill(t, g.D)
	for range n {
		if err := <-results; err != nil {
			t.Error(err)
		}
	}
	g.P.AllFree(t)
	g.D = cluster.Engine(t, "D", "kv_consumer", cluster.Token(t), slices.Concat(sim, again, []string{"--port", port})...).Ready(t)
	cluster.Eventually(t, "the router has a pair", func() bool { return status(g.Router.URL+"/health") == http.StatusOK })
	g.unharmed(t)
}

// What killed engines leave in the temporary folder is gone when the next one has
// started, and nothing is left when that one ends. A cluster's token is in no file.
func TestKilledEnginesLeaveNoFiles(t *testing.T) {
	cluster.Binary(t)
	token := cluster.Token(t)
	tmp, err := os.MkdirTemp("", "e2e") //nolint:usetesting // its path is long, and a socket's must not be
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(tmp) })
	t.Setenv("TMPDIR", tmp)
	files := func() (out []string) {
		t.Helper()
		if err := filepath.WalkDir(tmp, func(path string, d fs.DirEntry, err error) error {
			if err == nil && !d.IsDir() {
				out = append(out, path)
			}
			return err
		}); err != nil {
			t.Fatal(err)
		}
		return out
	}
	engine := func() *cluster.Proc { return cluster.Engine(t, "P", "kv_both", token, sim...).Ready(t) }
	for range 3 {
		engine().Kill()
	}
	if n := len(files()); n != 2 {
		t.Fatalf("a killed engine leaves %d files, not a socket and its lock", n)
	}
	if !engine().Stop() || len(files()) != 0 {
		t.Errorf("left over: %v", files())
	}
	startUp(t)
	for _, f := range files() {
		if body, _ := os.ReadFile(f); len(body) > 0 { // a socket cannot be read
			t.Errorf("%s holds %q", f, body)
		}
	}
	if n := len(files()); n != 4 {
		t.Errorf("two engines have %d files", n)
	}
}

// A relay passes TCP connections on and can cut all of them.
type relay struct {
	ln    net.Listener
	mu    sync.Mutex
	conns []net.Conn
}

func newRelay(t *testing.T) *relay {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	r := &relay{ln: ln}
	t.Cleanup(func() { ln.Close(); r.cut() })
	return r
}

func (r *relay) run(to string) {
	for {
		a, err := r.ln.Accept()
		if err != nil {
			return
		}
		b, err := net.Dial("tcp", to)
		if err != nil {
			a.Close()
			continue
		}
		r.mu.Lock()
		r.conns = append(r.conns, a, b)
		r.mu.Unlock()
		for _, d := range [][2]net.Conn{{a, b}, {b, a}} {
			go func() {
				_, _ = io.Copy(d[0], d[1]) // ends with either
				d[0].Close()
				d[1].Close()
			}()
		}
	}
}

// cut ends every connection and returns how many there were.
func (r *relay) cut() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	n := len(r.conns)
	for _, c := range r.conns {
		c.Close()
	}
	r.conns = nil
	return n
}

// H013: the connection between D and P is cut, again and again: requests that
// were on it end or are computed on D, and the next one is read from P.
func TestConnectionIsCut(t *testing.T) {
	r := newRelay(t)
	free, err := net.Listen("tcp", net.JoinHostPort(cluster.Loopback(), "0"))
	if err != nil {
		t.Fatal(err)
	}
	listen := free.Addr().String()
	free.Close()
	go r.run(listen)
	g := newRig(t, []string{"--peer-listen", listen, "--peer-advertise", r.ln.Addr().String()}, []string{"--no-enable-prefix-caching", recompute})
	g.unharmed(t)
	for range 3 {
		var wg sync.WaitGroup
		for i := range 10 {
			p := g.prompt(300)
			want := g.want(t, p, 4)
			wg.Go(func() {
				if a, err := ask(g.Router.URL, request(p, i%2 == 0, 4)); err != nil || !slices.Equal(a.ids, want) {
					t.Errorf("%v: got %v, want %v", err, a.ids, want)
				}
			})
		}
		if r.cut() == 0 {
			t.Error("no connection went through the relay")
		}
		wg.Wait()
		r.cut()
		g.unharmed(t)
	}
}

// A temporary folder that is named from where P was started is found by a D that
// was started elsewhere: it reads P's memory.
func TestRelativeTemporaryFolder(t *testing.T) {
	cluster.Binary(t)
	token := cluster.Token(t)
	start := func(name, role string) *cluster.Proc {
		tmp, err := os.MkdirTemp("", "e2e") //nolint:usetesting // its path is long, and a socket's must not be
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { os.RemoveAll(tmp) })
		t.Chdir(tmp)
		old := os.TempDir()
		t.Setenv("TMPDIR", ".")
		defer t.Setenv("TMPDIR", old)
		return cluster.Engine(t, name, role, token, sim...).Ready(t)
	}
	p, d := start("P", "kv_producer"), start("D", "kv_consumer")
	prompt := []int{65, 66, 67, 68}
	if status, ids, why := decode(t, d, prompt, handoff(t, p, prompt), 2); status != http.StatusOK || len(ids) != 2 {
		t.Error(status, ids, why)
	}
	if info := string(d.Get(t, "/server_info")); !strings.Contains(info, `"path":"memfd"`) {
		t.Error(info)
	}
}

package main

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"tandem/test/cluster"
)

// A fleet is a prefill engine, two decode engines with a router for each, and one
// engine that tells what is right.
type fleet struct {
	c      *campaign
	t      testing.TB
	token  string // path
	secret []byte
	one    *cluster.Proc
	p      *cluster.Proc
	d      []*decoder

	mu sync.Mutex
	r  *rand.Rand
}

// A decoder is a decode engine and the router in front of P and it.
type decoder struct {
	*cluster.Proc

	path   string // of its reads
	policy string // of its own; a request may ask for the other
	router *cluster.Proc
}

// The load failure policies, and the transfer paths.
var (
	policies = []string{"fail", "recompute"}
	paths    = []string{"memfd", "tcp"}
)

// pick returns the decoder and the policy of the i-th request: all pairs in turn.
func (f *fleet) pick(i int) (d *decoder, policy string) { return f.d[i%2], policies[i/2%2] }

// base are the arguments of every engine.
var base = []string{"--sim", "--max-model-len", "2048", "--disable-log-requests"}

const extra = "--kv-transfer-config.kv_connector_extra_config."

// parts are the arguments of the processes of a fleet beside the common ones.
type parts struct{ prefill, decode, router []string }

// start starts a fleet; it ends with t.
func (c *campaign) start(t testing.TB, a parts) (*fleet, error) {
	f := &fleet{c: c, t: t, token: cluster.Token(t), r: rand.New(rand.NewPCG(c.seed, 11))}
	text, err := os.ReadFile(f.token)
	if err != nil {
		return nil, err
	}
	if f.secret, err = hex.DecodeString(strings.TrimSpace(string(text))); err != nil {
		return nil, err
	}
	f.one = cluster.Start(t, "one", append([]string{"serve", "--port", "0"}, base...)...)
	f.p = f.prefill("P", a.prefill...)
	for i, path := range paths {
		args := append([]string{
			"--allow-request-policy", "--kv-transfer-config.kv_load_failure_policy=" + policies[i], extra + `transfer_paths=["` + path + `"]`,
		}, a.decode...)
		f.d = append(f.d, &decoder{Proc: f.engine("D-"+path, "kv_consumer", args...), path: path, policy: policies[i]})
	}
	for _, p := range append([]*cluster.Proc{f.one, f.p}, f.d[0].Proc, f.d[1].Proc) {
		p.Ready(t)
	}
	for _, d := range f.d {
		d.router = cluster.Start(t, "router-"+d.path, append([]string{"route", "--port", "0", "--prefill", f.p.URL, "--decode", d.URL}, a.router...)...).Ready(t)
	}
	return f, nil
}

func (f *fleet) engine(name, role string, args ...string) *cluster.Proc {
	return cluster.Engine(f.t, name, role, f.token, append(slices.Clone(base), args...)...)
}

// prefill starts a prefill engine; it may not be ready.
func (f *fleet) prefill(name string, args ...string) *cluster.Proc {
	return f.engine(name, "kv_producer", args...)
}

// intn draws a number below n; many goroutines may.
func (f *fleet) intn(n int) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.r.IntN(n)
}

// prompt draws n tokens.
func (f *fleet) prompt(n int) []int {
	f.mu.Lock()
	defer f.mu.Unlock()
	p := make([]int, n)
	for i := range p {
		p[i] = 17 + f.r.IntN(239)
	}
	return p
}

// output is how many tokens are asked for.
const output = 4

// want returns what one engine answers.
func (f *fleet) want(prompt []int) ([]int, error) {
	r := f.c.send(ask{url: f.one.URL, prompt: prompt, tokens: output})
	if r.err != nil || r.status != http.StatusOK || len(r.ids) != output {
		return nil, fmt.Errorf("one engine: %s", &r)
	}
	return r.ids, nil
}

// handoff runs a prefill leg on p and returns its kv_transfer_params.
func (f *fleet) handoff(p *cluster.Proc, prompt []int) (json.RawMessage, error) {
	r := f.c.send(ask{url: p.URL, prompt: prompt, tokens: 1, params: json.RawMessage(`{"do_remote_decode":true}`)})
	if r.err != nil || r.status != http.StatusOK || r.params == nil {
		return nil, fmt.Errorf("prefill leg: %s", &r)
	}
	return r.params, nil
}

// release gives a hand-off back as a router does.
func (f *fleet) release(p *cluster.Proc, params json.RawMessage) error {
	resp, err := client.Post(p.URL+"/release_kv_handoff", "application/json", bytes.NewReader(params))
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("releasing a hand-off: status %d", resp.StatusCode)
	}
	return nil
}

// books are what an engine says of its blocks and tables.
type books struct {
	Blocks, Free, Leases, Claimed, Loads, Running, Waiting, Loading int
}

func (b *books) settled() bool {
	return b.Blocks == b.Free && b.Leases+b.Claimed+b.Loads+b.Running+b.Waiting+b.Loading == 0
}

func read(p *cluster.Proc) (b books, err error) {
	resp, err := client.Get(p.URL + "/server_info")
	if err != nil {
		return b, err
	}
	defer resp.Body.Close()
	var out struct {
		Tandem struct {
			Blocks  int `json:"blocks"`
			Free    int `json:"blocks_free"`
			Leases  int `json:"leases"`
			Claimed int `json:"claimed"`
			Loads   int `json:"loads"`
			Running int `json:"running"`
			Waiting int `json:"waiting"`
			Loading int `json:"loading"`
		} `json:"tandem"`
	}
	if err := json.NewDecoder(resp.Body).Decode(&out); err != nil {
		return b, err
	}
	return books(out.Tandem), nil
}

// settle waits until every block and table of the engines is free again, and
// notes in r how long that took since w.
func settle(r *row, w watch, engines ...*cluster.Proc) {
	for _, p := range engines {
		for {
			b, err := read(p)
			if err == nil && b.settled() {
				break
			}
			if w.took() > 10*time.Second {
				r.wrong("%s holds %+v after 10 s (%v)", p.Name, b, err)
				return
			}
			time.Sleep(2 * time.Millisecond)
		}
	}
	r.returned(w.took())
}

// engines are all that hold blocks.
func (f *fleet) engines() []*cluster.Proc {
	return []*cluster.Proc{f.p, f.d[0].Proc, f.d[1].Proc}
}

// alive notes in r which processes have ended.
func (f *fleet) alive(r *row) {
	for _, p := range append(f.engines(), f.d[0].router, f.d[1].router) {
		select {
		case <-p.Done():
			r.wrong("%s ended by itself:\n%s", p.Name, tail(p.Log()))
		default:
		}
	}
}

func tail(log string) string { return log[max(0, len(log)-2000):] }

// each runs f for 0 to n-1 on a few goroutines.
func each(n, workers int, f func(i int)) {
	var wg sync.WaitGroup
	next := make(chan int)
	for range workers {
		wg.Go(func() {
			for i := range next {
				f(i)
			}
		})
	}
	for i := range n {
		next <- i
	}
	close(next)
	wg.Wait()
}

package main

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/url"
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

	// P's addresses, for HTTP and for peers, and its arguments.
	port, addr string
	prefills   []string

	mu sync.Mutex
	r  *rand.Rand
}

// A decoder is a decode engine and the router in front of P and it.
type decoder struct {
	*cluster.Proc

	path   string // of its reads
	policy string // of its own; a request may ask for the other
	router *cluster.Proc
	args   []string
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
type parts struct {
	prefill, decode, router []string
	own                     [][]string // of each decode engine
}

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
	f.prefills = a.prefill
	f.p = f.prefill("P", append([]string{"--peer-listen", home() + ":0"}, a.prefill...)...)
	for i, path := range paths {
		args := append([]string{
			"--allow-request-policy", "--kv-transfer-config.kv_load_failure_policy=" + policies[i], extra + `transfer_paths=["` + path + `"]`,
		}, a.decode...)
		if a.own != nil {
			args = append(args, a.own[i]...)
		}
		f.d = append(f.d, &decoder{Proc: f.engine("D-"+path, "kv_consumer", args...), path: path, policy: policies[i], args: args})
	}
	for _, p := range append([]*cluster.Proc{f.one, f.p}, f.d[0].Proc, f.d[1].Proc) {
		p.Ready(t)
	}
	if f.port, f.addr, err = addresses(f.p); err != nil {
		return nil, err
	}
	for _, d := range f.d {
		d.router = cluster.Start(t, "router-"+d.path, append([]string{"route", "--port", "0", "--prefill", f.p.URL, "--decode", d.URL}, a.router...)...).Ready(t)
	}
	return f, nil
}

// addresses returns the port of an engine's HTTP server and its peer address.
func addresses(p *cluster.Proc) (port, addr string, err error) {
	u, err := url.Parse(p.URL)
	if err != nil {
		return "", "", err
	}
	resp, err := client.Get(p.URL + "/server_info")
	if err != nil {
		return "", "", err
	}
	defer resp.Body.Close()
	var info struct {
		Tandem struct {
			Addr string `json:"peer_address"`
		} `json:"tandem"`
	}
	err = json.NewDecoder(resp.Body).Decode(&info)
	return u.Port(), info.Tandem.Addr, err
}

// again starts P again: under its name and at its address, or under others.
func (f *fleet) again(name, listen string, args ...string) {
	args = slices.Concat(f.prefills, []string{"--port", f.port, "--peer-listen", listen}, args)
	f.p = f.prefill(name, args...).Ready(f.t)
}

func (f *fleet) engine(name, role string, args ...string) *cluster.Proc {
	return cluster.Engine(f.t, name, role, f.token, append(slices.Clone(base), args...)...)
}

// prefill starts a prefill engine; it may not be ready.
func (f *fleet) prefill(name string, args ...string) *cluster.Proc {
	return f.engine(name, "kv_producer", append([]string{"--host", home()}, args...)...)
}

// home is an IP address for engines that come back: while they are gone, nothing
// else that runs here takes their ports.
func home() string {
	pid := os.Getpid()
	return fmt.Sprintf("127.%d.%d.%d", 64+pid>>16&63, pid>>8&255, pid&255|1)
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
func (f *fleet) want(prompt []int) ([]int, error) { return f.wants(prompt, output) }

// wants is want for a number of tokens.
func (f *fleet) wants(prompt []int, tokens int) ([]int, error) {
	r := f.c.send(ask{url: f.one.URL, prompt: prompt, tokens: tokens})
	if r.err != nil || r.status != http.StatusOK || len(r.ids) != tokens {
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

// peerCount returns how many peers a decode engine keeps a connection to.
func peerCount(p *cluster.Proc) (int, error) {
	resp, err := client.Get(p.URL + "/server_info")
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	var out struct {
		Tandem struct {
			Peers []struct {
				State string `json:"state"`
			} `json:"peers"`
		} `json:"tandem"`
	}
	err = json.NewDecoder(resp.Body).Decode(&out)
	n := 0
	for _, peer := range out.Tandem.Peers {
		if peer.State == "ready" || peer.State == "handshake" {
			n++
		}
	}
	return n, err
}

// settle waits until every block and table of the engines is free again, and
// notes in r how long that took since w.
func settle(r *row, w watch, engines ...*cluster.Proc) { settleIn(r, w, backLimit, engines...) }

// settleIn is settle with another limit.
func settleIn(r *row, w watch, limit time.Duration, engines ...*cluster.Proc) {
	for _, p := range engines {
		for {
			b, err := read(p)
			if err == nil && b.settled() {
				break
			}
			if most := max(10*time.Second, limit*patience); w.took() > most {
				r.wrong("%s holds %+v after %v (%v)", p.Name, b, most, err)
				return
			}
			time.Sleep(2 * time.Millisecond)
		}
	}
	r.returned(w.took(), limit)
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

// first asks through each router until an answer is right and loaded from P, and
// notes how long that takes from now.
func (f *fleet) first(r *row, round int) {
	w := f.c.pulse.start()
	var wg sync.WaitGroup
	var mu sync.Mutex
	for _, d := range f.d {
		prompt := f.prompt(60)
		want, err := f.want(prompt)
		if err != nil {
			r.wrong("%v", err)
			return
		}
		wg.Go(func() {
			for {
				rep := f.c.send(ask{url: d.router.URL, prompt: prompt, tokens: output, policy: "fail"})
				took, how := w.took(), rep.judge(want)
				mu.Lock()
				switch {
				case how == right && rep.kv.Loaded == len(prompt)-1:
					r.fired++
					r.outcome.add("right, loaded from P")
					r.took(took, firstGood)
				case how == refused && took <= 10*time.Second:
					r.surfaced.add("tried again: " + rep.reason)
				default:
					r.wrong("round %d, %s, after %.1f s: %s: %s", round, d.path, took.Seconds(), how, &rep)
					how = wrong
				}
				mu.Unlock()
				if how != refused {
					break
				}
				time.Sleep(5 * time.Millisecond)
			}
		})
	}
	wg.Wait()
}

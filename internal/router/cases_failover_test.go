package router

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"tandem/internal/backend"
)

// A frost makes an engine accept connections and answer nothing.
type frost struct {
	on  atomic.Bool
	met atomic.Int64 // legs that are held
	off chan struct{}
}

// freezable returns the frost of s, which has to be made before s serves.
func freezable(s *standIn) *frost {
	f := &frost{off: make(chan struct{})}
	next := s.Config.Handler
	s.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		if f.on.Load() {
			if q.Method == http.MethodPost {
				body, _ := io.ReadAll(q.Body) // so that a client that leaves is seen
				q.Body = io.NopCloser(bytes.NewReader(body))
				f.met.Add(1)
			}
			select {
			case <-f.off:
			case <-q.Context().Done():
				return
			}
		}
		next.ServeHTTP(w, q)
	})
	return f
}

// H081: an engine that accepts and never answers holds up nobody but those who
// wait for it; they end at the limit, and it is taken out.
func TestOneHungEngineHoldsUpNobodyElse(t *testing.T) {
	p, hung, healthy := newStandIn(t, "P"), newStandIn(t, "D-hung"), newStandIn(t, "D")
	f := freezable(hung)
	// Nobody probes in between, so that all are held whom their turn sends there.
	_, url := front(t, Config{Backend: backend.Limits{Every: time.Hour}}, []*standIn{p}, []*standIn{hung, healthy})
	f.on.Store(true)
	const n = 20
	type result struct {
		status int
		by     string
	}
	results := make(chan result, n)
	var wg sync.WaitGroup
	for range n {
		wg.Go(func() {
			status, h, _ := post(t, url+"/v1/completions", `{"prompt":"a"}`)
			results <- result{status, h.Get(headerDecode)}
		})
	}
	served := 0
	for served+int(f.met.Load()) < n { // the held ones have ten minutes
		select {
		case r := <-results:
			served++
			if r.status != http.StatusOK || r.by != strings.TrimPrefix(healthy.URL, "http://") {
				t.Errorf("beside the hung one: %+v", r)
			}
		case <-time.After(time.Millisecond):
		}
	}
	if b, _ := healthy.got(); f.met.Load() != n/2 || served != n/2 || len(b) != served {
		t.Errorf("%d requests are held, %d were served by an engine that got %d", f.met.Load(), served, len(b))
	}
	f.on.Store(false)
	close(f.off)
	wg.Wait()
	for range n - served {
		if r := <-results; r.status != http.StatusOK {
			t.Errorf("when it goes on: %+v", r)
		}
	}

	alone := newStandIn(t, "D-hung")
	f = freezable(alone)
	// The first probe after the leg that met its limit finds the engine hung.
	r, url := front(t, Config{Backend: backend.Limits{Header: 2 * time.Second, Probe: 2 * time.Second, Every: time.Hour}}, []*standIn{p}, []*standIn{alone})
	f.on.Store(true)
	defer close(f.off)
	if status, _, body := post(t, url+"/v1/completions", `{"prompt":"a"}`); status/100 != 5 || f.met.Load() == 0 {
		t.Errorf("at the limit: %d %s", status, body)
	}
	for r.ready() {
		<-time.After(time.Millisecond)
	}
	if _, all := get(t, url+"/status"); !strings.Contains(all, `"state":"down"`) {
		t.Errorf("status: %s", all)
	}
}

// H082: engines restart between requests, with connections of the router's idle.
// No client notices.
func TestStaleConnectionsReachNobody(t *testing.T) {
	const restarts = 100
	p, d := newStandIn(t, "P").move(t, "127.0.0.2:0"), newStandIn(t, "D").move(t, "127.0.0.2:0")
	r, url := front(t, Config{}, []*standIn{p}, []*standIn{d})
	members := []*standIn{p, d}
	for i := range restarts {
		if status, _, body := post(t, url+"/v1/completions", `{"prompt":"a"}`); status != http.StatusOK {
			t.Fatalf("after %d restarts: %d %s", i, status, body)
		}
		s := members[i%2]
		addr, conns := s.Listener.Addr().String(), s.conns
		for conns.idle() == 0 { // the engine notes it a moment after its answer
			<-time.After(time.Millisecond)
		}
		s.Close()
		next := newStandIn(t, s.name)
		probed := next.probes()
		members[i%2] = next.move(t, addr)
		<-probed // it is up
		for !r.ready() {
			<-time.After(time.Millisecond)
		}
	}
}

// H085: whichever engines vanish and return, in whatever order, the router is as
// before once they are there.
func TestEnginesVanishAndReturnInAnyOrder(t *testing.T) {
	const P, D = 0, 1
	for name, c := range map[string]struct{ leave, back []int }{
		"D": {[]int{D}, []int{D}}, "P": {[]int{P}, []int{P}},
		"P and D, P returns first":      {[]int{P, D}, []int{P, D}},
		"P and D, D returns first":      {[]int{P, D}, []int{D, P}},
		"D before P, P returns first":   {[]int{D, P}, []int{P, D}},
		"D before P, D returns first":   {[]int{D, P}, []int{D, P}},
		"twice, and the other way back": {[]int{P, D, D, P}, []int{D, P, P, D}},
	} {
		t.Run(name, func(t *testing.T) {
			var members [2][]*standIn
			for i, role := range []string{"P", "D"} {
				for k := range 2 {
					members[i] = append(members[i], newStandIn(t, fmt.Sprint(role, k)).move(t, "127.0.0.2:0"))
				}
			}
			r, url := front(t, Config{}, members[P], members[D])
			back := slices.Collect(slices.Chunk(c.back, 2))
			for round, leave := range slices.Collect(slices.Chunk(c.leave, 2)) {
				for _, kind := range leave {
					for _, s := range members[kind] {
						s.CloseClientConnections()
						s.Close()
					}
					for r.ready() {
						<-time.After(time.Millisecond)
					}
					if status, h, body := post(t, url+"/v1/completions", `{"prompt":"a"}`); status != http.StatusServiceUnavailable || h.Get("Retry-After") == "" {
						t.Errorf("without engines: %d %s", status, body)
					}
				}
				for _, kind := range back[round] {
					for k, s := range members[kind] {
						members[kind][k] = newStandIn(t, s.name).move(t, s.Listener.Addr().String())
					}
				}
				for !r.ready() {
					<-time.After(time.Millisecond)
				}
				if status, _, body := post(t, url+"/v1/completions", `{"prompt":"a"}`); status != http.StatusOK {
					t.Errorf("the first request afterwards: %d %s", status, body)
				}
			}
		})
	}
}

// H084: whatever becomes of requests and engines, each gives back what it took
// of an engine's count, and no other's.
func TestLegsAddUpWhateverHappens(t *testing.T) {
	addr := func(s *standIn) string { return s.Listener.Addr().String() }
	p, d, other := newStandIn(t, "P"), newStandIn(t, "D").move(t, "127.0.0.2:0"), newStandIn(t, "D2")
	r, url := front(t, Config{Retries: 1}, []*standIn{p}, []*standIn{d, other})
	held := func(w http.ResponseWriter, q *http.Request, _ []byte) bool {
		w.Header().Set("Content-Type", "text/event-stream")
		fmt.Fprint(w, "data: {\"id\":\"a\",\"choices\":[{\"index\":0,\"text\":\"t\"}]}\n\n")
		_ = http.NewResponseController(w).Flush()
		<-q.Context().Done()
		return true
	}
	type open struct {
		on   string // the engine
		quit func()
		over chan struct{}
	}
	rnd := rand.New(rand.NewPCG(1, 2))
	var running []*open
	up, flaps, aborts := true, 0, 0
	legs := func(name string) int {
		for _, b := range r.decode.All() {
			if b.Name() == name {
				return b.Legs()
			}
		}
		t.Fatalf("no engine %s", name)
		return 0
	}
	check := func(event int, what string) {
		t.Helper()
		for _, name := range []string{addr(d), addr(other)} {
			want := 0
			for _, o := range running {
				if o.on == name {
					want++
				}
			}
			for began := time.Now(); legs(name) != want; { // a leg ends after its client has left
				if n := legs(name); n < 0 || time.Since(began) > time.Minute {
					t.Fatalf("event %d, %s: %d legs on %s, want %d", event, what, n, name, want)
				}
				<-time.After(100 * time.Microsecond)
			}
		}
	}
	begin := func() {
		ctx, cancel := context.WithCancel(t.Context())
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, url+"/v1/completions", strings.NewReader(`{"prompt":"a","stream":true}`))
		if err != nil {
			t.Fatal(err)
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil || resp.StatusCode != http.StatusOK {
			cancel()
			if err == nil {
				resp.Body.Close()
			}
			return
		}
		o := &open{on: resp.Header.Get(headerDecode), over: make(chan struct{})}
		o.quit = func() { cancel(); <-o.over }
		go func() {
			defer close(o.over)
			defer resp.Body.Close()
			buf := make([]byte, 512)
			for {
				if _, err := resp.Body.Read(buf); err != nil {
					return
				}
			}
		}()
		running = append(running, o)
	}
	for event := range 1000 {
		what := ""
		switch k := rnd.IntN(20); {
		case k < 8 && len(running) < 12:
			what = "a stream begins"
			d.set(hooks{decode: held})
			other.set(hooks{decode: held})
			begin()
		case k < 13 && len(running) > 0:
			what = "a client leaves"
			i := rnd.IntN(len(running))
			running[i].quit()
			running = append(running[:i], running[i+1:]...)
			aborts++
		case k < 16:
			what = "a request is answered"
			d.set(hooks{})
			other.set(hooks{})
			post(t, url+"/v1/completions", `{"prompt":"a"}`)
		case k < 18:
			what = "a request fails"
			d.set(streamed(0))
			other.set(streamed(0))
			post(t, url+"/v1/completions", `{"prompt":"a","stream":true}`)
		case k == 18 && up:
			what = "an engine goes"
			d.CloseClientConnections()
			d.Close()
			for _, o := range running {
				if o.on == addr(d) {
					<-o.over
				}
			}
			kept := running[:0]
			for _, o := range running {
				if o.on != addr(d) {
					kept = append(kept, o)
				}
			}
			running, up, flaps = kept, false, flaps+1
		case k >= 18 && !up:
			what = "an engine comes back"
			d = newStandIn(t, "D").move(t, addr(d))
			up = true
		}
		check(event, what)
	}
	for _, o := range running {
		o.quit()
	}
	running = nil
	check(1000, "the end")
	if flaps < 5 || aborts < 50 {
		t.Errorf("an engine left %d times, clients %d times", flaps, aborts)
	}
}

// A connBook knows the connections of a stand-in by their state.
type connBook struct {
	mu  sync.Mutex
	now map[net.Conn]http.ConnState
}

func (c *connBook) note(conn net.Conn, s http.ConnState) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.now == nil {
		c.now = map[net.Conn]http.ConnState{}
	}
	c.now[conn] = s
}

// idle returns how many connections are open and unused.
func (c *connBook) idle() (n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, s := range c.now {
		if s == http.StateIdle {
			n++
		}
	}
	return n
}

// probes returns a channel that is closed when the engine is probed.
func (s *standIn) probes() <-chan struct{} {
	met := make(chan struct{})
	var once sync.Once
	next := s.Config.Handler
	s.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		if q.Method == http.MethodGet {
			once.Do(func() { close(met) })
		}
		next.ServeHTTP(w, q)
	})
	return met
}

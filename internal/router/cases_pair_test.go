package router

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"tandem/internal/backend"
)

// tell makes the stand-in answer /server_info as an engine of Tandem.
func (s *standIn) tell(role, fingerprint string) *standIn {
	next := s.Config.Handler
	s.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		if q.URL.Path != "/server_info" {
			next.ServeHTTP(w, q)
			return
		}
		fmt.Fprintf(w, `{"version":"test","tandem":{"role":%q,"incarnation":%q,"fingerprint":%q,"factors":[{"name":"layers","value":"2"},{"name":"kv_type","value":%q}]}}`,
			role, "start of "+s.name, fingerprint, "type of "+fingerprint)
	})
	return s
}

// get returns the status and the body of a GET.
func get(t *testing.T, url string) (int, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	status, _, body := exchange(t, req)
	return status, body
}

// silentPort is an address where connections are taken and closed unread, as on
// the peer port of an engine.
func silentPort(t *testing.T) string {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ln.Close() })
	go func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			c.Close()
		}
	}()
	return "http://" + ln.Addr().String()
}

// H112: a router whose members are wrong is not ready, says which member and
// why, and sends nobody any work.
func TestWrongMembersAreNamed(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.3:0") // where nobody else listens meanwhile
	if err != nil {
		t.Fatal(err)
	}
	if err := ln.Close(); err != nil {
		t.Fatal(err)
	}
	closed := "http://" + ln.Addr().String()
	other := httptest.NewServer(http.NotFoundHandler())
	defer other.Close()
	front2 := func(t *testing.T) string { // another router, ready
		_, url := front(t, Config{}, []*standIn{newStandIn(t, "P0")}, []*standIn{newStandIn(t, "D0")})
		return url
	}
	for name, c := range map[string]struct {
		p, d   func(t *testing.T) string // URL in place of a stand-in
		pr, dr [2]string                 // role and fingerprint
		want   []string                  // of the reason; P and D stand for the members
	}{
		"swapped roles":        {pr: [2]string{"kv_consumer", "a"}, dr: [2]string{"kv_producer", "a"}, want: []string{"P is", "kv_role is kv_consumer", "--decode"}},
		"decode does prefill":  {pr: [2]string{"kv_both", "a"}, dr: [2]string{"kv_producer", "a"}, want: []string{"D is", "kv_role is kv_producer", "--prefill"}},
		"no connector":         {pr: [2]string{"aggregated", ""}, dr: [2]string{"kv_consumer", "a"}, want: []string{"P is", "--kv-transfer-config"}},
		"other model":          {pr: [2]string{"kv_producer", "a"}, dr: [2]string{"kv_consumer", "b"}, want: []string{"P does", "D:", "kv_type is type of a on P and type of b on D"}},
		"a router":             {p: front2, dr: [2]string{"kv_consumer", "a"}, want: []string{"P is", "is a router"}},
		"the peer port":        {p: silentPort, dr: [2]string{"kv_consumer", "a"}, want: []string{"P is down"}},
		"a port of nobody":     {pr: [2]string{"kv_producer", "a"}, d: func(*testing.T) string { return closed }, want: []string{"D is down", "refused"}},
		"a port of another":    {pr: [2]string{"kv_producer", "a"}, d: func(*testing.T) string { return other.URL }, want: []string{"D is not ready", "/health"}},
		"a consumer and no KV": {pr: [2]string{"kv_producer", "a"}, dr: [2]string{"aggregated", ""}, want: []string{"D is", "no KV connector"}},
	} {
		t.Run(name, func(t *testing.T) {
			p, d := newStandIn(t, "P").tell(c.pr[0], c.pr[1]), newStandIn(t, "D").tell(c.dr[0], c.dr[1])
			ps, ds := &standIn{Server: &httptest.Server{URL: p.URL}}, &standIn{Server: &httptest.Server{URL: d.URL}}
			if c.p != nil {
				ps.URL = c.p(t)
			}
			if c.d != nil {
				ds.URL = c.d(t)
			}
			r, url := front(t, Config{}, []*standIn{ps}, []*standIn{ds})
			names := strings.NewReplacer(strings.TrimPrefix(ps.URL, "http://"), "P", strings.TrimPrefix(ds.URL, "http://"), "D")
			status, body := get(t, url+"/health")
			if status != http.StatusServiceUnavailable || r.ready() {
				t.Errorf("health %d %s", status, body)
			}
			_, all := get(t, url+"/status")
			for _, s := range []string{body, all} {
				s = strings.ReplaceAll(names.Replace(s), "prefill engine P", "P")
				for _, want := range c.want {
					if !strings.Contains(s, want) {
						t.Errorf("the reason lacks %q: %s", want, s)
					}
				}
			}
			if code, _, body := post(t, url+"/v1/completions", `{"prompt":"a"}`); code != http.StatusServiceUnavailable {
				t.Errorf("a request: %d %s", code, body)
			}
			for _, s := range []*standIn{p, d} {
				if b, _ := s.got(); len(b) != 0 {
					t.Errorf("%s was asked: %s", s.name, b)
				}
			}
		})
	}
}

// H112: engines of two models behind one router are never paired across; those
// that say nothing fit everybody.
func TestOnlyFittingEnginesArePaired(t *testing.T) {
	var p, d []*standIn
	for _, fp := range []string{"a", "b"} {
		p = append(p, newStandIn(t, "P-"+fp).tell("kv_producer", fp))
		d = append(d, newStandIn(t, "D-"+fp).tell("kv_both", fp))
	}
	lonely := newStandIn(t, "P-c").tell("kv_both", "c")
	r, url := front(t, Config{}, append(p, lonely), d)
	if !r.ready() {
		t.Fatal("not ready")
	}
	for range 20 {
		if code, _, body := post(t, url+"/v1/completions", `{"prompt":"a"}`); code != http.StatusOK {
			t.Fatalf("%d %s", code, body)
		}
	}
	for i, s := range d {
		bodies, _ := s.got()
		if len(bodies) == 0 {
			t.Errorf("%s had no request", s.name)
		}
		for _, b := range bodies {
			contains(t, b, fmt.Sprintf(`"remote_engine_id":%q`, p[i].name))
		}
	}
	if b, _ := lonely.got(); len(b) != 0 {
		t.Errorf("an engine that fits nobody was asked %d times", len(b))
	}
	if _, all := get(t, url+"/status"); !strings.Contains(all, `"state":"no partner"`) || !strings.Contains(all, "type of c on ") {
		t.Errorf("status: %s", all)
	}
	vllm := newStandIn(t, "vLLM")
	if r, _ := front(t, Config{}, []*standIn{lonely}, []*standIn{vllm}); !r.ready() {
		t.Error("an engine that tells nothing fits nobody")
	}
}

// H112: an engine may be given in both roles, but is never paired with itself; a
// router of one engine alone does not start.
func TestNoEngineIsPairedWithItself(t *testing.T) {
	a, b := newStandIn(t, "A").tell("kv_both", "a"), newStandIn(t, "B").tell("kv_both", "a")
	if _, err := New(Config{Prefill: []string{a.URL}, Decode: []string{a.URL + "/"}}); err == nil ||
		!strings.Contains(err.Error(), strings.TrimPrefix(a.URL, "http://")+" is given as --prefill and as --decode") {
		t.Error(err)
	}
	_, url := front(t, Config{}, []*standIn{a, b}, []*standIn{a, b})
	both := map[string]int{}
	for range 20 {
		code, h, body := post(t, url+"/v1/completions", `{"prompt":"a"}`)
		if p, d := h.Get("X-Tandem-Prefill"), h.Get("X-Tandem-Decode"); code != http.StatusOK || p == d {
			t.Fatalf("from %s to %s: %d %s", p, d, code, body)
		}
		both[h.Get("X-Tandem-Prefill")]++
	}
	if len(both) != 2 {
		t.Errorf("prefill engines: %v", both)
	}
	if r, _ := front(t, Config{}, []*standIn{a}, []*standIn{a, b}); !r.ready() {
		t.Error("A and B are no pair")
	}
}

// H112: nor with itself by another name.
func TestOneEngineByTwoNames(t *testing.T) {
	e := newStandIn(t, "E").tell("kv_both", "a")
	twin := &standIn{Server: &httptest.Server{URL: strings.Replace(e.URL, "127.0.0.1", "localhost", 1)}}
	r, url := front(t, Config{}, []*standIn{e}, []*standIn{twin})
	if status, body := get(t, url+"/health"); status != http.StatusServiceUnavailable || !strings.Contains(body, "they are one engine") || r.ready() {
		t.Errorf("health %d %s", status, body)
	}
	if code, _, body := post(t, url+"/v1/completions", `{"prompt":"a"}`); code != http.StatusServiceUnavailable {
		t.Errorf("a request: %d %s", code, body)
	}
	if b, _ := e.got(); len(b) != 0 {
		t.Errorf("it was asked: %s", b)
	}
}

// H112: a member that comes back as another engine is judged anew.
func TestMemberIsJudgedAtEveryProbe(t *testing.T) {
	p, d := newStandIn(t, "P").tell("kv_producer", "a"), newStandIn(t, "D")
	info := make(chan string, 1)
	info <- `{"tandem":{"role":"kv_consumer","fingerprint":"a"}}`
	next := d.Config.Handler
	d.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		if q.URL.Path != "/server_info" {
			next.ServeHTTP(w, q)
			return
		}
		now := <-info
		info <- now
		_, _ = io.WriteString(w, now)
	})
	states := make(chan bool, 100)
	r, url := front(t, Config{Metrics: Metrics{State: func(role, _ string, ready bool) {
		if role == string(backend.Decode) {
			states <- ready
		}
	}}}, []*standIn{p}, []*standIn{d})
	if ok := <-states; !ok || !r.ready() {
		t.Fatal("not ready")
	}
	<-info
	info <- `{"tandem":{"role":"kv_producer","fingerprint":"a"}}`
	if ok := <-states; ok {
		t.Error("a producer that took the address of a consumer is ready")
	}
	if status, body := get(t, url+"/health"); status != http.StatusServiceUnavailable || !strings.Contains(body, "kv_producer") {
		t.Errorf("%d %s", status, body)
	}
	<-info
	info <- `{"tandem":{"role":"kv_consumer","fingerprint":"a"}}`
	if ok := <-states; !ok {
		t.Error("not ready again")
	}
}

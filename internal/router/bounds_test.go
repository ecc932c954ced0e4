package router

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"tandem/internal/backend"
)

// A line is one client connection that is kept.
type line struct {
	t    *testing.T
	conn net.Conn
	in   *bufio.Reader
}

func dial(t *testing.T, url string) *line {
	t.Helper()
	conn, err := net.Dial("tcp", strings.TrimPrefix(url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	if err := conn.(*net.TCPConn).SetReadBuffer(4 << 10); err != nil {
		t.Fatal(err)
	}
	return &line{t, conn, bufio.NewReader(conn)}
}

// send writes a request, with a body if it has one.
func (l *line) send(method, path, body string) {
	l.t.Helper()
	if _, err := fmt.Fprintf(l.conn, "%s %s HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s", method, path, len(body), body); err != nil {
		l.t.Fatal(err)
	}
}

// A client that reads nothing holds no answer for ever, whatever it asked for.
func TestClientThatReadsNothingIsLeft(t *testing.T) {
	const limit = 50 * time.Millisecond
	ended := make(chan string, 10)
	huge := strings.Repeat("x", 1<<20) // more than the buffers of a connection hold
	d := newStandIn(t, "D")
	d.set(hooks{decode: func(w http.ResponseWriter, _ *http.Request, _ []byte) bool {
		_ = json.NewEncoder(w).Encode(map[string]any{"choices": []any{map[string]any{"text": huge}}})
		return true
	}})
	next := d.Config.Handler
	d.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		if q.URL.Path != "/tokenize" {
			next.ServeHTTP(w, q)
			return
		}
		_ = json.NewEncoder(w).Encode(huge)
	})
	r, _ := front(t, Config{WriteTimeout: limit}, []*standIn{newStandIn(t, "P")}, []*standIn{d})
	h := r.Handler()
	srv := http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		h.ServeHTTP(w, q)
		ended <- q.URL.Path
	}), ConnContext: func(ctx context.Context, c net.Conn) context.Context {
		if err := c.(*net.TCPConn).SetWriteBuffer(4 << 10); err != nil {
			t.Error(err)
		}
		return ctx
	}}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- srv.Serve(ln) }()
	defer func() { _ = srv.Close(); <-done }()
	for path, body := range map[string]string{"/v1/completions": `{"prompt":["a","b"]}`, "/tokenize": `{"prompt":"a"}`} {
		dial(t, "http://"+ln.Addr().String()).send(http.MethodPost, path, body)
		if got := <-ended; got != path {
			t.Errorf("%s ended", got)
		}
	}
}

// A client that leaves, or a router that stops, as a decode leg begins well: the
// leg ends, on the engine and in the count.
func TestLegOfACallThatEndsAsItBegins(t *testing.T) {
	for _, body := range []string{`{"prompt":"a"}`, `{"prompt":"a","stream":true}`, `{"prompt":["a","b"]}`, `{"prompt":["a","b"],"stream":true}`} {
		var r *Router
		var legs sync.Once
		_, _, router, url := pair(t, Config{Metrics: Metrics{Leg: func(role, _, outcome string, _ float64) {
			if role == string(backend.Decode) && outcome == "ok" {
				legs.Do(r.Stop)
			}
		}}})
		r = router
		if status, _, out := post(t, url+"/v1/completions", body); status != http.StatusServiceUnavailable {
			t.Errorf("%s: %d %s", body, status, out)
		}
		for _, b := range r.decode.All() {
			if n := b.Legs(); n != 0 {
				t.Errorf("%s: %d legs are left", body, n)
			}
		}
	}
}

// What a decode engine did not send to its end is no answer, to whatever was
// asked; and nothing is asked of it without a bound.
func TestOtherAnswersOfD(t *testing.T) {
	d := newStandIn(t, "D")
	next := d.Config.Handler
	hang := make(chan struct{})
	d.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		switch q.URL.Path {
		case "/tokenize":
			_, _ = io.WriteString(w, `{"count":3,"tokens":[1,2`)
			_ = http.NewResponseController(w).Flush()
			panic(http.ErrAbortHandler)
		case "/detokenize":
			body, _ := io.ReadAll(q.Body)
			w.WriteHeader(http.StatusBadRequest)
			_, _ = w.Write(body)
		case "/v1/models":
			select {
			case <-hang:
			case <-q.Context().Done():
			}
		default:
			next.ServeHTTP(w, q)
		}
	})
	defer close(hang)
	_, url := front(t, Config{Backend: backend.Limits{Probe: 2 * time.Second, Every: time.Hour}}, []*standIn{newStandIn(t, "P")}, []*standIn{d})
	if status, _, body := post(t, url+"/tokenize", `{"prompt":"a"}`); status != http.StatusBadGateway || !strings.Contains(body, "backend_unavailable") {
		t.Errorf("an answer that breaks off: %d %s", status, body)
	}
	if status, h, body := post(t, url+"/detokenize", `{"tokens":[1]}`); status != http.StatusBadRequest || body != `{"tokens":[1]}` || h.Get("Content-Type") != "application/json" {
		t.Errorf("a refusal: %d %v %s", status, h, body)
	}
	if status, body := get(t, url+"/v1/models"); status != http.StatusBadGateway {
		t.Errorf("no answer: %d %s", status, body)
	}
}

// A stream ends with its end mark, whatever an engine sends behind it.
func TestNothingPassesBehindTheEndMark(t *testing.T) {
	const event = "data: {\"id\":\"a\",\"created\":1,\"choices\":[{\"index\":0,\"text\":\"%s data: [DONE]\"}]}\n\n"
	for _, pause := range []bool{false, true} {
		for _, end := range []string{"data: [DONE]\n\n", "data: [DONE]\r\n\r\n"} {
			_, d, _, url := pair(t, Config{})
			d.set(hooks{decode: func(w http.ResponseWriter, _ *http.Request, _ []byte) bool {
				fmt.Fprintf(w, event+end, "t0")
				if pause {
					_ = http.NewResponseController(w).Flush()
				}
				fmt.Fprintf(w, event+"data: [DONE]\n\n", "t1")
				return true
			}})
			if _, h, body := post(t, url+"/v1/completions", `{"prompt":"a","stream":true}`); body != fmt.Sprintf(event, "t0")+end || h.Get("X-Accel-Buffering") != "no" {
				t.Errorf("pause %t: %q %v", pause, body, h)
			}
			if _, h, body := post(t, url+"/v1/completions", `{"prompt":["a","b"],"stream":true}`); strings.Contains(body, "t1") || strings.Count(body, "data: [DONE]\n") != 1 || h.Get("X-Accel-Buffering") != "no" {
				t.Errorf("pause %t, a list: %q %v", pause, body, h)
			}
		}
	}
}

// The choices of a list are numbered by n however it is written.
func TestIndexesOfAListFollowN(t *testing.T) {
	_, d, _, url := pair(t, Config{})
	d.set(hooks{decode: func(w http.ResponseWriter, _ *http.Request, _ []byte) bool {
		_, _ = io.WriteString(w, `{"id":"d","choices":[{"index":0,"text":"x"},{"index":1,"text":"y"}]}`)
		return true
	}})
	for _, n := range []string{"2", "2.0", "0.2e1"} {
		_, _, body := post(t, url+"/v1/completions", `{"prompt":["a","b"],"n":`+n+`}`)
		for i := range 4 {
			if strings.Count(body, fmt.Sprintf(`"index":%d,`, i)) != 1 {
				t.Errorf("n %s: index %d is not there once: %s", n, i, body)
			}
		}
	}
}

// The error of one prompt is told at once, however long the others take to end;
// none of them goes on to another engine.
func TestErrorOfAListDoesNotWaitForItsOthers(t *testing.T) {
	p, d, _, url := pair(t, Config{Backend: backend.Limits{Release: time.Hour}})
	there, let := make(chan struct{}, 1), make(chan struct{})
	defer close(let)
	p.set(hooks{prefill: func(_ http.ResponseWriter, _ *http.Request, body []byte) bool {
		if strings.Contains(string(body), `"b"`) {
			there <- struct{}{}
			<-let // it does not even look whether its client is there
		}
		return false
	}})
	d.set(hooks{decode: func(w http.ResponseWriter, q *http.Request, _ []byte) bool {
		select {
		case <-there:
		case <-q.Context().Done():
		}
		lost(w)
		return true
	}})
	l := dial(t, url)
	for i, body := range []string{`{"prompt":["a","b"]}`, `{"prompt":["a","b"],"stream":true}`} {
		l.send(http.MethodPost, "/v1/completions", body)
		resp, err := http.ReadResponse(l.in, nil)
		if err != nil {
			t.Fatal(err)
		}
		buf := make([]byte, 1000)
		n, err := resp.Body.Read(buf)
		if resp.StatusCode != http.StatusInternalServerError || !strings.Contains(string(buf[:n]), "loading failed") {
			t.Errorf("%d %s %v", resp.StatusCode, buf[:n], err)
		}
		let <- struct{}{} // only now
		if _, err := io.Copy(io.Discard, resp.Body); err != nil {
			t.Error(err)
		}
		if b, _ := d.got(); len(b) != i+1 {
			t.Errorf("%d decode legs after %d requests", len(b), i+1)
		}
	}
}

// A gate holds back what tells of an error until it is open.
type gate struct {
	http.ResponseWriter
	open <-chan struct{}
	shut func()
}

func (g *gate) Write(p []byte) (int, error) {
	if strings.Contains(string(p), `"error"`) {
		select {
		case <-g.open:
		case <-time.After(time.Minute):
			g.shut()
		}
	}
	return g.ResponseWriter.Write(p)
}

func (g *gate) Unwrap() http.ResponseWriter { return g.ResponseWriter }

// Before the error of one prompt is told the others are ended, so that no leg
// begins for a client that has its answer.
func TestErrorOfAListEndsItsOthersFirst(t *testing.T) {
	const event = "data: {\"id\":\"a\",\"created\":1,\"choices\":[{\"index\":0,\"text\":\"t\"}]}\n\n"
	begin := func(w http.ResponseWriter) {
		_, _ = io.WriteString(w, event)
		_ = http.NewResponseController(w).Flush()
	}
	for what, c := range map[string]struct {
		stream bool
		begin  func(w http.ResponseWriter)
		fail   func(w http.ResponseWriter)
	}{
		"an answer": {fail: lost},
		"a stream":  {stream: true, fail: lost},
		"an error event": {stream: true, begin: begin, fail: func(w http.ResponseWriter) {
			fmt.Fprint(w, "data: {\"error\":{\"message\":\"boom\",\"code\":507}}\n\n")
		}},
		"a malformed event": {stream: true, begin: begin, fail: func(w http.ResponseWriter) { fmt.Fprint(w, "data: [\n\n") }},
		"a stream cut off":  {stream: true, begin: begin, fail: func(http.ResponseWriter) { panic(http.ErrAbortHandler) }},
	} {
		legs := make(chan string, 10)
		p, d, r, _ := pair(t, Config{Metrics: Metrics{Leg: func(role, _, outcome string, _ float64) { legs <- role + " " + outcome }}})
		there, ended := make(chan struct{}), make(chan struct{})
		p.set(hooks{prefill: func(_ http.ResponseWriter, q *http.Request, body []byte) bool {
			if strings.Contains(string(body), `"b"`) {
				close(there)
				<-q.Context().Done()
				close(ended)
				panic(http.ErrAbortHandler)
			}
			return false
		}})
		d.set(hooks{decode: func(w http.ResponseWriter, q *http.Request, _ []byte) bool {
			if c.begin != nil {
				c.begin(w)
			}
			select {
			case <-there:
			case <-q.Context().Done():
			}
			c.fail(w)
			return true
		}})
		h := r.Handler()
		srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
			h.ServeHTTP(&gate{w, ended, func() { t.Errorf("%s: the error is told while the other prompt is prefilled", what) }}, q)
		}))
		_, _, body := post(t, srv.URL+"/v1/completions", fmt.Sprintf(`{"prompt":["a","b"],"stream":%t}`, c.stream))
		srv.Close()
		if !strings.Contains(body, `"error"`) {
			t.Errorf("%s: %s", what, body)
		}
		if b, _ := d.got(); len(b) != 1 {
			t.Errorf("%s: %d decode legs", what, len(b))
		}
		// The flow that was ended did not fail, and no client left.
		close(legs)
		var all []string
		for l := range legs {
			all = append(all, l)
		}
		if len(all) != 3 || all[0] != "prefill ok" || !strings.HasPrefix(all[1], "decode ") || all[2] != "prefill dropped" {
			t.Errorf("%s: legs %q", what, all)
		}
	}
}

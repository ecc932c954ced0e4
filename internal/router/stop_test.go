package router

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"runtime"
	"slices"
	"strings"
	"testing"

	"tandem/internal/bystander/logtest"
)

func logged() (*logtest.Book, *slog.Logger) {
	b := &logtest.Book{}
	return b, slog.New(slog.NewJSONHandler(b, &slog.HandlerOptions{Level: slog.LevelDebug}))
}

// endless streams one event and then nothing until the router leaves.
func endless(w http.ResponseWriter, q *http.Request, _ []byte) bool {
	w.Header().Set("Content-Type", "text/event-stream")
	fmt.Fprint(w, "data: {\"id\":\"a\",\"created\":1,\"choices\":[{\"index\":0,\"text\":\"t\"}]}\n\n")
	_ = http.NewResponseController(w).Flush()
	<-q.Context().Done()
	return true
}

// At the end of a drain every stream that still runs ends with one error event
// and the end mark, and the log says why.
func TestStopTellsEveryStream(t *testing.T) {
	for _, prompt := range []string{`"a"`, `["a","b"]`} {
		log, logger := logged()
		_, d, r, url := pair(t, Config{Log: logger})
		d.set(hooks{decode: endless})
		resp, err := http.Post(url+"/v1/completions", "application/json", strings.NewReader(`{"prompt":`+prompt+`,"stream":true}`))
		if err != nil {
			t.Fatal(err)
		}
		in := bufio.NewReader(resp.Body)
		if _, err := in.ReadString('\n'); err != nil {
			t.Fatal(err)
		}
		r.Stop()
		rest, err := io.ReadAll(in)
		resp.Body.Close()
		body := string(rest)
		if err != nil || strings.Count(body, `"error"`) != 1 || !strings.Contains(body, "the server is shutting down") || !strings.HasSuffix(body, "}\n\ndata: [DONE]\n\n") {
			t.Errorf("%s: %q %v", prompt, body, err)
		}
		status, _, body := post(t, url+"/v1/completions", `{"prompt":"late"}`)
		if status != http.StatusServiceUnavailable || !strings.Contains(body, "the server is shutting down") {
			t.Errorf("a late request: %d %s", status, body)
		}
		for _, l := range requests(t, log, 2) {
			if l["outcome"] != "shutdown" || l["status"] != 503.0 {
				t.Errorf("%s: %v", prompt, l)
			}
		}
	}
}

// requests waits for n request lines.
func requests(t *testing.T, log *logtest.Book, n int) []map[string]any {
	t.Helper()
	for {
		if out := log.Records(t, "request"); len(out) >= n {
			return out
		}
		if t.Context().Err() != nil {
			t.Fatal("no line")
		}
		runtime.Gosched()
	}
}

// A refused hand-off is the fault of the engines: the client's request is not
// blamed, both are named, and the lease is given back.
func TestRefusedHandoffIsNoFaultOfTheClient(t *testing.T) {
	for _, c := range []struct {
		name, param string
		status      int
		stream      bool
	}{
		{"MAC", "kv_transfer_params.remote_mac", 400, false},
		{"version", "kv_transfer_params.remote_version", 400, false},
		{"no connector", "kv_transfer_params", 400, false},
		{"another incarnation", "kv_transfer_params.remote_incarnation", 409, false},
		{"as an event", "kv_transfer_params.remote_mac", 400, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			log, logger := logged()
			p, d, _, url := pair(t, Config{Log: logger, Retries: 1})
			d.set(hooks{decode: func(w http.ResponseWriter, _ *http.Request, _ []byte) bool {
				e := fmt.Sprintf(`{"error":{"message":"the token does not vouch","type":"BadRequestError","param":%q,"code":%d}}`, c.param, c.status)
				if c.stream {
					fmt.Fprintf(w, "data: %s\n\ndata: [DONE]\n\n", e)
					return true
				}
				w.WriteHeader(c.status)
				fmt.Fprint(w, e)
				return true
			}})
			status, h, body := post(t, url+"/v1/completions", fmt.Sprintf(`{"prompt":"a","stream":%v}`, c.stream))
			if h.Get(headerPrefill) == "" || h.Get(headerDecode) == "" || h.Get(headerRoute) != "pd; attempts=2" {
				t.Errorf("who was asked is not said: %v", h)
			}
			var e struct {
				Error struct {
					Message, Type string
					Param         *string
				}
			}
			if err := json.Unmarshal([]byte(body), &e); err != nil {
				t.Fatal(err)
			}
			if status != http.StatusBadGateway || e.Error.Type != "bad_hand_off" || e.Error.Param != nil {
				t.Errorf("%d %s", status, body)
			}
			for _, want := range []string{strings.TrimPrefix(p.URL, "http://"), strings.TrimPrefix(d.URL, "http://"), "the token does not vouch", "hold different cluster tokens, are one engine, or one was restarted"} {
				if !strings.Contains(e.Error.Message, want) {
					t.Errorf("%q lacks %q", e.Error.Message, want)
				}
			}
			// One retry begins with a prefill and finds no other D.
			p.await(t, "release")
			p.await(t, "release")
			pb, released := p.got()
			db, _ := d.got()
			if len(pb) != 2 || len(released) != 2 || len(db) != 1 {
				t.Errorf("%d prefills, %d decodes, %d releases", len(pb), len(db), len(released))
			}
			l := log.Records(t, "leg failed")
			if len(l) != 1 || l[0]["level"] != "ERROR" || l[0]["err"] != "the token does not vouch" || l[0]["id"] != "client-label" {
				t.Errorf("%v", l)
			}
		})
	}
}

// What a client did wrong is no warning, what an engine did wrong is one with
// its reason, and a client that left is neither.
func TestLogOfLegs(t *testing.T) {
	for name, c := range map[string]struct {
		answer  func(w http.ResponseWriter, q *http.Request) // of D
		level   string
		outcome string // of the leg
		err     string
		request string // outcome of the request
	}{
		"400": {func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusBadRequest)
			fmt.Fprint(w, `{"error":{"message":"too long","param":"prompt","code":400}}`)
		}, "DEBUG", "400", "too long", "engine_error"},
		"500": {func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusInternalServerError)
			fmt.Fprint(w, `{"error":{"message":"boom","code":500}}`)
		}, "WARN", "500", "boom", "engine_error"},
		"500 without words": {func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusInternalServerError) }, "WARN", "500", "", "engine_error"},
		"503": {func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusServiceUnavailable)
			fmt.Fprint(w, `{"error":{"message":"shutting down","code":503}}`)
		}, "INFO", "503", "shutting down", "engine_error"},
		"429": {func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusTooManyRequests)
			fmt.Fprint(w, `{"error":{"message":"too many","code":429}}`)
		}, "INFO", "429", "too many", "engine_error"},
		"no answer": {func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }, "WARN", "no_answer", "EOF", "backend_unavailable"},
	} {
		t.Run(name, func(t *testing.T) {
			log, logger := logged()
			_, d, _, url := pair(t, Config{Log: logger})
			d.set(hooks{decode: func(w http.ResponseWriter, q *http.Request, _ []byte) bool {
				c.answer(w, q)
				return true
			}})
			post(t, url+"/v1/completions", `{"prompt":"a"}`)
			l := log.Records(t, "leg failed")
			if len(l) != 1 {
				t.Fatalf("%v", l)
			}
			said, _ := l[0]["err"].(string)
			_, has := l[0]["err"]
			if l[0]["level"] != c.level || l[0]["outcome"] != c.outcome || !strings.Contains(said, c.err) || has != (c.err != "") || l[0]["total"] == nil {
				t.Errorf("%v", l[0])
			}
			if q := requests(t, log, 1); q[0]["outcome"] != c.request || q[0]["id"] != "client-label" || q[0]["total"] == nil {
				t.Errorf("%v", q[0])
			}
		})
	}
}

func TestLogOfAClientThatLeft(t *testing.T) {
	for _, body := range []string{`{"prompt":"a","stream":true}`, `{"prompt":["a","b"],"stream":true}`, `{"prompt":"a"}`} {
		log, logger := logged()
		retries := 0
		_, d, _, url := pair(t, Config{Log: logger, Metrics: Metrics{Retry: func(string, string) { retries++ }}})
		d.set(hooks{decode: func(w http.ResponseWriter, q *http.Request, b []byte) bool {
			if strings.Contains(body, "stream") {
				return endless(w, q, b)
			}
			<-q.Context().Done()
			return true
		}})
		left := make(chan struct{})
		go func() {
			defer close(left)
			req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url+"/v1/completions", strings.NewReader(body))
			if err != nil {
				t.Error(err)
				return
			}
			client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
			defer client.CloseIdleConnections()
			if !strings.Contains(body, "stream") {
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				go func() { d.await(t, "decode"); cancel() }()
				if _, err := client.Do(req.WithContext(ctx)); err == nil {
					t.Error("answered")
				}
				return
			}
			resp, err := client.Do(req)
			if err != nil {
				t.Error(err)
				return
			}
			_, _ = resp.Body.Read(make([]byte, 1))
			resp.Body.Close()
		}()
		<-left
		if l := requests(t, log, 1); l[0]["outcome"] != "client_gone" || l[0]["status"] != 499.0 {
			t.Errorf("%s: %v", body, l[0])
		}
		// A stream's leg has done its part when its first byte is there.
		if l := log.Records(t, "leg ended"); !strings.Contains(body, "stream") && (len(l) != 1 || l[0]["outcome"] != "client_gone" || l[0]["level"] != "DEBUG") {
			t.Errorf("%s: %v", body, l)
		}
		if l := log.Records(t, "leg failed"); len(l) != 0 || retries != 0 {
			t.Errorf("%s: %v, %d retries", body, l, retries)
		}
	}
}

// An error event that an engine sends inside a stream is the client's to read,
// and ends neither the log nor the metrics as a success. It stays the only one,
// though the engine ends with it.
func TestErrorInsideAStreamIsCounted(t *testing.T) {
	for _, last := range []string{"data: [DONE]\n\n", ""} {
		for _, body := range []string{`{"prompt":"a","stream":true}`, `{"prompt":["a","b"],"stream":true}`} {
			log, logger := logged()
			statuses := []int{}
			_, d, _, url := pair(t, Config{Log: logger, Metrics: Metrics{Request: func(_, _ string, status int, _ float64) {
				statuses = append(statuses, status)
			}}})
			d.set(hooks{decode: func(w http.ResponseWriter, _ *http.Request, _ []byte) bool {
				_, _ = io.WriteString(w, "data: {\"error\":null,\"choices\":[{\"index\":0,\"text\":\"t0\"}]}\n\n"+
					"data: {\"error\":{\"message\":\"boom\",\"code\":507}}\n\n"+last)
				if last == "" {
					_ = http.NewResponseController(w).Flush()
					panic(http.ErrAbortHandler)
				}
				return true
			}})
			_, _, answer := post(t, url+"/v1/completions", body)
			if strings.Count(answer, `"error":{`) != 1 || strings.Count(answer, "boom") != 1 || !strings.HasSuffix(answer, "data: [DONE]\n\n") {
				t.Errorf("%s: %s", body, answer)
			}
			if l := requests(t, log, 1); l[0]["outcome"] != "engine_error" || l[0]["status"] != 507.0 {
				t.Errorf("%s: %v", body, l[0])
			}
			if !slices.Equal(statuses, []int{507}) {
				t.Errorf("%s: metrics have %v", body, statuses)
			}
		}
	}
}

// A whole answer is ok, although its client hangs up at once.
func TestLogOfAnAnswer(t *testing.T) {
	log, logger := logged()
	_, _, _, url := pair(t, Config{Log: logger})
	for range 10 {
		post(t, url+"/v1/completions", `{"prompt":"a","stream":true}`)
		http.DefaultClient.CloseIdleConnections()
	}
	for _, l := range requests(t, log, 10) {
		if l["outcome"] != "ok" {
			t.Errorf("%v", l)
		}
	}
}

func TestWrongMethodsAndPaths(t *testing.T) {
	_, _, _, url := pair(t, Config{})
	for _, c := range []struct {
		method, path string
		status       int
		allow, kind  string
	}{
		{http.MethodGet, "/v1/completions", 405, "POST", "MethodNotAllowedError"},
		{http.MethodDelete, "/v1/chat/completions", 405, "POST", "MethodNotAllowedError"},
		{http.MethodPost, "/v1/models", 405, "GET", "MethodNotAllowedError"},
		{http.MethodPost, "/v1/models/m", 405, "GET", "MethodNotAllowedError"},
		{http.MethodPut, "/health", 405, "GET", "MethodNotAllowedError"},
		{http.MethodGet, "/tokenize", 405, "POST", "MethodNotAllowedError"},
		{http.MethodGet, "/metrics", 404, "", "NotFoundError"},
		{http.MethodGet, "/v1/", 404, "", "NotFoundError"},
		{http.MethodPost, "/v1/completions/", 404, "", "NotFoundError"},
		{http.MethodPost, "/v1/completions", 400, "", "BadRequestError"},
		{http.MethodGet, "/health", 200, "", ""},
		{http.MethodGet, "/ping", 200, "", ""},
	} {
		req, err := http.NewRequestWithContext(t.Context(), c.method, url+c.path, http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		var e struct{ Error struct{ Type string } }
		if err == nil && len(body) > 0 {
			err = json.Unmarshal(body, &e)
		}
		if err != nil || resp.StatusCode != c.status || resp.Header.Get("Allow") != c.allow || e.Error.Type != c.kind {
			t.Errorf("%s %s: %d, allow %q, %s, %v", c.method, c.path, resp.StatusCode, resp.Header.Get("Allow"), body, err)
		}
	}
}

// Engines ask for their key at /v1/models too.
func TestModelsAreAskedForWithTheClientsKey(t *testing.T) {
	_, _, _, url := pair(t, Config{})
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url+"/v1/models", http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer k")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil || string(body) != `{"asked_with":"Bearer k"}` {
		t.Errorf("%s, %v", body, err)
	}
}

// What an engine ignored is said on every way through the router.
func TestIgnoredFieldsAreSaid(t *testing.T) {
	_, d, _, url := pair(t, Config{})
	d.set(hooks{decode: func(w http.ResponseWriter, _ *http.Request, _ []byte) bool {
		w.Header().Set("X-Tandem-Ignored", "tools,response_format")
		return false
	}})
	for _, body := range []string{`{"prompt":"a"}`, `{"prompt":"a","stream":true}`, `{"prompt":["a","b"]}`, `{"prompt":["a","b"],"stream":true}`} {
		if _, h, _ := post(t, url+"/v1/completions", body); h.Get("X-Tandem-Ignored") != "tools,response_format" {
			t.Errorf("%s: %v", body, h)
		}
	}
}

func TestBodiesThatAreNoObjects(t *testing.T) {
	_, _, _, url := pair(t, Config{})
	for body, want := range map[string]string{
		"": "the body is empty: a JSON object is needed", "[]": "the body is not a JSON object", "1": "the body is not a JSON object",
		"{": "the body is not a JSON object: unexpected end of JSON input at byte 1",
	} {
		if status, _, out := post(t, url+"/v1/completions", body); status != http.StatusBadRequest || !strings.Contains(out, `"message":"`+want+`"`) {
			t.Errorf("%q: %d %s", body, status, out)
		}
	}
}

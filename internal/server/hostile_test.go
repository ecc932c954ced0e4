package server

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"net/url"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"
	"unicode/utf8"

	"tandem/internal/bystander/logtest"
	"tandem/internal/chat"
	"tandem/internal/connector"
	"tandem/internal/engine"
	"tandem/internal/openai"
	"tandem/internal/sim"
)

// live checks that an ordinary request is answered.
func (r *rig) live() {
	r.t.Helper()
	if a := r.post("/v1/completions", `{"prompt":"live","max_tokens":2}`); a.status != 200 {
		r.t.Fatalf("no longer live: %d %s", a.status, a.raw)
	}
}

// H061
func TestEveryFieldWithEveryWrongValue(t *testing.T) {
	r := start(t, sim.Config{}, engine.Config{}, Config{})
	fields := map[string][]string{
		"/v1/completions": {"model", "prompt", "echo", "logprobs", "suffix", "parse_special"},
		"/v1/chat/completions": {"model", "messages", "logprobs", "top_logprobs", "max_completion_tokens", "add_generation_prompt",
			"continue_final_message", "chat_template_kwargs", "chat_template", "tools", "tool_choice", "response_format", "functions"},
		"/tokenize":           {"model", "prompt", "messages", "add_special_tokens", "parse_special", "return_token_strs", "add_generation_prompt"},
		"/detokenize":         {"model", "tokens"},
		"/release_kv_handoff": {"do_remote_prefill", "remote_block_ids"},
	}
	common := []string{"n", "stream", "stream_options", "temperature", "top_p", "top_k", "min_p", "repetition_penalty",
		"presence_penalty", "frequency_penalty", "logit_bias", "seed", "max_tokens", "min_tokens", "stop", "stop_token_ids",
		"ignore_eos", "prompt_logprobs", "return_token_ids", "return_tokens_as_token_ids", "include_stop_str_in_output",
		"skip_special_tokens", "add_special_tokens", "kv_transfer_params", "priority", "cache_salt", "user", "best_of",
		"bad_words", "allowed_token_ids", "use_beam_search", "truncate_prompt_tokens", "no_such_field"}
	values := []string{"null", "true", "0", "-1", "1.5", "1e999", `""`, `"x"`, "[]", "[[]]", "[null]", "{}", `{"x":null}`, `[{"x":1}]`, "99999999999999999999"}
	bodies := map[string]string{
		"/v1/completions": `"prompt":"p"`, "/v1/chat/completions": `"messages":[{"role":"user","content":"c"}]`,
		"/tokenize": `"prompt":"p"`, "/detokenize": `"tokens":[65]`, "/release_kv_handoff": `"x":1`,
	}
	refused := 0
	for path, names := range fields {
		if strings.HasPrefix(path, "/v1/") {
			names = append(names, common...)
		}
		for _, f := range names {
			for _, v := range values {
				body := "{" + bodies[path]
				if path != "/detokenize" && f != "max_tokens" {
					body += `,"max_tokens":1`
				}
				body += `,"` + f + `":` + v + "}"
				a := r.post(path, body)
				if a.status >= 500 {
					t.Errorf("%s %s: %d %s", path, body, a.status, a.raw)
				}
				if a.status >= 400 && path != "/release_kv_handoff" {
					refused++
					if p := a.param(); !strings.HasPrefix(p, f) {
						t.Errorf("%s %s: blames %q: %s", path, body, p, a.raw)
					}
				}
				if v == "null" && a.status != 200 && f != "prompt" && f != "messages" && f != "tokens" && path != "/release_kv_handoff" {
					t.Errorf("%s %s: null is not absent: %s", path, body, a.raw)
				}
			}
		}
		for _, body := range []string{"", " ", "{", "[]", "null", "1", `"x"`, `{"prompt":`, "{}", "{\"prompt\":\"\xff\"}", strings.Repeat("[", 100000)} {
			if a := r.post(path, body); a.status != 400 {
				t.Errorf("%s %q: %d", path, body[:min(len(body), 20)], a.status)
			}
		}
	}
	if refused < 300 {
		t.Errorf("only %d refusals", refused)
	}
	r.live()
}

// H064
func TestInvalidUTF8InAndOut(t *testing.T) {
	r := start(t, sim.Config{}, engine.Config{}, Config{})
	rnd := rand.New(rand.NewPCG(1, 2))
	for range 300 {
		ids := make([]string, 1+rnd.IntN(30))
		raw := make([]byte, len(ids))
		for i := range ids {
			b := 0x70 + rnd.IntN(0x90) // mostly halves of characters
			ids[i], raw[i] = fmt.Sprint(b), byte(b)
		}
		list := "[" + strings.Join(ids, ",") + "]"
		a := r.post("/v1/completions", object("prompt", list, "echo", "true", "max_tokens", "1", "logprobs", "1"))
		if a.status != 200 {
			t.Fatalf("%s: %d %s", list, a.status, a.raw)
		}
		if a := r.post("/detokenize", object("tokens", list)); a.status != 200 {
			t.Fatalf("%d %s", a.status, a.raw)
		}
		body := `{"prompt":"` + string(raw) + `","max_tokens":1}`
		if a := r.post("/v1/completions", body); a.status != 400 && strings.ToValidUTF8(body, "") != body {
			t.Fatalf("%q: %d", body, a.status)
		}
	}
	bias := object("prompt", `"x"`, "logit_bias", `{"128":100,"240":100,"159":100}`, "max_tokens", "40", "temperature", "1")
	for range 20 { // do checks the answers
		if a := r.post("/v1/completions", bias); a.status != 200 {
			t.Fatalf("%d %s", a.status, a.raw)
		}
	}
}

// H098
func TestSmallRequestsCannotAskForHugeWork(t *testing.T) {
	r := start(t, sim.Config{}, engine.Config{}, Config{})
	r.live()
	many := "[" + strings.Repeat(`"a",`, 499_999) + `"a"]`
	bias := "{" + strings.Repeat(`"1":1,`, 49_999) + `"1":1}`
	for _, c := range [][2]string{
		{"n", "5000000"}, {"stop", many}, {"logprobs", "1000000000"}, {"prompt_logprobs", "1000000000"}, {"max_tokens", "1000000000000"},
		{"min_tokens", "1000000000000"}, {"bad_words", many}, {"best_of", "1000000"}, {"logit_bias", bias}, {"stop", `"` + strings.Repeat("a", 5000) + `"`},
		{"prompt", many}, {"stop_token_ids", "[" + strings.Repeat("1,", 99_999) + "1]"},
	} {
		body := object("prompt", `"x"`, c[0], c[1])
		if c[0] == "prompt" {
			body = object(c[0], c[1])
		}
		var before, after runtime.MemStats
		raw := []byte(body)
		runtime.ReadMemStats(&before)
		_, err := openai.ParseCompletion(raw)
		runtime.ReadMemStats(&after)
		if err == nil || err.Param != c[0] {
			t.Errorf("%s: %v", c[0], err)
		}
		// The bodies have up to 500,000 elements; none beyond a limit is held.
		bytes, pieces := after.TotalAlloc-before.TotalAlloc, after.Mallocs-before.Mallocs
		if bytes > 1<<20 || pieces > 4096 {
			t.Errorf("%s: %d bytes in %d pieces allocated for a body of %d", c[0], bytes, pieces, len(body))
		}
		if a := r.post("/v1/completions", body); a.status != 400 || a.param() != c[0] {
			t.Errorf("%s: %d %s", c[0], a.status, a.raw)
		}
	}
	if a := r.post("/v1/chat/completions", `{"messages":[{"role":"user","content":"x"}],"logprobs":true,"top_logprobs":1000000000}`); a.status != 400 || a.param() != "top_logprobs" {
		t.Errorf("top_logprobs: %d %s", a.status, a.raw)
	}
	if a := r.post("/v1/completions", object("prompt", `["a","b","c","d","e","f","g","h","i"]`, "n", "128")); a.status != 400 || a.param() != "n" {
		t.Errorf("prompts times n: %d %s", a.status, a.raw)
	}
	if a := r.post("/v1/completions", `{"prompt":"`+strings.Repeat("x", openai.MaxBodyBytes)+`"}`); a.status != http.StatusRequestEntityTooLarge {
		t.Errorf("16 MiB: %d", a.status)
	}
	r.live()
}

// H100
func TestHostileModelNames(t *testing.T) {
	r := start(t, sim.Config{}, engine.Config{}, Config{ModelNames: []string{"org/model", "alias"}})
	names := []string{"../../etc/passwd", "/etc/passwd", "..", ".", "./org/model", "org/model/", "org//model", "org/../org/model",
		"C:\\Windows", "\\\\host\\share", "~/.ssh/id_rsa", "org/model\x00", "alias ", " alias", "ALIAS", "%2e%2e%2f", "file:///etc/passwd",
		"http://localhost/", "$(id)", "`id`", "${HOME}", "a;b", "a|b", "<script>", "'--", "\"", "é", "模型", strings.Repeat("a/", 500), "con", "alias?x", "alias#x"}
	for _, n := range names {
		raw := fmt.Sprintf("%q", n)
		if strings.Contains(n, "\x00") {
			raw = `"org/model\u0000"`
		}
		for _, a := range []answer{
			r.post("/v1/completions", object("model", raw, "prompt", `"x"`)),
			r.post("/tokenize", object("model", raw, "prompt", `"x"`)),
			r.do("GET", "/v1/models/"+url.PathEscape(n), nil),
		} {
			e, _ := a.m["error"].(map[string]any)
			msg, _ := e["message"].(string)
			if a.status != 404 || strings.Contains(strings.ReplaceAll(msg, "/v1/models", ""), "/") || strings.Contains(msg, "passwd") {
				t.Errorf("%q: %d %s", n, a.status, a.raw)
			}
		}
	}
	for _, n := range []string{"org/model", "alias"} {
		if a := r.do("GET", "/v1/models/"+n, nil); a.status != 200 || a.m["id"] != n {
			t.Errorf("%s: %d %s", n, a.status, a.raw)
		}
		if a := r.post("/v1/completions", object("model", `"`+n+`"`, "prompt", `"x"`, "max_tokens", "1")); a.m["model"] != "org/model" {
			t.Errorf("%s: answered as %v", n, a.m["model"])
		}
	}
}

// H105
func TestEqualClientIDs(t *testing.T) {
	r := start(t, sim.Config{EOSEvery: -1}, engine.Config{}, Config{})
	var wg sync.WaitGroup
	for i := range 20 {
		wg.Go(func() {
			body := object("prompt", fmt.Sprintf(`"request %d"`, i), "max_tokens", fmt.Sprint(3+i), "temperature", "0")
			a := r.do("POST", "/v1/completions", []byte(body), "X-Request-Id", "same")
			if a.header.Get("X-Request-Id") != "same" || a.m["id"] != "cmpl-same" {
				t.Errorf("ids %q %v", a.header.Get("X-Request-Id"), a.m["id"])
			}
			if u := a.m["usage"].(map[string]any); u["completion_tokens"] != float64(3+i) {
				t.Errorf("request %d: %v", i, u)
			}
		})
	}
	wg.Wait()
	ctx, cancel := context.WithCancel(t.Context())
	q, err := http.NewRequestWithContext(ctx, http.MethodPost, r.url+"/v1/completions", strings.NewReader(`{"prompt":"doomed","max_tokens":4000,"stream":true}`))
	if err != nil {
		t.Fatal(err)
	}
	q.Header.Set("X-Request-Id", "same")
	resp, err := r.client.Do(q)
	if err != nil {
		t.Fatal(err)
	}
	wg.Go(func() {
		a := r.do("POST", "/v1/completions", []byte(`{"prompt":"survivor","max_tokens":100}`), "X-Request-Id", "same")
		if u, _ := a.m["usage"].(map[string]any); u["completion_tokens"] != 100.0 {
			t.Errorf("the other request of the name: %d %s", a.status, a.raw)
		}
	})
	cancel()
	_ = resp.Body.Close()
	wg.Wait()
	for _, bad := range []string{"", "a b", strings.Repeat("x", 300), "ü"} {
		a := r.do("GET", "/version", nil, "X-Request-Id", bad)
		if got := a.header.Get("X-Request-Id"); got == bad || len(got) != 32 {
			t.Errorf("id %q gave %q", bad, got)
		}
	}
}

// idle waits until the engine has nothing to do; the test's deadline bounds it.
func (r *rig) idle() {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	for r.engine.Status().Live != 0 {
		if ctx.Err() != nil {
			r.t.Fatalf("requests are left: %+v", r.engine.Status())
		}
		runtime.Gosched()
	}
}

func TestAClientThatLeavesEndsItsRequest(t *testing.T) {
	r := start(t, sim.Config{EOSEvery: -1, MaxLen: 1 << 16, Blocks: 5000, PerStep: time.Millisecond}, engine.Config{MaxOutputs: 1 << 20}, Config{})
	for _, stream := range []string{"true", "false"} {
		ctx, cancel := context.WithCancel(t.Context())
		q, err := http.NewRequestWithContext(ctx, http.MethodPost, r.url+"/v1/completions",
			strings.NewReader(object("prompt", `"x"`, "max_tokens", "60000", "stream", stream)))
		if err != nil {
			t.Fatal(err)
		}
		if stream == "false" {
			go func() { // ends with the wait for the submission
				for r.engine.Status().Live == 0 {
					runtime.Gosched()
				}
				cancel()
			}()
			if _, err := r.client.Do(q); !errors.Is(err, context.Canceled) {
				t.Errorf("whole: %v", err)
			}
		} else {
			resp, err := r.client.Do(q)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := bufio.NewReader(resp.Body).ReadString('\n'); err != nil {
				t.Fatal(err)
			}
			cancel()
			_ = resp.Body.Close()
		}
		r.idle()
	}
	if st := r.engine.Status().Stats; st.Free != st.Blocks {
		t.Errorf("%d of %d blocks are free", st.Free, st.Blocks)
	}
}

// One that closes its own half of the connection counts as gone. It may read on,
// and never meets what looks like an answer.
func TestAClientThatHangsUpHalfIsToldSo(t *testing.T) {
	r := start(t, sim.Config{EOSEvery: -1, MaxLen: 1 << 16, Blocks: 5000, PerStep: time.Millisecond}, engine.Config{MaxOutputs: 1 << 20}, Config{})
	for name, c := range map[string]struct {
		stream string
		lacks  int // bytes of the body
		want   int
	}{"plain": {"false", 0, openai.StatusClientGone}, "stream": {"true", 0, 200}, "half a body": {"false", 1, 400}} {
		body := object("prompt", `"x"`, "max_tokens", "60000", "stream", c.stream)
		conn, err := net.Dial("tcp", strings.TrimPrefix(r.url, "http://"))
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		fmt.Fprintf(conn, "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", len(body)+c.lacks, body)
		in := bufio.NewReader(conn)
		if c.stream == "true" { // begun
			if _, err := in.Peek(1); err != nil {
				t.Fatal(err)
			}
		}
		if err := conn.(*net.TCPConn).CloseWrite(); err != nil {
			t.Fatal(err)
		}
		resp, err := http.ReadResponse(in, nil)
		if err != nil {
			t.Fatal(name, err)
		}
		text, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Error(name, err)
		}
		said := bytes.HasPrefix(text, []byte(`{"error":`))
		if c.stream == "true" {
			said = bytes.Contains(text, []byte("data: {\"error\":")) && bytes.HasSuffix(text, []byte("data: [DONE]\n\n"))
		}
		if !said || resp.StatusCode != c.want {
			t.Errorf("%s: %d ...%s", name, resp.StatusCode, text[max(0, len(text)-300):])
		}
	}
	r.idle()
}

// H106
func TestAClientThatReadsNothingIsCut(t *testing.T) {
	statuses := make(chan int, 100)
	r := start(t, sim.Config{EOSEvery: -1, MaxLen: 1 << 16, Blocks: 1 << 14}, engine.Config{MaxOutputs: 1 << 10},
		Config{WriteTimeout: 200 * time.Millisecond, Metrics: Metrics{Request: func(_, _ string, status int) { statuses <- status }}})
	const stuck = 8
	body := object("prompt", `"x"`, "max_tokens", "60000", "stream", "true", "logprobs", "20")
	for range stuck {
		resp, err := r.client.Post(r.url+"/v1/completions", "application/json", strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = resp.Body.Close() }() // read by nobody
	}
	r.live()
	served := 0
	for range stuck + 1 {
		switch s := <-statuses; s {
		case http.StatusOK: // the normal client
			served++
		case openai.StatusClientGone, http.StatusRequestTimeout:
		default:
			t.Errorf("status %d", s)
		}
	}
	if served != 1 {
		t.Errorf("%d clients were served to the end", served)
	}
	r.idle()
	r.live()
}

func TestKeysMethodsAndPaths(t *testing.T) {
	r := start(t, sim.Config{}, engine.Config{}, Config{APIKey: "secret"})
	for header, want := range map[string]int{"": 401, "Bearer secre": 401, "Bearer ": 401, "Basic secret": 401, "bearer secret": 200, "Bearer secret": 200} {
		if a := r.do("GET", "/v1/models", nil, "Authorization", header); a.status != want {
			t.Errorf("%q: %d", header, a.status)
		}
	}
	for path, want := range map[string]int{"/health": 200, "/health/ready": 200, "/ping": 200, "/version": 200, "/server_info": 200,
		"/model_info": 200, "/metrics": 404, "/": 404, "/v1": 404, "//v1/models": 404, "/v1/../health": 404, "/v1/completions": 405, "/release_kv_handoff": 405} {
		if a := r.do("GET", path, nil); a.status != want {
			t.Errorf("%s: %d %s", path, a.status, a.raw)
		}
	}
	if a := r.do("DELETE", "/health", nil); a.status != 405 || a.header.Get("Allow") != "GET" {
		t.Errorf("DELETE: %d %q", a.status, a.header.Get("Allow"))
	}
}

func TestDrainRefusesNewRequests(t *testing.T) {
	b := &logtest.Book{}
	r := start(t, sim.Config{}, engine.Config{}, Config{Log: slog.New(slog.NewJSONHandler(b, nil))})
	r.server.Drain()
	for _, a := range []answer{r.post("/v1/completions", `{"prompt":"x"}`), r.do("GET", "/health/ready", nil)} {
		if a.status != 503 || a.header.Get("Retry-After") != "1" {
			t.Errorf("%d %q", a.status, a.header.Get("Retry-After"))
		}
	}
	if a := r.do("GET", "/health", nil); a.status != 200 {
		t.Errorf("/health: %d", a.status)
	}
	// The request has its line; a probe asks every second, and fails nothing.
	if l := b.Lines(); len(l) != 1 || len(b.Records(t, "request")) != 1 || b.Records(t, "request")[0]["level"] != "INFO" {
		t.Errorf("logged: %s", b)
	}
}

// H066
func TestMessagesCannotForgeControlTokens(t *testing.T) {
	r := start(t, sim.Config{}, engine.Config{}, Config{})
	piece := r.server.cfg.Tokenizer.Piece(sim.BOS)
	ids := func(a answer) (n int) {
		for _, id := range a.m["tokens"].([]any) {
			if id == float64(sim.BOS) {
				n++
			}
		}
		return n
	}
	text := fmt.Sprintf("%q", "a"+piece+"b")
	if n := ids(r.post("/tokenize", object("prompt", text, "add_special_tokens", "false"))); n != 1 {
		t.Errorf("a text prompt gives %d control tokens", n)
	}
	if n := ids(r.post("/tokenize", object("prompt", text, "add_special_tokens", "false", "parse_special", "false"))); n != 0 {
		t.Errorf("parse_special false gives %d", n)
	}
	plain := ids(r.post("/tokenize", `{"messages":[{"role":"user","content":"ab"}]}`))
	for _, role := range []string{"user", "system", "tool"} {
		if n := ids(r.post("/tokenize", object("messages", `[{"role":"`+role+`","content":`+text+`}]`))); n != plain {
			t.Errorf("%s: %d control tokens, %d without the marker", role, n, plain)
		}
	}
}

func TestEveryDecisionHasItsStatus(t *testing.T) {
	load := &connector.LoadError{Class: connector.ClassSum, Err: errors.New("10.0.0.1: /var/lib")}
	for _, c := range []struct {
		err    error
		status int
		param  string
	}{
		{engine.ErrOverloaded, 429, ""}, {engine.ErrDraining, 503, ""}, {engine.ErrClosed, 503, ""},
		{engine.ErrSlowReader, 408, ""}, {engine.ErrAborted, 499, ""}, {engine.ErrNoConnector, 400, fieldParams},
		{connector.ErrClosed, 503, ""}, {connector.ErrRole, 400, fieldParams}, {connector.ErrStale, 409, fieldParams},
		{connector.ErrLeaseGone, 410, fieldParams}, {connector.ErrIncompatible, 500, ""}, {connector.ErrMAC, 400, fieldParams},
		{&connector.FactorError{Factor: "x"}, 500, ""},
		{&connector.HandoffError{Field: "tp_size", Reason: "bad\xff\n", Err: connector.ErrMAC}, 400, "kv_transfer_params.tp_size"},
		{load, 500, ""}, {&engine.InvalidError{Field: "n", Msg: "m"}, 400, "n"}, {&engine.InvalidError{Field: "prompt", Limit: 5, Length: 6}, 400, "prompt"},
		{&chat.InputError{Field: "messages[1]", Msg: "m"}, 400, "messages[1]"}, {&chat.RenderError{Msg: "m"}, 400, "messages"},
		{context.Canceled, 499, ""}, {context.DeadlineExceeded, 504, ""}, {errors.New("/models/secret.gguf"), 500, ""},
		{openai.Bad("x", "y"), 400, "x"},
	} {
		e := answerTo(fmt.Errorf("layer: %w", c.err))
		if e.Status != c.status || e.Param != c.param {
			t.Errorf("%v: %d %q, want %d %q", c.err, e.Status, e.Param, c.status, c.param)
		}
		if strings.ContainsAny(e.Message, "/\n") || !utf8.ValidString(e.Message) || e.Message == "" || e.Type == "" {
			t.Errorf("%v: message %q", c.err, e.Message)
		}
	}
}

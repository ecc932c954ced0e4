// Package conform lets others drive Tandem: the official OpenAI clients and a
// router that knows only vLLM.
package conform

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/option"

	"tandem/test/cluster"
)

// venv is where `run` put the Python client and the router. A test that cannot
// find it fails: what did not run proves nothing.
func venv(t *testing.T, program string) string {
	t.Helper()
	dir := os.Getenv("TANDEM_CONFORM_VENV")
	path := filepath.Join(dir, "bin", program)
	if _, err := os.Stat(path); dir == "" || err != nil {
		t.Fatalf("%s is not there (%v); start these tests with `make conform`", program, err)
	}
	return path
}

func set(t *testing.T) (s *cluster.Set, model string) {
	t.Helper()
	s = cluster.StartSet(t, []string{cluster.Model(t), "--served-model-name", "smol", "--threads", "1"}, nil, nil)
	return s, "smol"
}

func external(t *testing.T, d *cluster.Proc) float64 {
	t.Helper()
	return d.Metric(t, "vllm:prompt_tokens_by_source_total", `source="external_kv_transfer"`)
}

// said is what one client got from one URL.
type said struct {
	Models           []string
	Chat             string
	ChatUsage        []int64 `json:"chat_usage"`
	ChatStream       string  `json:"chat_stream"`
	ChatStreamUsage  []int64 `json:"chat_stream_usage"`
	Completion       string
	CompletionStream string `json:"completion_stream"`
	Logprobs         int
	UnknownModel     int    `json:"unknown_model"`
	BadValue         string `json:"bad_value"`
}

func (s said) check(t *testing.T, model string) {
	t.Helper()
	switch {
	case len(s.Models) == 0 || s.Models[0] != model:
		t.Errorf("models %v", s.Models)
	case !strings.Contains(s.Chat, "A prime number is a positive integer") || s.ChatStream != s.Chat:
		t.Errorf("chat %q, streamed %q", s.Chat, s.ChatStream)
	case !strings.Contains(s.Completion, "Paris") || s.CompletionStream != s.Completion:
		t.Errorf("completion %q, streamed %q", s.Completion, s.CompletionStream)
	case fmt.Sprint(s.ChatUsage) != fmt.Sprint(s.ChatStreamUsage) || len(s.ChatUsage) != 2 || s.ChatUsage[0] == 0 || s.ChatUsage[1] == 0:
		t.Errorf("usage %v, streamed %v", s.ChatUsage, s.ChatStreamUsage)
	case s.Logprobs != 16:
		t.Errorf("%d log-probabilities", s.Logprobs)
	case s.UnknownModel != http.StatusNotFound || s.BadValue != "temperature":
		t.Errorf("unknown model %d, bad value %q", s.UnknownModel, s.BadValue)
	}
}

func TestPythonClient(t *testing.T) {
	python := venv(t, "python")
	s, model := set(t)
	for _, p := range []*cluster.Proc{s.Router, s.D} {
		t.Run(p.Name, func(t *testing.T) {
			out, err := exec.CommandContext(t.Context(), python, "client.py", p.URL, model).Output()
			if err != nil {
				var e *exec.ExitError
				if errors.As(err, &e) {
					t.Fatalf("%v\n%s", err, e.Stderr)
				}
				t.Fatal(err)
			}
			var got said
			if err := json.Unmarshal(out, &got); err != nil {
				t.Fatal(err)
			}
			got.check(t, model)
		})
	}
	if external(t, s.D) == 0 {
		t.Error("nothing was loaded from P")
	}
}

func TestGoClient(t *testing.T) {
	s, model := set(t)
	for _, p := range []*cluster.Proc{s.Router, s.D} {
		t.Run(p.Name, func(t *testing.T) { goClient(t, p.URL, model).check(t, model) })
	}
	if external(t, s.D) == 0 {
		t.Error("nothing was loaded from P")
	}
}

func goClient(t *testing.T, url, model string) (got said) {
	t.Helper()
	ctx := t.Context()
	c := openai.NewClient(option.WithBaseURL(url+"/v1"), option.WithAPIKey("none"), option.WithMaxRetries(0))
	models, err := c.Models.List(ctx)
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range models.Data {
		got.Models = append(got.Models, m.ID)
	}
	chat := openai.ChatCompletionNewParams{
		Model: model, MaxTokens: openai.Int(16), Temperature: openai.Float(0),
		Messages: []openai.ChatCompletionMessageParamUnion{openai.UserMessage("What is a prime number? Answer in one sentence.")},
	}
	answer, err := c.Chat.Completions.New(ctx, chat)
	if err != nil {
		t.Fatal(err)
	}
	got.Chat = answer.Choices[0].Message.Content
	got.ChatUsage = []int64{answer.Usage.PromptTokens, answer.Usage.CompletionTokens}
	chat.StreamOptions = openai.ChatCompletionStreamOptionsParam{IncludeUsage: openai.Bool(true)}
	stream := c.Chat.Completions.NewStreaming(ctx, chat)
	for stream.Next() {
		e := stream.Current()
		if len(e.Choices) > 0 {
			got.ChatStream += e.Choices[0].Delta.Content
		}
		if e.Usage.PromptTokens > 0 {
			got.ChatStreamUsage = []int64{e.Usage.PromptTokens, e.Usage.CompletionTokens}
		}
	}
	if err := errors.Join(stream.Err(), stream.Close()); err != nil {
		t.Fatal(err)
	}
	complete := openai.CompletionNewParams{
		Model: openai.CompletionNewParamsModel(model), MaxTokens: openai.Int(16), Temperature: openai.Float(0), Logprobs: openai.Int(1),
		Prompt: openai.CompletionNewParamsPromptUnion{OfString: openai.String("The capital of France is")},
	}
	done, err := c.Completions.New(ctx, complete)
	if err != nil {
		t.Fatal(err)
	}
	got.Completion, got.Logprobs = done.Choices[0].Text, len(done.Choices[0].Logprobs.TokenLogprobs)
	texts := c.Completions.NewStreaming(ctx, complete)
	for texts.Next() {
		for _, ch := range texts.Current().Choices {
			got.CompletionStream += ch.Text
		}
	}
	if err := errors.Join(texts.Err(), texts.Close()); err != nil {
		t.Fatal(err)
	}
	var apiErr *openai.Error
	other := complete
	other.Model = "no such model"
	if _, err := c.Completions.New(ctx, other); errors.As(err, &apiErr) {
		got.UnknownModel = apiErr.StatusCode
	}
	bad := complete
	bad.Temperature = openai.Float(-1)
	if _, err := c.Completions.New(ctx, bad); errors.As(err, &apiErr) {
		got.BadValue = apiErr.Param
	}
	return got
}

// A router that knows only vLLM drives our P and D.
func TestForeignRouter(t *testing.T) {
	router := venv(t, "vllm-router")
	s, model := set(t)
	port := freePort(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	cmd := exec.CommandContext(ctx, router, "--host", cluster.Loopback(), "--port", port, "--prometheus-host", cluster.Loopback(), "--prometheus-port", freePort(t),
		"--vllm-pd-disaggregation", "--kv-connector", "nixl", "--prefill", s.P.URL, "--decode", s.D.URL)
	var log strings.Builder
	cmd.Stdout, cmd.Stderr = &log, &log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		cancel()
		_ = cmd.Wait() // it was killed
		if t.Failed() {
			t.Log(log.String())
		}
	}()
	url := "http://" + net.JoinHostPort(cluster.Loopback(), port)
	cluster.Eventually(t, "vllm-router is ready", func() bool {
		resp, err := http.Get(url + "/health")
		if err != nil {
			return false
		}
		defer resp.Body.Close()
		return resp.StatusCode == http.StatusOK
	})
	body := fmt.Sprintf(`{"model":%q,"prompt":"The capital of France is","max_tokens":8,"temperature":0}`, model)
	want := complete(t, s.D.URL, body)
	before := external(t, s.D)
	prompts := 0
	for i, stream := range []bool{false, true, false, true} {
		// A prompt of its own each time: D's prefix cache must not serve it.
		q := fmt.Sprintf(`{"model":%q,"prompt":"%d. A question about France and its cities, asked once more: what is the capital of France? The capital of France is","max_tokens":8,"temperature":0,"stream":%v}`, model, i, stream)
		if stream {
			got := complete(t, url, q)
			if !strings.Contains(got, "[DONE]") || !strings.Contains(got, "Paris") {
				t.Errorf("streamed: %s", got)
			}
			prompts++
			continue
		}
		got := complete(t, url, q)
		direct := complete(t, s.P.URL, q)
		if text(t, got) != text(t, direct) {
			t.Errorf("through vllm-router %s, from one engine %s", got, direct)
		}
		prompts++
	}
	if text(t, complete(t, url, body)) != text(t, want) {
		t.Error("the answer differs from one engine's")
	}
	if loaded := external(t, s.D) - before; loaded < float64(prompts*20) {
		t.Errorf("D loaded %v tokens from P", loaded)
	}
	s.P.AllFree(t)
}

func complete(t *testing.T, url, body string) string {
	t.Helper()
	resp, err := http.Post(url+"/v1/completions", "application/json", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	out, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	if resp.StatusCode != http.StatusOK {
		t.Fatalf("%s: %d %s", url, resp.StatusCode, out)
	}
	return string(out)
}

func text(t *testing.T, body string) string {
	t.Helper()
	var a struct{ Choices []struct{ Text string } }
	if err := json.Unmarshal([]byte(body), &a); err != nil || len(a.Choices) == 0 {
		t.Fatalf("%q: %v", body, err)
	}
	return a.Choices[0].Text
}

// freePort returns a port that is free at cluster.Loopback(): programs that cannot
// choose one themselves get it.
func freePort(t *testing.T) string {
	t.Helper()
	ln, err := net.Listen("tcp", net.JoinHostPort(cluster.Loopback(), "0"))
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	_, port, err := net.SplitHostPort(ln.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	return port
}

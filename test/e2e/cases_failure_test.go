package e2e

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"tandem/test/cluster"
)

// A shape is all that a client may rely on in a body.
type shape struct {
	Choices []struct {
		Text    *string `json:"text"`
		Message *struct {
			Content *string `json:"content"`
		} `json:"message"`
		Delta  json.RawMessage `json:"delta"`
		Finish *string         `json:"finish_reason"`
	} `json:"choices"`
	Usage *struct {
		Prompt int `json:"prompt_tokens"`
		Output int `json:"completion_tokens"`
	} `json:"usage"`
	Error *struct {
		Message string `json:"message"`
		Code    int    `json:"code"`
	} `json:"error"`
}

// misshapen returns what is wrong with an answer: a status of success without all
// of a result, or another one without an error.
func misshapen(status int, body []byte, stream bool) string {
	var s shape
	if status != http.StatusOK {
		if err := json.Unmarshal(body, &s); err != nil || s.Error == nil || s.Error.Message == "" || s.Error.Code != status || s.Choices != nil {
			return "no error object of the status"
		}
		return ""
	}
	if !stream {
		if err := json.Unmarshal(body, &s); err != nil || s.Error != nil || len(s.Choices) == 0 || s.Usage == nil || s.Usage.Prompt == 0 || s.Usage.Output == 0 {
			return fmt.Sprintf("no result: %v", err)
		}
		for _, c := range s.Choices {
			text := c.Text
			if c.Message != nil {
				text = c.Message.Content
			}
			if text == nil || *text == "" || c.Finish == nil || *c.Finish != "stop" && *c.Finish != "length" {
				return "a choice without text or end"
			}
		}
		return ""
	}
	events := bytes.Split(bytes.TrimSuffix(body, []byte("\n\n")), []byte("\n\n"))
	if last := events[len(events)-1]; string(last) != "data: [DONE]" {
		return fmt.Sprintf("the stream ends with %q", last)
	}
	results, ends, failed := 0, 0, false
	for _, e := range events[:len(events)-1] {
		data, ok := bytes.CutPrefix(e, []byte("data: "))
		s = shape{}
		if err := json.Unmarshal(data, &s); !ok || err != nil || failed {
			return fmt.Sprintf("event %q: %v", e, err)
		}
		if failed = s.Error != nil; failed && results == 0 {
			return "the stream begins with an error"
		}
		for _, c := range s.Choices {
			results++
			if c.Finish != nil && *c.Finish != "" {
				ends++
			}
		}
	}
	if (ends > 0) == failed {
		return fmt.Sprintf("%d ends, failed %v", ends, failed)
	}
	return ""
}

// H023: however a generation fails before its first token, the status says so:
// what is answered with 200 is a whole result, and a stream that has begun began
// with a token.
func TestNoFailureLooksLikeSuccess(t *testing.T) {
	host, port, met := trap(t) // where D looks for P's KV
	token := cluster.Token(t)
	engine := func(name, role string, args ...string) *cluster.Proc {
		return cluster.Engine(t, name, role, token, append(slices.Clone(sim), args...)...).Ready(t)
	}
	p := engine("P", "kv_producer", "--peer-advertise", net.JoinHostPort(host, strconv.Itoa(port)))
	strict := engine("D strict", "kv_consumer", "--no-enable-prefix-caching")
	patient := engine("D patient", "kv_consumer", "--no-enable-prefix-caching", recompute)
	slow := engine("D slow", "kv_consumer", "--sim-token-time", "20ms", "--max-num-batched-tokens", "16", recompute)
	router := func(d *cluster.Proc) *cluster.Proc {
		return cluster.Start(t, "router of "+d.Name, "route", "--port", "0", "--prefill", p.URL, "--decode", d.URL).Ready(t)
	}
	statuses := map[string]map[int]int{}
	text := strings.Repeat("what is not there ", 5)
	ask := func(name, url, text string) {
		for path, ask := range map[string]string{
			"/v1/completions":      `"prompt":"` + text + `"`,
			"/v1/chat/completions": `"messages":[{"role":"user","content":"` + text + `"}]`,
		} {
			for _, stream := range []bool{false, true} {
				body := fmt.Sprintf(`{%s,"n":2,"max_tokens":6,"temperature":0,"ignore_eos":true,"stream":%v}`, ask, stream)
				status, out := post(t, url+path, []byte(body))
				if wrong := misshapen(status, out, stream); wrong != "" {
					t.Errorf("%s: %s %s: %d %s: %s", name, path, body, status, out, wrong)
				}
				if statuses[name] == nil {
					statuses[name] = map[int]int{}
				}
				statuses[name][status]++
			}
		}
	}
	ask("a load that fails", router(strict).URL, text)
	ask("a load that is made good", router(patient).URL, text)
	front := router(slow)
	var killed sync.WaitGroup
	killed.Go(func() { // in the middle of the prompts of the requests below
		cluster.Eventually(t, "D computes", func() bool { return slow.Info(t).Running > 0 })
		slow.Kill()
	})
	ask("D dies", front.URL, strings.Repeat("x", 1500))
	killed.Wait()
	p.Kill()
	ask("P is gone", front.URL, text)
	for name, want := range map[string]int{"a load that fails": 500, "a load that is made good": 200} {
		if got := statuses[name]; got[want] != 4 || len(got) != 1 {
			t.Errorf("%s: statuses %v, want 4 of %d", name, got, want)
		}
	}
	for _, name := range []string{"D dies", "P is gone"} {
		if got := statuses[name]; got[502]+got[503] != 4 {
			t.Errorf("%s: statuses %v, want 502 and 503", name, got)
		}
	}
	if statuses["D dies"][502] == 0 {
		t.Error("D did not die under a request")
	}
	for _, d := range []*cluster.Proc{strict, patient} {
		if n := d.Metric(t, "tandem_kv_load_failures_total"); n < 4 {
			t.Errorf("%s: %v loads failed", d.Name, n)
		}
	}
	if met.Load() == 0 {
		t.Error("nobody looked for the KV")
	}
}

package e2e

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"tandem/test/cluster"
)

// A told is what an answer says of where its prompt's KV came from.
type told struct {
	status                                                 int
	prompt, loaded, local, recomputed, computed, completed int
	failure, reason                                        string
}

// tell posts a body with a load failure policy, "" for none, and reads headers
// and usage, which must agree.
func tell(t *testing.T, url, policy, body string) told {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url+"/v1/completions", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	if policy != "" {
		req.Header.Set("X-KV-Load-Failure-Policy", policy)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	raw, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	type kv struct {
		Prompt     int    `json:"prompt_tokens"`
		Loaded     int    `json:"loaded_tokens"`
		Local      int    `json:"local_tokens"`
		Recomputed int    `json:"recomputed_tokens"`
		Computed   int    `json:"computed_tokens"`
		Failure    string `json:"failure"`
	}
	var v struct {
		Usage struct {
			Completion int `json:"completion_tokens"`
			KV         kv  `json:"kv_transfer"`
		} `json:"usage"`
		Error struct {
			Reason string `json:"reason"`
		} `json:"error"`
	}
	line := string(raw)
	if strings.HasPrefix(line, "data: ") { // the event before the end mark has the usage
		events := strings.Split(strings.TrimSpace(line), "\n\n")
		line = strings.TrimPrefix(events[len(events)-2], "data: ")
	}
	if err := json.Unmarshal([]byte(line), &v); err != nil {
		t.Fatalf("%v: %s", err, raw)
	}
	header := func(name string) int {
		n, _ := strconv.Atoi(resp.Header.Get("X-KV-" + name + "-Tokens"))
		return n
	}
	got := kv{
		header("Prompt"), header("Loaded"), header("Local"), header("Recomputed"), header("Computed"), resp.Header.Get("X-KV-Load-Failure"),
	}
	if resp.StatusCode == http.StatusOK && (got != v.Usage.KV || got.Loaded+got.Local+got.Recomputed+got.Computed != got.Prompt || got.Prompt == 0) {
		t.Errorf("headers %+v, usage %+v", got, v.Usage.KV)
	}
	return told{resp.StatusCode, got.Prompt, got.Loaded, got.Local, got.Recomputed, got.Computed, v.Usage.Completion, got.Failure, v.Error.Reason}
}

var (
	intervalLine  = regexp.MustCompile(`KV Transfer metrics: Num successful transfers=(\d+), .*Num failed transfers=(\d+)`)
	recoveredLine = regexp.MustCompile(`Recovered from KV load failure: (\d+) request\(s\) rescheduled \((\d+) tokens affected\)`)
	failedLine    = regexp.MustCompile(`KV transfer failure.*failure_type=gone(.*suppressed=(\d+))?`)
)

// sums adds up the numbers of a log's lines of one form.
func sums(log string, form *regexp.Regexp) (lines int, out [3]int) {
	for _, m := range form.FindAllStringSubmatch(log, -1) {
		lines++
		for i := range m[1:] {
			n, _ := strconv.Atoi(m[1+i])
			out[i] += n
		}
	}
	return lines, out
}

// What happened to the KV of a prompt can be seen: in the answer, through the
// router and in streams, in the metrics and in the logs.
func TestWhereTheKVCameFromCanBeSeen(t *testing.T) {
	set := cluster.StartSet(t, []string{"--sim", "--num-gpu-blocks-override", "64"}, nil,
		[]string{"--allow-request-policy", "--no-enable-prefix-caching", "--kv-transfer-config.kv_load_failure_policy=recompute"})
	prompt := strings.Repeat("abcdefghij", 10)
	const usage = `,"max_tokens":3,"temperature":0,"stream":true,"stream_options":{"include_usage":true}}`
	for _, body := range []string{`{"prompt":"` + prompt + `","max_tokens":3,"temperature":0}`, `{"prompt":"` + prompt + `"` + usage} {
		for _, policy := range []string{"", "fail", "recompute"} {
			if got := tell(t, set.Router.URL, policy, body); got != (told{200, 100, 99, 0, 0, 1, 3, "", ""}) {
				t.Errorf("through P and D, policy %q: %+v", policy, got)
			}
		}
	}
	// Hand-offs whose leases have ended do not load.
	lost := func() string {
		t.Helper()
		tokens := make([]int, 100)
		for i := range tokens {
			tokens[i] = int(prompt[i])
		}
		h := handoff(t, set.P, tokens)
		raw, err := json.Marshal(h)
		if err != nil {
			t.Fatal(err)
		}
		release(t, set.P, h)
		ids, err := json.Marshal(tokens)
		if err != nil {
			t.Fatal(err)
		}
		return fmt.Sprintf(`{"prompt":%s,"max_tokens":3,"temperature":0,"kv_transfer_params":%s}`, ids, raw)
	}
	for policy, want := range map[string]told{
		"":          {200, 100, 0, 0, 99, 1, 3, "gone", ""},
		"recompute": {200, 100, 0, 0, 99, 1, 3, "gone", ""},
		"fail":      {500, 0, 0, 0, 0, 0, 0, "gone", "kv_load_gone"},
		"perhaps":   {400, 0, 0, 0, 0, 0, 0, "", ""},
	} {
		if got := tell(t, set.D.URL, policy, lost()); got != want {
			t.Errorf("a lost hand-off, policy %q: %+v, want %+v", policy, got, want)
		}
	}
	d := set.D
	for _, c := range []struct {
		name  string
		with  []string
		value float64
	}{
		{"tandem_peer_load_failures_total", []string{`class="gone"`, `peer="`}, 3},
		{"vllm:nixl_num_failed_transfers_total", nil, 3},
		{"vllm:nixl_xfer_time_seconds_count", nil, 6},
		{"vllm:prompt_tokens_by_source_total", nil, 800},
		{"tandem_prompt_tokens_by_source_total", nil, 800},
		{"tandem_prompt_tokens_by_source_total", []string{`source="recomputed"`}, 198},
		{"tandem_prompt_tokens_by_source_total", []string{`source="loaded"`}, 594},
		{"vllm:prompt_tokens_total", nil, 800},
		{"tandem_log_lines_lost_total", nil, 0},
	} {
		if got := d.Metric(t, c.name, c.with...); got != c.value {
			t.Errorf("%s %v is %v, want %v", c.name, c.with, got, c.value)
		}
	}
	d.AllFree(t)
	set.P.AllFree(t)
	d.Stop()
	log := d.Log()
	if _, n := sums(log, intervalLine); n[0] != 6 || n[1] != 3 {
		t.Errorf("the lines of transfers count %v:\n%s", n, log)
	}
	if _, n := sums(log, recoveredLine); n[0] != 2 || n[1] != 198 {
		t.Errorf("the lines of recoveries count %v:\n%s", n, log)
	}
	if lines, n := sums(log, failedLine); lines+n[1] != 3 {
		t.Errorf("the lines of failures count %d and %v:\n%s", lines, n, log)
	}
}

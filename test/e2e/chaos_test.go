package e2e

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"tandem/internal/bystander/logtest"
	"tandem/internal/fault"
	"tandem/test/cluster"
)

// An upProc is a running `tandem up`.
type upProc struct {
	logtest.Book

	url string
}

// startUp runs `tandem up --sim args...` until the test ends.
func startUp(t *testing.T, args ...string) *upProc {
	t.Helper()
	u := &upProc{}
	cmd := exec.Command(cluster.Binary(t), append([]string{"up", "--sim", "--port", "0"}, args...)...)
	cmd.Stdout, cmd.Stderr = u, u
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Signal(os.Interrupt)
		if err := cmd.Wait(); err != nil || t.Failed() {
			t.Logf("up: %v\n%s", err, u.String())
		}
	})
	cluster.Eventually(t, "the cluster to be up", func() bool { return strings.Contains(u.String(), "Stop it:") })
	m := regexp.MustCompile(`Tandem is ready: (http://\S+)`).FindStringSubmatch(u.String())
	if m == nil {
		t.Fatal("no URL:\n", u.String())
	}
	u.url = m[1]
	return u
}

// chaos runs `tandem chaos` and returns what it printed.
func (u *upProc) chaos(t *testing.T, args ...string) string {
	t.Helper()
	code, out := cluster.Run(t, append([]string{"chaos"}, append(args, "--url", u.url)...)...)
	if code != 0 {
		t.Fatalf("tandem chaos %s: exit status %d\n%s", strings.Join(args, " "), code, out)
	}
	return out
}

// planFile writes a plan and returns its path.
func planFile(t *testing.T, plan string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "plan.json")
	if err := os.WriteFile(path, []byte(plan), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// A heard answer is a completion with what the response says of its KV.
type heard struct {
	status int
	text   string
	header http.Header
}

// say sends one prompt of words under a request id.
func say(t *testing.T, url, id, prompt string) heard {
	t.Helper()
	raw, err := json.Marshal(map[string]any{"prompt": prompt, "max_tokens": 12, "temperature": 0})
	if err != nil {
		t.Fatal(err)
	}
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url+"/v1/completions", bytes.NewReader(raw))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("X-Request-Id", id)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	h := heard{status: resp.StatusCode, header: resp.Header}
	var c chunk
	if resp.StatusCode == http.StatusOK {
		if err := json.Unmarshal(body, &c); err != nil || len(c.Choices) != 1 {
			t.Fatalf("%v: %s", err, body)
		}
		h.text = c.Choices[0].Text
	}
	return h
}

// long returns a prompt of many tiles that begins with name, so that no two share
// a block.
func long(name string) string { return name + strings.Repeat(" and so on, word after word", 40) }

// returned waits until no engine of the cluster has a lease.
func (u *upProc) returned(t *testing.T) {
	t.Helper()
	cluster.Eventually(t, "all leases are back", func() bool {
		resp, err := http.Get(u.url + "/status")
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		var s struct {
			Backends []struct {
				Info struct {
					Tandem struct {
						Leases *int `json:"leases"`
					} `json:"tandem"`
				} `json:"server_info"`
			} `json:"backends"`
		}
		if err := json.NewDecoder(resp.Body).Decode(&s); err != nil || len(s.Backends) == 0 {
			t.Fatalf("%+v, %v", s, err)
		}
		for _, b := range s.Backends {
			if n := b.Info.Tandem.Leases; n == nil || *n > 0 {
				return false
			}
		}
		return true
	})
}

// The two failures of the original report, from the README's recipe: a handshake
// that fails, and a peer that goes in the middle of a pull. Each time the client
// gets 200 and the right text, and D's log says that it recovered.
func TestChaosRecipes(t *testing.T) {
	right := startUp(t)
	u := startUp(t, "--enable-chaos")
	if !strings.Contains(u.String(), "Break it:") {
		t.Error("up does not say how to break it")
	}
	for _, r := range []struct {
		name, class string
		set         []string
		loaded      bool // something had arrived
	}{
		{"pull", "read", []string{"--on", "D1", "--point", "read_piece", "--action", "cut", "--bytes", "20000", "--nth", "1"}, true},
		// The engines have met: only a lost connection makes D shake hands again. The
		// first try may still go over the lost one, which D replaces.
		{"handshake", "handshake", []string{"--on", "D1", planFile(t, `{"faults": [
			{"point": "claim", "action": "cut", "when": {"nth": [1]}},
			{"point": "handshake", "action": "error", "when": {"nth": [1, 2]}}]}`)}, false},
	} {
		t.Run(r.name, func(t *testing.T) {
			// A return under way would shake hands too, and take the fault.
			u.returned(t)
			want := say(t, right.url, r.name, long(r.name))
			u.chaos(t, append([]string{"set"}, r.set...)...)
			before := len(u.String())
			got := say(t, u.url, r.name, long(r.name))
			if got.status != http.StatusOK || got.text != want.text || want.text == "" {
				t.Errorf("status %d, %q in place of %q", got.status, got.text, want.text)
			}
			if want.header.Get("X-KV-Loaded-Tokens") == "0" || want.header.Get("X-KV-Load-Failure") != "" {
				t.Errorf("without chaos: %v", want.header)
			}
			if got.header.Get("X-KV-Load-Failure") != r.class || got.header.Get("X-KV-Recomputed-Tokens") == "0" ||
				(got.header.Get("X-KV-Loaded-Tokens") != "0") != r.loaded {
				t.Errorf("%v", got.header)
			}
			cluster.Eventually(t, "the recovery in D's log", func() bool {
				return regexp.MustCompile(`(?m)^D1 .*Recovered from KV load failure: 1 request\(s\) rescheduled`).MatchString(u.String()[before:])
			})
			log := u.String()[before:]
			if !regexp.MustCompile(`msg="fault injected" point=(read_piece|handshake) `).MatchString(log) {
				t.Errorf("no fault in the log:\n%s", log)
			}
			u.chaos(t, "off")
			if after := say(t, u.url, r.name+"-after", long(r.name+" after")); after.status != http.StatusOK ||
				after.header.Get("X-KV-Load-Failure") != "" || after.header.Get("X-KV-Loaded-Tokens") == "0" {
				t.Errorf("chaos is off: %d %v", after.status, after.header)
			}
		})
	}
}

// shows waits until tandem status tells of all processes that they are in mode: it
// may show what an engine said at the router's last probe.
func (u *upProc) shows(t *testing.T, mode string) {
	t.Helper()
	want := strings.ReplaceAll("chaos is enabled: router %, P1 %, D1 %; see", "%", mode)
	cluster.Eventually(t, "tandem status says "+want, func() bool {
		code, out := cluster.Run(t, "status", "--url", u.url)
		return code == 0 && strings.Contains(out, want)
	})
}

// A process that a fault kills has said so before.
func TestKillIsInTheLog(t *testing.T) {
	u := startUp(t, "--enable-chaos")
	u.chaos(t, "set", "--on", "P1", "--point", "process", "--action", "kill", "--nth", "1")
	go func() { // the answer is nobody's: its cluster ends
		resp, err := http.Post(u.url+"/v1/completions", "application/json", strings.NewReader(`{"prompt":"`+long("kill")+`"}`))
		if err == nil {
			resp.Body.Close()
		}
	}()
	cluster.Eventually(t, "the end of the cluster", func() bool { return len(u.Lines("up: P1 ended: signal: killed")) > 0 })
	if len(u.Lines(`msg="fault injected" point=process action=kill`)) != 1 {
		t.Errorf("nothing says why P1 ended:\n%s", u.String())
	}
}

// Plans reach running processes, say what they did, and can be replayed.
func TestChaosCommands(t *testing.T) {
	u := startUp(t, "--enable-chaos")
	if out := u.chaos(t, "status"); strings.Count(out, " off ") != 3 || !strings.Contains(out, "router") {
		t.Errorf("status of a quiet cluster:\n%s", out)
	}
	u.shows(t, "off")
	cluster.Eventually(t, "three processes say that they take faults", func() bool { return len(u.Lines("level=WARN", "chaos is enabled")) == 3 })
	plan := planFile(t, `{"seed": 7, "faults": [
		{"point": "claim", "action": "error", "class": "refused", "when": {"pattern": "OX"}},
		{"point": "http", "action": "error", "status": 503, "when": {"request_id": "no-*"}}]}`)
	u.chaos(t, "set", plan)
	u.shows(t, "plan")
	cluster.Eventually(t, "the plan in three logs", func() bool {
		return len(u.Lines("level=WARN", `msg="chaos plan set" faults="claim error, http error"`)) == 3
	})
	classes := func(name string) (out []string) {
		for n := range 4 {
			id := name + string(rune('a'+n))
			h := say(t, u.url, id, long(id))
			if h.status != http.StatusOK {
				t.Errorf("%s: status %d", id, h.status)
			}
			out = append(out, h.header.Get("X-KV-Load-Failure"))
		}
		return out
	}
	want := []string{"", "refused", "", "refused"}
	first := classes("first")
	if strings.Join(first, ",") != strings.Join(want, ",") {
		t.Errorf("failures %q, want %q", first, want)
	}
	if h := say(t, u.url, "no-1", long("no")); h.status == http.StatusOK {
		t.Error("the router's own fault was not felt")
	}
	if out := u.chaos(t, "status"); !strings.Contains(out, "claim error 2") || !regexp.MustCompile(`router .*http error [12]`).MatchString(out) {
		t.Errorf("status after the run:\n%s", out)
	}
	if code, out := cluster.Run(t, "chaos", "record", "--url", u.url); code == 0 || !strings.Contains(out, "choose with --on") {
		t.Errorf("two records at once: %d %s", code, out)
	}
	record := filepath.Join(t.TempDir(), "record.jsonl")
	lines := u.chaos(t, "record", "--on", "D1")
	if strings.Count(lines, "\n") != 2 || !strings.Contains(lines, `"request_id":"firstb"`) {
		t.Errorf("record:\n%s", lines)
	}
	if err := os.WriteFile(record, []byte(lines), 0o600); err != nil {
		t.Fatal(err)
	}
	u.chaos(t, "off")
	if out := u.chaos(t, "replay", record, "--on", "D1"); !strings.Contains(out, "replay") {
		t.Errorf("replay:\n%s", out)
	}
	if again := classes("again"); strings.Join(again, ",") != strings.Join(first, ",") {
		t.Errorf("replayed failures %q, recorded %q", again, first)
	}
	for _, bad := range []struct {
		says string
		args []string
	}{
		{"no such file", []string{"set", plan + "x"}},
		{"faults[0].action", []string{"set", "--point", "claim", "--action", "stall"}},
		{"names nothing", []string{"off", "--on", "D7"}},
		{"want a plan", []string{"set"}},
		{"not both", []string{"set", plan, "--point", "claim"}},
	} {
		if code, out := cluster.Run(t, append(append([]string{"chaos"}, bad.args...), "--url", u.url)...); code == 0 || !strings.Contains(out, bad.says) {
			t.Errorf("%v: exit status %d, %s", bad.args, code, out)
		}
	}
}

// Who did not ask for chaos has none: the routes are not there, and the router
// passes none on. Who has a key needs it.
func TestChaosIsOffUnlessEnabled(t *testing.T) {
	call := func(method, url, key string) int {
		t.Helper()
		req, err := http.NewRequestWithContext(t.Context(), method, url, strings.NewReader(`{"faults":[{"point":"claim","action":"drop","when":{"request_id":"nobody"}}]}`))
		if err != nil {
			t.Fatal(err)
		}
		if key != "" {
			req.Header.Set("Authorization", "Bearer "+key)
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		return resp.StatusCode
	}
	s := cluster.StartSet(t, []string{"--sim"}, nil, []string{"--enable-chaos"})
	for _, p := range []*cluster.Proc{s.P, s.Router} {
		for _, method := range []string{http.MethodGet, http.MethodPut, http.MethodDelete} {
			if code := call(method, p.URL+fault.AdminPath, ""); code != http.StatusNotFound {
				t.Errorf("%s of %s: status %d", method, p.Name, code)
			}
		}
		if code := call(http.MethodPut, p.URL+fault.AdminPath+"/replay", ""); code != http.StatusNotFound {
			t.Errorf("replay of %s: status %d", p.Name, code)
		}
	}
	if code, out := cluster.Run(t, "chaos", "status", "--url", s.P.URL); code == 0 || !strings.Contains(out, "--enable-chaos") {
		t.Errorf("%d %s", code, out)
	}
	for p, want := range map[*cluster.Proc]bool{s.P: false, s.D: true} {
		if got := strings.Contains(string(p.Get(t, "/server_info")), `"chaos":"off"`); got != want {
			t.Errorf("/server_info of %s tells of chaos: %v", p.Name, got)
		}
	}
	cluster.Eventually(t, "/status tells of the chaos of D alone", func() bool { // it has asked D by then
		return strings.Count(string(s.Router.Get(t, "/status")), `"chaos"`) == 1
	})
	if code := call(http.MethodPut, s.D.URL+fault.AdminPath, ""); code != http.StatusOK {
		t.Errorf("an engine with chaos: status %d", code)
	}
	u := startUp(t, "--enable-chaos", "--api-key", "the-key")
	if code := call(http.MethodGet, u.url+fault.AdminPath, ""); code != http.StatusUnauthorized {
		t.Errorf("the router without the key: status %d", code)
	}
	if out := u.chaos(t, "status", "--api-key", "the-key"); strings.Count(out, " off ") != 3 {
		t.Errorf("with the key:\n%s", out)
	}
	if code, out := cluster.Run(t, "chaos", "off", "--url", u.url); code == 0 || !strings.Contains(out, "--api-key") {
		t.Errorf("without the key: %d %s", code, out)
	}
}

package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"tandem/internal/fault"
	"tandem/internal/router"
)

// tandem runs a command line and returns what it printed.
func tandem(t *testing.T, args ...string) (string, error) {
	t.Helper()
	var out bytes.Buffer
	root := rootCommand()
	root.SetOut(&out)
	root.SetErr(&out)
	root.SetArgs(args)
	err := root.ExecuteContext(t.Context())
	return out.String(), err
}

// The admin routes, and no others here, want the key, and refuse as engines do.
func TestChaosWantsTheKey(t *testing.T) {
	mux := http.NewServeMux()
	mux.HandleFunc("/health", func(http.ResponseWriter, *http.Request) {})
	h := mountChaos(mux, fault.New(fault.Config{}), "a-key")
	for _, c := range []struct {
		path, auth string
		code       int
		says       string
	}{
		{fault.AdminPath, "", 401, `"type":"AuthenticationError"`},
		{fault.AdminPath + "/record", "Bearer other", 401, "the API key is missing or wrong: it is wanted as Authorization: Bearer KEY"},
		{fault.AdminPath, "Basic a-key", 401, "API key"},
		{fault.AdminPath, "bearer a-key", 200, `"mode":"off"`},
		{fault.AdminPath + "/nothing", "Bearer a-key", 404, `"type":"NotFoundError"`},
		{"/health", "", 200, ""},
	} {
		w, q := httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, c.path, nil)
		q.Header.Set("Authorization", c.auth)
		h.ServeHTTP(w, q)
		if w.Code != c.code || !strings.Contains(w.Body.String(), c.says) || (c.code == 401) != (w.Header().Get("WWW-Authenticate") == "Bearer") {
			t.Errorf("%s with %q: %d %s", c.path, c.auth, w.Code, w.Body)
		}
	}
	open := httptest.NewRecorder()
	mountChaos(mux, fault.New(fault.Config{}), "").ServeHTTP(open, httptest.NewRequest(http.MethodGet, fault.AdminPath, nil))
	if open.Code != http.StatusOK {
		t.Error(open.Code)
	}
}

// An actor is a process of a cluster as tandem chaos sees it.
type actor struct {
	*httptest.Server

	in *fault.Injector
}

func newActor(t *testing.T, path string, answer func() any) actor {
	t.Helper()
	mux, in := http.NewServeMux(), fault.New(fault.Config{})
	mux.HandleFunc(path, func(w http.ResponseWriter, _ *http.Request) { _ = json.NewEncoder(w).Encode(answer()) })
	s := httptest.NewServer(mountChaos(mux, in, ""))
	t.Cleanup(s.Close)
	return actor{s, in}
}

func newEngine(t *testing.T, id, role string) actor {
	t.Helper()
	return newActor(t, "/server_info", func() any {
		return engineInfo{Tandem: connectorInfo{EngineID: id, Role: role}}
	})
}

// stage is a router with P1 and D1.
func stage(t *testing.T) (r, p, d actor) {
	t.Helper()
	p, d = newEngine(t, "P1", "kv_producer"), newEngine(t, "D1", "kv_consumer")
	r = newActor(t, "/status", func() any {
		info := func(id, role string) json.RawMessage {
			return fmt.Appendf(nil, `{"tandem":{"engine_id":%q,"role":%q}}`, id, role)
		}
		return router.Status{Role: "router", Backends: []router.BackendStatus{
			{Role: "prefill", URL: p.URL, Info: info("P1", "kv_producer")}, {Role: "decode", URL: d.URL, Info: info("D1", "kv_consumer")},
		}}
	})
	return r, p, d
}

func TestChaosRefusesWhatCanNeverFire(t *testing.T) {
	r, p, d := stage(t)
	for _, c := range []struct {
		url, says string
		args      []string
	}{
		{r.URL, "chaos set: --probability 0 hits nothing; `tandem chaos off` ends faults", []string{"--point", "claim", "--action", "drop", "--probability", "0"}},
		{r.URL, "--nth -1: want numbers of calls, from 1", []string{"--point", "claim", "--action", "drop", "--nth", "-1"}},
		{r.URL, "--nth 0: want numbers of calls, from 1", []string{"--point", "claim", "--action", "drop", "--nth", "0"}},
		{r.URL, "--nth x: want numbers of calls, from 1", []string{"--point", "claim", "--action", "drop", "--nth", "1,x"}},
		{r.URL, "read_piece happens on decode engines, not on P1; use --on decode", []string{"--on", "P1", "--point", "read_piece", "--action", "cut"}},
		{r.URL, "read_piece happens on decode engines, not on router; use --on decode", []string{"--on", "router", "--point", "read_piece", "--action", "cut"}},
		{r.URL, "http happens on the router, not on D1; use --on router", []string{"--on", "D1", "--point", "http", "--action", "error"}},
		{r.URL, "seal happens on prefill engines, not on D1; use --on prefill", []string{"--on", "decode", "--point", "seal", "--action", "error"}},
		{p.URL, "read_piece happens on decode engines, not on P1", []string{"--point", "read_piece", "--action", "cut"}},
		{d.URL, "--on P1 names nothing at " + d.URL, []string{"--on", "P1", "--point", "claim", "--action", "drop"}},
		{r.URL, "no host:port", []string{"--point", "claim", "--action", "drop", "--peer", "nohost"}},
	} {
		_, err := tandem(t, append([]string{"chaos", "set", "--url", c.url}, c.args...)...)
		if err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%v: %v; want %s", c.args, err, c.says)
		}
	}
	for _, a := range []actor{r, p, d} {
		if s := a.in.Status(); s.Mode != fault.ModeOff {
			t.Errorf("%+v", s)
		}
	}
}

// Plans reach those that --on names, by way of the router and without it.
func TestChaosReachesWhoIsNamed(t *testing.T) {
	r, p, d := stage(t)
	for _, c := range []struct {
		url     string
		args    []string
		p, d, r bool
	}{
		{r.URL, []string{"--point", "claim", "--nth", "1,3"}, true, true, true},
		{r.URL, []string{"--point", "claim", "--on", "D1"}, false, true, false},
		{r.URL, []string{"--point", "notice", "--on", "prefill"}, true, false, false},
		{d.URL + "/", []string{"--point", "claim", "--on", "D1"}, false, true, false},
		{d.URL, []string{"--point", "claim", "--on", "decode"}, false, true, false},
		{d.URL, []string{"--point", "claim"}, false, true, false},
	} {
		if _, err := tandem(t, append([]string{"chaos", "set", "--url", c.url, "--action", "drop"}, c.args...)...); err != nil {
			t.Errorf("%v: %v", c.args, err)
		}
		for a, want := range map[*fault.Injector]bool{p.in: c.p, d.in: c.d, r.in: c.r} {
			if got := a.Status().Mode == fault.ModePlan; got != want {
				t.Errorf("%v: p.in %v", c.args, a.Status())
			}
			a.Off()
		}
	}
}

// A record of nothing is empty, and says so beside it.
func TestChaosRecordOfNothing(t *testing.T) {
	r, _, _ := stage(t)
	var out, notes bytes.Buffer
	root := rootCommand()
	root.SetOut(&out)
	root.SetErr(&notes)
	root.SetArgs([]string{"chaos", "record", "--url", r.URL})
	if err := root.ExecuteContext(t.Context()); err != nil || out.Len() != 0 || !strings.Contains(notes.String(), "no fault has fired") {
		t.Errorf("%q %q %v", &out, &notes, err)
	}
}

// A chaos command that fails everywhere prints no table, and names each process.
func TestChaosPrintsNoEmptyTable(t *testing.T) {
	quiet := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		if q.URL.Path != "/server_info" {
			http.NotFound(w, q)
			return
		}
		_, _ = w.Write([]byte(`{"tandem":{"engine_id":"D9","role":"kv_consumer"}}`))
	}))
	defer quiet.Close()
	out, err := tandem(t, "chaos", "status", "--url", quiet.URL)
	if out != "" || err == nil || err.Error() != "chaos: D9 takes no faults; start it with --enable-chaos (tandem up --enable-chaos)" {
		t.Errorf("%q %v", out, err)
	}
}

func TestMistypedCommandsAreErrors(t *testing.T) {
	for _, args := range [][]string{{"chaos", "of"}, {"chaos", "stats"}, {"model", "ftch"}, {"chaso"}} {
		out, err := tandem(t, args...)
		if err == nil || !strings.Contains(err.Error(), fmt.Sprintf("unknown command %q", args[len(args)-1])) {
			t.Errorf("%v: %v\n%s", args, err, out)
		}
	}
	for _, args := range [][]string{{"chaos"}, {"model"}} {
		if out, err := tandem(t, args...); err != nil || !strings.Contains(out, "Usage:") {
			t.Errorf("%v: %v\n%s", args, err, out)
		}
	}
}

func TestURLNeedsItsScheme(t *testing.T) {
	for _, args := range [][]string{{"chaos", "status"}, {"status"}} {
		if _, err := tandem(t, append(args, "--url", "127.0.0.1:8000")...); err == nil || !strings.Contains(err.Error(), "want http://HOST:PORT") {
			t.Errorf("%v: %v", args, err)
		}
	}
}

// The help says who meets a point.
func TestChaosHelpNamesOwners(t *testing.T) {
	out, err := tandem(t, "chaos", "--help")
	for _, line := range []string{"  read_piece D      error", "  process    P      blackhole", "  http       router error", "process kill ends a cluster of tandem up"} {
		if err != nil || !strings.Contains(out, line) {
			t.Errorf("no %q in\n%s", line, out)
		}
	}
}

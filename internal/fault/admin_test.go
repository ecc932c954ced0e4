package fault

import (
	"encoding/json"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"tandem/internal/bystander/logtest"
)

func TestAdmin(t *testing.T) {
	var log logtest.Book
	in := New(Config{Log: slog.New(slog.NewTextHandler(&log, nil))})
	const key = "a-key"
	h := Admin(in, key)
	call := func(method, path, body, auth string) (int, string, http.Header) {
		w := httptest.NewRecorder()
		q := httptest.NewRequest(method, path, strings.NewReader(body))
		if auth != "" {
			q.Header.Set("Authorization", auth)
		}
		h.ServeHTTP(w, q)
		return w.Code, w.Body.String(), w.Header()
	}
	const ok = "Bearer " + key
	plan := `{"seed":1,"faults":[{"point":"claim","action":"error"}]}`
	for _, c := range []struct {
		method, path, body, auth string
		code                     int
		says                     string
	}{
		{"GET", AdminPath, "", "", 401, "API key"},
		{"PUT", AdminPath, plan, "Bearer other", 401, "API key"},
		{"PUT", AdminPath, plan, "Basic " + key, 401, "API key"},
		{"GET", AdminPath + "/nothing", "", ok, 404, "nothing"},
		{"POST", AdminPath, plan, ok, 405, "DELETE, GET, PUT"},
		{"PUT", AdminPath + "/record", plan, ok, 405, "GET"},
		{"GET", AdminPath, "", ok, 200, `"mode":"off"`},
		{"PUT", AdminPath, `{"faults":[{"point":"clam"}]}`, ok, 400, "faults[0].point"},
		{"PUT", AdminPath, strings.Repeat(" ", MaxPlan+1), ok, 400, "at most"},
		{"PUT", AdminPath, plan, "bearer " + key, 200, `"mode":"plan"`},
	} {
		code, body, header := call(c.method, c.path, c.body, c.auth)
		if code != c.code || !strings.Contains(body, c.says) || !json.Valid([]byte(body)) || code == 405 && header.Get("Allow") == "" {
			t.Errorf("%s %s %q: %d %s", c.method, c.path, c.auth, code, body)
		}
	}
	if got := log.String(); strings.Count(got, "\n") != 1 || !strings.Contains(got, `level=WARN msg="chaos plan set" faults="claim error" from=`) {
		t.Errorf("the log of refused plans and a good one:\n%s", got)
	}
	in.Decide(Claim, Subject{Request: "r"})
	_, record, _ := call("GET", AdminPath+"/record", "", ok)
	if strings.Count(record, "\n") != 1 || !strings.Contains(record, `"request_id":"r"`) {
		t.Fatal(record)
	}
	if code, body, _ := call("DELETE", AdminPath, "", ok); code != 200 || !strings.Contains(body, `"fired":1`) || in.Status().Mode != ModeOff {
		t.Errorf("%d %s", code, body)
	}
	if code, body, _ := call("PUT", AdminPath+"/replay", record, ok); code != 200 || !strings.Contains(body, `"replaying":1`) {
		t.Errorf("%d %s", code, body)
	}
	for _, line := range []string{`level=WARN msg="chaos off" from=`, `level=WARN msg="chaos replay set" events=1 from=`} {
		if len(log.Lines(line)) != 1 {
			t.Errorf("no %s in\n%s", line, log.String())
		}
	}
	if code, body, _ := call("PUT", AdminPath+"/replay", "{}", ok); code != 400 || !strings.Contains(body, "line") && !strings.Contains(body, "event 1") {
		t.Errorf("%d %s", code, body)
	}
	open := httptest.NewRecorder()
	Admin(in, "").ServeHTTP(open, httptest.NewRequest(http.MethodGet, AdminPath, nil))
	if open.Code != 200 {
		t.Error(open.Code)
	}
}

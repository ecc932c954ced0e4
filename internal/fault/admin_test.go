package fault

import (
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
	h := Admin(in, http.Error)
	call := func(method, path, body string) (int, string, http.Header) {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest(method, path, strings.NewReader(body)))
		return w.Code, w.Body.String(), w.Header()
	}
	plan := `{"seed":1,"faults":[{"point":"claim","action":"error"}]}`
	for _, c := range []struct {
		method, path, body string
		code               int
		says               string
	}{
		{"GET", AdminPath + "/nothing", "", 404, "nothing"},
		{"POST", AdminPath, plan, 405, "DELETE, GET, PUT"},
		{"PUT", AdminPath + "/record", plan, 405, "GET"},
		{"GET", AdminPath, "", 200, `"mode":"off"`},
		{"PUT", AdminPath, `{"faults":[{"point":"clam"}]}`, 400, "faults[0].point"},
		{"PUT", AdminPath, strings.Repeat(" ", MaxPlan+1), 400, "at most"},
		{"PUT", AdminPath, plan, 200, `"mode":"plan"`},
	} {
		code, body, header := call(c.method, c.path, c.body)
		if code != c.code || !strings.Contains(body, c.says) || code == 405 && header.Get("Allow") == "" {
			t.Errorf("%s %s: %d %s", c.method, c.path, code, body)
		}
	}
	if got := log.String(); strings.Count(got, "\n") != 1 || !strings.Contains(got, `level=WARN msg="chaos plan set" faults="claim error" from=`) {
		t.Errorf("the log of refused plans and a good one:\n%s", got)
	}
	in.Decide(Claim, Subject{Request: "r"})
	_, record, _ := call("GET", AdminPath+"/record", "")
	if strings.Count(record, "\n") != 1 || !strings.Contains(record, `"request_id":"r"`) {
		t.Fatal(record)
	}
	if code, body, _ := call("DELETE", AdminPath, ""); code != 200 || !strings.Contains(body, `"fired":1`) || in.Status().Mode != ModeOff {
		t.Errorf("%d %s", code, body)
	}
	if code, body, _ := call("PUT", AdminPath+"/replay", record); code != 200 || !strings.Contains(body, `"replaying":1`) {
		t.Errorf("%d %s", code, body)
	}
	for _, line := range []string{`level=WARN msg="chaos off" from=`, `level=WARN msg="chaos replay set" events=1 from=`} {
		if len(log.Lines(line)) != 1 {
			t.Errorf("no %s in\n%s", line, log.String())
		}
	}
	if code, body, _ := call("PUT", AdminPath+"/replay", "{}"); code != 400 || !strings.Contains(body, "line") && !strings.Contains(body, "event 1") {
		t.Errorf("%d %s", code, body)
	}
}

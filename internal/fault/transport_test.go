package fault

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
)

// web is an engine that answers everything with text, and a client whose legs
// are hit.
func web(t *testing.T, faults ...Fault) (client *http.Client, url string, in *Injector, asked *atomic.Int64, bodies *bytes.Buffer) {
	t.Helper()
	asked, bodies = &atomic.Int64{}, &bytes.Buffer{}
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked.Add(1)
		_, _ = io.Copy(bodies, r.Body)
		_, _ = io.WriteString(w, text)
	}))
	t.Cleanup(s.Close)
	in = New(Config{})
	if err := in.Set(Plan{Faults: faults}); err != nil {
		t.Fatal(err)
	}
	client = &http.Client{Transport: Transport(s.Client().Transport, in)}
	t.Cleanup(client.CloseIdleConnections)
	return client, s.URL, in, asked, bodies
}

const text = "the whole answer of an engine"

func post(ctx context.Context, t *testing.T, c *http.Client, url string) (status int, body string, err error) {
	t.Helper()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url+"/v1/completions", strings.NewReader("ask"))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("X-Request-Id", "abc-1")
	resp, err := c.Do(req)
	if err != nil {
		return 0, "", err
	}
	defer resp.Body.Close()
	raw, err := io.ReadAll(resp.Body)
	return resp.StatusCode, string(raw), err
}

func TestCellsOfALeg(t *testing.T) {
	type want struct {
		status int
		body   string
		err    error // nil: none
		asked  int64
		held   bool // ends when the caller's context does
	}
	tests := []struct {
		fault Fault
		want
	}{
		{Fault{Action: Error}, want{status: 500, asked: 0}},
		{Fault{Action: Error, Status: 429}, want{status: 429, asked: 0}},
		{Fault{Action: Blackhole}, want{err: context.Canceled, held: true}},
		{Fault{Action: Stall, Bytes: 9}, want{status: 200, body: text[:9], err: context.Canceled, asked: 1, held: true}},
		{Fault{Action: Stall, Bytes: maxBytes}, want{status: 200, body: text, err: context.Canceled, asked: 1, held: true}},
		{Fault{Action: Cut, Bytes: 4}, want{status: 200, body: text[:4], err: io.ErrUnexpectedEOF, asked: 1}},
		{Fault{Action: Cut, Bytes: maxBytes}, want{status: 200, body: text, err: io.ErrUnexpectedEOF, asked: 1}},
		{Fault{Action: Duplicate}, want{status: 200, body: text, asked: 2}},
		{Fault{Action: Delay, Delay: soon}, want{status: 200, body: text, asked: 1}},
		{Fault{Action: Drop}, want{err: context.Canceled, asked: 1, held: true}},
	}
	seen := map[Action]bool{}
	for _, c := range tests {
		c.fault.Point, c.fault.When = HTTP, When{RequestID: "abc-*"}
		seen[c.fault.Action] = true
		t.Run(string(c.fault.Action), func(t *testing.T) {
			client, url, in, asked, bodies := web(t, c.fault)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			fired := make(chan struct{}, 1)
			if c.held {
				in.cfg.Log = newSignal(fired)
				go func() { <-fired; cancel() }()
			} else {
				in.cfg.Log = newSignal(make(chan struct{}, 1))
			}
			status, body, err := post(ctx, t, client, url)
			if c.status == 500 || c.status == 429 {
				if !strings.Contains(body, `"error"`) {
					t.Errorf("%q is no error of an engine", body)
				}
				body = ""
			}
			early := c.held && err != nil // the context may end before the first byte
			if !errors.Is(err, c.err) || (err == nil) != (c.err == nil) || !early && (status != c.status || body != c.body) || !early && asked.Load() != c.asked {
				t.Errorf("status %d, %q, %v, asked %d times", status, body, err, asked.Load())
			}
			if !c.held && bodies.String() != strings.Repeat("ask", int(c.asked)) {
				t.Errorf("the engine got %q", bodies)
			}
			if n := in.Counts(); len(n) != 1 || n[0] != (Count{HTTP, c.fault.Action, 1}) || in.Events()[0].Request != "abc-1" {
				t.Errorf("%v %v", n, in.Events())
			}
			in.Off()
			if status, body, err := post(t.Context(), t, client, url); err != nil || status != 200 || body != text {
				t.Errorf("chaos is off: %d %q %v", status, body, err)
			}
		})
	}
	for _, a := range Actions(HTTP) {
		if !seen[a] {
			t.Errorf("the table above has no row for %s", a)
		}
	}
}

// A stalled or lost leg goes on when the plan changes.
func TestChangesLetLegsGo(t *testing.T) {
	for _, f := range []Fault{
		{Point: HTTP, Action: Stall, Bytes: 5}, {Point: HTTP, Action: Delay, Delay: Duration(maxDelay)},
		{Point: HTTP, Action: Blackhole}, {Point: HTTP, Action: Drop},
	} {
		client, url, in, _, _ := web(t, f)
		fired := make(chan struct{}, 1)
		in.cfg.Log = newSignal(fired)
		go func() { <-fired; in.Off() }()
		status, body, err := post(t.Context(), t, client, url)
		lost := f.Action == Blackhole || f.Action == Drop
		if lost != (err != nil) || !lost && (status != 200 || body != text) {
			t.Errorf("%s: %d %q %v", f.Action, status, body, err)
		}
	}
}

// Probes are no legs.
func TestProbesPass(t *testing.T) {
	client, url, in, _, _ := web(t, Fault{Point: HTTP, Action: Error})
	resp, err := client.Get(url + "/health")
	if err != nil || resp.StatusCode != http.StatusOK {
		t.Fatal(resp, err)
	}
	resp.Body.Close()
	if s := in.Status(); s.Calls[HTTP] != 0 {
		t.Errorf("%+v", s)
	}
}

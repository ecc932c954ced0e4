package openai

import (
	"context"
	"net/http"
	"net/http/httptest"
	"testing"
)

func TestStopperEndsRequestsWithItsCause(t *testing.T) {
	var s Stopper
	bind := func(ctx context.Context) (*http.Request, func()) {
		return s.Bind(httptest.NewRequestWithContext(ctx, http.MethodGet, "/", nil))
	}
	client, leave := context.WithCancel(t.Context())
	answered, done := bind(t.Context())
	done()
	gone, done := bind(client)
	defer done()
	leave()
	running, done := bind(t.Context())
	defer done()
	if len(s.running) != 2 {
		t.Errorf("%d requests are known", len(s.running))
	}
	if running.Context().Err() != nil || gone.Context().Err() == nil {
		t.Error("before Stop contexts are the clients'")
	}
	s.Stop()
	late, done := bind(t.Context())
	defer done()
	for name, c := range map[string]struct {
		q        *http.Request
		stopping bool
	}{"answered": {answered, false}, "gone": {gone, false}, "running": {running, true}, "late": {late, true}} {
		if c.q.Context().Err() == nil || Stopping(c.q.Context()) != c.stopping {
			t.Errorf("%s: %v", name, context.Cause(c.q.Context()))
		}
	}
	if Stopping(t.Context()) {
		t.Error("a context that goes on")
	}
}

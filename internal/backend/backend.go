// Package backend is what a router knows of an engine: its address, whether it
// can serve, and how to exchange one leg with it.
//
// It hides the HTTP client, the probes and the differences between engines that
// speak vLLM's protocol: a Tandem engine tells its readiness, role and
// fingerprint, a real vLLM only that it is alive. It knows nothing of KV, leases or peers; a
// hand-off is bytes to it.
package backend

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync/atomic"
	"time"
)

// A Role is what a backend does for a flow.
type Role string

// The roles.
const (
	Prefill Role = "prefill"
	Decode  Role = "decode"
)

// A State is what the last probe or leg showed.
type State uint8

// The states, in the order in which they are met.
const (
	Unknown  State = iota // not yet probed
	Ready                 // answers its probe
	NotReady              // answers, and says that it cannot serve
	Down                  // does not answer
)

// String returns the name used in status and metrics.
func (s State) String() string {
	return [...]string{"unknown", "ready", "not ready", "down"}[s]
}

// Limits bounds every wait on an engine.
type Limits struct {
	Connect   time.Duration // dialling
	Header    time.Duration // of a leg, from the request to the status line; a prefill takes this long
	Silence   time.Duration // of a leg, without a byte of an answer that has begun
	IdleConn  time.Duration // an unused connection is closed; shorter than the engine's own limit
	Probe     time.Duration // one probe, and any other GET
	Every     time.Duration // between two probes of a ready backend
	EveryDown time.Duration // between two probes of one that is not
	Release   time.Duration // one release of a hand-off
}

// DefaultLimits are the limits of `tandem route`.
func DefaultLimits() Limits {
	return Limits{
		Connect: 2 * time.Second, Header: 10 * time.Minute, Silence: 2 * time.Minute, IdleConn: 30 * time.Second,
		Probe: 2 * time.Second, Every: time.Second, EveryDown: 100 * time.Millisecond, Release: 2 * time.Second,
	}
}

// A View is the published state of a backend; it does not change.
type View struct {
	State  State
	Reason string          // why it is not ready, for people
	Info   json.RawMessage // what /server_info said at the last probe, or nil
	Member Member          // what Info tells
}

// A Backend is one engine. Its methods may be called from any goroutine.
type Backend struct {
	name   string // host:port, as in logs, headers and metrics
	base   string // URL without a trailing slash
	role   Role
	limits Limits
	client *http.Client
	alone  *http.Client // a connection for each request
	view   atomic.Pointer[View]
	poke   chan struct{} // a leg failed: probe at once
	legs   atomic.Int64

	silent bool // of Run: has no /server_info
}

// New returns the backend at raw, an http or https URL without a path.
//
// Decorate, unless it is nil, returns what takes the place of a transport, which
// it wraps.
func New(raw string, role Role, limits Limits, decorate func(http.RoundTripper) http.RoundTripper) (*Backend, error) {
	u, err := url.Parse(raw)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || strings.Trim(u.Path, "/") != "" || u.RawQuery != "" || u.User != nil {
		return nil, fmt.Errorf("backend: %s URL %q: want http://HOST:PORT", role, raw)
	}
	dial := &net.Dialer{Timeout: limits.Connect, KeepAlive: 15 * time.Second}
	pooled := &http.Transport{
		DialContext: dial.DialContext, IdleConnTimeout: limits.IdleConn,
		MaxIdleConnsPerHost: 256, DisableCompression: true, WriteBufferSize: 32 << 10, ReadBufferSize: 32 << 10,
	}
	alone := pooled.Clone()
	alone.DisableKeepAlives = true
	var one, other http.RoundTripper = pooled, alone
	if decorate != nil {
		one, other = decorate(one), decorate(other)
	}
	unfollowed := func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	b := &Backend{
		name: u.Host, base: u.Scheme + "://" + u.Host, role: role, limits: limits, poke: make(chan struct{}, 1),
		client: &http.Client{Transport: one, CheckRedirect: unfollowed}, alone: &http.Client{Transport: other, CheckRedirect: unfollowed},
	}
	b.view.Store(&View{State: Unknown, Reason: "not probed yet"})
	return b, nil
}

// Name returns host:port.
func (b *Backend) Name() string { return b.name }

// URL returns the base URL.
func (b *Backend) URL() string { return b.base }

// Role returns what the operator said the backend does.
func (b *Backend) Role() Role { return b.role }

// View returns the published state.
func (b *Backend) View() *View { return b.view.Load() }

// Legs returns the number of exchanges that are running.
func (b *Backend) Legs() int { return int(b.legs.Load()) }

// Run probes the backend until ctx ends. changed is called after each change of
// state, from this goroutine.
func (b *Backend) Run(ctx context.Context, changed func(from, to *View)) {
	defer b.client.CloseIdleConnections()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-b.poke:
		case <-timer.C:
		}
		old := b.view.Load()
		v, late := b.probe(ctx)
		if late && old.State == Ready && ctx.Err() == nil {
			v, _ = b.probe(ctx) // one late answer is a busy machine, two are an engine that hangs
		}
		if ctx.Err() != nil {
			return
		}
		if v.State == Ready {
			b.ask(ctx, v, old)
		} else {
			b.silent = false
		}
		if ctx.Err() != nil {
			return
		}
		b.view.Store(v)
		if v.State != old.State && changed != nil {
			changed(old, v)
		}
		wait := b.limits.EveryDown
		if v.State == Ready {
			wait = b.limits.Every
		}
		timer.Reset(wait)
	}
}

// probe asks whether the engine can serve: /health/ready where there is one, as
// Tandem has, else /health, which says the same on vLLM. Late says that no answer
// came within the limit.
func (b *Backend) probe(ctx context.Context) (v *View, late bool) {
	ctx, cancel := context.WithTimeout(ctx, b.limits.Probe)
	defer cancel()
	for _, path := range []string{"/health/ready", "/health"} {
		status, body, err := b.get(ctx, path, nil, maxProbe)
		switch {
		case err != nil && errors.Is(ctx.Err(), context.DeadlineExceeded):
			return &View{State: Down, Reason: fmt.Sprintf("no answer to %s within %v", path, b.limits.Probe)}, true
		case err != nil:
			return &View{State: Down, Reason: plain(err)}, ctx.Err() != nil
		case status == http.StatusNotFound || status == http.StatusMethodNotAllowed:
			continue
		case status/100 == 2:
			return &View{State: Ready}, false
		}
		return &View{State: NotReady, Reason: fmt.Sprintf("%s says %d %s", path, status, short(body))}, false
	}
	return &View{State: NotReady, Reason: "has neither /health/ready nor /health"}, false
}

// Fetch answers a GET on path with what the engine says, at most limit bytes, as
// quick as a probe. Header may be nil. An error is a *TransportError, or ctx's.
func (b *Backend) Fetch(ctx context.Context, path string, header http.Header, limit int64) (status int, body []byte, err error) {
	inner, cancel := context.WithTimeout(ctx, b.limits.Probe)
	defer cancel()
	status, body, err = b.get(inner, path, header, limit)
	if err != nil {
		err = b.failed(ctx, err)
	}
	return status, body, err
}

// maxProbe bounds what is read of the answer to a probe, in bytes.
const maxProbe = 1 << 20

// get is Fetch with the client's own error, which asks for no probe.
func (b *Backend) get(ctx context.Context, path string, header http.Header, limit int64) (status int, body []byte, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, b.base+path, nil)
	if err != nil {
		return 0, nil, err
	}
	maps.Copy(req.Header, header)
	resp, err := b.client.Do(req)
	if err != nil {
		return 0, nil, err
	}
	defer drop(resp.Body)
	body, err = io.ReadAll(io.LimitReader(resp.Body, limit))
	return resp.StatusCode, body, err
}

// A TransportError says that a leg ended without an answer from the engine.
type TransportError struct {
	Backend string
	Err     error
}

// Error implements error.
func (e *TransportError) Error() string {
	return fmt.Sprintf("backend: exchange with %s: %s", e.Backend, plain(e.Err))
}

// Unreached reports whether the engine never had the request: it was not even
// connected to.
func (e *TransportError) Unreached() bool {
	op, ok := errors.AsType[*net.OpError](e.Err)
	return ok && op.Op == "dial"
}

// Unwrap returns the cause.
func (e *TransportError) Unwrap() error { return e.Err }

// Post sends one leg and returns the engine's answer, whatever its status. The
// caller closes the body, which ends the leg. An error is a *TransportError,
// or ctx's when that ended first.
func (b *Backend) Post(ctx context.Context, path string, header http.Header, body []byte) (*http.Response, error) {
	inner, cut := context.WithCancel(ctx)
	req, err := http.NewRequestWithContext(inner, http.MethodPost, b.base+path, bytes.NewReader(body))
	if err != nil {
		cut()
		return nil, &TransportError{b.name, err}
	}
	req.Header = header
	resp, err := b.leg(b.client, req, cut)
	if err != nil {
		return nil, b.failed(ctx, err)
	}
	return resp, nil
}

// failed turns a client's error into ours and asks for a probe.
func (b *Backend) failed(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	b.Suspect()
	return &TransportError{b.name, err}
}

// Suspect asks for a probe at once.
func (b *Backend) Suspect() {
	select {
	case b.poke <- struct{}{}:
	default: // one is on its way
	}
}

// Release tells the engine that nobody will read the hand-off. The engine's
// lease deadline is the backstop where the call is lost.
func (b *Backend) Release(ctx context.Context, header http.Header, handoff json.RawMessage) error {
	ctx, cancel := context.WithTimeout(ctx, b.limits.Release)
	defer cancel()
	resp, err := b.Post(ctx, "/release_kv_handoff", header, handoff)
	if err != nil {
		return err
	}
	defer drop(resp.Body)
	if resp.StatusCode/100 != 2 {
		return fmt.Errorf("backend: releasing a hand-off on %s: status %d", b.name, resp.StatusCode)
	}
	return nil
}

// drop reads what little is left, so that the connection can serve again.
func drop(body io.ReadCloser) {
	// Losing the connection is all that an error here could mean.
	_, _ = io.CopyN(io.Discard, body, 64<<10)
	_ = body.Close()
}

// plain returns the cause without the URL that net/http puts before it.
func plain(err error) string {
	var u *url.Error
	if errors.As(err, &u) {
		return u.Err.Error()
	}
	return err.Error()
}

func short(body []byte) string {
	s := strings.TrimSpace(string(body))
	if len(s) > 120 {
		s = s[:120] + "…"
	}
	return s
}

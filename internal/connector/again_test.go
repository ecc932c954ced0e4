package connector

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"tandem/internal/transfer"
)

// A handshake over a connection that has ended is made again over another, so
// often and with such pauses, and only then.
func TestHandshakesReplaceConnectionsThatHaveEnded(t *testing.T) {
	const all = time.Millisecond<<redials - time.Millisecond
	for _, c := range []struct {
		name  string
		fails int // of the first handshakes
		how   func(p *fabricPeer) error
		dials int64
		took  time.Duration
		err   error
	}{
		{"once", 1, func(*fabricPeer) error { return transfer.ErrPeerGone }, 2, time.Millisecond, nil},
		{"as often as may be", redials, func(*fabricPeer) error { return transfer.ErrPeerGone }, 1 + redials, all, nil},
		{"once more", redials + 1, func(*fabricPeer) error { return transfer.ErrPeerGone }, 1 + redials, all, transfer.ErrPeerGone},
		{"another error of a connection that has ended", 1, func(p *fabricPeer) error { p.Close(); <-p.done; return errOdd }, 2, time.Millisecond, nil},
		{"the same of one that has not", 1, func(*fabricPeer) error { return errOdd }, 1, 0, errOdd},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFabric()
				f.onConn = func(_ context.Context, p *fabricPeer, k Kind) error {
					if k == KindHello && f.hellos.Load() <= int64(c.fails) {
						return c.how(p)
					}
					return nil
				}
				p, d := f.engine(t, "p:1", 1, 1, 16), f.engine(t, "d:1", 1, 1, 16)
				tokens := prompt(40, 1)
				h, _ := p.grant(t, tokens, 15)
				r := d.load(t, "r", h, tokens, d.blocksFor(40, 15))
				if r.Duration != c.took || f.dials.Load() != c.dials || (r.Err == nil) != (c.err == nil) {
					t.Errorf("%+v after %d dials, want %d and %v", r, f.dials.Load(), c.dials, c.took)
				}
				if r.Err != nil && (r.Err.Class != ClassHandshake || !errors.Is(r.Err, c.err)) {
					t.Error(r.Err)
				}
				f.nothingLeft(t, p, d)
			})
		})
	}
}

// A claim over a connection that had ended is made again over another, while the
// peer still holds the first, so often and with such pauses. It is the same
// engine that must answer, with the same geometry.
func TestClaimsAreMadeAgainOverAnotherConnection(t *testing.T) {
	greet := func(edit func(h *hello)) func(p *testEngine) {
		return func(p *testEngine) {
			n, next := 0, p.net.handlers[KindHello]
			p.net.handlers[KindHello] = func(ctx context.Context, from CallerID, body []byte) ([]byte, error) {
				out, err := next(ctx, from, body)
				if n++; n == 1 || err != nil {
					return out, err
				}
				h, err := decodeHello(out)
				if err != nil {
					return nil, err
				}
				edit(h)
				return h.encode(), nil
			}
		}
	}
	second := func(answer func() ([]byte, error)) func(p *testEngine) {
		return func(p *testEngine) {
			n, next := 0, p.net.handlers[KindClaim]
			p.net.handlers[KindClaim] = func(ctx context.Context, from CallerID, body []byte) ([]byte, error) {
				if n++; n == 2 {
					return answer()
				}
				return next(ctx, from, body)
			}
		}
	}
	for _, c := range []struct {
		name      string
		unnoticed time.Duration
		set       func(p *testEngine)
		claims    int64
		took      time.Duration
		class     LoadClass
		err       error
		text      string
	}{
		{name: "the peer notices at once", unnoticed: 1, claims: 3, took: time.Millisecond},
		{name: "the peer notices later", unnoticed: 100 * time.Millisecond, claims: 9, took: 127 * time.Millisecond},
		{
			name: "the peer does not notice", unnoticed: time.Minute, claims: 2 + reclaims, took: 1023 * time.Millisecond,
			class: ClassRefused, text: "busy",
		},
		{name: "another engine is there", set: greet(func(h *hello) { h.Incarnation[3]++ }), claims: 1, class: ClassHandshake, err: ErrStale},
		{name: "another model", set: greet(func(h *hello) { h.Factors[0].Value = "other" }), claims: 1, class: ClassIncompatible, err: ErrIncompatible},
		{name: "another block size", set: greet(func(h *hello) { h.BlockTokens = 32 }), claims: 1, class: ClassHandshake, text: "geometry"},
		{
			name: "other ranks", set: greet(func(h *hello) { h.Heads, h.Ranks = 2, append(h.Ranks, h.Ranks[0]) }),
			claims: 1, class: ClassHandshake, text: "geometry",
		},
		{name: "it fails again", set: second(func() ([]byte, error) { return nil, errOdd }), claims: 2, class: ClassHandshake, err: errOdd},
		{
			name: "it is refused", set: second(func() ([]byte, error) { return nil, &transfer.RefusedError{Code: "x"} }),
			claims: 2, class: ClassRefused, text: "refused (x)",
		},
		{name: "its answer is none", set: second(func() ([]byte, error) { return []byte{1}, nil }), claims: 2, class: ClassRefused, err: errWire},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFabric()
				f.unnoticed = c.unnoticed
				lost := false
				f.onAnswer = func(_ context.Context, _ string, k Kind) error {
					if k == KindClaim && !lost {
						lost = true
						return transfer.ErrPeerGone
					}
					return nil
				}
				p, d := f.engine(t, "p:1", 1, 1, 16), f.engine(t, "d:1", 1, 1, 16)
				if c.set != nil {
					c.set(p)
				}
				tokens := prompt(40, 1)
				h, pb := p.grant(t, tokens, 15)
				local := d.blocksFor(40, 15)
				r := d.load(t, "r", h, tokens, local)
				if r.Duration != c.took || f.claims.Load() != c.claims || f.hellos.Load() < 2 || c.class == "" && f.hellos.Load() > 2 {
					t.Errorf("%+v after %d claims and %d handshakes, want %d and 2, %v", r, f.claims.Load(), f.hellos.Load(), c.claims, c.took)
				}
				switch {
				case c.class == "" && r.Err != nil:
					t.Error(r.Err)
				case c.class == "":
					sameKV(t, p, d, pb, local, 0, 3)
				case r.Err == nil || r.Err.Class != c.class || !strings.Contains(r.Err.Error(), c.text) || c.err != nil && !errors.Is(r.Err, c.err):
					t.Errorf("%v, want %s: %v %s", r.Err, c.class, c.err, c.text)
				}
				f.nothingLeft(t, p, d)
			})
		})
	}
}

// A claim that was answered stands, whatever has become of its connection: the
// reads find out. One that is cancelled between two attempts is not made again.
func TestClaimsThatAreNotMadeAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFabric()
		f.onAnswer = func(_ context.Context, _ string, k Kind) error {
			if k == KindClaim {
				f.nets["p:1"].kill()
				<-time.After(time.Millisecond) // so that it is known
			}
			return nil
		}
		p, d := f.engine(t, "p:1", 1, 1, 16), f.engine(t, "d:1", 1, 1, 16)
		tokens := prompt(40, 1)
		h, _ := p.grant(t, tokens, 15)
		r := d.load(t, "r", h, tokens, d.blocksFor(40, 15))
		if r.Err == nil || r.Err.Class != ClassRead || f.claims.Load() != 1 || r.Duration != time.Millisecond {
			t.Errorf("%+v after %d claims", r, f.claims.Load())
		}
		f.nothingLeft(t, p, d)
	})
	synctest.Test(t, func(t *testing.T) {
		f := newFabric()
		f.unnoticed = time.Minute
		f.onAnswer = func(_ context.Context, _ string, k Kind) error {
			if k == KindClaim && f.claims.Load() == 1 {
				return transfer.ErrPeerGone
			}
			return nil
		}
		p, d := f.engine(t, "p:1", 1, 1, 16), f.engine(t, "d:1", 1, 1, 16)
		tokens := prompt(40, 1)
		h, _ := p.grant(t, tokens, 15)
		d.Load(LoadSpec{ID: "r", Handoff: h, Prompt: tokens, Local: d.blocksFor(40, 15), ToTile: 3})
		<-time.After(10 * time.Millisecond)
		d.CancelLoad("r")
		if r := d.report(t); !r.Canceled || r.Duration != 10*time.Millisecond || f.claims.Load() != 5 {
			t.Errorf("%+v after %d claims", r, f.claims.Load())
		}
		f.nothingLeft(t, p, d)
	})
}

package connector

import (
	"context"
	"errors"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"tandem/internal/kv"
	"tandem/internal/transfer"
)

// A return whose acknowledgement is lost was acted on: P has its blocks at once
// and once, and D, which asks again, hears what it wanted.
func TestLostNoticeOfAReturn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var lost, asked, failed atomic.Int64
		f := newFabric()
		f.onAnswer = func(_ context.Context, _ string, k Kind) error {
			if k != KindReturn {
				return nil
			}
			if asked.Add(1) <= 3 {
				lost.Add(1)
				return errors.New("lost on the way back")
			}
			return nil
		}
		p := f.engine(t, "p:1", 1, 1, 16)
		d := f.engine(t, "d:1", 1, 1, 16, func(c *Config) { c.Metrics.ReturnFailed = func(kv.EngineID) { failed.Add(1) } })
		tokens := prompt(40, 1)
		h, pb := p.grant(t, tokens, 15)
		if r := d.load(t, "r", h, tokens, d.blocksFor(40, 15)); r.Err != nil || r.Duration != 0 {
			t.Fatalf("%+v", r)
		}
		begun := time.Now()
		if got := p.freedBlocks(t); !slices.Equal(got, pb) || time.Since(begun) != 0 {
			t.Fatalf("freed %v after %v", got, time.Since(begun))
		}
		<-time.After(2 * d.cfg.ReturnTimeout)
		synctest.Wait()
		select {
		case b := <-p.Freed():
			t.Errorf("blocks %v are freed a second time", b)
		default:
		}
		if s := p.Status().Leases; s.Returned != 1 || s.Live != 0 || s.Expired != 0 {
			t.Errorf("%+v", s)
		}
		if lost.Load() != 3 || asked.Load() != 4 || failed.Load() != 0 {
			t.Errorf("%d answers lost of %d, %d returns given up", lost.Load(), asked.Load(), failed.Load())
		}
	})
}

// A return that never reaches P costs P's blocks until the lease ends, and no
// longer; the load it belongs to was reported at once.
func TestLostReturnEndsWithItsLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var lost, failed, expired atomic.Int64
		f := newFabric()
		f.onCall = func(_ context.Context, _ string, k Kind) error {
			if k == KindReturn {
				lost.Add(1)
				return errors.New("lost on the way")
			}
			return nil
		}
		limits := func(c *Config) {
			c.LeaseDuration, c.MaxClaim, c.ReturnTimeout = 10*time.Second, 20*time.Second, 2*time.Second
		}
		p := f.engine(t, "p:1", 1, 1, 16, limits, func(c *Config) { c.Metrics.Expired = func() { expired.Add(1) } })
		d := f.engine(t, "d:1", 1, 1, 16, limits, func(c *Config) { c.Metrics.ReturnFailed = func(kv.EngineID) { failed.Add(1) } })
		tokens := prompt(40, 1)
		begun := time.Now()
		h, pb := p.grant(t, tokens, 15)
		if r := d.load(t, "r", h, tokens, d.blocksFor(40, 15)); r.Err != nil || r.Duration != 0 {
			t.Fatalf("%+v", r)
		}
		if got := p.freedBlocks(t); !slices.Equal(got, pb) {
			t.Fatalf("freed %v", got)
		}
		if took := time.Since(begun); took > 20*time.Second || took < 2*time.Second {
			t.Errorf("P's blocks came back after %v", took)
		}
		synctest.Wait()
		if s := p.Status().Leases; s.Live != 0 || s.Returned != 0 {
			t.Errorf("%+v", s)
		}
		if lost.Load() < 3 || failed.Load() != 1 || expired.Load() != 1 {
			t.Errorf("%d returns lost, %d given up, %d leases expired", lost.Load(), failed.Load(), expired.Load())
		}
	})
}

// A return whose message or acknowledgement is lost is tried again, with pauses
// that double, and counts as failed only when all attempts were in vain. What P
// had back at the first attempt is not given back twice.
func TestReturnIsTriedUntilItIsAcknowledged(t *testing.T) {
	for _, c := range []struct {
		name     string
		reaches  bool // P acts, and its answer is lost
		attempts int32
	}{{"the message is lost", false, 4}, {"the answer is lost", true, 4}, {"nothing is lost", false, 1}} {
		synctest.Test(t, func(t *testing.T) {
			f := newFabric()
			var calls, lost atomic.Int32
			var p *testEngine
			var h *Handoff
			f.onCall = func(ctx context.Context, _ string, k Kind) error {
				if k != KindReturn || calls.Add(1) == c.attempts {
					return nil
				}
				if c.reaches {
					_, err := p.answerReturn(ctx, CallerID{}, encodeLeases(h.Incarnation, []LeaseID{h.Lease}))
					if err != nil {
						t.Error(err)
					}
				}
				return errors.New("lost on the way")
			}
			p = f.engine(t, "p:1", 1, 1, 16)
			d := f.engine(t, "d:1", 1, 1, 16, func(c *Config) {
				c.Metrics.ReturnFailed = func(kv.EngineID) { lost.Add(1) }
			})
			var pb []kv.BlockID
			h, pb = p.grant(t, prompt(40, 1), 15)
			began := time.Now()
			d.ReturnUnread(h)
			if got := p.freedBlocks(t); !slices.Equal(got, pb) {
				t.Fatalf("%s: freed %v, want %v", c.name, got, pb)
			}
			<-time.After(d.cfg.ReturnTimeout)
			synctest.Wait()
			if s := p.Status().Leases; s.Returned != 1 || s.Live != 0 || calls.Load() != c.attempts || lost.Load() != 0 {
				t.Errorf("%s: %+v after %d attempts, %d counted as lost", c.name, s, calls.Load(), lost.Load())
			}
			// 50, 100 and 200 ms between four attempts.
			if took := time.Since(began) - d.cfg.ReturnTimeout; !c.reaches && took != time.Duration(1<<(c.attempts-1)-1)*firstRetry {
				t.Errorf("%s: took %v", c.name, took)
			}
		})
	}
}

// A lease ended with the process that made it: what cannot be given back because
// another process is there is not tried again, and is no lost return.
func TestReturnToAnotherProcessIsNoneThatIsLost(t *testing.T) {
	for _, noticed := range []bool{true, false} { // that the first process has ended
		synctest.Test(t, func(t *testing.T) {
			f := newFabric()
			var book ledger
			p, d := f.engine(t, "p:1", 1, 1, 16), f.engine(t, "d:1", 1, 1, 16, book.in)
			tokens := prompt(40, 1)
			unread, _ := p.grant(t, tokens, 15)
			loaded, _ := p.grant(t, tokens, 12)
			if !noticed {
				f.onConn = func(_ context.Context, c *fabricPeer, k Kind) error {
					if k == KindClaim { // it meets the end, and then another process
						c.to.kill()
						f.engine(t, "p:1", 1, 1, 16)
						<-c.done
						return transfer.ErrPeerGone
					}
					return nil
				}
				if r := d.load(t, "r", loaded, tokens, d.blocksFor(40, 15)); r.Err == nil || r.Err.Class != ClassHandshake || !errors.Is(r.Err, ErrStale) {
					t.Errorf("%+v", r)
				}
			} else {
				p.stop()
				f.engine(t, "p:1", 1, 1, 16)
			}
			before := f.hellos.Load()
			d.ReturnUnread(unread)
			<-time.After(2 * d.cfg.ReturnTimeout)
			synctest.Wait()
			if n := f.hellos.Load() - before; book.lost != 0 || n < 1 || n > 2 {
				t.Errorf("noticed %v: %d returns lost, %d handshakes", noticed, book.lost, n)
			}
		})
	}
}

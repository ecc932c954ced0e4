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
)

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

package simulation

import (
	"bytes"
	"strings"
	"testing"

	"tandem/internal/fault"
)

// A seed that breaks a promise shrinks to what the promise is about, and fails the
// same way again.
func TestShrinkKeepsWhatMatters(t *testing.T) {
	runners := runnersOf(t, 1)
	// The promise: request 7 is never answered after a claim was refused.
	opt := Options{Requests: 20, also: func(w *world) {
		if w.cover.Cells[fault.Cell{Point: fault.Claim, Action: fault.Error}] == 0 {
			return
		}
		for _, c := range w.calls {
			if c.id == 7 && c.over && len(c.got[0]) == len(c.q.want[0].tokens) {
				w.fail("request 7 is answered")
			}
		}
	}}
	tried := 0
	for seed := uint64(1); tried < 3; seed++ {
		if seed > 1000 {
			t.Fatal("no seed breaks the promise")
		}
		v := runners[0].Run(seed, opt, NewCoverage())
		if v == nil {
			continue
		}
		tried++
		mask, smaller := runners[0].Shrink(v, opt)
		var out bytes.Buffer
		last := opt
		last.Mask, last.Trace = mask, &out
		again := runners[0].Run(seed, last, NewCoverage())
		if again == nil || *again != *smaller || again.What != "request 7 is answered" {
			t.Fatalf("seed %d: %v, shrunk %v", seed, again, smaller)
		}
		if n := strings.Count(out.String(), ": prompt "); n > 12 || mask.Requests[7] {
			t.Errorf("seed %d: %d requests are left:\n%s", seed, n, out.String())
		}
		if n := strings.Count(out.String(), "- fault "); n > 2 || !strings.Contains(out.String(), `"point":"claim"`) {
			t.Errorf("seed %d: %d faults are left:\n%s", seed, n, out.String())
		}
	}
}

//go:build invariants

package sched

import (
	"fmt"

	"tandem/internal/kv"
)

// audits tells whether everything is checked after each call.
const audits = true

// audit knows which blocks leases hold, so that every reference of the pool has
// its owner.
type audit struct{ leases map[kv.BlockID]int }

func (a *audit) lease(blocks []kv.BlockID) {
	if a.leases == nil {
		a.leases = make(map[kv.BlockID]int)
	}
	for _, b := range blocks {
		a.leases[b]++
	}
}

func (a *audit) release(blocks []kv.BlockID) {
	for _, b := range blocks {
		if a.leases[b]--; a.leases[b] < 0 {
			panic(fmt.Sprintf("sched: block %d released that no lease holds", b))
		}
	}
}

// audited checks the scheduler after a call.
func (s *Scheduler) audited(call string) {
	if err := s.Check(s.audit.leases); err != nil {
		panic(fmt.Sprintf("sched: after %s: %v", call, err))
	}
}

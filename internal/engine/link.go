package engine

import (
	"tandem/internal/connector"
	"tandem/internal/kv"
)

// A Connector is what the engine uses of a *connector.Connector. All methods
// return at once unless they take a context.
type Connector interface {
	// Verify says whether the cluster vouches for h and h fits prompt. It may be
	// called from any goroutine.
	Verify(h *connector.Handoff, prompt []kv.Token) error

	// Track keeps the lease of h alive while its request waits here; Untrack
	// ends that.
	Track(h *connector.Handoff)
	Untrack(h *connector.Handoff)

	// Load starts reading; exactly one report follows on Reports. CancelLoad
	// hurries it: the report comes when no byte can land any more.
	Load(connector.LoadSpec)
	CancelLoad(kv.RequestID)
	Reports() <-chan connector.LoadReport

	// Grant makes a lease of finished blocks; nil: there is none, and the blocks
	// stay the caller's. Freed gives the blocks of ended leases back. Revoke
	// ends the lease of an answer that was not delivered.
	Grant(connector.LeaseSpec) *connector.Handoff
	Freed() <-chan []kv.BlockID
	Revoke(h *connector.Handoff)

	// ReturnUnread gives back the lease of a hand-off that is not read.
	ReturnUnread(h *connector.Handoff)
}

var _ Connector = (*connector.Connector)(nil)

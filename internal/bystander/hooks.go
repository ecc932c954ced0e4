// Package bystander keeps what only watches from changing what it watches.
//
// Metrics and logs belong to others: a library, a disk, a terminal that somebody
// stopped. A part that reports to them goes on whatever they do. Hooks takes the
// panics of metric functions, Logs takes log lines away from whoever writes them
// to a goroutine that may wait.
package bystander

import (
	"log/slog"
	"sync/atomic"
)

// Hooks takes the panics of functions that receive copies of what happens. The
// first one is logged.
type Hooks struct {
	log   *slog.Logger
	owner string
	said  atomic.Bool
}

// NewHooks returns a Hooks for the hooks of owner.
func NewHooks(owner string, log *slog.Logger) *Hooks { return &Hooks{log: log, owner: owner} }

// Catch ends a panic. It is to be deferred by the function that calls the hook.
func (h *Hooks) Catch() {
	if p := recover(); p != nil && !h.said.Swap(true) {
		h.log.Error("a metric panicked; its numbers are wrong from now on", "of", h.owner, "panic", p)
	}
}

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

// catch ends a panic of the function that defers it.
func (h *Hooks) catch() {
	if p := recover(); p != nil && !h.said.Swap(true) {
		h.log.Error("a metric panicked; its numbers are wrong from now on", "of", h.owner, "panic", p)
	}
}

// Safe0 returns f, or for nil a function that does nothing, without its panics.
func Safe0(h *Hooks, f func()) func() {
	return func() {
		if f != nil {
			defer h.catch()
			f()
		}
	}
}

// Safe1 is Safe0 for functions of one argument.
func Safe1[A any](h *Hooks, f func(A)) func(A) {
	return func(a A) {
		if f != nil {
			defer h.catch()
			f(a)
		}
	}
}

// Safe2 is Safe0 for functions of two arguments.
func Safe2[A, B any](h *Hooks, f func(A, B)) func(A, B) {
	return func(a A, b B) {
		if f != nil {
			defer h.catch()
			f(a, b)
		}
	}
}

// Safe3 is Safe0 for functions of three arguments.
func Safe3[A, B, C any](h *Hooks, f func(A, B, C)) func(A, B, C) {
	return func(a A, b B, c C) {
		if f != nil {
			defer h.catch()
			f(a, b, c)
		}
	}
}

// Safe4 is Safe0 for functions of four arguments.
func Safe4[A, B, C, D any](h *Hooks, f func(A, B, C, D)) func(A, B, C, D) {
	return func(a A, b B, c C, d D) {
		if f != nil {
			defer h.catch()
			f(a, b, c, d)
		}
	}
}

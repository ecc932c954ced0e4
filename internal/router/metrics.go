package router

import "tandem/internal/bystander"

// Metrics is told what happened; every field may be nil. What a function does,
// its panic included, changes no answer.
type Metrics struct {
	Request func(path, route string, status int, seconds float64)
	Leg     func(role, name, outcome string, seconds float64)
	Retry   func(role, reason string)
	Release func(outcome string)
	State   func(role, name string, ready bool)
}

// How a release of a hand-off ends.
const (
	releaseOK   = "ok"
	releaseLost = "lost" // P did not confirm it: the lease runs out
)

// ReleaseOutcomes returns what Metrics.Release is told.
func ReleaseOutcomes() []string { return []string{releaseOK, releaseLost} }

// fill makes every function safe to call.
func (m *Metrics) fill(h *bystander.Hooks) {
	m.Request = bystander.Safe4(h, m.Request)
	m.Leg = bystander.Safe4(h, m.Leg)
	m.Retry = bystander.Safe2(h, m.Retry)
	m.Release = bystander.Safe1(h, m.Release)
	m.State = bystander.Safe3(h, m.State)
}

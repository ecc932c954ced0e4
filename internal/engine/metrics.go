package engine

import (
	"time"

	"tandem/internal/bystander"
	"tandem/internal/connector"
	"tandem/internal/kv"
)

// Metrics receives copies of what happens; nil functions are not called. They
// run on the step loop and must not block. What a function does, its panic
// included, changes nothing here.
type Metrics struct {
	// Step tells of a computed step.
	Step func(tokens, seqs int, d time.Duration)

	// FirstToken tells the time from Submit to the first token of a request.
	FirstToken func(d time.Duration)

	// InterToken tells the time between two tokens of a choice.
	InterToken func(d time.Duration)

	// Preempted tells how many requests gave their blocks back in a step.
	Preempted func(n int)

	// Admitted tells of a prompt whose first token was sampled: tokens by the
	// source of their KV.
	Admitted func(u Usage)

	// LoadFailed tells of a load that did not bring all its tiles.
	LoadFailed func(connector.LoadClass)

	// Recovered tells of loads whose missing tokens are computed here.
	Recovered func(requests, tokens int)

	// Finished tells of a request that ended.
	Finished func(RequestStats)
}

// RequestStats sums up a request that ended.
type RequestStats struct {
	ID       kv.RequestID
	ClientID string
	Finish   FinishReason // of the last choice
	Err      error        // nil unless the request failed
	Usage    Usage
	N        int
	Max      int // tokens asked for or that fit, per choice

	Total   time.Duration // Submit to end
	Queue   time.Duration // Submit to first plan
	Prefill time.Duration // first plan to first token
	Decode  time.Duration // first token to end
}

// fill makes every function safe to call.
func (m *Metrics) fill(h *bystander.Hooks) {
	m.Step = bystander.Safe3(h, m.Step)
	m.FirstToken = bystander.Safe1(h, m.FirstToken)
	m.InterToken = bystander.Safe1(h, m.InterToken)
	m.Preempted = bystander.Safe1(h, m.Preempted)
	m.Admitted = bystander.Safe1(h, m.Admitted)
	m.LoadFailed = bystander.Safe1(h, m.LoadFailed)
	m.Recovered = bystander.Safe2(h, m.Recovered)
	m.Finished = bystander.Safe1(h, m.Finished)
}

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

// fill makes every function safe to call.
func (m *Metrics) fill(g *bystander.Hooks) {
	in := *m
	m.Request = func(path, route string, status int, seconds float64) {
		if in.Request != nil {
			defer g.Catch()
			in.Request(path, route, status, seconds)
		}
	}
	m.Leg = func(role, name, outcome string, seconds float64) {
		if in.Leg != nil {
			defer g.Catch()
			in.Leg(role, name, outcome, seconds)
		}
	}
	m.Retry = func(role, reason string) {
		if in.Retry != nil {
			defer g.Catch()
			in.Retry(role, reason)
		}
	}
	m.Release = func(outcome string) {
		if in.Release != nil {
			defer g.Catch()
			in.Release(outcome)
		}
	}
	m.State = func(role, name string, ready bool) {
		if in.State != nil {
			defer g.Catch()
			in.State(role, name, ready)
		}
	}
}

package fault

import (
	"slices"
)

// A Subject is what a decision can know of a call.
type Subject struct {
	Request string // the client's name of it; empty where calls serve several
	Peer    string // address of the other side, empty where it is not known
}

// A schedule decides by a plan. It is data and arithmetic.
type schedule struct {
	plan  Plan
	calls []uint64 // by fault: calls that its RequestID and Peer mean
}

func newSchedule(p Plan) *schedule {
	p.Faults = slices.Clone(p.Faults)
	return &schedule{plan: p, calls: make([]uint64, len(p.Faults))}
}

// decide numbers the call for every fault that means it, and returns the first
// one that hits it.
func (s *schedule) decide(p Point, sub Subject) (hit Fault, ok bool) {
	for i := range s.plan.Faults {
		f := &s.plan.Faults[i]
		if f.Point != p || !glob(f.When.RequestID, sub.Request) || !glob(f.When.Peer, sub.Peer) {
			continue
		}
		s.calls[i]++
		if n := s.calls[i]; !ok && f.When.hits(s.plan.Seed, uint64(i), n) {
			hit, ok = *f, true
			hit.Draw = draw(s.plan.Seed, uint64(i), n, 1)
		}
	}
	return hit, ok
}

// hits reports whether call n of fault i is hit.
func (w *When) hits(seed, i, n uint64) bool {
	if w.Pattern != "" {
		at := n - 1
		if w.Once && at >= uint64(len(w.Pattern)) || w.Pattern[at%uint64(len(w.Pattern))] != 'X' {
			return false
		}
	}
	if len(w.Nth) > 0 && !slices.Contains(w.Nth, n) {
		return false
	}
	// 53 bits, as many as a float64 has between 0 and 1.
	return w.Probability == 0 || float64(draw(seed, i, n, 0)>>11) < w.Probability*(1<<53)
}

// draw returns the random number of one use of one call of one fault.
func draw(seed, fault, call, use uint64) uint64 {
	return mix(mix(mix(mix(seed)^fault)^call) ^ use)
}

// mix is the step of SplitMix64.
func mix(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// glob reports whether s matches pattern, in which * is any run of bytes and ?
// one byte. The empty pattern matches everything.
func glob(pattern, s string) bool {
	if pattern == "" {
		return true
	}
	p, i := 0, 0
	star, from := -1, 0 // the last star, and where what it swallows ends
	for i < len(s) {
		switch {
		case p < len(pattern) && pattern[p] == '*':
			star, from = p, i
			p++
		case p < len(pattern) && (pattern[p] == '?' || pattern[p] == s[i]):
			p++
			i++
		case star >= 0:
			from++
			p, i = star+1, from
		default:
			return false
		}
	}
	for p < len(pattern) && pattern[p] == '*' {
		p++
	}
	return p == len(pattern)
}

//go:build invariants

package engine

import "fmt"

// audit checks that core and scheduler agree on what is alive. It runs after
// every step and panics, since a difference is a bug of this package.
func (c *core) audit() {
	live := 0
	for g := range c.groups {
		left := g.req.N - len(g.choices)
		for _, ch := range g.choices {
			if ch.over {
				continue
			}
			left++
			live++
			if _, ok := c.sched.Counts(ch.id); !ok {
				panic(fmt.Sprintf("engine: the scheduler does not know %s", ch.id))
			}
		}
		if g.over || left != g.left {
			panic(fmt.Sprintf("engine: %s has %d choices to end, counted %d, over %t", g.id, left, g.left, g.over))
		}
	}
	s := c.sched.Stats()
	if n := s.Running + s.Waiting + s.Loading; n != live {
		panic(fmt.Sprintf("engine: %d choices are alive, the scheduler has %d", live, n))
	}
	if s.Loading > len(c.loads) {
		panic(fmt.Sprintf("engine: %d requests load, %d loads run", s.Loading, len(c.loads)))
	}
}

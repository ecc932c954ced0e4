//go:build !invariants

package engine

// audit checks the core in builds with the invariants tag.
func (c *core) audit() {}

package transfer

import "sync"

// A guard counts who uses a region's memory and can be shut: then nobody enters
// any more, and the one who shut it can wait for those inside.
type guard struct {
	mu    sync.Mutex
	n     int
	open  bool
	empty chan struct{} // closed when n is 0 after a shut; nil when nobody waits
}

func (g *guard) enter() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.open {
		return false
	}
	g.n++
	return true
}

func (g *guard) leave() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.n--
	if g.n == 0 && g.empty != nil {
		close(g.empty)
		g.empty = nil
	}
}

func (g *guard) isOpen() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.open
}

func (g *guard) reopen() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.open = true
}

// shut closes the guard and returns a channel that is closed once nobody is
// inside.
func (g *guard) shut() <-chan struct{} {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.open = false
	if g.n == 0 {
		done := make(chan struct{})
		close(done)
		return done
	}
	if g.empty == nil {
		g.empty = make(chan struct{})
	}
	return g.empty
}

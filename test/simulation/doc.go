// Package simulation runs whole systems of two prefill engines, two decode
// engines and a router in one goroutine, under a seed.
//
// What decides is the product's own: flows of the router, engines with their
// schedulers, lease tables, peer tables and loads; the KV bytes lie in real
// arenas and are checked with the product's sums; package sim is the model. What
// the package adds is a world around them: a clock that jumps from event to
// event, a network that delivers late or never, clients that leave, processes
// that are killed, frozen and started again. The seed draws all of it, and faults
// by the plans of package fault at every point that those know.
//
// After every event the invariants are checked (check.go): blocks are conserved
// and have one owner, nothing leased is free, the prefix index holds only what a
// lone engine would have computed, whatever waits has a deadline, and somebody
// gets on. Every token that a client gets is compared with that of a lone engine.
//
// A seed that fails can be run again, with a trace of every event, and shrunk to
// the requests, faults and acts without which it does not fail.
package simulation

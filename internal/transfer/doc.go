// Package transfer moves tiles of KV memory between engines.
//
// It hides sockets, frames, authentication, memory maps of other processes and
// the pool of goroutines that copy. A Host is one engine's listening address
// and its connections; an Agent is the transfer end of one rank; a Region is
// registered memory; a Remote is a peer's region as a reader sees it; a Plan
// binds a local and a remote region once, and its Reads move lists of tiles.
// The connector is the only caller. Nothing here knows tokens, blocks or
// leases: whether a peer may read is asked of the Authorize hook.
//
// Three paths carry data: mem (both agents in one process), memfd (the reader
// maps the owner's memory file, read-only) and tcp (the owner streams). Every
// read is stamped with an epoch. The owner's control word, epoch<<1|released,
// is checked before and after each piece that is copied from a map, so bytes of
// a released or restored region are never taken for good ones; a streaming
// owner validates region, epoch, lease and bounds itself and holds a guard that
// a release waits for.
//
// Every goroutine belongs to its Host and has ended when Run returns. The wire
// is described in docs/protocol.md.
package transfer

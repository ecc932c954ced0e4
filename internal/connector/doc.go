// Package connector moves the KV cache of one prompt from the engine that
// computed it (P) to the engine that answers (D).
//
// It hides everything between "these blocks are finished" and "these tiles are
// in place and verified": the hand-off that travels through the router, the
// leases that keep P's blocks, the handshake with a peer, the claim, the reads,
// the check of every tile against P's sums, and the return.
//
// The engine is its only caller. On P it calls Grant when a request with a
// hand-off flag finishes and takes ended leases' blocks from Freed; on D it
// calls Verify at admission, Track while the request waits, Load when the
// destination blocks are reserved, and takes exactly one LoadReport for each
// Load from Reports.
//
// What decides is a synchronous value without clock, goroutine, lock or I/O: the
// lease table, the peer table and a load of package core, where their states are
// drawn. Around each stands a small shell: one loop for the lease table, one for
// the peer table, one goroutine for each load.
//
// Invariants: nothing in a hand-off is used before its MAC is verified; no
// address is dialled that a verified hand-off did not name; no tile is reported
// valid whose bytes were not checked after they landed; every load is reported
// exactly once, after the last of its pieces can no longer write; every lease
// ends exactly once.
package connector

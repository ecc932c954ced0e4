// Package sched decides, one step at a time, which requests run and which KV
// blocks they hold.
//
// A Scheduler is data and arithmetic. It starts no goroutine, reads no clock,
// writes no log and performs no I/O; the engine's step loop is its only caller.
// The same calls in the same order give the same plans.
//
// # Life cycle
//
//	queued ──▶ running ──▶ finished      the ordinary path
//	queued ──▶ loading ──▶ queued        its KV arrives from a peer
//	running ──▶ queued                   preempted: blocks given back, computed again
//	loading ──▶ finished                 aborted, or the load failed and may not be recomputed
//	queued ──▶ finished                  aborted
//
// A queued request holds no blocks, unless a load has ended and it waits for a
// place in the batch: then it is parked and keeps what was loaded.
//
// # Order
//
// Requests rank by priority (when configured; lower values first), then by
// arrival. Admission follows the rank strictly: behind a request that does not
// fit, nobody takes blocks. A request gets the blocks of its whole prompt when
// it is admitted, to run or to load, so whatever was admitted can make its first
// step, and only decoding ever asks for more. Then the lowest ranked request
// that holds blocks gives way, if it ranks below the one that asks; else the
// asking one sits the step out and keeps what it has. So the highest ranked
// request always gets on, and nobody is preempted in turn. A request that was
// preempted is admitted again with growing reserve, and at last only when
// everything that runs can finish beside it.
//
// # Blocks
//
// A block is written by one request only, and only behind what is verified:
// hits of the prefix index and loaded tiles are read. A block enters the index
// when all of its tokens are computed here or verified, never before. A request
// that is aborted during its load keeps its blocks until the load has ended
// (LoadDone), since bytes may still land in them. A request with a lease hands
// its blocks to the caller when it finishes; they come back through Release.
package sched

// Package engine runs a model: tokens in, tokens out.
//
// It hides the step loop. Callers submit a Request and read Outputs from a
// Stream; between the two the engine schedules, loads KV that a hand-off
// offers, computes, samples, and grants leases. It knows no text and no HTTP.
//
// What decides is the core: requests, scheduler and sampling as one value
// without clock, goroutine, lock or I/O. Events go in through its methods and
// effects come out as data. Around it stands one loop (Run), the only goroutine
// that touches the core:
//
//	submits, aborts, load reports, freed blocks
//	        │
//	        ▼
//	Plan ──▶ Model.Step ──▶ sample ──▶ Apply ──▶ streams, loads, leases
//
// The loop never waits for a reader: each stream is bounded, and a reader that
// falls behind loses its request. Without work the loop sleeps until an event
// wakes it. Every submitted request ends: with a finish reason or with an error.
// A model that fails or panics ends the engine, since its state may be half
// changed: every request ends with an error, and Err says why.
package engine

// Package spec says what an engine must know of the model that it runs.
//
// It is a leaf with two types, so that the implementations of engine.Model can
// name them without importing the engine and, with it, the scheduler and the
// connector. The engine offers the same types under its own name.
package spec

import "tandem/internal/kv"

// A Factor is one named property that two engines must share before one reads
// the other's KV: model content, architecture, KV type, arithmetic version.
type Factor struct {
	Name  string // lower case, words joined by '_'
	Value string
}

// ModelInfo describes a loaded model. It does not change while the model lives.
type ModelInfo struct {
	Name        string
	Vocab       int // number of tokens; logits rows have this length
	MaxLen      int // longest sequence in tokens, prompt and output together
	Layers      int
	KVHeads     int // over all ranks
	HeadDim     int
	TP          int        // ranks, and so the number of arenas
	EOS         []kv.Token // tokens that end an output unless they are ignored
	Fingerprint []Factor   // in a fixed order, compared at the handshake
	Kernel      string     // the arithmetic path chosen at start, for logs
}

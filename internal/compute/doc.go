// Package compute is the arithmetic of a forward pass: quantized matrices and
// their products, the row operations between them, attention over a paged KV
// cache, and the thread team that runs them.
//
// It hides the packed layouts, the assembly and the choice of it by CPU. Every
// path gives the same bits; what they are is written in docs/arithmetic.md, and
// ArithmeticVersion numbers that page. The assembly comes from the module in
// gen and is never edited by hand.
//
// A matrix lies in groups of 16 rows, so that a vector lane is one output and
// nothing is ever summed across lanes: a result depends neither on the tokens
// that share a step nor on the threads that compute it. No function here
// allocates but those named New, Alloc and Pack. Arguments of the wrong shape
// are bugs of the caller and panic.
package compute

// ArithmeticVersion numbers docs/arithmetic.md. Engines whose numbers differ
// must not exchange KV.
const ArithmeticVersion = 1

// Lanes is the number of virtual lanes: the rows of a group, the tokens of a
// KV tile and the most tokens of an activation tile.
const Lanes = 16

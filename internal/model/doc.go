// Package model computes a transformer's forward pass over paged KV.
//
// It hides the architecture (llama: grouped queries, rotary embedding of
// neighbouring pairs, RMSNorm, SiLU feed-forward), the packing of a GGUF
// file's weights, and how a step is cut into jobs for a thread team. A Model
// implements engine.Model; its one caller is the engine's step loop.
//
// Every product and sum is one of package compute's, in the order of
// docs/arithmetic.md, so the logits of a sequence have the same bits whatever
// shares the step, however a prompt is cut into steps, and with any number of
// threads, block size or degree of tensor parallelism.
//
// # Ranks
//
// Tensor parallelism divides the KV heads: rank r holds heads
// [r*H/tp, (r+1)*H/tp) in an arena of its own, which its peers of any degree
// read. The inputs of the attention output and the down matrix are cut into
// four fixed segments at every degree, whole ones to a rank. All ranks run on
// one team, so a rank's share of a matrix is a range of its rows or segments
// and not a copy.
//
// # Steps
//
// A step runs in passes of up to passRows tokens. A pass goes through the
// layers in these jobs: norm and query-key-value products, rotary
// embedding with the writes to the cache, attention, output product with the
// residual sum, gate and up products with SiLU, down product with the residual
// sum. A sequence's single token is rotated and written by the attention job.
// Behind the last attention only rows whose logits are wanted go on.
package model

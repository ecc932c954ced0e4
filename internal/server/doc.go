// Package server is the HTTP front of one engine: text in, text out.
//
// It hides the OpenAI API of an engine: prompts and conversations become token
// ids, outputs become text with stop strings cut and characters whole, and what
// goes wrong becomes a status and an error body. cmd wires it to an engine; the
// router in front of it knows only what any HTTP client sees.
//
// A request runs in its handler's goroutine:
//
//	parse ──▶ encode ──▶ Submit ──▶ outputs ──▶ choices ──▶ body or events
//
// A whole answer and a stream come out of the same choices: a stream takes what
// they have gathered at each step, a body takes it once at the end, so both have
// the same text, counts and log-probabilities.
//
// Nobody waits for a reader: the engine's queue is bounded, each write has a
// deadline, and a client that has gone ends its request within a step.
package server

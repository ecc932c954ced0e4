package sched

import (
	"fmt"

	"tandem/internal/kv"
	"tandem/internal/moves"
)

// A Request is what the engine submits. The scheduler reads Prompt and never
// changes it; the caller must not change it either.
type Request struct {
	ID     kv.RequestID
	Prompt []kv.Token // at least one token

	// MaxTokens is the most tokens to make, at least 1. The scheduler lowers it
	// to what fits into Limit.
	MaxTokens int

	Priority int    // lower values first, when the scheduler goes by priority
	Arrival  uint64 // sequence number; earlier first
	Salt     string // prefix hits need the same salt

	// External is the number of tokens, from the start of the prompt, whose KV a
	// hand-off offers; 0 without one. A load covers what is missing here of
	// the first min(External, len(Prompt)-1) tokens. It is tried once.
	External int

	// NoCache makes every prompt token be computed here: no prefix hits and no
	// load. Every prompt position gives a row of logits.
	NoCache bool

	// Lease hands the blocks to the caller when the request finishes. The
	// partial tile at the end is sealed in each step that samples.
	Lease bool

	// Tag is carried unread and handed back in Item, Load and Finished.
	Tag any
}

// A Reason says why a request finished.
type Reason uint8

// The reasons.
const (
	Unfinished Reason = iota // it goes on
	Stop                     // the engine saw a stop token or string
	Length                   // MaxTokens, or the limit of context and pool
	Aborted                  // the caller withdrew it
	LoadFailed               // its load failed and was not to be recomputed
)

// String returns the reason in the words of the API, where it has them.
func (r Reason) String() string {
	switch r {
	case Unfinished:
		return ""
	case Stop:
		return "stop"
	case Length:
		return "length"
	case Aborted:
		return "abort"
	case LoadFailed:
		return "error"
	}
	return fmt.Sprintf("Reason(%d)", uint8(r))
}

// Counts says where the KV of a request's prompt came from. Local, Loaded,
// Recomputed and Computed are tokens and add up to Prompt, at any time. They
// stand when the first token is sampled; what is computed again after a
// later preemption counts in Redone only.
type Counts struct {
	Prompt     int
	Local      int // hits of the prefix index
	Loaded     int // loaded from a peer and verified
	Recomputed int // promised by a load, not delivered or lost, computed here
	Computed   int // all others
	Redone     int // tokens, prompt and output, computed again after preemption
	Output     int // tokens sampled
	Preempted  int // times
}

// status is where a request is in its life cycle.
type status uint8

const (
	queued status = iota
	loading
	running
	finished
)

// String returns the name that the life cycle's drawing uses.
func (s status) String() string {
	switch s {
	case queued:
		return "queued"
	case loading:
		return "loading"
	case running:
		return "running"
	case finished:
		return "finished"
	}
	return fmt.Sprintf("status(%d)", uint8(s))
}

// Moves is the drawing of a request's life cycle.
var Moves = moves.Draw("sched: request",
	[]status{loading, running, finished},
	[]status{queued, finished},
	[]status{queued, finished},
	nil,
)

// span is a range of token positions [from, to).
type span struct{ from, to int }

// request is everything that the scheduler knows of one request.
type request struct {
	Request
	status status
	moves  *moves.Count
	number uint64 // in the order of Add; breaks ties of rank
	place  int    // index in the queue's heap, -1 outside

	tokens []kv.Token // prompt and output; the prompt itself until admission
	most   int        // len(tokens) at which it ends

	holding

	reached int  // most that done was before blocks were given back
	load    span // tokens of the load: from the first missing to the last promised
	spent   bool // the hand-off was used, or was of no use
	rows    int  // prompt positions whose logits were given (NoCache)
	counts  Counts
}

// holding is what a request holds and what is in it. The zero value is nothing.
type holding struct {
	blocks []kv.BlockID // block table; covers done and what is planned
	hits   int          // leading blocks that came from the index
	chain  kv.Chain     // prefix that ends with block indexed-1
	known  int          // leading blocks seen by the index

	done     int    // leading tokens whose KV is in blocks, verified or computed
	verified []span // loaded tokens, ascending
	next     int    // first span of verified that done has not passed
	slots    int    // end of the last span passed: slots below are never written
	sealed   int    // leading tiles that need no seal any more
}

// move changes r's status. It panics on an edge that is not drawn: the
// scheduler is the only caller, so a bad edge is a bug in this package.
func (r *request) move(to status) { r.status = Moves.Move(r.status, to, r.moves, r.ID) }

// left returns the number of tokens to compute before the next one is sampled.
func (r *request) left() int { return len(r.tokens) - r.done }

// pass moves done over the verified tokens that it has reached. The last token
// is always computed, for its logits.
func (r *request) pass() {
	for r.next < len(r.verified) && r.verified[r.next].from <= r.done {
		v := r.verified[r.next]
		r.next++
		r.slots = v.to
		r.sealed = max(r.sealed, v.to/kv.TileTokens)
		r.done = max(r.done, min(v.to, len(r.tokens)-1))
	}
}

// count sets the counters of a prompt of which hit tokens are cached here and
// loaded tokens were loaded; promised ends what a hand-off covered. After the
// first token they stand.
func (r *request) count(hit, loaded, promised int) {
	if r.counts.Output > 0 {
		return
	}
	c := &r.counts
	c.Local, c.Loaded = hit, loaded
	c.Recomputed = max(0, promised-hit-loaded)
	c.Computed = c.Prompt - c.Local - c.Loaded - c.Recomputed
}

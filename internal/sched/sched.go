package sched

import (
	"errors"
	"fmt"

	"tandem/internal/kv"
	"tandem/internal/moves"
)

// Errors of Add.
var (
	// ErrTooLong marks a prompt that does not fit with one token; the error is a
	// *TooLongError.
	ErrTooLong = errors.New("prompt is too long")
	// ErrDuplicate marks an id that is in use.
	ErrDuplicate = errors.New("request id is in use")
	// ErrInvalid marks a request that breaks the rules of its fields.
	ErrInvalid = errors.New("invalid request")
)

// A TooLongError says which limit a prompt exceeds. It is an ErrTooLong.
type TooLongError struct {
	Prompt int  // tokens
	Limit  int  // tokens of prompt and output together
	Pool   bool // the KV pool sets the limit, not the context of the model
}

// Error names the limit.
func (e *TooLongError) Error() string {
	what := "the model's context"
	if e.Pool {
		what = "the KV pool"
	}
	return fmt.Sprintf("sched: prompt of %d tokens: %s holds %d tokens, one of them for the answer",
		e.Prompt, what, e.Limit)
}

// Is makes every TooLongError an ErrTooLong.
func (e *TooLongError) Is(target error) bool { return target == ErrTooLong }

// Config fixes how a Scheduler works.
type Config struct {
	Pool *kv.Pool // the scheduler is its only user

	MaxBatchedTokens int  // tokens of a step
	MaxSeqs          int  // requests that run at once; as many may load or wait with a finished load
	MaxModelLen      int  // tokens of prompt and output, as the model allows
	Priority         bool // rank by Request.Priority, then arrival; else by arrival
	PrefixCache      bool // use the prefix index
	Seal             bool // have the tiles that a step fills sealed
	ProbeChunk       int  // tokens of a chunk that gives logits for every position; 0: 64
}

// Validate reports what is wrong with c.
func (c Config) Validate() error {
	switch {
	case c.Pool == nil:
		return errors.New("sched: config: no pool")
	case c.Pool.BlockTokens()%kv.TileTokens != 0:
		return fmt.Errorf("sched: config: blocks of %d tokens: want a multiple of %d",
			c.Pool.BlockTokens(), kv.TileTokens)
	case c.MaxBatchedTokens <= 0:
		return fmt.Errorf("sched: config: MaxBatchedTokens %d: want at least 1", c.MaxBatchedTokens)
	case c.MaxSeqs <= 0:
		return fmt.Errorf("sched: config: MaxSeqs %d: want at least 1", c.MaxSeqs)
	case c.MaxModelLen < 2:
		return fmt.Errorf("sched: config: MaxModelLen %d: want at least 2", c.MaxModelLen)
	case c.ProbeChunk < 0:
		return fmt.Errorf("sched: config: ProbeChunk %d: want at least 0", c.ProbeChunk)
	}
	return nil
}

// A Scheduler holds all requests of an engine. Between Plan and the Apply that
// answers it, requests may be added and aborted and loads may end; blocks that
// become free meanwhile are not used before the next Plan.
type Scheduler struct {
	cfg         Config
	pool        *kv.Pool
	blockTokens int

	requests map[kv.RequestID]*request // all but finished ones
	queue    queue                     // queued without blocks, by rank
	parked   []*request                // queued with blocks, by rank
	loads    []*request                // loading
	running  []*request                // by rank
	ghosts   map[kv.RequestID]*request // finished while loading; hold their blocks
	held     int                       // blocks that only ghosts hold
	leased   int                       // blocks handed over and not released
	added    uint64

	plan     Plan
	planned  []*request // the requests of plan.Items
	finished []Finished
	moves    moves.Count
	total    Totals
	audit    audit
}

// New returns a scheduler without requests. It panics when cfg is not valid.
func New(cfg Config) *Scheduler {
	if err := cfg.Validate(); err != nil {
		panic(err)
	}
	if cfg.ProbeChunk == 0 {
		cfg.ProbeChunk = 64
	}
	// Every running request gets a token in every step.
	cfg.MaxSeqs = min(cfg.MaxSeqs, cfg.MaxBatchedTokens)
	return &Scheduler{
		cfg:         cfg,
		pool:        cfg.Pool,
		blockTokens: cfg.Pool.BlockTokens(),
		requests:    make(map[kv.RequestID]*request),
		ghosts:      make(map[kv.RequestID]*request),
	}
}

// Limit returns the most tokens of prompt and output that a request can have:
// the model's context or the pool, whichever is smaller.
func (s *Scheduler) Limit() int {
	return min(s.cfg.MaxModelLen, s.pool.Blocks()*s.blockTokens)
}

// Add queues r. It returns ErrTooLong, ErrDuplicate or ErrInvalid, and then r is
// forgotten.
func (s *Scheduler) Add(r Request) error {
	limit := s.Limit()
	switch {
	case len(r.Prompt) == 0:
		return fmt.Errorf("sched: request %s: no prompt tokens: %w", r.ID, ErrInvalid)
	case r.MaxTokens < 1:
		return fmt.Errorf("sched: request %s: MaxTokens %d: %w", r.ID, r.MaxTokens, ErrInvalid)
	case r.External < 0:
		return fmt.Errorf("sched: request %s: External %d: %w", r.ID, r.External, ErrInvalid)
	case len(r.Prompt) >= limit:
		return &TooLongError{Prompt: len(r.Prompt), Limit: limit, Pool: limit < s.cfg.MaxModelLen}
	}
	if s.requests[r.ID] != nil || s.ghosts[r.ID] != nil {
		return fmt.Errorf("sched: request %s: %w", r.ID, ErrDuplicate)
	}
	s.added++
	q := &request{
		Request: r,
		moves:   &s.moves,
		number:  s.added,
		tokens:  r.Prompt,
		most:    len(r.Prompt) + min(r.MaxTokens, limit-len(r.Prompt)),
		counts:  Counts{Prompt: len(r.Prompt), Computed: len(r.Prompt)},
	}
	s.requests[r.ID] = q
	s.queue.push(q, s)
	s.audited("Add")
	return nil
}

// Aborting is what Abort found.
type Aborting struct {
	Found bool

	// Loading tells that a load runs. The caller cancels it; the blocks stay
	// out of use until its LoadDone.
	Loading bool

	// Unread tells that the request had a hand-off that was not read: it can be
	// given back.
	Unread bool

	Counts Counts
}

// Abort ends the request in whatever state it is. Nothing more is planned for
// it and no Finished tells of it; results of a step under way are ignored.
func (s *Scheduler) Abort(id kv.RequestID) Aborting {
	r := s.requests[id]
	if r == nil {
		return Aborting{}
	}
	a := Aborting{Found: true, Loading: r.status == loading,
		Unread: r.External > 0 && !r.spent, Counts: r.counts}
	s.end(r, Aborted)
	s.audited("Abort")
	return a
}

// Stuck reports, after Plan, whether nothing can move before leased blocks come
// back: there are leases, all requests wait for blocks, the one that runs too, and
// no load has any that it could give back.
func (s *Scheduler) Stuck() bool {
	if s.leased == 0 || len(s.requests) == 0 || len(s.parked)+len(s.loads)+len(s.ghosts) > 0 {
		return false
	}
	for _, r := range s.running {
		if !s.short(r) {
			return false
		}
	}
	return true
}

// Release takes back blocks that a Finished handed over. They may come in
// parts.
func (s *Scheduler) Release(blocks []kv.BlockID) {
	s.pool.Release(blocks)
	s.leased -= len(blocks)
	s.audit.release(blocks)
	s.audited("Release")
}

// end takes r out of the table it is in and finishes it. Its blocks are freed,
// or stay with the load that may still write to them.
func (s *Scheduler) end(r *request, why Reason) {
	was := r.status
	s.drop(r)
	r.move(finished)
	delete(s.requests, r.ID)
	s.total.Finished[why]++
	if was == loading {
		s.ghosts[r.ID] = r
		s.held += len(r.blocks) - r.hits
		return
	}
	s.pool.Release(r.blocks)
}

// drop takes r out of the queue or list that its status puts it in.
func (s *Scheduler) drop(r *request) {
	switch {
	case r.status == running:
		s.running = remove(s.running, r)
	case r.status == loading:
		s.loads = remove(s.loads, r)
	case len(r.blocks) > 0:
		s.parked = remove(s.parked, r)
	default:
		s.queue.remove(r, s)
	}
}

// Moves returns how often requests have moved along each edge of Moves.
func (s *Scheduler) Moves() *moves.Count { return &s.moves }

// Pool returns the pool of s, for looking at.
func (s *Scheduler) Pool() *kv.Pool { return s.pool }

// Finishes counts finished requests by Reason.
type Finishes [LoadFailed + 1]uint64

// MarshalJSON writes an object with the reasons in the words of the API.
func (f Finishes) MarshalJSON() ([]byte, error) {
	var b []byte
	for r, n := range f {
		if name := Reason(r).String(); name != "" {
			b = fmt.Appendf(b, ",%q:%d", name, n)
		}
	}
	b[0] = '{'
	return append(b, '}'), nil
}

// Totals are sums over all requests so far. They only grow.
type Totals struct {
	Finished    Finishes `json:"finished"`
	Preemptions uint64   `json:"preemptions"`
	FailedLoads uint64   `json:"failed_loads"`

	// Tokens of the prompts whose first token was sampled, by where their KV
	// came from: the last four add up to Prompt.
	Prompt     uint64 `json:"prompt_tokens"`
	Local      uint64 `json:"local_tokens"`
	Loaded     uint64 `json:"loaded_tokens"`
	Recomputed uint64 `json:"recomputed_tokens"`
	Computed   uint64 `json:"computed_tokens"`

	Redone uint64 `json:"redone_tokens"`
	Output uint64 `json:"output_tokens"`
}

// Stats is a snapshot. As JSON it is a part of /server_info.
type Stats struct {
	Running int `json:"running"`
	Waiting int `json:"waiting"` // queued, with or without blocks
	Loading int `json:"loading"`
	Parked  int `json:"parked"` // of Waiting: load ended, waits for a place in the batch

	Blocks  int `json:"blocks"`  // in the pool
	Free    int `json:"free"`    // can be given out; indexed ones among them
	Indexed int `json:"indexed"` // in the prefix index
	Held    int `json:"held"`    // quarantined: of aborted requests whose load still runs
	Leased  int `json:"leased"`  // handed over and not released, counted per lease

	Totals
}

// Stats returns the state of s.
func (s *Scheduler) Stats() Stats {
	return Stats{
		Running: len(s.running),
		Waiting: s.queue.len() + len(s.parked),
		Loading: len(s.loads),
		Parked:  len(s.parked),
		Blocks:  s.pool.Blocks(),
		Free:    s.pool.Free(),
		Indexed: s.pool.Indexed(),
		Held:    s.held,
		Leased:  s.leased,
		Totals:  s.total,
	}
}

// Counts returns the counters of a request that has not finished.
func (s *Scheduler) Counts(id kv.RequestID) (Counts, bool) {
	r := s.requests[id]
	if r == nil {
		return Counts{}, false
	}
	return r.counts, true
}

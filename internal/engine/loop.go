package engine

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"runtime/debug"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"tandem/internal/connector"
	"tandem/internal/kv"
	"tandem/internal/sample"
	"tandem/internal/sched"
)

// eventKind says what a caller wants of the loop.
type eventKind uint8

const (
	evSubmit eventKind = iota
	evAbort
	evStop
)

type event struct {
	kind   eventKind
	stream *Stream
	reason string
	choice int
}

// An Engine serves requests with one model. All exported methods may be called
// from any goroutine.
type Engine struct {
	cfg    Config
	info   ModelInfo
	limit  int // tokens of a sequence
	seeds  uint64
	name   string    // prefix of request ids
	origin time.Time // before all turns, which count from it, whatever is done to the time of day
	log    *slog.Logger

	// Owned by the loop.
	core       *core
	recoveries *recoveries
	model      Model
	spare      []event  // the inbox's other buffer
	ends       []effect // last outputs of the requests that end in this turn

	wake chan struct{}
	done chan struct{} // closed when Run has returned

	live   atomic.Int64 // choices that were submitted and have not ended
	number atomic.Uint64
	turn   atomic.Int64 // when the loop's turn began, ns after origin; 0: it rests
	sign   *sign        // up while the turn takes too long
	warmer *warmer
	status atomic.Pointer[Status]

	mu       sync.Mutex
	inbox    []event
	draining bool
	closed   bool
	ran      bool
	err      error
	idle     []chan struct{} // closed when no request is left
}

// New returns an engine that does nothing before Run.
func New(cfg Config) (*Engine, error) {
	if err := cfg.fill(); err != nil {
		return nil, err
	}
	a := cfg.Model.Arenas()[0]
	pool := kv.NewPool(a.Blocks(), a.Layout().BlockTokens())
	sc := sched.Config{
		Pool:             pool,
		MaxBatchedTokens: cfg.MaxBatchedTokens, MaxSeqs: cfg.MaxSeqs, MaxModelLen: cfg.MaxModelLen,
		Priority: cfg.Priority, PrefixCache: !cfg.NoPrefixCache, Seal: cfg.Connector != nil,
	}
	if err := sc.Validate(); err != nil {
		return nil, fmt.Errorf("engine: config: %w", err)
	}
	if cfg.Seed == 0 {
		cfg.Seed = rand.Uint64() | 1
	}
	e := &Engine{
		cfg: cfg, info: cfg.Model.Info(), model: cfg.Model, log: cfg.Log, seeds: cfg.Seed,
		name:   strconv.FormatUint(rand.Uint64()>>16, 36),
		origin: time.Now().Add(-1),
		wake:   make(chan struct{}, 1), done: make(chan struct{}), sign: newSign(),
		warmer: newWarmer(pool, cfg.Model.Arenas()),
	}
	e.recoveries = newRecoveries(e.log)
	e.core = newCore(sched.New(sc), cfg.Policy, e.info.EOS, &e.cfg.Metrics)
	e.limit = e.core.sched.Limit()
	e.publish(time.Now(), true)
	return e, nil
}

// Info describes the engine's model.
func (e *Engine) Info() ModelInfo { return e.info }

// Limit returns the tokens that prompt and output can have together.
func (e *Engine) Limit() int { return e.limit }

// Err returns why the engine ended, or nil while it runs and after an orderly
// stop.
func (e *Engine) Err() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.err
}

// Done is closed when Run has returned.
func (e *Engine) Done() <-chan struct{} { return e.done }

// Submit queues r. The error is ErrOverloaded, ErrDraining, ErrClosed,
// ErrStalled, ErrNoConnector, an *InvalidError, the cause of ctx when that has
// ended, or the Connector's refusal of the hand-off. A genuine hand-off of a
// refused request is given back. The request ends when its Stream says so, not
// with ctx.
func (e *Engine) Submit(ctx context.Context, r Request) (*Stream, error) {
	h := r.Handoff
	if h != nil && e.cfg.Connector != nil {
		if err := e.cfg.Connector.Verify(h, r.Prompt); err != nil {
			return nil, err
		}
	}
	var s *Stream
	err := context.Cause(ctx)
	if err == nil {
		s, err = e.submit(r)
	}
	if err != nil && h != nil && e.cfg.Connector != nil {
		e.cfg.Connector.ReturnUnread(h)
	}
	return s, err
}

func (e *Engine) submit(r Request) (*Stream, error) {
	r, err := e.check(r)
	if err != nil {
		return nil, err
	}
	n := e.number.Add(1)
	id := kv.RequestID(e.name + "-" + strconv.FormatUint(n, 10))
	s := newStream(e, id, e.cfg.MaxOutputs)
	s.g = &group{req: r, stream: s, id: id}
	if r.Params.Seed != nil {
		s.g.seed = uint64(*r.Params.Seed)
	} else {
		s.g.seed = sample.Derive(e.seeds, n)
	}
	e.mu.Lock()
	switch {
	case e.closed:
		err = ErrClosed
		if e.err != nil {
			err = fmt.Errorf("%w: %w", ErrClosed, e.err)
		}
	case e.draining:
		err = ErrDraining
	case e.sign.up():
		err = ErrStalled
	case e.live.Load()+int64(r.N) > int64(e.cfg.MaxRequests):
		err = ErrOverloaded
	default:
		e.live.Add(int64(r.N))
		e.inbox = append(e.inbox, event{kind: evSubmit, stream: s})
	}
	e.mu.Unlock()
	if err != nil {
		return nil, err
	}
	e.ring()
	return s, nil
}

// leave takes n choices that have ended off the count and tells Drain of the last.
func (e *Engine) leave(n int) {
	if e.live.Add(-int64(n)) > 0 {
		return
	}
	e.mu.Lock()
	for _, c := range e.idle {
		close(c)
	}
	e.idle = nil
	e.mu.Unlock()
}

// post tells the loop; a stopped loop has no requests left to tell of.
func (e *Engine) post(ev event) {
	e.mu.Lock()
	closed := e.closed
	if !closed {
		e.inbox = append(e.inbox, ev)
	}
	e.mu.Unlock()
	if !closed {
		e.ring()
		return
	}
	if ev.kind == evAbort {
		e.revoke(ev.stream)
	}
}

func (e *Engine) ring() {
	select {
	case e.wake <- struct{}{}:
	default:
	}
}

// Drain stops admitting and waits until no request is left or ctx ends. It
// returns the number of choices that were left.
func (e *Engine) Drain(ctx context.Context) int {
	e.mu.Lock()
	e.draining = true
	if e.live.Load() == 0 {
		e.mu.Unlock()
		return 0
	}
	idle := make(chan struct{})
	e.idle = append(e.idle, idle)
	e.mu.Unlock()
	select {
	case <-idle:
	case <-e.done:
	case <-ctx.Done():
	}
	return int(e.live.Load())
}

// Begin starts a turn: it takes what has come in and plans a step. It returns the
// batch that the model is to compute, valid until Finish, or nil when there is
// nothing to compute before the next event.
//
// An engine is driven by Run, or by one goroutine of its caller that calls Begin,
// has the batch computed and calls Finish, with a clock of its own. So whole
// systems of engines run in one goroutine and repeat exactly.
func (e *Engine) Begin(now time.Time) *kv.Batch {
	reports, freed := e.channels()
	e.events(now, reports, freed)
	work := e.core.next(now)
	e.warmer.look()
	e.carry(now)
	e.publish(now, false)
	if !work {
		return nil
	}
	return &e.core.plan.Batch
}

// Finish ends a turn: it samples from the rows of the batch and sends outputs.
func (e *Engine) Finish(rows [][]float32, now time.Time) {
	e.core.apply(rows, now)
	e.core.audit()
	e.carry(now)
}

// Scheduler returns the scheduler of an engine that its caller drives, for looking
// at between two calls.
func (e *Engine) Scheduler() *sched.Scheduler { return e.core.sched }

// Run is the step loop. It returns nil when ctx ends, after every request has
// ended and no load can write any more, and an error when the model failed. An
// engine runs once.
func (e *Engine) Run(ctx context.Context) (err error) {
	e.mu.Lock()
	if e.ran {
		e.mu.Unlock()
		return errors.New("engine: Run called twice")
	}
	e.ran = true
	e.mu.Unlock()
	defer close(e.done)
	unwatch := e.watch()
	cool := e.warmer.start(e.log)
	err = e.loop(ctx)
	e.turn.Store(0)
	cool()
	unwatch()
	e.shut(err)
	return err
}

// loop steps until ctx ends. A panic below it becomes its error: the engine is
// dead then.
func (e *Engine) loop(ctx context.Context) (err error) {
	defer func() {
		if p := recover(); p != nil {
			e.log.Error("panic in a step", slog.Any("panic", p), slog.String("stack", string(debug.Stack())))
			err = fmt.Errorf("%w: panic in a step: %v", ErrDead, p)
		}
	}()
	reports, freed := e.channels()
	for ctx.Err() == nil {
		now := time.Now()
		e.turn.Store(int64(now.Sub(e.origin)))
		e.goesOn()
		b := e.Begin(now)
		if b == nil {
			e.turn.Store(0)
			e.goesOn() // also from a turn without a step
			e.rest(ctx, reports, freed)
			continue
		}
		tokens, seqs := b.Tokens(), len(b.Seqs)
		rows, err := e.model.Step(b)
		if err != nil {
			return fmt.Errorf("%w: computing a step of %d tokens: %w", ErrDead, tokens, err)
		}
		ended := time.Now()
		e.cfg.Metrics.Step(tokens, seqs, ended.Sub(now))
		e.Finish(rows, ended)
	}
	return nil
}

func (e *Engine) channels() (<-chan connector.LoadReport, <-chan []kv.BlockID) {
	if e.cfg.Connector == nil {
		return nil, nil
	}
	return e.cfg.Connector.Reports(), e.cfg.Connector.Freed()
}

// rest waits for the next event.
func (e *Engine) rest(ctx context.Context, reports <-chan connector.LoadReport, freed <-chan []kv.BlockID) {
	timer, stop := e.recoveries.timer()
	defer stop()
	select {
	case <-ctx.Done():
	case <-e.wake:
	case r := <-reports:
		e.reported(r, reports, time.Now())
	case b := <-freed:
		e.core.sched.Release(b)
	case <-timer:
		e.recoveries.tell(time.Now())
	}
}

// events takes everything that has come in, without waiting.
func (e *Engine) events(now time.Time, reports <-chan connector.LoadReport, freed <-chan []kv.BlockID) {
	e.mu.Lock()
	in := e.inbox
	e.inbox = e.spare[:0]
	e.mu.Unlock()
	for i := range in {
		e.event(&in[i], now)
		in[i] = event{}
	}
	e.spare = in
	// In a fixed order, so that what came in decides alone.
	for more := true; more; {
		select {
		case b := <-freed:
			e.core.sched.Release(b)
		default:
			more = false
		}
	}
	select {
	case r := <-reports:
		e.reported(r, reports, now)
	default:
	}
	e.recoveries.tell(now)
}

func (e *Engine) event(ev *event, now time.Time) {
	g := ev.stream.g
	switch ev.kind {
	case evSubmit:
		g.tracked = g.req.Handoff != nil
		if g.tracked && !e.core.stuck {
			e.cfg.Connector.Track(g.req.Handoff)
		}
		if err := e.core.submit(g, now); err != nil {
			e.core.fail(g, fmt.Errorf("engine: admitting %s: %w", g.id, err))
			if g.req.Handoff != nil {
				e.cfg.Connector.ReturnUnread(g.req.Handoff)
			}
		}
	case evAbort:
		e.core.abort(g, fmt.Errorf("%w: %s", ErrAborted, ev.reason))
		e.revoke(ev.stream)
	case evStop:
		e.core.stop(g, ev.choice)
	}
}

// reported takes a load report and those that came with it, and notes how many
// requests are computed here instead.
func (e *Engine) reported(r connector.LoadReport, more <-chan connector.LoadReport, now time.Time) {
	requests, tokens := 0, 0
	for {
		if n := e.core.loaded(r); n > 0 {
			requests, tokens = requests+1, tokens+n
		}
		select {
		case r = <-more:
			continue
		default:
		}
		break
	}
	if requests > 0 {
		e.cfg.Metrics.Recovered(requests, tokens)
		e.recoveries.add(requests, tokens, now)
	}
}

// revoke ends the lease of an answer that was not delivered.
func (e *Engine) revoke(s *Stream) {
	if h := s.takeLease(); h != nil {
		e.cfg.Connector.Revoke(h)
	}
}

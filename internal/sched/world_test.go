package sched

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"

	"tandem/internal/kv"
)

// A world runs a scheduler against a memory of slots. The slot of a position
// holds a number that depends on all tokens up to it, and the next token depends
// on the numbers of all slots read through the block table: KV that is missing,
// foreign or not verified gives a wrong token or an error.
type world struct {
	t     tester
	s     *Scheduler
	bs    int
	probe int      // most tokens of a chunk with logits for every position
	slots []uint64 // of all blocks
	sums  []int    // filled slots at the last seal, by tile
	seals []uint64 // content at the last seal, by tile

	all     map[kv.RequestID]*client
	loads   map[kv.RequestID]*flight
	leases  []*lease
	leased  map[kv.BlockID]int
	sum     Totals // of all clients that compare has seen
	step    int
	max     struct{ tokens, seqs int }
	trace   []string
	traceOn bool

	leaseSteps int                     // steps until a lease comes back
	loadSteps  func() int              // steps until a load ends
	damage     func(l Load) []int      // tiles that are invalid
	noise      func(l Load) []int      // what a report says of tiles beside the load's, and again
	policy     func() bool             // whether a load that failed ends its request
	fail       bool                    // what policy says unless it is set
	part       func(n int) int         // how many of n returned blocks come first
	stopAt     func(tok kv.Token) bool // stop token
}

// A tester is what a world needs of a test, of the standard library or of rapid.
type tester interface {
	Helper()
	Fatal(args ...any)
	Fatalf(format string, args ...any)
}

type client struct {
	req      Request
	out      []kv.Token
	why      Reason
	counts   Counts
	over     bool
	unread   int
	frozen   map[int]bool // positions that were loaded and verified
	loaded   int
	rows     []int // prompt positions with logits, in order
	computed int   // tokens, in all steps
	top      int   // end of what was computed
	redone   int   // tokens computed again, after the first was sampled
	lost     bool  // its load failed
	gaveWay  int   // times it was preempted
	summed   bool
	lastStep int
}

type flight struct {
	load Load
	due  int
}

type lease struct {
	blocks []kv.BlockID
	due    int
}

func newWorld(t tester, cfg Config) *world {
	t.Helper()
	w := &world{
		t: t, s: New(cfg), bs: cfg.Pool.BlockTokens(),
		slots:  make([]uint64, cfg.Pool.Blocks()*cfg.Pool.BlockTokens()),
		sums:   make([]int, cfg.Pool.Blocks()*cfg.Pool.BlockTokens()/kv.TileTokens),
		seals:  make([]uint64, cfg.Pool.Blocks()*cfg.Pool.BlockTokens()/kv.TileTokens),
		all:    map[kv.RequestID]*client{},
		loads:  map[kv.RequestID]*flight{},
		leased: map[kv.BlockID]int{},
	}
	if w.probe = cfg.ProbeChunk; w.probe == 0 {
		w.probe = 64
	}
	w.loadSteps = func() int { return 1 }
	w.damage = func(Load) []int { return nil }
	w.noise = w.damage
	w.policy = func() bool { return w.fail }
	w.part = func(n int) int { return n }
	w.stopAt = func(kv.Token) bool { return false }
	return w
}

func pool(blocks int) Config {
	return Config{Pool: kv.NewPool(blocks, 16), MaxBatchedTokens: 64, MaxSeqs: 8,
		MaxModelLen: 1 << 20, PrefixCache: true, Seal: true}
}

func mix(h uint64, x uint64) uint64 {
	h = (h ^ x) * 0x9E3779B97F4A7C15
	return h ^ h>>29
}

// content returns what the slots of tokens must hold.
func content(tokens []kv.Token, salt string) []uint64 {
	h := uint64(len(salt)) + 1
	for _, c := range salt {
		h = mix(h, uint64(c))
	}
	out := make([]uint64, len(tokens))
	for i, t := range tokens {
		h = mix(h, uint64(t)+1)
		out[i] = h
	}
	return out
}

func nextToken(slots []uint64) kv.Token { return kv.Token(slots[len(slots)-1] >> 40 % 1000) }

// ref returns the output that r must have.
func (w *world) ref(r Request) []kv.Token {
	tokens := slices.Clone(r.Prompt)
	most := min(r.MaxTokens, w.s.Limit()-len(r.Prompt))
	for range most {
		t := nextToken(content(tokens, r.Salt))
		tokens = append(tokens, t)
		if w.stopAt(t) {
			break
		}
	}
	return tokens[len(r.Prompt):]
}

func prompt(seed uint64, n int) []kv.Token {
	rng := rand.New(rand.NewPCG(seed, 7))
	p := make([]kv.Token, n)
	for i := range p {
		p[i] = kv.Token(rng.IntN(1000))
	}
	return p
}

// spare is what lies behind the prompts, in the memory of whoever sent them.
const spare kv.Token = -7

func (w *world) add(r Request) error {
	r.Prompt = append(slices.Clone(r.Prompt), spare)[:len(r.Prompt)]
	err := w.s.Add(r)
	if err == nil {
		if c := w.all[r.ID]; c != nil {
			w.count(c)
		}
		w.all[r.ID] = &client{req: r, lastStep: w.step}
	}
	return err
}

func (w *world) must(r Request) *client {
	w.t.Helper()
	if err := w.add(r); err != nil {
		w.t.Fatalf("add %s: %v", r.ID, err)
	}
	return w.all[r.ID]
}

// preempt takes the blocks of a request away, as its scheduler might.
func (w *world) preempt(id kv.RequestID) {
	w.s.preempt(w.s.requests[id])
	w.all[id].gaveWay++
}

func (w *world) abort(id kv.RequestID) {
	c := w.all[id]
	a := w.s.Abort(id)
	if a.Found == c.over {
		w.t.Fatalf("abort %s: found %t, over %t", id, a.Found, c.over)
	}
	if a.Found {
		c.over, c.why, c.counts = true, Aborted, a.Counts
		if a.Unread {
			c.unread++
		}
		if f := w.loads[id]; (f != nil) != a.Loading {
			w.t.Fatalf("abort %s: loading %t, in flight %t", id, a.Loading, f != nil)
		}
	}
}

func (w *world) check() {
	w.t.Helper()
	if err := w.s.Check(w.leased); err != nil {
		w.t.Fatalf("step %d: %v", w.step, err)
	}
	leased := 0
	for _, n := range w.leased {
		leased += n
	}
	if st := w.s.Stats(); st.Leased != leased {
		w.t.Fatalf("step %d: %d blocks are leased: %+v", w.step, leased, st)
	}
	// What nobody holds and no prefix names may hold anything.
	for b := range w.s.pool.Blocks() {
		if id := kv.BlockID(b); w.s.pool.Refs(id) == 0 && !w.s.pool.Holds(id) {
			for i := range w.bs {
				w.slots[b*w.bs+i] = 0xF2EE
			}
			clear(w.seals[b*w.bs/kv.TileTokens : (b+1)*w.bs/kv.TileTokens])
			clear(w.sums[b*w.bs/kv.TileTokens : (b+1)*w.bs/kv.TileTokens])
		}
	}
}

// arrive lets what is due happen: loads end, leases come back.
func (w *world) arrive() (some bool) {
	ids := make([]kv.RequestID, 0, len(w.loads))
	for id, f := range w.loads {
		if f.due <= w.step {
			ids = append(ids, id)
		}
	}
	slices.Sort(ids)
	for _, id := range ids {
		w.land(id)
		some = true
	}
	w.leases = slices.DeleteFunc(w.leases, func(l *lease) bool {
		if l.due > w.step {
			return false
		}
		now := l.blocks[:w.part(len(l.blocks))]
		for _, b := range now {
			w.leased[b]--
		}
		w.s.Release(now)
		w.check()
		some = true
		l.blocks = l.blocks[len(now):]
		return len(l.blocks) == 0
	})
	w.check()
	return some
}

// land writes a load's tiles and reports it.
func (w *world) land(id kv.RequestID) {
	f, c := w.loads[id], w.all[id]
	delete(w.loads, id)
	bad, fail := w.damage(f.load), w.policy()
	want := content(c.req.Prompt, c.req.Salt)
	promised := min(c.req.External, len(want)-1) - f.load.FromTile*kv.TileTokens
	missing := 0
	c.frozen = map[int]bool{}
	for t := f.load.FromTile; t < f.load.ToTile; t++ {
		for i := range kv.TileTokens {
			pos := t*kv.TileTokens + i
			var v uint64
			if pos < min(c.req.External, len(want)) {
				v = want[pos]
				c.frozen[pos] = !slices.Contains(bad, t)
			}
			if slices.Contains(bad, t) {
				v = 0xBAD
			}
			w.slots[w.slot(f.load.Blocks, pos)] = v
			if slices.Contains(bad, t) && pos < min(c.req.External, len(want)-1) {
				missing++
			}
		}
		w.seals[w.slot(f.load.Blocks, t*kv.TileTokens)/kv.TileTokens] = w.tileContent(f.load.Blocks, t)
	}
	report := LoadReport{Invalid: append(w.noise(f.load), bad...), Fail: fail}
	res := w.s.LoadDone(id, report)
	if !res.Found || res.Tag != c.req.Tag {
		w.t.Fatalf("load of %s: %+v", id, res)
	}
	if res.Finished != (c.over || (fail && missing > 0)) {
		w.t.Fatalf("load of %s: %d tokens missing, fail %t: %+v", id, missing, fail, res)
	}
	if k := res.Counts; !c.over && (res.Missing != missing || k.Loaded != promised-missing ||
		k.Recomputed != missing || k.Local != f.load.FromTile*kv.TileTokens) {
		w.t.Fatalf("load of %s: %d of %d tokens missing: %+v", id, missing, promised, res)
	}
	// A report that comes again is of no load, and changes nothing.
	before := w.s.Stats()
	if again := w.s.LoadDone(id, report); again.Found || w.s.Stats() != before {
		w.t.Fatalf("load of %s reported twice: %+v", id, again)
	}
	c.lost = !c.over && missing > 0
	if res.Finished && !c.over {
		c.over, c.why, c.counts = true, res.Why, res.Counts
	}
	w.check()
}

// tileContent returns a number for what tile t of blocks holds.
func (w *world) tileContent(blocks []kv.BlockID, t int) (h uint64) {
	o := w.slot(blocks, t*kv.TileTokens)
	for _, v := range w.slots[o : o+kv.TileTokens] {
		h = mix(h, v+1)
	}
	return h
}

func (w *world) slot(blocks []kv.BlockID, pos int) int {
	return int(blocks[pos/w.bs])*w.bs + pos%w.bs
}

// tick runs one step.
func (w *world) tick() *Plan {
	w.t.Helper()
	w.step++
	some := w.arrive()
	p := w.s.Plan()
	w.check()
	for _, l := range p.Loads {
		c := w.all[l.ID]
		if c.loaded++; c.loaded > 1 {
			w.t.Fatalf("%s loads twice", l.ID)
		}
		l.Blocks = slices.Clone(l.Blocks)
		w.loads[l.ID] = &flight{load: l, due: w.step + w.loadSteps()}
	}
	w.noted(p)
	if w.traceOn {
		w.note(p)
	}
	results := w.compute(p)
	n := p.Batch.Tokens()
	if n > w.s.cfg.MaxBatchedTokens || len(p.Batch.Seqs) > w.s.cfg.MaxSeqs {
		w.t.Fatalf("step %d: %d tokens of %d sequences", w.step, n, len(p.Batch.Seqs))
	}
	w.max.tokens, w.max.seqs = max(w.max.tokens, n), max(w.max.seqs, len(p.Batch.Seqs))
	st := w.s.Stats()
	if n == 0 && !some && len(w.loads) == 0 && len(w.leases) == 0 && st.Running+st.Waiting > 0 {
		w.t.Fatalf("step %d: nothing runs and nothing is due: %+v", w.step, st)
	}
	if len(p.Items) > 0 {
		for _, f := range w.s.Apply(results) {
			w.ended(f)
		}
	}
	w.check()
	return p
}

// noted takes what a plan says beside its loads and its batch.
func (w *world) noted(p *Plan) {
	for _, u := range p.Unread {
		w.all[u.ID].unread++
	}
	for _, v := range p.Preempted {
		w.all[v.ID].gaveWay++
	}
}

func (w *world) note(p *Plan) {
	line := fmt.Sprint(w.step, ":")
	for i, it := range p.Items {
		q := p.Batch.Seqs[i]
		line += fmt.Sprint(" ", it.ID, q.Pos, "+", len(q.Tokens), it.Sample, q.Blocks, q.WriteFrom, q.SealFrom, q.SealTo)
	}
	for _, l := range p.Loads {
		line += fmt.Sprint(" load ", l.ID, l.FromTile, l.ToTile, l.Blocks)
	}
	for _, v := range p.Preempted {
		line += fmt.Sprint(" preempt ", v.ID)
	}
	w.trace = append(w.trace, line)
}

func (w *world) compute(p *Plan) []Result {
	w.t.Helper()
	results := make([]Result, len(p.Items))
	for i, it := range p.Items {
		c, q := w.all[it.ID], &p.Batch.Seqs[i]
		c.lastStep = w.step
		tokens := append(slices.Clone(c.req.Prompt), c.out...)
		end := q.Pos + len(q.Tokens)
		c.computed += len(q.Tokens)
		if len(q.Tokens) == 0 || !slices.Equal(q.Tokens, tokens[q.Pos:end]) {
			w.t.Fatalf("%s: computes %v at %d", it.ID, q.Tokens, q.Pos)
		}
		if it.Sample != (end == len(tokens)) {
			w.t.Fatalf("%s: sample %t at %d of %d", it.ID, it.Sample, end, len(tokens))
		}
		want := content(tokens, c.req.Salt)
		w.checkShape(c, q, it.Sample, len(tokens))
		if !it.Sample && p.Batch.Tokens() < w.s.cfg.MaxBatchedTokens && !w.mayPause(c, q) {
			w.t.Fatalf("%s: computes %d to %d only, in a step of %d tokens", it.ID, q.Pos, end, p.Batch.Tokens())
		}
		if len(c.out) > 0 {
			c.redone += max(0, min(end, c.top)-q.Pos)
		}
		c.top = max(c.top, end)
		if len(w.s.requests[it.ID].verified) > 0 {
			w.checkFrozen(c, q, len(tokens))
		}
		for pos := q.WriteFrom; pos < end; pos++ {
			w.slots[w.slot(q.Blocks, pos)] = want[pos]
		}
		for pos := range end {
			if got := w.slots[w.slot(q.Blocks, pos)]; got != want[pos] {
				w.t.Fatalf("step %d: %s reads slot %d: %x, want %x (chunk %d+%d, write from %d)",
					w.step, it.ID, pos, got, want[pos], q.Pos, len(q.Tokens), q.WriteFrom)
			}
		}
		for tile := q.SealFrom; tile < q.SealTo; tile++ {
			filled := kv.TileTokens
			if tile == q.SealTo-1 {
				filled = q.SealFilled
			}
			if end-tile*kv.TileTokens < filled {
				w.t.Fatalf("%s: seals tile %d with %d slots at %d", it.ID, tile, filled, end)
			}
			o := w.slot(q.Blocks, tile*kv.TileTokens)
			clear(w.slots[o+filled : o+kv.TileTokens])
			w.sums[o/kv.TileTokens] = filled
			w.seals[o/kv.TileTokens] = w.tileContent(q.Blocks, tile)
		}
		for pos := end - q.Logits; pos < end; pos++ {
			if pos < len(c.req.Prompt) && c.req.NoCache {
				c.rows = append(c.rows, pos)
			}
		}
		if it.Sample {
			results[i].Token = nextToken(want)
			if w.stopAt(results[i].Token) {
				results[i].Finish = Stop
			}
			c.out = append(c.out, results[i].Token)
		}
	}
	return results
}

// checkShape verifies that a sequence asks for what its request needs and for
// nothing else: blocks, chunk, logits, slots to write and tiles to seal.
func (w *world) checkShape(c *client, q *kv.Seq, sample bool, tokens int) {
	w.t.Helper()
	end, prompt, logits := q.Pos+len(q.Tokens), len(c.req.Prompt), 0
	if sample {
		logits = 1
	}
	if c.req.NoCache && len(c.rows) < prompt {
		logits = max(logits, min(end, prompt)-len(c.rows))
		if len(q.Tokens) > w.probe {
			w.t.Fatalf("%s: %d tokens with logits for each, want at most %d", c.req.ID, len(q.Tokens), w.probe)
		}
	}
	if q.Logits != logits {
		w.t.Fatalf("%s: wants %d logits at %d to %d, has use for %d", c.req.ID, q.Logits, q.Pos, end, logits)
	}
	if n := (tokens + w.bs - 1) / w.bs; len(q.Blocks) != n {
		w.t.Fatalf("%s: holds %d blocks, its %d tokens take %d", c.req.ID, len(q.Blocks), tokens, n)
	}
	if q.WriteFrom < q.Pos || q.WriteFrom > end {
		w.t.Fatalf("%s: writes from %d, computes %d to %d", c.req.ID, q.WriteFrom, q.Pos, end)
	}
	if !w.s.cfg.Seal {
		if q.SealFrom != q.SealTo {
			w.t.Fatalf("%s: seals tiles %d to %d, nothing is to be sealed", c.req.ID, q.SealFrom, q.SealTo)
		}
		return
	}
	to, filled := end/kv.TileTokens, kv.TileTokens
	if part := end % kv.TileTokens; part > 0 && c.req.Lease && sample {
		to, filled = to+1, part
	}
	if q.SealTo != to || q.SealFrom < to && (q.SealFilled != filled || (q.SealFrom+1)*kv.TileTokens <= q.Pos) {
		w.t.Fatalf("%s: seals tiles %d to %d with %d slots after computing %d to %d",
			c.req.ID, q.SealFrom, q.SealTo, q.SealFilled, q.Pos, end)
	}
	for tile := range q.SealFrom {
		if w.seals[w.slot(q.Blocks, tile*kv.TileTokens)/kv.TileTokens] != w.tileContent(q.Blocks, tile) {
			w.t.Fatalf("%s: tile %d is not sealed as it is, and %d to %d are to be", c.req.ID, tile, q.SealFrom, q.SealTo)
		}
	}
}

// mayPause tells that a chunk may end before its prompt and the budget do.
func (w *world) mayPause(c *client, q *kv.Seq) bool {
	probed := c.req.NoCache && len(c.rows) < len(c.req.Prompt) && len(q.Tokens) == w.probe
	return probed || len(w.s.requests[c.req.ID].verified) > 0 && c.frozen[q.Pos+len(q.Tokens)]
}

// checkFrozen verifies that verified slots are neither computed again, but for
// the last token's logits, nor written nor sealed.
func (w *world) checkFrozen(c *client, q *kv.Seq, tokens int) {
	w.t.Helper()
	for i := range q.Tokens {
		if pos := q.Pos + i; c.frozen[pos] && (pos != tokens-1 || q.WriteFrom <= pos) {
			w.t.Fatalf("%s: computes verified position %d of %d, writes from %d", c.req.ID, pos, tokens, q.WriteFrom)
		}
	}
	for tile := q.SealFrom; tile < q.SealTo; tile++ {
		if c.frozen[tile*kv.TileTokens] && c.frozen[tile*kv.TileTokens+kv.TileTokens-1] {
			w.t.Fatalf("%s: seals verified tile %d", c.req.ID, tile)
		}
	}
}

func (w *world) ended(f Finished) {
	c := w.all[f.ID]
	if c.over {
		w.t.Fatalf("%s finished twice", f.ID)
	}
	c.over, c.why, c.counts = true, f.Why, f.Counts
	if (len(f.Blocks) > 0) != c.req.Lease {
		w.t.Fatalf("%s: lease of %v", f.ID, f.Blocks)
	}
	if c.req.Lease {
		if f.Tokens < len(c.req.Prompt) || len(f.Blocks) != (f.Tokens+w.bs-1)/w.bs {
			w.t.Fatalf("%s: lease of %d tokens in %v", f.ID, f.Tokens, f.Blocks)
		}
		for _, b := range f.Blocks {
			w.leased[b]++
		}
		for tile := 0; w.s.cfg.Seal && tile < tilesFor(f.Tokens); tile++ {
			if w.seals[w.slot(f.Blocks, tile*kv.TileTokens)/kv.TileTokens] != w.tileContent(f.Blocks, tile) {
				w.t.Fatalf("%s: tile %d of a lease of %d tokens is not sealed as it is", f.ID, tile, f.Tokens)
			}
		}
		w.leases = append(w.leases, &lease{f.Blocks, w.step + w.leaseSteps})
	}
}

// finish runs until nothing is left and compares every output.
func (w *world) finish(steps int) {
	w.t.Helper()
	for range steps {
		st := w.s.Stats()
		if st.Running+st.Waiting+st.Loading+len(w.loads)+len(w.leases) == 0 {
			w.compare()
			return
		}
		w.tick()
	}
	w.t.Fatalf("not done after %d steps: %+v", steps, w.s.Stats())
}

func (w *world) compare() {
	w.t.Helper()
	if st := w.s.Stats(); st.Free != st.Blocks || st.Held != 0 || st.Leased != 0 || len(w.s.requests)+len(w.s.ghosts) != 0 {
		w.t.Fatalf("blocks or requests are left over: %+v", st)
	}
	for id, c := range w.all {
		k := c.counts
		if k.Local+k.Loaded+k.Recomputed+k.Computed != k.Prompt || k.Prompt != len(c.req.Prompt) {
			w.t.Fatalf("%s: counters %+v", id, k)
		}
		if n := c.unread + c.loaded; n > 1 || (n == 1) != (c.req.External > 0) {
			w.t.Fatalf("%s: hand-off read %d times, given back %d times", id, c.loaded, c.unread)
		}
		if c.gaveWay != k.Preempted || k.Redone > c.redone || k.Redone < c.redone && c.why != Aborted {
			w.t.Fatalf("%s: preempted %d times, %d tokens computed again: %+v", id, c.gaveWay, c.redone, k)
		}
		if c.req.Prompt[:len(c.req.Prompt)+1][len(c.req.Prompt)] != spare {
			w.t.Fatalf("%s: what lies behind the prompt was written", id)
		}
		want := w.ref(c.req)
		switch c.why {
		case Stop, Length:
			if !slices.Equal(c.out, want) {
				w.t.Fatalf("%s: output %v, want %v", id, c.out, want)
			}
			if (c.why == Stop) != w.stopAt(want[len(want)-1]) {
				w.t.Fatalf("%s: finished by %v", id, c.why)
			}
			if c.req.NoCache && len(c.rows) != len(c.req.Prompt) {
				w.t.Fatalf("%s: %d rows for %d prompt tokens", id, len(c.rows), len(c.req.Prompt))
			}
		case Aborted, LoadFailed:
			if len(c.out) > len(want) || !slices.Equal(c.out, want[:len(c.out)]) {
				w.t.Fatalf("%s: output %v is no prefix of %v", id, c.out, want)
			}
		default:
			w.t.Fatalf("%s: over %t, why %v", id, c.over, c.why)
		}
	}
	w.compareSums()
}

// count adds what became of c to the sums, once.
func (w *world) count(c *client) {
	if c.summed {
		return
	}
	c.summed = true
	s, k := &w.sum, c.counts
	s.Finished[c.why]++
	s.Preemptions += uint64(k.Preempted)
	s.Redone += uint64(k.Redone)
	s.Output += uint64(k.Output)
	if c.lost {
		s.FailedLoads++
	}
	if k.Output > 0 {
		s.Prompt += uint64(k.Prompt)
		s.Local += uint64(k.Local)
		s.Loaded += uint64(k.Loaded)
		s.Recomputed += uint64(k.Recomputed)
		s.Computed += uint64(k.Computed)
	}
}

// compareSums holds the scheduler's sums against those of the clients.
func (w *world) compareSums() {
	w.t.Helper()
	for _, c := range w.all {
		w.count(c)
	}
	s := &w.sum
	if got := w.s.Stats().Totals; got != *s {
		w.t.Fatalf("sums %+v, want %+v", got, *s)
	}
	var ends, want uint64
	for _, e := range Moves.Edges() {
		if e.To == finished.String() {
			ends += w.s.Moves().Of(e)
		}
	}
	for _, n := range s.Finished {
		want += n
	}
	if ends != want {
		w.t.Fatalf("%d moves to the end, %d requests have ended", ends, want)
	}
}

func id(i int) kv.RequestID { return kv.RequestID(fmt.Sprintf("r%02d", i)) }

func tooLong(err error) *TooLongError {
	var e *TooLongError
	if errors.As(err, &e) && errors.Is(err, ErrTooLong) {
		return e
	}
	return nil
}

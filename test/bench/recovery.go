package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"sync/atomic"
	"time"

	"tandem/internal/connector"
	"tandem/internal/engine"
	"tandem/internal/gguf"
	"tandem/internal/kv"
	"tandem/internal/model"
	"tandem/internal/sample"
)

// The limits of recovery.
const (
	recoveryLen  = 1000 // tokens of a prompt
	nothingLimit = 1.03 // CPU time over that of a plain prefill, nothing loaded
	halfLimit    = 0.60 // same, the first half of the tiles verified
	refusedExtra = 10.0 // ms until the first token beside computing the prompt, after a refused claim
)

// measureRecovery measures what it costs when KV does not arrive. P and D are
// engines of this process, so that its CPU time while D has a request is what
// the request costs.
func measureRecovery(o *options, t *table) (err error) {
	dir, err := os.MkdirTemp("", "bench")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	runtime.GOMAXPROCS(max(runtime.GOMAXPROCS(0), o.threads+2))
	p, err := o.startMember(dir, connector.Producer)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, p.end()) }()
	d, err := o.startMember(dir, connector.Consumer)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, d.end()) }()
	r := recovery{o, p, d}
	if _, err := r.pair(0, refuse, 0); err != nil { // the engines meet
		return err
	}
	return errors.Join(
		r.compare(t, "nothing loaded (claim refused)", refuse, 0, nothingLimit),
		r.compare(t, "first half of the tiles verified", damage, (recoveryLen-1+kv.TileTokens-1)/kv.TileTokens/2, halfLimit),
	)
}

// A member is an engine with its connector.
type member struct {
	engine *engine.Engine
	conn   *connector.Connector
	model  *model.Model
	steps  atomic.Int64 // ns of computing
	end    func() error
}

func (o *options) startMember(dir string, role connector.Role) (*member, error) {
	f, err := gguf.Open(o.model)
	if err != nil {
		return nil, err
	}
	m, err := model.Load(f, model.Config{Threads: o.threads, Blocks: kvBlocks, MaxLen: 2048})
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	cfg := connector.Config{
		EngineID: kv.EngineID(role), Role: role, Arenas: m.Arenas(), Token: []byte("a token of this run"),
		Listen: "127.0.0.1:0", UnixDir: filepath.Join(dir, string(role)),
	}
	for _, x := range m.Info().Fingerprint {
		cfg.Fingerprint = append(cfg.Fingerprint, connector.Factor(x))
	}
	c, err := connector.New(cfg)
	if err != nil {
		return nil, errors.Join(err, m.Close(), f.Close())
	}
	x := &member{conn: c, model: m}
	e, err := engine.New(engine.Config{
		Model: m, Connector: c, NoPrefixCache: true, Policy: engine.PolicyRecompute,
		Metrics: engine.Metrics{Step: func(_, _ int, d time.Duration) { x.steps.Add(int64(d)) }},
	})
	if err != nil {
		return nil, errors.Join(err, c.Close(), m.Close(), f.Close())
	}
	ectx, stopEngine := context.WithCancel(context.Background())
	cctx, stopConnector := context.WithCancel(context.Background())
	ended, closed := make(chan error, 1), make(chan error, 1)
	go func() { ended <- e.Run(ectx) }()
	go func() { closed <- c.Run(cctx) }()
	x.engine, x.end = e, func() error {
		stopEngine()
		err := <-ended
		stopConnector()
		return errors.Join(err, <-closed, m.Close(), f.Close())
	}
	return x, nil
}

// ask runs a request and returns its last output, its first token's time and the
// process's CPU time meanwhile.
func (m *member) ask(r engine.Request) (last engine.Output, first, cpu time.Duration, err error) {
	before, err := ownTime(nil)
	if err != nil {
		return last, 0, 0, err
	}
	begun := time.Now()
	s, err := m.engine.Submit(context.Background(), r)
	if err != nil {
		return last, 0, 0, err
	}
	for {
		o, err := s.Next(context.Background())
		if errors.Is(err, io.EOF) {
			break
		}
		if err = errors.Join(err, o.Err); err != nil {
			return last, 0, 0, err
		}
		if first == 0 {
			first = time.Since(begun)
		}
		last = o
	}
	after, err := ownTime(nil)
	return last, first, after - before, err
}

// A recovery measures D against itself.
type recovery struct {
	o    *options
	p, d *member
}

// A spoiler makes a hand-off of P fail for real; good is the number of leading
// tiles that shall arrive.
type spoiler func(p *member, h *connector.Handoff, good int)

// refuse ends the lease, so that P refuses the claim.
func refuse(p *member, h *connector.Handoff, _ int) { p.conn.Revoke(h) }

// damage changes a byte of every tile behind the good ones in P's memory.
func damage(p *member, h *connector.Handoff, good int) {
	a := p.model.Arenas()[0]
	blockTiles := h.BlockTokens / kv.TileTokens
	for i := good; i < (h.Tokens+kv.TileTokens-1)/kv.TileTokens; i++ {
		tile := a.Tile(kv.TileID(int(h.Blocks[i/blockTiles])*blockTiles + i%blockTiles))
		tile[rand.IntN(len(tile))] ^= 0x40
	}
}

// A sampled is one pair: a prompt computed plainly, and after a failed load.
type sampled struct {
	plain, lost       time.Duration // CPU time
	beside            time.Duration // until the first token after the failed load, beside computing
	share             float64       // of the machine that others used
	plainToken, token kv.Token
}

func (r recovery) pair(i int, spoil spoiler, good int) (s sampled, err error) {
	prompt := make([]kv.Token, 0, recoveryLen)
	for _, t := range randomPrompt(5000+i, recoveryLen) {
		prompt = append(prompt, kv.Token(t))
	}
	req := engine.Request{Prompt: prompt, Params: sample.Default(), PromptLogprobs: -1}
	req.Params.Temperature, req.Params.MaxTokens, req.Params.IgnoreEOS = 0, 1, true
	first := req
	first.RemoteDecode = true
	handed, _, _, err := r.p.ask(first)
	if err != nil {
		return s, err
	}
	spoil(r.p, handed.Handoff, good)
	plain := func() error {
		o, _, cpu, err := r.d.ask(req)
		s.plain = cpu
		if err == nil {
			s.plainToken = o.Tokens[0]
		}
		return err
	}
	lost := func() error {
		q := req
		q.Handoff = handed.Handoff
		steps := r.d.steps.Load()
		o, ttft, cpu, err := r.d.ask(q)
		s.lost, s.beside = cpu, ttft-time.Duration(r.d.steps.Load()-steps)
		if err != nil {
			return err
		}
		s.token = o.Tokens[0]
		if u, want := o.Usage, min(good*kv.TileTokens, recoveryLen-1); u.Loaded != want || u.Recomputed != recoveryLen-1-want {
			return fmt.Errorf("the fault did not do what it is for: %+v, want %d loaded", u, want)
		}
		return nil
	}
	s.share, err = foreign(func() error {
		if i%2 == 0 {
			return errors.Join(plain(), lost())
		}
		return errors.Join(lost(), plain())
	})
	if err == nil && s.token != s.plainToken {
		err = fmt.Errorf("prompt %d: token %d after the failed load, %d without", i, s.token, s.plainToken)
	}
	return s, err
}

// compare measures pairs and adds their rows.
func (r recovery) compare(t *table, what string, spoil spoiler, good int, limit float64) error {
	var ratios, plain, lost, extra []float64
	noisy, n := 0, r.o.scale(20, 5)
	for i := range n {
		s, err := r.pair(1+i, spoil, good)
		if err != nil {
			return fmt.Errorf("%s: %w", what, err)
		}
		if s.share > foreignLimit {
			noisy++
		}
		ratios = append(ratios, float64(s.lost)/float64(s.plain))
		plain, lost = append(plain, millis(s.plain)), append(lost, millis(s.lost))
		extra = append(extra, millis(s.beside))
	}
	t.add(row{
		what: "CPU of recovery, " + what, ours: fmt.Sprintf("%.1f ms", median(lost)),
		theirs: fmt.Sprintf("plain prefill %.1f ms", median(plain)), ratio: median(ratios), most: limit, noisy: noisy > n/2,
		note: fmt.Sprintf("%d pairs of %d tokens, %d beside other programs, ratios %.2f to %.2f", n, recoveryLen, noisy, slices.Min(ratios), slices.Max(ratios)),
	})
	if good == 0 {
		t.under("first token after a refused claim, beside computing the prompt", median(extra), refusedExtra, "%.1f ms",
			fmt.Sprintf("idle D, no other request; %.1f to %.1f", slices.Min(extra), slices.Max(extra)))
		t.rows[len(t.rows)-1].noisy = noisy > n/2
	}
	return nil
}

// Package sim is a stand-in for a model: synthetic tokens over real KV memory.
//
// The key and value bytes of a position are a function of its token, its
// position and all KV bytes before it; the next token is a function of all KV
// bytes up to its position. Both read them through the block table in every
// step and remember nothing. So a wrong byte anywhere, a wrong block or a wrong
// token gives wrong tokens from there on, as a model would, but surely. Ranks
// and block size change where the bytes lie and nothing else: tokens are equal
// for all of them.
//
// Text is readable with the byte tokenizer: greedy tokens are letters, spaces
// and now and then, by the same function, the end token.
package sim

import (
	"fmt"
	"strconv"
	"time"

	"tandem/internal/engine/spec"
	"tandem/internal/kv"
)

// The tokens of the byte tokenizer behind the 256 bytes.
const (
	BOS = 256
	EOS = 257
	PAD = 258
)

// Config shapes a Model. Zero values take the defaults given here.
type Config struct {
	Name   string // "sim"
	Seed   uint64 // of the synthetic weights: models with other seeds differ
	Vocab  int    // 259, the byte tokenizer's; less is refused
	MaxLen int    // 8192

	Layers  int // 2
	KVHeads int // 4, over all ranks
	HeadDim int // 8
	KVType  kv.DType

	TP          int // ranks: 1, 2 or 4, a divisor of KVHeads; 1
	BlockTokens int // 16, 32 or 64; 16
	Blocks      int // 256

	// EOSEvery makes the end token the most probable one after about one in so
	// many positions; 0: 512, below 0: never.
	EOSEvery int

	// PerStep and PerToken are how long a step takes at least: PerStep and
	// PerToken for each token of the batch. 0: as long as it takes.
	PerStep, PerToken time.Duration
}

func (c *Config) fill() error {
	def := func(p *int, v int) {
		if *p == 0 {
			*p = v
		}
	}
	if c.Name == "" {
		c.Name = "sim"
	}
	def(&c.Vocab, PAD+1)
	def(&c.MaxLen, 8192)
	def(&c.Layers, 2)
	def(&c.KVHeads, 4)
	def(&c.HeadDim, 8)
	def(&c.TP, 1)
	def(&c.BlockTokens, kv.TileTokens)
	def(&c.Blocks, 256)
	def(&c.EOSEvery, 512)
	switch {
	case c.Vocab <= PAD:
		return fmt.Errorf("sim: config: vocabulary of %d tokens: want at least %d", c.Vocab, PAD+1)
	case c.TP < 1 || c.KVHeads%c.TP != 0:
		return fmt.Errorf("sim: config: %d ranks do not divide %d KV heads", c.TP, c.KVHeads)
	case c.BlockTokens%kv.TileTokens != 0:
		return fmt.Errorf("sim: config: blocks of %d tokens: want 16, 32 or 64", c.BlockTokens)
	case c.MaxLen < 2:
		return fmt.Errorf("sim: config: MaxLen %d: want at least 2", c.MaxLen)
	}
	return nil
}

// A Model is the stand-in. It implements engine.Model.
type Model struct {
	cfg    Config
	layout kv.Layout // of one rank
	arenas []*kv.Arena
	rows   [][]float32
	memory []float32
	table  []kv.Token // greedy tokens, frequent ones more than once
	timer  *time.Timer
}

// New allocates the arenas of a model.
func New(cfg Config) (*Model, error) {
	if err := cfg.fill(); err != nil {
		return nil, err
	}
	m := &Model{cfg: cfg, layout: kv.Layout{
		Layers: cfg.Layers, Heads: cfg.KVHeads / cfg.TP, HeadDim: cfg.HeadDim, Elem: cfg.KVType,
		BlockTiles: cfg.BlockTokens / kv.TileTokens,
	}}
	for range cfg.TP {
		a, err := kv.NewArena(m.layout, cfg.Blocks)
		if err != nil {
			_ = m.Close()
			return nil, fmt.Errorf("sim: rank %d of %d: %w", len(m.arenas), cfg.TP, err)
		}
		m.arenas = append(m.arenas, a)
	}
	const letters = "        eeeeeettttaaaoooiiinnnssshhhrrrddlluuccmmwwffggyyppbbvk,."
	for _, b := range []byte(letters) {
		m.table = append(m.table, kv.Token(b))
	}
	return m, nil
}

// Info describes the model.
func (m *Model) Info() spec.ModelInfo {
	c := &m.cfg
	return spec.ModelInfo{
		Name: c.Name, Vocab: c.Vocab, MaxLen: c.MaxLen, Layers: c.Layers, KVHeads: c.KVHeads, HeadDim: c.HeadDim,
		TP: c.TP, EOS: []kv.Token{EOS}, Kernel: "sim",
		Fingerprint: []spec.Factor{
			{Name: "model", Value: "sim-" + strconv.FormatUint(c.Seed, 16)},
			{Name: "architecture", Value: "sim"},
			{Name: "arithmetic", Value: "1"},
			{Name: "end_every", Value: strconv.Itoa(c.EOSEvery)},
			{Name: "vocabulary", Value: strconv.Itoa(c.Vocab)},
		},
	}
}

// Arenas returns the KV memory, one arena for each rank.
func (m *Model) Arenas() []*kv.Arena { return m.arenas }

// Close gives the KV memory back.
func (m *Model) Close() error {
	var first error
	for _, a := range m.arenas {
		if err := a.Close(); err != nil && first == nil {
			first = err
		}
	}
	m.arenas = nil
	return first
}

// Step computes b. The rows are valid until the next Step. It reports a batch
// that breaks the rules of kv.Batch as an error.
func (m *Model) Step(b *kv.Batch) ([][]float32, error) {
	var wait <-chan time.Time
	if d := m.cfg.PerStep + time.Duration(b.Tokens())*m.cfg.PerToken; d > 0 {
		if m.timer == nil {
			m.timer = time.NewTimer(d)
		} else {
			m.timer.Reset(d)
		}
		wait = m.timer.C
	}
	m.room(b)
	rows := m.rows[:0]
	for i := range b.Seqs {
		s := &b.Seqs[i]
		if err := m.check(s); err != nil {
			return nil, fmt.Errorf("sim: sequence %d of the batch: %w", i, err)
		}
		rows = m.sequence(s, rows)
	}
	m.rows = rows
	if wait != nil {
		<-wait
	}
	return rows, nil
}

// room makes space for the rows of b.
func (m *Model) room(b *kv.Batch) {
	n := 0
	for i := range b.Seqs {
		n += b.Seqs[i].Logits
	}
	if cap(m.rows) < n {
		m.rows = make([][]float32, 0, 2*n)
	}
	if need := n * m.cfg.Vocab; len(m.memory) < need {
		m.memory = make([]float32, 2*need)
	}
}

func (m *Model) check(s *kv.Seq) error {
	end := s.Pos + len(s.Tokens)
	switch {
	case len(s.Tokens) == 0 || s.Pos < 0 || end > m.cfg.MaxLen:
		return fmt.Errorf("positions %d to %d of at most %d", s.Pos, end, m.cfg.MaxLen)
	case len(s.Blocks)*m.cfg.BlockTokens < end:
		return fmt.Errorf("%d blocks for %d positions", len(s.Blocks), end)
	case s.Logits < 0 || s.Logits > len(s.Tokens):
		return fmt.Errorf("%d logits of %d tokens", s.Logits, len(s.Tokens))
	}
	for _, t := range s.Tokens {
		if t < 0 || int(t) >= m.cfg.Vocab {
			return fmt.Errorf("token %d of a vocabulary of %d", t, m.cfg.Vocab)
		}
	}
	for _, b := range s.Blocks {
		if b < 0 || int(b) >= m.cfg.Blocks {
			return fmt.Errorf("block %d of %d", b, m.cfg.Blocks)
		}
	}
	return nil
}

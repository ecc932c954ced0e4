package model

import (
	"errors"
	"fmt"
	"strconv"
	"time"

	"tandem/internal/compute"
	"tandem/internal/engine/spec"
	"tandem/internal/gguf"
	"tandem/internal/kv"
)

// Config says how a model is run. The zero value of a field means its default.
type Config struct {
	TP          int           // ranks: 1 (default), 2 or 4
	Threads     int           // members of the thread team; default 1
	Kernels     string        // "auto" (default), "avx512", "avx2", "portable"
	BlockTokens int           // tokens of a KV block: 16 (default), 32 or 64
	Blocks      int           // blocks of each rank's arena; default: one sequence of MaxLen
	MaxLen      int           // longest sequence; default and at most the model's context length
	KVType      kv.DType      // element type of the cache; F32 always has F32
	F32         bool          // exact mode: dequantized weights, unquantized inputs
	Spin        time.Duration // how long idle team members spin; default compute.DefaultSpin
	EOS         []kv.Token    // end tokens; default: what the metadata names
}

// A Model is a loaded model with its KV arenas and its thread team. Its
// methods are for one goroutine.
type Model struct {
	p      *params
	w      *weights
	k      *compute.Kernels
	team   *compute.Team
	arenas []*kv.Arena
	layout kv.Layout
	maxLen int
	info   spec.ModelInfo
	rope   rotary
	scale  float32 // of attention scores
	dead   bool    // closed
	pass   pass
	jobs   jobs
	rows   [][]float32 // what Step returns
	logits []float32
}

// Load checks f, maps arenas and packed weights, packs on the team and gives
// the file's pages back. The model reads embedding rows from f: f must stay
// open until Close. What the file or cfg asks for and this package cannot do
// is refused with an error that matches ErrUnsupported. The team reads under
// f.Guard; for what the calling goroutine reads, that is the caller's to do.
func Load(f *gguf.File, cfg Config) (m *Model, err error) {
	p, err := readParams(f)
	if err != nil {
		return nil, err
	}
	k, err := compute.Select(cfg.Kernels)
	if err != nil {
		return nil, fmt.Errorf("model: loading %s: %w", f.Name(), err)
	}
	m = &Model{p: p, k: k}
	if err := m.configure(f, &cfg); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, m.Close())
			m = nil
		}
	}()
	b := &planner{t: &tensors{f: f, used: map[string]bool{}}, p: p, f32: cfg.F32}
	if m.w, err = b.plan(); err != nil {
		return m, err
	}
	m.team = compute.NewTeam(cfg.Threads, cfg.Spin)
	sum := newContentHash(f.Bytes())
	if err := b.pack(m.w, m.team, len(sum.sums), sum.piece); err != nil {
		return m, err
	}
	if err := f.DropPages(); err != nil {
		return m, err
	}
	m.rope = newRotary(p, m.w.factors, m.maxLen, m.team)
	for range cfg.TP {
		a, err := kv.NewArena(m.layout, cfg.Blocks)
		if err != nil {
			return m, fmt.Errorf("model: loading %s: %w", f.Name(), err)
		}
		m.arenas = append(m.arenas, a)
	}
	m.describe(&cfg, sum.String())
	m.prepare()
	return m, nil
}

// configure fills in defaults and refuses settings that the model's shape does
// not allow.
func (m *Model) configure(f *gguf.File, cfg *Config) error {
	p := m.p
	fail := func(format string, args ...any) error {
		return fmt.Errorf("model: loading %s: "+format, append([]any{f.Name()}, args...)...)
	}
	cfg.TP, cfg.Threads = max(cfg.TP, 1), max(cfg.Threads, 1)
	if cfg.BlockTokens == 0 {
		cfg.BlockTokens = kv.TileTokens
	}
	if cfg.Spin == 0 {
		cfg.Spin = compute.DefaultSpin
	}
	if cfg.F32 {
		cfg.KVType = kv.F32
	}
	switch cfg.BlockTokens {
	case 16, 32, 64:
	default:
		return fail("%d tokens a block: %w (16, 32 and 64 are)", cfg.BlockTokens, ErrUnsupported)
	}
	if cfg.MaxLen < 0 || cfg.MaxLen > p.context {
		return fail("sequences of %d tokens: %w (the model's context length is %d)", cfg.MaxLen, ErrUnsupported, p.context)
	}
	m.maxLen = cfg.MaxLen
	if m.maxLen == 0 {
		m.maxLen = p.context
	}
	if m.maxLen > maxLen {
		return fail("sequences of %d tokens: %w (at most %d are; set a shorter maximum)", m.maxLen, ErrUnsupported, maxLen)
	}
	if cfg.Blocks == 0 {
		cfg.Blocks = (m.maxLen + cfg.BlockTokens - 1) / cfg.BlockTokens
	}
	if reason := refuseTP(p, cfg.TP); reason != "" {
		return fail("tensor parallelism %d: %w: %s", cfg.TP, ErrUnsupported, reason)
	}
	m.layout = kv.Layout{
		Layers: p.layers, Heads: p.kvHeads / cfg.TP, HeadDim: p.headDim,
		Elem: cfg.KVType, BlockTiles: cfg.BlockTokens / kv.TileTokens,
	}
	return nil
}

// refuseTP says why a model cannot be divided over tp ranks; "" if it can.
func refuseTP(p *params, tp int) string {
	const quarter = 4 * 32 // inputs whose quarter is one block
	switch {
	case tp != 1 && tp != 2 && tp != 4:
		return "the degrees are 1, 2 and 4"
	case p.kvHeads%tp != 0:
		return fmt.Sprintf("it does not divide the %d KV heads", p.kvHeads)
	case tp > 1 && p.qDim()%quarter != 0:
		return fmt.Sprintf("a quarter of the %d inputs of the attention output is not whole blocks of 32", p.qDim())
	case tp > 1 && p.ffn%quarter != 0:
		return fmt.Sprintf("a quarter of the %d inputs of the down matrix is not whole blocks of 32", p.ffn)
	}
	return ""
}

// describe fills in what Info returns.
func (m *Model) describe(cfg *Config, sum string) {
	p := m.p
	mode := "quantized"
	if cfg.F32 {
		mode = "f32"
	}
	eos := cfg.EOS
	if eos == nil {
		eos = p.eos
	}
	m.info = spec.ModelInfo{
		Name: p.name, Vocab: p.vocab, MaxLen: m.maxLen, Layers: p.layers,
		KVHeads: p.kvHeads, HeadDim: p.headDim, TP: cfg.TP, EOS: eos, Kernel: m.k.Name(),
		Fingerprint: []spec.Factor{
			{Name: "model_content", Value: sum},
			{Name: "architecture", Value: arch},
			{Name: "arithmetic", Value: strconv.Itoa(compute.ArithmeticVersion)},
			{Name: "mode", Value: mode},
			{Name: "kv_type", Value: cfg.KVType.String()},
		},
	}
}

// Info returns what the engine must know of the model.
func (m *Model) Info() spec.ModelInfo { return m.info }

// Arenas returns the KV arenas by rank. They belong to the model.
func (m *Model) Arenas() []*kv.Arena { return m.arenas }

// WeightBytes returns the bytes of the packed weights.
func (m *Model) WeightBytes() int { return len(m.w.mem) }

// Close ends the team and gives arenas and weights back. It may be called
// twice.
func (m *Model) Close() error {
	if m.dead {
		return nil
	}
	m.dead = true
	if m.team != nil {
		m.team.Close()
	}
	var errs []error
	for _, a := range m.arenas {
		errs = append(errs, a.Close())
	}
	m.arenas = nil
	if m.w != nil {
		errs = append(errs, compute.Free(m.w.mem))
		m.w = nil
	}
	return errors.Join(errs...)
}

package simulation

import (
	"encoding/binary"
	"fmt"
	"sync"

	"github.com/zeebo/xxh3"

	"tandem/internal/kv"
	"tandem/internal/sample"
	"tandem/internal/sim"
)

// The model that all worlds run: small, so that a seed takes milliseconds.
const (
	heads    = 4
	headDim  = 2
	layers   = 1
	eosEvery = 60
	longest  = 176 // tokens of a sequence
	outputs  = 48  // tokens of an answer, at most
)

// modelConfig is the model for an engine of so many ranks, tokens of a block and
// blocks.
func modelConfig(tp, blockTokens, blocks int) sim.Config {
	return sim.Config{
		Seed: 7, MaxLen: longest, Layers: layers, KVHeads: heads, HeadDim: headDim, TP: tp, BlockTokens: blockTokens,
		Blocks: blocks, EOSEvery: eosEvery,
	}
}

// A prefix names whole tiles from the start of a sequence: the number of their
// tokens and a hash.
type prefix struct {
	n   int
	sum uint64
}

// then returns the prefix with one more tile.
func (p prefix) then(tile []kv.Token) prefix {
	var b [4 * kv.TileTokens]byte
	for i, t := range tile {
		binary.LittleEndian.PutUint32(b[4*i:], uint32(t))
	}
	return prefix{p.n + len(tile), xxh3.HashSeed(b[:], p.sum)}
}

// An answer is what a lone engine makes of a prompt.
type answer struct {
	tokens []kv.Token
	finish string
}

// A reference knows what a lone engine answers, and the sums of the KV that it
// computes. It is shared by all worlds.
type reference struct {
	mu      sync.Mutex
	model   *sim.Model
	answers map[string]*answer
	tiles   map[prefix][heads]uint64 // of the tile that ends the prefix
}

func newReference() (*reference, error) {
	m, err := sim.New(modelConfig(1, kv.TileTokens, longest/kv.TileTokens+1))
	if err != nil {
		return nil, err
	}
	return &reference{model: m, answers: map[string]*answer{}, tiles: map[prefix][heads]uint64{}}, nil
}

func (r *reference) close() error { return r.model.Close() }

// answer returns what follows prompt as one of several choices. Key is equal for equal prompts, and no
// other ones.
func (r *reference) answer(key string, prompt []kv.Token, p sample.Params, choice int) (*answer, error) {
	if p.Seed != nil {
		key += fmt.Sprintf("/%d.%d", *p.Seed, choice)
	}
	key += fmt.Sprintf("/%d", p.MaxTokens)
	r.mu.Lock()
	defer r.mu.Unlock()
	if a := r.answers[key]; a != nil {
		return a, nil
	}
	blocks := make([]kv.BlockID, r.model.Arenas()[0].Blocks())
	for i := range blocks {
		blocks[i] = kv.BlockID(i)
	}
	var seed uint64
	if p.Seed != nil {
		seed = uint64(*p.Seed)
	}
	st := sample.NewState(p, prompt, []kv.Token{sim.EOS}, p.MaxTokens, choice, seed)
	var s sample.Sampler
	a := &answer{}
	all := append([]kv.Token(nil), prompt...)
	for from := 0; a.finish == ""; {
		rows, err := r.model.Step(&kv.Batch{Seqs: []kv.Seq{{Tokens: all[from:], Pos: from, Blocks: blocks, WriteFrom: from, Logits: 1}}})
		if err != nil {
			return nil, err
		}
		t, err := s.Next(st, rows[0])
		if err != nil {
			return nil, err
		}
		from = len(all)
		all = append(all, t)
		a.tokens = append(a.tokens, t)
		switch st.Accept(t) {
		case sample.Continue:
		case sample.Length:
			a.finish = "length"
		default:
			a.finish = "stop"
		}
	}
	// The last token's KV was not computed.
	arena := r.model.Arenas()[0]
	var at prefix
	for i := range (len(all) - 1) / kv.TileTokens {
		at = at.then(all[i*kv.TileTokens : (i+1)*kv.TileTokens])
		var sums [heads]uint64
		for h := range sums {
			sums[h] = kv.SumHead(arena.Tile(kv.TileID(i)), arena.Layout(), h)
		}
		r.tiles[at] = sums
	}
	r.answers[key] = a
	return a, nil
}

// tile returns the sums of the tile that ends p.
func (r *reference) tile(p prefix) ([heads]uint64, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	s, ok := r.tiles[p]
	return s, ok
}

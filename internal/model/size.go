package model

import (
	"tandem/internal/gguf"
	"tandem/internal/kv"
)

// BlockBytes returns the KV bytes of one block over all ranks, so that a caller
// can turn a memory budget into Config.Blocks before it loads the model. It
// refuses what Load would refuse of the metadata.
func BlockBytes(f *gguf.File, cfg Config) (int, error) {
	p, err := readParams(f)
	if err != nil {
		return 0, err
	}
	elem := cfg.KVType
	if cfg.F32 {
		elem = kv.F32
	}
	tokens := cfg.BlockTokens
	if tokens == 0 {
		tokens = kv.TileTokens
	}
	l := kv.Layout{Layers: p.layers, Heads: p.kvHeads, HeadDim: p.headDim, Elem: elem, BlockTiles: tokens / kv.TileTokens}
	return l.BlockBytes(), nil
}

// ContextLength returns the longest sequence that the metadata allows.
func ContextLength(f *gguf.File) (int, error) {
	p, err := readParams(f)
	if err != nil {
		return 0, err
	}
	return p.context, nil
}

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"sync"
	"time"

	"tandem/internal/chat"
	"tandem/internal/engine"
	"tandem/internal/gguf"
	"tandem/internal/kv"
	"tandem/internal/model"
	"tandem/internal/sim"
	"tandem/internal/tokenizer"
)

// A loaded model is what an engine computes with and how text becomes tokens.
type loaded struct {
	engine.Model
	name      string
	tokenizer *tokenizer.Tokenizer
	template  *chat.Template // nil: none
	file      *gguf.File     // nil: --sim
}

// Info describes the model; what ends an output is the tokenizer's knowledge.
func (l *loaded) Info() engine.ModelInfo {
	info := l.Model.Info()
	info.EOS = l.tokenizer.EOG()
	return info
}

func (l *loaded) close() error {
	err := l.Close()
	if l.file != nil {
		err = errors.Join(err, l.file.Close())
	}
	return err
}

// openModel loads the model, or the stand-in of --sim.
func openModel(ctx context.Context, o *serveOptions, args []string, threads int, log *slog.Logger, progress io.Writer) (*loaded, error) {
	if o.sim {
		return openSim(o, log)
	}
	path, err := findModel(ctx, args, progress)
	if err != nil {
		return nil, err
	}
	began := time.Now()
	f, err := gguf.Open(path)
	if err != nil {
		return nil, err
	}
	l, err := readModel(o, f, threads)
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	info, a := l.Info(), l.Arenas()[0]
	log.Info("model loaded", "model", l.name, "kernels", info.Kernel, "threads", threads, "tensor_parallel_size", info.TP,
		"kv_blocks", a.Blocks(), "block_size", a.Layout().BlockTokens(), "kv_cache_dtype", a.Layout().Elem.String(),
		"max_model_len", info.MaxLen, "seconds", time.Since(began).Seconds())
	if l.template == nil {
		log.Warn("the model has no chat template; chat requests are refused")
	}
	return l, nil
}

// readModel reads the vocabulary while the weights are packed.
func readModel(o *serveOptions, f *gguf.File, threads int) (*loaded, error) {
	l := &loaded{name: modelName(f.Name()), file: f}
	var words error
	var wg sync.WaitGroup
	wg.Go(func() {
		words = f.Guard(func() (err error) {
			l.tokenizer, l.template, err = openText(f)
			return err
		})
	})
	err := f.Guard(func() (err error) {
		l.Model, err = loadWeights(o, f, threads)
		return err
	})
	wg.Wait()
	if err != nil {
		return nil, err
	}
	if words != nil {
		return nil, errors.Join(words, l.Close())
	}
	return l, nil
}

func openText(f *gguf.File) (*tokenizer.Tokenizer, *chat.Template, error) {
	tok, err := tokenizer.FromGGUF(f)
	if err != nil {
		return nil, nil, err
	}
	const key = "tokenizer.chat_template"
	if !f.Has(key) {
		return tok, nil, nil
	}
	src, err := f.String(key)
	if err != nil {
		return nil, nil, err
	}
	var special chat.Specials
	if id, ok := tok.BOS(); ok {
		special.BOS = tok.Text(id)
	}
	if id, ok := tok.EOS(); ok {
		special.EOS = tok.Text(id)
	}
	tpl, err := chat.Parse(src, special)
	if err != nil {
		return nil, nil, fmt.Errorf("the chat template of %s: %w", f.Name(), err)
	}
	return tok, tpl, nil
}

func loadWeights(o *serveOptions, f *gguf.File, threads int) (*model.Model, error) {
	cfg := model.Config{TP: o.tp, Threads: threads, Kernels: o.kernels, BlockTokens: o.blockSize, F32: o.f32, KVType: kv.F16}
	if o.kvType == "f32" {
		cfg.KVType = kv.F32
	}
	limit, err := model.ContextLength(f)
	if err != nil {
		return nil, err
	}
	if o.maxLen > limit {
		return nil, fmt.Errorf("--max-model-len %d: the model's context length is %d", o.maxLen, limit)
	}
	cfg.MaxLen = o.maxLen
	size, err := model.BlockBytes(f, cfg)
	if err != nil {
		return nil, err
	}
	cfg.Blocks = o.blocks
	if cfg.Blocks == 0 {
		cfg.Blocks = int(int64(o.memory) / int64(size))
	}
	if cfg.Blocks < 1 {
		return nil, fmt.Errorf("--kv-cache-memory %s: one block takes %d bytes", o.memory.String(), size)
	}
	if err := kv.Fits(cfg.Blocks, size); err != nil { // those of all ranks together
		return nil, o.smaller(err)
	}
	return model.Load(f, cfg)
}

// smaller says how a KV cache that the machine has no memory for is made to fit.
func (o *serveOptions) smaller(err error) error {
	flag := "--kv-cache-memory " + o.memory.String()
	if o.blocks > 0 {
		flag = fmt.Sprintf("--num-gpu-blocks-override %d", o.blocks)
	}
	return fmt.Errorf("%w; give less than %s", err, flag)
}

func openSim(o *serveOptions, log *slog.Logger) (*loaded, error) {
	cfg := sim.Config{MaxLen: o.maxLen, TP: o.tp, BlockTokens: o.blockSize, Blocks: o.blocks, PerToken: o.simDelay}
	if o.kvType == "f32" {
		cfg.KVType = kv.F32
	}
	if cfg.Blocks == 0 {
		cfg.Blocks = 4096 * kv.TileTokens / o.blockSize
	}
	m, err := sim.New(cfg)
	if errors.Is(err, kv.ErrMemory) {
		err = o.smaller(err)
	}
	if err != nil {
		return nil, err
	}
	tpl, err := chat.Parse(simTemplate, chat.Specials{})
	if err != nil {
		return nil, errors.Join(err, m.Close())
	}
	log.Warn("running --sim: there is no model, tokens are synthetic")
	return &loaded{Model: m, name: "sim", tokenizer: tokenizer.Bytes(), template: tpl}, nil
}

// simTemplate lets chat clients talk to --sim.
const simTemplate = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}{% if add_generation_prompt %}assistant: {% endif %}"

package main

import (
	"fmt"
	"time"

	"tandem/internal/kv"
)

// measureModel prints the speed of the forward pass, without a target: it
// belongs to the machine. The comparison with llama.cpp has the targets.
func measureModel(o *options, t *table) error {
	r, err := openRunner(o.model, o.threads)
	if err != nil {
		return err
	}
	defer r.close()
	one := 0.0
	for _, c := range []struct {
		what string
		seqs int
	}{{"prefill 512", 0}, {"decode, 1 sequence", 1}, {"decode, 8 sequences", 8}, {"decode, 32 sequences", 32}} {
		var rates []float64
		for range o.scale(5, 3) + 1 {
			var s speed
			if c.seqs == 0 {
				s, err = r.prefill(llamaPrompt)
			} else {
				s, err = r.decode(c.seqs, batchPrompt, batchDecode)
			}
			if err != nil {
				return err
			}
			rates = append(rates, s.perSecond())
		}
		rate := median(rates[1:])
		x := row{what: "forward pass, " + c.what, ours: fmt.Sprintf("%.0f tok/s", rate), note: r.model.Info().Kernel}
		switch {
		case c.seqs == 1:
			one = rate
		case c.seqs > 1:
			x.theirs, x.ratio = fmt.Sprintf("1 sequence %.0f tok/s", one), rate/one
		}
		t.add(x)
	}
	return nil
}

// copyAndCheck returns the time that copying the KV of n tokens and summing the
// copy take on one thread, in memory that has been touched.
func (o *options) copyAndCheck(n int) (time.Duration, error) {
	r, err := openRunner(o.model, o.threads)
	if err != nil {
		return 0, err
	}
	defer r.close()
	if _, err := r.prefill(n); err != nil {
		return 0, err
	}
	arena := r.model.Arenas()[0]
	tiles := (n + kv.TileTokens - 1) / kv.TileTokens
	size := r.layout.TileBytes()
	dst := make([]byte, tiles*size)
	var times []time.Duration
	for range 5 {
		start := time.Now()
		for i := range tiles {
			tile := dst[i*size:][:size]
			copy(tile, arena.Tile(kv.TileID(i)))
			for h := range r.layout.Heads {
				kv.SumHead(tile, r.layout, h)
			}
		}
		times = append(times, time.Since(start))
	}
	return median(times), nil
}

package model

import (
	"fmt"

	"tandem/internal/compute"
)

// tileRows are the output rows of one chunk of a residual product: few enough
// that its four partial sums stay in the second-level cache.
const tileRows = 32

// hiddenRows are the rows of gate, and of up, in one chunk of their product.
const hiddenRows = 64

// chunkTokens are the tokens that a chunk works on at a time, so that what it
// makes of them stays in the first-level cache.
const chunkTokens = 64

// A part is a matrix whose outputs start at column col of a chunk or row.
type part struct {
	m   *compute.Matrix
	col int
}

// A segmented product adds to the residual stream. Its outputs are cut into
// chunks of tileRows, its inputs into four segments.
type segmented struct {
	tiles [][4]*compute.Matrix
}

// layer are the weights of one layer.
type layer struct {
	attnNorm, ffnNorm []float32
	qkv               []part   // outputs q, k, v side by side
	gateUp            [][]part // by chunk: hiddenRows of gate, then as many of up
	o, down           segmented
}

// weights are a model's packed weights.
type weights struct {
	mem     []byte // of all matrices
	layers  []layer
	outNorm []float32
	out     *compute.Matrix
	embd    source // rows are read from the file
	factors []float32

	rowForm compute.Form // of the inputs of qkv, gate and up
	attForm compute.Form // of the inputs of o
	ffnForm compute.Form // of the inputs of down
}

// A fill is rows of one tensor that go to one matrix.
type fill struct {
	to  *slot
	at  int
	src compute.Rows
}

// A slot is a matrix to be made.
type slot struct {
	typ        compute.Type
	rows, cols int
	m          *compute.Matrix
}

// planner collects matrices and what goes into them, so that memory is mapped
// once and packing runs in parallel.
type planner struct {
	t     *tensors
	p     *params
	f32   bool
	slots []*slot
	fills []fill
	bind  []func() // set matrices where they belong, once they exist
}

func (b *planner) slot(typ compute.Type, rows, cols int) *slot {
	s := &slot{typ: typ, rows: rows, cols: cols}
	b.slots = append(b.slots, s)
	return s
}

// typ returns the type a tensor is packed as.
func (b *planner) typ(s source) compute.Type {
	if b.f32 {
		return compute.F32
	}
	return s.typ
}

// A piece is consecutive outputs of a tensor.
type piece struct {
	src      source
	from, to int
	index    func(int) int // tensor row of output row, or nil
}

// stack makes matrices of pieces side by side, each piece from a multiple of
// 16 on: one matrix for each run of equal types.
func (b *planner) stack(pieces ...piece) *[]part {
	parts := new([]part)
	col := 0
	for len(pieces) > 0 {
		typ, n, rows := b.typ(pieces[0].src), 0, 0
		for n < len(pieces) && b.typ(pieces[n].src) == typ && (n == 0 || rows%compute.Lanes == 0) {
			rows += pieces[n].to - pieces[n].from
			n++
		}
		s := b.slot(typ, rows, pieces[0].src.cols)
		at := 0
		for _, p := range pieces[:n] {
			b.fill(s, at, p, 0)
			at += p.to - p.from
		}
		c := col
		b.bind = append(b.bind, func() { *parts = append(*parts, part{s.m, c}) })
		pieces, col = pieces[n:], col+padded(rows)
	}
	return parts
}

// padded rounds up to the outputs that a product writes.
func padded(rows int) int { return (rows + compute.Lanes - 1) / compute.Lanes * compute.Lanes }

// fillRows bounds the rows of one fill: it is a chunk of the packing job.
const fillRows = 512

func (b *planner) fill(s *slot, at int, p piece, col int) {
	for from := p.from; from < p.to; from += fillRows {
		n := min(fillRows, p.to-from)
		b.fills = append(b.fills, fill{s, at + from - p.from, compute.Rows{
			Type: p.src.typ, Data: p.src.data, Cols: p.src.cols, Col: col, Count: n,
			Index: func(i int) int {
				if p.index != nil {
					return p.index(from + i)
				}
				return from + i
			},
		}})
	}
}

// segmented makes the chunks of a residual product.
func (b *planner) segmented(src source, to *segmented) {
	for from := 0; from < src.rows; from += tileRows {
		p := piece{src: src, from: from, to: min(src.rows, from+tileRows)}
		var slots [4]*slot
		for i := range slots {
			c0, c1 := compute.Segment(src.cols, i)
			slots[i] = b.slot(b.typ(src), p.to-p.from, c1-c0)
			if c1 > c0 {
				b.fill(slots[i], 0, p, c0)
			}
		}
		b.bind = append(b.bind, func() {
			to.tiles = append(to.tiles, [4]*compute.Matrix{slots[0].m, slots[1].m, slots[2].m, slots[3].m})
		})
	}
}

// halves returns the row order that turns rotary pairs of neighbours into
// halves of a head: output row j of a head's first half is row 2j, of its
// second half row 2j+1.
func (p *params) halves(row int) int {
	h, j := row/p.headDim*p.headDim, row%p.headDim
	half := p.rot / 2
	switch {
	case j < half:
		return h + 2*j
	case j < p.rot:
		return h + 2*(j-half) + 1
	}
	return row
}

// plan walks the whole model. The weights are complete when the bind functions
// have run.
func (b *planner) plan() (*weights, error) {
	p := b.p
	w := &weights{layers: make([]layer, p.layers)}
	form := func(f *compute.Form, s source) { *f |= compute.FormOf(b.typ(s)) }
	var err error
	if w.embd, err = b.t.matrix("token_embd.weight", p.vocab, p.width); err != nil {
		return nil, err
	}
	for l := range w.layers {
		if err := b.layer(w, l, form); err != nil {
			return nil, err
		}
	}
	if w.outNorm, err = b.t.vector("output_norm.weight", p.width); err != nil {
		return nil, err
	}
	out := w.embd // tied unless the file has a matrix of its own
	if _, ok := b.t.f.Tensor("output.weight"); ok {
		if out, err = b.t.matrix("output.weight", p.vocab, p.width); err != nil {
			return nil, err
		}
	}
	s := b.slot(b.typ(out), p.vocab, p.width)
	b.fill(s, 0, piece{src: out, to: p.vocab}, 0)
	b.bind = append(b.bind, func() { w.out = s.m })
	form(&w.rowForm, out)
	if _, ok := b.t.f.Tensor("rope_freqs.weight"); ok {
		if w.factors, err = b.t.vector("rope_freqs.weight", p.rot/2); err != nil {
			return nil, err
		}
		for i, f := range w.factors {
			if !(f > 0) {
				return nil, b.t.fail("tensor %q: number %d is %g, want a positive one", "rope_freqs.weight", i, f)
			}
		}
	}
	return w, b.t.rest(p)
}

func (b *planner) layer(w *weights, l int, form func(*compute.Form, source)) error {
	p, y := b.p, &w.layers[l]
	var err error
	vec := func(name string) (v []float32) {
		if err == nil {
			v, err = b.t.vector(fmt.Sprintf("blk.%d.%s.weight", l, name), p.width)
		}
		return v
	}
	mat := func(name string, rows, cols int) (s source) {
		if err == nil {
			s, err = b.t.matrix(fmt.Sprintf("blk.%d.%s.weight", l, name), rows, cols)
		}
		return s
	}
	y.attnNorm, y.ffnNorm = vec("attn_norm"), vec("ffn_norm")
	q, k, v := mat("attn_q", p.qDim(), p.width), mat("attn_k", p.kDim(), p.width), mat("attn_v", p.kDim(), p.width)
	o := mat("attn_output", p.width, p.qDim())
	gate, up, down := mat("ffn_gate", p.ffn, p.width), mat("ffn_up", p.ffn, p.width), mat("ffn_down", p.width, p.ffn)
	if err != nil {
		return err
	}
	for _, s := range []source{q, k, v, gate, up} {
		form(&w.rowForm, s)
	}
	form(&w.attForm, o)
	form(&w.ffnForm, down)
	qkv := b.stack(piece{q, 0, p.qDim(), p.halves}, piece{k, 0, p.kDim(), p.halves}, piece{v, 0, p.kDim(), nil})
	b.bind = append(b.bind, func() { y.qkv = *qkv })
	for from := 0; from < p.ffn; from += hiddenRows {
		to := min(p.ffn, from+hiddenRows)
		g := b.stack(piece{gate, from, to, nil}, piece{up, from, to, nil})
		b.bind = append(b.bind, func() { y.gateUp = append(y.gateUp, *g) })
	}
	b.segmented(o, &y.o)
	b.segmented(down, &y.down)
	return nil
}

// pack maps memory for all matrices and fills them on the team. Other work
// runs alongside: job i of extra jobs is extra(i).
func (b *planner) pack(w *weights, team *compute.Team, extra int, run func(i int)) error {
	total := 0
	for _, s := range b.slots {
		total += compute.PackedBytes(s.typ, s.rows, s.cols)
	}
	var err error
	if w.mem, err = compute.Alloc(max(total, 1)); err != nil {
		return fmt.Errorf("model: loading %s: %w", b.t.f.Name(), err)
	}
	at := 0
	for _, s := range b.slots {
		n := compute.PackedBytes(s.typ, s.rows, s.cols)
		if s.m, err = compute.NewMatrix(s.typ, s.rows, s.cols, w.mem[at:at+n:at+n]); err != nil {
			return fmt.Errorf("model: loading %s: %w", b.t.f.Name(), err)
		}
		at += n
	}
	jobs := len(b.fills) + extra
	errs := make([]error, jobs)
	chunks := min(jobs, 1024)
	team.Rouse()
	team.Do(chunks, func(_, c int) {
		for i := jobs * c / chunks; i < jobs*(c+1)/chunks; i++ {
			errs[i] = b.t.f.Guard(func() error {
				if i < len(b.fills) {
					f := &b.fills[i]
					return f.to.m.Pack(f.at, f.src)
				}
				run(i - len(b.fills))
				return nil
			})
		}
	})
	for _, err := range errs {
		if err != nil {
			return fmt.Errorf("model: loading %s: %w", b.t.f.Name(), err)
		}
	}
	for _, f := range b.bind {
		f()
	}
	return nil
}

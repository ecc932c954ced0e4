package compute

import (
	"encoding/binary"
	"math"
)

// AttnSplit is the number of keys after which attention starts a new part;
// parts are merged in order. It depends on positions only, never on load.
const AttnSplit = 4096

// Attn is attention of some consecutive tokens of one sequence, over one KV
// head of one layer. Tokens times Group is at most 16.
type Attn struct {
	// Query rows: head g of token t is Q[t*QStride+g*Dim:][:Dim], after rotary
	// embedding; its output goes to the same place of Out.
	Q         []float32
	QStride   int
	Out       []float32
	OutStride int

	Tokens int
	Group  int // query heads of the KV head
	Dim    int // elements of a head
	Pos    int // position of the first token; token t attends to keys 0 to Pos+t
	Scale  float32

	// The cache: K of tile i of the sequence is [Dim][16] at KV[At+Tiles[i]:],
	// V is [16][Dim] right behind. Elem is F16 or F32.
	KV    []byte
	At    int
	Tiles []int64
	Elem  Type
}

// AttnScratch is the working memory of one Attend at a time.
type AttnScratch struct {
	s, q, o []float32
	job     attnJob
}

// NewAttnScratch returns working memory for heads of up to dim elements.
func NewAttnScratch(dim int) *AttnScratch {
	return &AttnScratch{
		s: make([]float32, Lanes*AttnSplit),
		q: make([]float32, Lanes*dim),
		o: make([]float32, 2*Lanes*dim),
	}
}

// attnJob is one split of an Attn.
type attnJob struct {
	elem Type
	dim  int
	rows int       // query rows, padded to a tile
	q    []float32 // [dim][rows]
	k, v []byte    // what offs count from
	offs []int64   // tiles of the split
	keys int       // keys of the split
	s    []float32 // [rows][16*len(offs)]: scores, then weights
	o    []float32 // [rows][dim]
}

// Attend computes a.
func (k *Kernels) Attend(a *Attn, sc *AttnScratch) {
	rows, keys := a.Tokens*a.Group, a.Pos+a.Tokens
	if rows < 1 || rows > Lanes || a.Dim < 1 || a.Elem != F16 && a.Elem != F32 || len(a.Tiles)*Lanes < keys {
		panic("compute: attention of an impossible shape")
	}
	t := padTile(rows)
	q := sc.q[:t*a.Dim]
	if t > rows {
		clear(q)
	}
	for r := range rows {
		src := a.Q[r/a.Group*a.QStride+r%a.Group*a.Dim:][:a.Dim]
		for d, j := 0, r; d < len(src) && j < len(q); d, j = d+1, j+t {
			q[j] = src[d]
		}
	}
	kb := Lanes * a.Dim * a.Elem.BlockBytes()
	j := &sc.job
	*j = attnJob{elem: a.Elem, dim: a.Dim, rows: t, q: q, k: a.KV[a.At:], v: a.KV[a.At+kb:]}
	for _, off := range a.Tiles[:(keys+Lanes-1)/Lanes] {
		if uint64(off) > uint64(len(j.k)) || int(off)+2*kb > len(j.k) {
			panic("compute: attention tile outside of the cache")
		}
	}
	var top, sum [Lanes]float32
	for c := 0; c < keys; c += AttnSplit {
		j.keys = min(keys-c, AttnSplit)
		j.offs = a.Tiles[c/Lanes:][:(j.keys+Lanes-1)/Lanes]
		k.attnSplit(j, sc, a, c, &top, &sum)
	}
	for r := range rows {
		inv := 1 / sum[r]
		dst := a.Out[r/a.Group*a.OutStride+r%a.Group*a.Dim:][:a.Dim]
		for d, v := range sc.o[r*a.Dim:][:a.Dim] {
			dst[d] = v * inv
		}
	}
}

// attnSplit adds the split that starts at key c to sc.o, top and sum.
func (k *Kernels) attnSplit(j *attnJob, sc *AttnScratch, a *Attn, c int, top, sum *[Lanes]float32) {
	rows := a.Tokens * a.Group
	ss := Lanes * len(j.offs)
	j.s = sc.s[:j.rows*ss]
	k.qk(j)
	ninf := float32(math.Inf(-1))
	var m, l [Lanes]float32
	first := 0 // rows before it have no keys in this split
	for r := range rows {
		n := min(a.Pos+r/a.Group+1-c, j.keys)
		if n <= 0 {
			first = r + 1
			continue
		}
		s := j.s[r*ss:][:ss]
		for i := n; i < ss; i++ {
			s[i] = ninf
		}
		m[r], l[r] = k.softmax(s, a.Scale)
	}
	half := Lanes * a.Dim
	j.o = sc.o[:min(half, len(sc.o)/2)]
	if c > 0 {
		j.o = sc.o[len(sc.o)/2:]
	}
	k.pv(j, first, rows-first)
	if c == 0 {
		*top, *sum = m, l
		return
	}
	for r := first; r < rows; r++ {
		t := top[r]
		if m[r] > t {
			t = m[r]
		}
		x, y := exp32(float32(top[r]-t)*a.Scale), exp32(float32(m[r]-t)*a.Scale)
		top[r], sum[r] = t, fma32(sum[r], x, float32(l[r]*y))
		o, p := sc.o[r*a.Dim:][:a.Dim], j.o[r*a.Dim:][:a.Dim]
		for d := range o {
			o[d] = fma32(o[d], x, float32(p[d]*y))
		}
	}
}

// loadRow loads len(dst) elements, F16 or F32, from b.
func loadRow(dst []float32, elem Type, b []byte) {
	if elem == F16 {
		b = b[:2*len(dst)]
		for i := range dst {
			dst[i] = F16Float(binary.LittleEndian.Uint16(b[2*i:]))
		}
		return
	}
	b = b[:4*len(dst)]
	for i := range dst {
		dst[i] = math.Float32frombits(binary.LittleEndian.Uint32(b[4*i:]))
	}
}

// qkGo computes the scores of j: each a sum over d ascending.
func qkGo(j *attnJob) {
	ss := Lanes * len(j.offs)
	for i, off := range j.offs {
		var acc [Lanes][Lanes]float32
		for d := range j.dim {
			var keys [Lanes]float32
			loadRow(keys[:], j.elem, j.k[int(off)+d*Lanes*j.elem.BlockBytes():])
			for r, q := range j.q[d*j.rows:][:j.rows] {
				fmaRow(acc[r][:], keys[:], q)
			}
		}
		for r := range j.rows {
			copy(j.s[r*ss+i*Lanes:], acc[r][:])
		}
	}
}

// softmaxGo replaces s, whole vectors, by e^(scale*(s-top)) and returns top,
// their maximum, and the sum of what it wrote. Masked entries hold -Inf.
func softmaxGo(s []float32, scale float32) (top, sum float32) {
	var m, l [Lanes]float32
	for i := range m {
		m[i] = float32(math.Inf(-1))
	}
	for i, v := range s {
		if v > m[i%Lanes] {
			m[i%Lanes] = v
		}
	}
	top = maxLanes(&m)
	for i, v := range s {
		e := exp32(float32(v-top) * scale)
		s[i] = e
		l[i%Lanes] += e
	}
	return top, sumLanes(&l)
}

// pvGo computes o[r] = sum of weight times V over the keys in order, for rows
// [row, row+rows).
func pvGo(j *attnJob, row, rows int) {
	ss, size := Lanes*len(j.offs), j.dim*j.elem.BlockBytes()
	clear(j.o[row*j.dim : (row+rows)*j.dim])
	var buf [64]float32
	for i := range j.keys {
		v := j.v[int(j.offs[i/Lanes])+i%Lanes*size:]
		for d := 0; d < j.dim; d += len(buf) {
			n := min(len(buf), j.dim-d)
			loadRow(buf[:n], j.elem, v[d*j.elem.BlockBytes():])
			for r := row; r < row+rows; r++ {
				fmaRow(j.o[r*j.dim+d:][:n], buf[:n], j.s[r*ss+i])
			}
		}
	}
}

// WriteK writes the keys of n tokens into slots slot, slot+1, ... of K of a
// tile, dst, which is [dim][16] of elem (F16 or F32). Token t's key is
// x[t*stride:][:dim].
func (k *Kernels) WriteK(dst []byte, elem Type, dim, slot, n int, x []float32, stride int) {
	dst = dst[:Lanes*dim*elem.BlockBytes()]
	if slot < 0 || slot+n > Lanes {
		panic("compute: writing keys outside of a tile")
	}
	le := binary.LittleEndian
	if elem == F32 {
		for t := range n {
			for d, v := range x[t*stride:][:dim] {
				le.PutUint32(dst[(d*Lanes+slot+t)*4:], math.Float32bits(clampF32(v)))
			}
		}
		return
	}
	if n > 0 {
		k.writeK(dst, dim, slot, n, x[:(n-1)*stride+dim], stride)
	}
}

// writeKGo is WriteK for F16.
func writeKGo(dst []byte, dim, slot, n int, x []float32, stride int) {
	for t := range n {
		for d, v := range x[t*stride:][:dim] {
			binary.LittleEndian.PutUint16(dst[(d*Lanes+slot+t)*2:], F16Bits(v))
		}
	}
}

// WriteV writes the values of n tokens into slots slot, slot+1, ... of V of a
// tile, dst, which is [16][dim] of elem. Token t's value is x[t*stride:][:dim].
func (k *Kernels) WriteV(dst []byte, elem Type, dim, slot, n int, x []float32, stride int) {
	size := dim * elem.BlockBytes()
	if slot < 0 || slot+n > Lanes {
		panic("compute: writing values outside of a tile")
	}
	for t := range n {
		row := dst[(slot+t)*size:][:size]
		v := x[t*stride:][:dim]
		if elem == F16 {
			k.ToF16(row, v)
			continue
		}
		for d, e := range v {
			binary.LittleEndian.PutUint32(row[4*d:], math.Float32bits(clampF32(e)))
		}
	}
}

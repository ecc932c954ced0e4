package compute

import (
	"encoding/binary"
	"fmt"
	"math"
	"testing"
)

// exactAttend is one output row of attention: keys and values are [n][dim].
func exactAttend(q []float32, keys, values [][]float32, scale float32) []float32 {
	dim := len(q)
	var top, sum float32
	out := make([]float32, dim)
	for c := 0; c < len(keys); c += 4096 {
		n := min(4096, len(keys)-c)
		s := make([]float32, n)
		m := float32(math.Inf(-1))
		for i := range s {
			for d, v := range keys[c+i] {
				s[i] = exactFMA(v, q[d], s[i])
			}
			if s[i] > m {
				m = s[i]
			}
		}
		lanes := make([]float32, 16)
		o := make([]float32, dim)
		for i := range s {
			w := exactExp((s[i] - m) * scale)
			lanes[i%16] += w
			for d, v := range values[c+i] {
				o[d] = exactFMA(w, v, o[d])
			}
		}
		l := exactTree(lanes, plus)
		if c == 0 {
			top, sum, out = m, l, o
			continue
		}
		t := top
		if m > t {
			t = m
		}
		x, y := exactExp((top-t)*scale), exactExp((m-t)*scale)
		top, sum = t, exactFMA(sum, x, l*y)
		for d := range out {
			out[d] = exactFMA(out[d], x, o[d]*y)
		}
	}
	for d := range out {
		out[d] *= 1 / sum
	}
	return out
}

// cache is a KV cache of one head in tiles that lie in no order.
type cache struct {
	kv    []byte
	tiles []int64
	elem  Type
	dim   int
	keys  [][]float32 // as stored
	vals  [][]float32
}

const cacheAt = 64 // bytes before the head in a tile

// fill writes n tokens with k, in runs of odd lengths.
func fill(k *Kernels, elem Type, dim, n int, x []float32) *cache {
	c := &cache{elem: elem, dim: dim}
	kb := Lanes * dim * elem.BlockBytes()
	size := cacheAt + 2*kb + 32
	nt := (n + Lanes - 1) / Lanes
	c.kv = make([]byte, nt*size)
	for i := range c.kv {
		c.kv[i] = 0x7b // a finite number in slots that are never written
	}
	for i := range nt {
		c.tiles = append(c.tiles, int64((i*7+3)%nt*size))
	}
	if nt%7 == 0 {
		for i := range nt {
			c.tiles[i] = int64(i * size)
		}
	}
	run := 1
	for p := 0; p < n; {
		m := min(run, n-p, Lanes-p%Lanes)
		t := c.kv[c.tiles[p/Lanes]+cacheAt:]
		k.WriteK(t, elem, dim, p%Lanes, m, x[p*2*dim:], 2*dim)
		k.WriteV(t[kb:], elem, dim, p%Lanes, m, x[p*2*dim+dim:], 2*dim)
		p += m
		run = run%19 + 4
		if p%Lanes == 0 {
			run = Lanes
		}
	}
	store := func(v float32) float32 {
		if elem == F16 {
			return F16Float(F16Bits(v))
		}
		return v
	}
	for p := range n {
		ks, vs := make([]float32, dim), make([]float32, dim)
		for d := range dim {
			ks[d], vs[d] = store(x[p*2*dim+d]), store(x[p*2*dim+dim+d])
		}
		c.keys, c.vals = append(c.keys, ks), append(c.vals, vs)
	}
	return c
}

func TestAttentionMatchesTheReference(t *testing.T) {
	r := newSource(11)
	for _, c := range []struct {
		elem                    Type
		tokens, group, dim, pos int
	}{
		{F16, 1, 1, 64, 0},
		{F16, 1, 3, 64, 5},
		{F16, 5, 3, 64, 0},
		{F16, 16, 1, 16, 30},
		{F16, 2, 8, 128, 15},
		{F16, 3, 4, 80, 40},
		{F16, 7, 2, 8, 20},
		{F16, 2, 2, 48, 1},
		{F16, 1, 5, 112, 33},
		{F32, 1, 3, 64, 17},
		{F32, 4, 4, 32, 3},
		{F32, 3, 1, 8, 16},
		{F32, 1, 6, 208, 2},
		{F16, 2, 1, 16, 4094},
		{F16, 3, 1, 16, 4095},
		{F32, 1, 1, 16, 8200},
	} {
		n := c.pos + c.tokens
		x := r.floats(n * 2 * c.dim)
		stride := c.group*c.dim + 5
		q := r.floats(c.tokens * stride)
		scale := float32(1 / math.Sqrt(float64(c.dim)))
		t.Run(fmt.Sprintf("%v %d tokens of %d heads of %d at %d", c.elem, c.tokens, c.group, c.dim, c.pos), func(t *testing.T) {
			ref := fill(portable(), c.elem, c.dim, n, x)
			want := make([][]float32, 0, c.tokens*c.group)
			for tok := range c.tokens {
				for h := range c.group {
					m := c.pos + tok + 1
					want = append(want, exactAttend(q[tok*stride+h*c.dim:][:c.dim], ref.keys[:m], ref.vals[:m], scale))
				}
			}
			for _, k := range allKernels(t) {
				t.Run(k.Name(), func(t *testing.T) {
					kv := fill(k, c.elem, c.dim, n, x)
					if string(kv.kv) != string(ref.kv) {
						t.Fatal("the cache differs")
					}
					out := make([]float32, c.tokens*stride)
					a := Attn{
						Q: q, QStride: stride, Out: out, OutStride: stride,
						Tokens: c.tokens, Group: c.group, Dim: c.dim, Pos: c.pos, Scale: scale,
						KV: kv.kv, At: cacheAt, Tiles: kv.tiles, Elem: c.elem,
					}
					sc := NewAttnScratch(c.dim)
					k.Attend(&a, sc)
					for i, w := range want {
						tok, h := i/c.group, i%c.group
						checkRow(t, fmt.Sprintf("token %d head %d", tok, h), out[tok*stride+h*c.dim:][:c.dim], w)
					}
					// Alone, each token has the same bits.
					for tok := range c.tokens {
						one := a
						one.Tokens, one.Pos, one.Q = 1, c.pos+tok, q[tok*stride:]
						one.Out = make([]float32, stride)
						k.Attend(&one, sc)
						checkRow(t, "alone", one.Out[:c.group*c.dim], out[tok*stride:][:c.group*c.dim])
					}
				})
			}
		})
	}
}

func TestAttentionOfNaNQueryStaysInItsRow(t *testing.T) {
	r := newSource(12)
	for _, k := range allKernels(t) {
		t.Run(k.Name(), func(t *testing.T) {
			x := r.floats(20 * 128)
			x[4*128+70], x[6*128+3] = float32(math.NaN()), float32(math.Inf(1)) // stored as 0 and 65504
			c := fill(k, F16, 64, 20, x)
			q := r.floats(2 * 64)
			q[3] = float32(math.NaN())
			out := make([]float32, 2*64)
			k.Attend(&Attn{
				Q: q, QStride: 64, Out: out, OutStride: 64, Tokens: 2, Group: 1, Dim: 64, Pos: 18,
				Scale: 0.125, KV: c.kv, At: cacheAt, Tiles: c.tiles, Elem: F16,
			}, NewAttnScratch(64))
			for d, v := range out {
				if (v != v) != (d < 64) {
					t.Fatalf("number %d is %v", d, v)
				}
			}
			checkRow(t, "row 1", out[64:], exactAttend(q[64:], c.keys, c.vals, 0.125))
		})
	}
}

func TestFullTileOfKeysEqualsSingleWrites(t *testing.T) {
	r := newSource(13)
	for _, k := range allKernels(t) {
		t.Run(k.Name(), func(t *testing.T) {
			for _, elem := range []Type{F16, F32} {
				for _, dim := range []int{8, 16, 40, 64, 128} {
					x := r.odd(16 * (dim + 3))
					x[1], x[dim+4], x[2*dim+6] = float32(math.NaN()), float32(math.Inf(-1)), 1e6
					size := Lanes * dim * elem.BlockBytes()
					all, one := make([]byte, size), make([]byte, size)
					k.WriteK(all, elem, dim, 0, Lanes, x, dim+3)
					for i := range Lanes {
						k.WriteK(one, elem, dim, i, 1, x[i*(dim+3):], dim+3)
					}
					if string(all) != string(one) {
						t.Fatalf("%v of %d: sixteen keys at once differ from one by one", elem, dim)
					}
					for i := range Lanes {
						for d := range dim {
							v := x[i*(dim+3)+d]
							o := (d*Lanes + i) * elem.BlockBytes()
							if elem == F16 {
								if h := binary.LittleEndian.Uint16(all[o:]); h != exactF16(v) {
									t.Fatalf("key %d[%d] of %v is %#x, want %#x", i, d, v, h, exactF16(v))
								}
							} else if got := math.Float32frombits(binary.LittleEndian.Uint32(all[o:])); math.IsNaN(float64(got)) || math.IsInf(float64(got), 0) {
								t.Fatalf("key %d[%d] of %v is %v", i, d, v, got)
							}
						}
					}
				}
			}
		})
	}
}

// BenchmarkAttendCold reads a cache that is not in any near level, tile by
// tile in random places, as decoding does.
func BenchmarkAttendCold(b *testing.B) {
	k, err := Select("auto")
	if err != nil {
		b.Fatal(err)
	}
	const dim, keys, tiles, tile = 64, 1024, 1 << 15, 2 * Lanes * 64 * 2
	mem, err := Alloc(tiles * tile)
	if err != nil {
		b.Fatal(err)
	}
	defer func() {
		if err := Free(mem); err != nil {
			b.Error(err)
		}
	}()
	r := newSource(15)
	x := r.floats(Lanes * dim)
	offs := make([]int64, tiles)
	for i, p := range r.Perm(tiles) {
		k.WriteK(mem[i*tile:], F16, dim, 0, Lanes, x, dim)
		k.WriteV(mem[i*tile+tile/2:], F16, dim, 0, Lanes, x, dim)
		offs[i] = int64(p) * tile
	}
	q, out, sc := r.floats(3*dim), make([]float32, 3*dim), NewAttnScratch(dim)
	b.SetBytes(keys * 4 * dim)
	i := 0
	for b.Loop() {
		k.Attend(&Attn{
			Q: q, QStride: 3 * dim, Out: out, OutStride: 3 * dim, Tokens: 1, Group: 3, Dim: dim, Pos: keys - 1,
			Scale: 0.125, KV: mem, Tiles: offs[i*keys/Lanes%tiles:][:keys/Lanes], Elem: F16,
		}, sc)
		i++
	}
}

func BenchmarkAttend(b *testing.B) {
	k, err := Select("auto")
	if err != nil {
		b.Fatal(err)
	}
	r := newSource(14)
	for _, c := range []struct{ tokens, group, keys int }{{1, 3, 512}, {1, 3, 4096}, {5, 3, 2048}, {16, 1, 2048}} {
		b.Run(fmt.Sprintf("%dx%d_keys%d", c.tokens, c.group, c.keys), func(b *testing.B) {
			const dim = 64
			kv := fill(k, F16, dim, c.keys, r.floats(c.keys*2*dim))
			q := r.floats(c.tokens * c.group * dim)
			out := make([]float32, len(q))
			a := Attn{
				Q: q, QStride: c.group * dim, Out: out, OutStride: c.group * dim, Tokens: c.tokens, Group: c.group,
				Dim: dim, Pos: c.keys - c.tokens, Scale: 0.125, KV: kv.kv, At: cacheAt, Tiles: kv.tiles, Elem: F16,
			}
			sc := NewAttnScratch(dim)
			for b.Loop() {
				k.Attend(&a, sc)
			}
			flop := 4 * float64(c.tokens*c.group*c.keys*dim)
			b.ReportMetric(flop*float64(b.N)/b.Elapsed().Seconds()/1e9, "GFLOP/s")
		})
	}
}

package model_test

import (
	"fmt"
	"math"
	"testing"

	"tandem/internal/compute"
	"tandem/internal/gguf"
	"tandem/internal/gguf/gguftest"
	"tandem/internal/kv"
	"tandem/internal/model"
)

// plain is the textbook forward pass in float64: no cache, no packing, rotary
// pairs of neighbours. It returns the logits after the last of ids.
type plain struct {
	t *testing.T
	s gguftest.Spec
	f *gguf.File
}

func (p plain) tensor(name string) []float64 {
	x, ok := p.f.Tensor(name)
	if !ok {
		p.t.Fatalf("no tensor %q", name)
	}
	v := make([]float32, x.Elements())
	typ := map[gguf.Type]compute.Type{gguf.F32: compute.F32, gguf.Q4_1: compute.Q4_1, gguf.Q8_0: compute.Q8_0}[x.Type]
	compute.Dequantize(v, typ, x.Data)
	out := make([]float64, len(v))
	for i, e := range v {
		out[i] = float64(e)
	}
	return out
}

func (p plain) mul(name string, x []float64) []float64 {
	w := p.tensor(name + ".weight")
	out := make([]float64, len(w)/len(x))
	for r := range out {
		for c, v := range x {
			out[r] += w[r*len(x)+c] * v
		}
	}
	return out
}

func (p plain) norm(name string, x []float64) []float64 {
	w, ss := p.tensor(name+".weight"), 0.0
	for _, v := range x {
		ss += v * v
	}
	out := make([]float64, len(x))
	for i, v := range x {
		out[i] = v / math.Sqrt(ss/float64(len(x))+float64(p.s.RMSEps)) * w[i]
	}
	return out
}

func (p plain) rotate(x []float64, pos int) {
	d := p.s.HeadDim
	for h := 0; h < len(x); h += d {
		for i := range d / 2 {
			angle := float64(pos) / math.Pow(float64(p.s.RopeBase), float64(2*i)/float64(d)) / (1 + float64(i)/8)
			sin, cos := math.Sincos(angle)
			a, b := x[h+2*i], x[h+2*i+1]
			x[h+2*i], x[h+2*i+1] = a*cos-b*sin, a*sin+b*cos
		}
	}
}

func (p plain) attend(q []float64, keys, values [][]float64) []float64 {
	d, group := p.s.HeadDim, p.s.Heads/p.s.KVHeads
	out := make([]float64, len(q))
	for h := range p.s.Heads {
		k0, sum := h/group*d, 0.0
		for j := range keys {
			dot := 0.0
			for i := range d {
				dot += q[h*d+i] * keys[j][k0+i]
			}
			e := math.Exp(dot / math.Sqrt(float64(d)))
			sum += e
			for i := range d {
				out[h*d+i] += e * values[j][k0+i]
			}
		}
		for i := range d {
			out[h*d+i] /= sum
		}
	}
	return out
}

func (p plain) logits(ids []kv.Token) []float64 {
	embd := p.tensor("token_embd.weight")
	keys, values := make([][][]float64, p.s.Layers), make([][][]float64, p.s.Layers)
	var x []float64
	for pos, id := range ids {
		x = append([]float64{}, embd[int(id)*p.s.Width:][:p.s.Width]...)
		add := func(y []float64) {
			for i, v := range y {
				x[i] += v
			}
		}
		for l := range p.s.Layers {
			b := fmt.Sprintf("blk.%d.", l)
			h := p.norm(b+"attn_norm", x)
			q, k := p.mul(b+"attn_q", h), p.mul(b+"attn_k", h)
			p.rotate(q, pos)
			p.rotate(k, pos)
			keys[l], values[l] = append(keys[l], k), append(values[l], p.mul(b+"attn_v", h))
			add(p.mul(b+"attn_output", p.attend(q, keys[l], values[l])))
			h = p.norm(b+"ffn_norm", x)
			gate, up := p.mul(b+"ffn_gate", h), p.mul(b+"ffn_up", h)
			for i, g := range gate {
				gate[i] = g / (1 + math.Exp(-g)) * up[i]
			}
			add(p.mul(b+"ffn_down", gate))
		}
	}
	return p.mul("output", p.norm("output_norm", x))
}

// The exact mode computes the textbook's numbers, the quantized one nearly.
func TestForwardPassIsTheTextbooks(t *testing.T) {
	s := gguftest.Tiny()
	s.Tied, s.RopeFreqs, s.RMSEps = false, true, 0.01
	ids := prompt(20, 11)
	want := plain{t, s, s.Open(t)}.logits(ids)
	for _, c := range []struct {
		exact bool
		most  float64
	}{{true, 1e-4}, {false, 0.3}} {
		m := load(t, s, model.Config{F32: c.exact})
		rows, err := m.Step(&kv.Batch{Seqs: []kv.Seq{{Tokens: ids, Blocks: []kv.BlockID{3, 1}, Logits: 1}}})
		if err != nil {
			t.Fatal(err)
		}
		worst := 0.0
		for i, v := range rows[0] {
			worst = max(worst, math.Abs(float64(v)-want[i]))
		}
		t.Logf("exact %v: greatest difference of a logit %.2g", c.exact, worst)
		if worst > c.most {
			t.Errorf("exact %v: a logit differs by %g, at most %g is allowed", c.exact, worst, c.most)
		}
	}
}

// Package golden_test compares the forward pass with reference data of a real
// model. testdata/golden/README.md says what the data is.
package golden_test

import (
	"encoding/json"
	"flag"
	"math"
	"os"
	"slices"
	"testing"

	"tandem/internal/compute"
	"tandem/internal/kv"
	"tandem/internal/model"
)

// everything asks for every kernel path and every prompt, which takes minutes.
var everything = flag.Bool("all", false, "rules T and F on every kernel path, F on every prompt")

// paths returns the kernels on which a rule is shown.
func paths() []string {
	if *everything {
		return compute.Names()
	}
	return compute.Names()[:1]
}

// Bounds of rule T, and of "as near to the truth as llama.cpp".
const (
	sureMargin  = 0.80 // nats between the first two tokens
	leastEqual  = 0.970
	meanDelta   = 0.030
	p99Delta    = 0.25
	maxDelta    = 1.0
	meanKL      = 0.0030
	maxKL       = 0.10
	nearDelta   = 0.0275
	nearKL      = 0.0026
	exactMargin = 0.002 // rule F
	exactDelta  = 0.002
	nllDelta    = 0.015 // rule P

	// The portable kernels take a second for a handful of tokens. Where others
	// exist, their bits are compared on few prompts and steps, which says more
	// than any bound; where they are all there is, rule T takes short prompts.
	portableSize = 40
	bitPrompts   = 2
	bitSteps     = 12
)

// distance gathers how far a candidate is from the truth.
type distance struct {
	steps, equal int
	deltas, kls  []float64
	margin       float64 // greatest truth margin where first tokens differ
}

func (d *distance) step(x *truth, k int, first kv.Token, ref float64) {
	d.steps++
	if first == x.Steps[k][0].ID {
		d.equal++
	} else {
		d.margin = max(d.margin, x.Margin[k])
	}
	d.deltas = append(d.deltas, math.Abs(ref-x.RefLP[k]))
}

func mean(v []float64) float64 {
	s := 0.0
	for _, x := range v {
		s += x
	}
	return s / float64(max(len(v), 1))
}

// quantile sorts v.
func quantile(v []float64, q float64) float64 {
	slices.Sort(v)
	return v[min(len(v)-1, int(q*float64(len(v))))]
}

func (d *distance) log(t *testing.T, who string) {
	t.Helper()
	kl := "KL not in the file"
	if len(d.kls) > 0 {
		kl = "KL65"
		t.Logf("%-10s first tokens equal %s, Δ mean %.4f p99 %.3f max %.3f, %s mean %.5f max %.4f, greatest margin of a difference %.3f",
			who, pct(d.equal, d.steps), mean(d.deltas), quantile(d.deltas, 0.99), slices.Max(d.deltas), kl, mean(d.kls), slices.Max(d.kls), d.margin)
		return
	}
	t.Logf("%-10s first tokens equal %s, Δ mean %.4f p99 %.3f max %.3f, %s, greatest margin of a difference %.3f",
		who, pct(d.equal, d.steps), mean(d.deltas), quantile(d.deltas, 0.99), slices.Max(d.deltas), kl, d.margin)
}

// check is rule T.
func (d *distance) check(t *testing.T) {
	t.Helper()
	if d.margin >= sureMargin {
		t.Errorf("a first token differs where the truth's margin is %.3f, at least %.2f", d.margin, sureMargin)
	}
	if e := float64(d.equal) / float64(d.steps); e < leastEqual {
		t.Errorf("first tokens are equal at %.4f of the steps, want %.3f", e, leastEqual)
	}
	bound := func(what string, have, most float64) {
		t.Helper()
		if !(have <= most) {
			t.Errorf("%s is %.5f, at most %g is allowed", what, have, most)
		}
	}
	bound("mean Δ", mean(d.deltas), meanDelta)
	bound("p99 Δ", quantile(d.deltas, 0.99), p99Delta)
	bound("max Δ", slices.Max(d.deltas), maxDelta)
	bound("mean KL65", mean(d.kls), meanKL)
	bound("max KL65", slices.Max(d.kls), maxKL)
}

// logNorm returns ln of the sum of e^logit.
func logNorm(logits []float32) float64 {
	top := float64(slices.Max(logits))
	s := 0.0
	for _, v := range logits {
		s += math.Exp(float64(v) - top)
	}
	return top + math.Log(s)
}

func argmax(logits []float32) kv.Token {
	best := 0
	for i, v := range logits {
		if v > logits[best] {
			best = i
		}
	}
	return kv.Token(best)
}

// kl65 is the divergence from the truth to the engine over the 64 likeliest
// tokens and all others together.
func kl65(x *truth, at int, logits []float32, norm float64) float64 {
	e := x.Top64[at]
	kl, rest := 0.0, 1.0
	for i, id := range e.IDs {
		q := float64(logits[id]) - norm
		kl += math.Exp(e.LP[i]) * (e.LP[i] - q)
		rest -= math.Exp(q)
	}
	return kl + math.Exp(e.RestLP)*(e.RestLP-math.Log(max(rest, 1e-12)))
}

func measure(t *testing.T, m *model.Model, p *prompt, x *truth, d *distance) {
	replay(t, m, p, func(k int, logits []float32) {
		norm := logNorm(logits)
		d.step(x, k, argmax(logits), float64(logits[p.ContIDs[k]])-norm)
		for at := range x.Top64 {
			if x.Top64[at].Step == k {
				d.kls = append(d.kls, kl65(x, at, logits, norm))
			}
		}
	})
}

// Rule T: prompts and llama.cpp's continuations, every step against the truth.
func TestNearTheTruth(t *testing.T) {
	g, x := prompts(t)
	for _, name := range paths() {
		t.Run(name, func(t *testing.T) {
			m := load(t, model.Config{Kernels: name})
			var ours, theirs distance
			for i := range g {
				if name == "portable" && len(g[i].PromptIDs) >= portableSize {
					continue
				}
				measure(t, m, &g[i], &x[i], &ours)
				for k, top := range g[i].Steps {
					theirs.step(&x[i], k, top[0].ID, top[0].LP)
				}
			}
			ours.log(t, "Tandem:")
			theirs.log(t, "llama.cpp:")
			ours.check(t)
			if name == "portable" {
				return
			}
			if d := mean(ours.deltas); d > nearDelta {
				t.Errorf("mean Δ %.4f is not as near as llama.cpp, %.4f", d, nearDelta)
			}
			if k := mean(ours.kls); k > nearKL {
				t.Errorf("mean KL65 %.5f is not as near as llama.cpp, %.4f", k, nearKL)
			}
		})
	}
}

// Rule F: with exact weights, inputs and cache only float32 rounding is left.
// It sees what rule T cannot, such as a wrong epsilon of the norm.
func TestExactMode(t *testing.T) {
	g, x := prompts(t)
	for _, name := range paths() {
		t.Run(name, func(t *testing.T) {
			m := load(t, model.Config{Kernels: name, F32: true})
			worst, steps := 0.0, 0
			for i := range g {
				if name == "portable" && i > 0 || !*everything && i%2 == 1 && len(g[i].PromptIDs) > 300 {
					continue // long prompts cost most and show the same
				}
				replay(t, m, &g[i], func(k int, logits []float32) {
					steps++
					if first := argmax(logits); first != x[i].Steps[k][0].ID && x[i].Margin[k] >= exactMargin {
						t.Errorf("%s step %d: first token %d, the truth's is %d by %.4f", g[i].ID, k, first, x[i].Steps[k][0].ID, x[i].Margin[k])
					}
					norm := logNorm(logits)
					for _, e := range x[i].Steps[k] {
						worst = max(worst, math.Abs(float64(logits[e.ID])-norm-e.LP))
					}
				})
			}
			t.Logf("%d steps, greatest difference of a top-5 log-probability %.6f", steps, worst)
			if worst > exactDelta {
				t.Errorf("a top-5 log-probability differs by %.5f, at most %g is allowed", worst, exactDelta)
			}
		})
	}
}

// Rule P: the log-likelihood of a text.
func TestPerplexity(t *testing.T) {
	b, err := os.ReadFile(goldenPath("ppl.json"))
	if err != nil {
		t.Fatal(err)
	}
	var p perplexity
	if err := json.Unmarshal(b, &p); err != nil {
		t.Fatal(err)
	}
	m := load(t, model.Config{})
	sum, n := 0.0, 0
	for ids := range slices.Chunk(p.IDs, p.Chunk) {
		forced(t, m, ids, 0, func(pos int, logits []float32) {
			if pos+1 < len(ids) {
				sum += logNorm(logits) - float64(logits[ids[pos+1]])
				n++
			}
		})
	}
	nll := sum / float64(n)
	t.Logf("%d tokens scored: NLL Tandem %.5f (%+.5f), llama.cpp %.5f (%+.5f), truth %.5f",
		n, nll, nll-p.NLL["truth"], p.NLL["llamacpp"], p.NLL["llamacpp"]-p.NLL["truth"], p.NLL["truth"])
	if d := math.Abs(nll - p.NLL["truth"]); d > nllDelta {
		t.Errorf("NLL %.5f is %.5f from the truth, at most %g is allowed", nll, d, nllDelta)
	}
}

// All kernels of this machine give the same bits, quantized and exact.
func TestKernelsAgreeBitForBit(t *testing.T) {
	names := compute.Names()
	if len(names) == 1 {
		t.Logf("%s are the only kernels here", names[0])
		return
	}
	g, _ := prompts(t)
	for _, exact := range []bool{false, true} {
		n := bitPrompts
		if exact {
			n = 1
		}
		var want []uint32
		for _, name := range names {
			m := load(t, model.Config{Kernels: name, F32: exact})
			var got []uint32
			for i := range g[:n] {
				p := g[i]
				p.ContIDs = p.ContIDs[:bitSteps]
				replay(t, m, &p, func(_ int, logits []float32) {
					for _, v := range logits {
						got = append(got, math.Float32bits(v))
					}
				})
			}
			if want == nil {
				want = got
			}
			if !slices.Equal(got, want) {
				t.Errorf("exact %v: the logits of %s differ from those of %s", exact, name, names[0])
			}
		}
		t.Logf("exact %v: %d logits compared", exact, len(want))
	}
}

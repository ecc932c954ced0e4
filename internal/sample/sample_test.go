package sample

import (
	"errors"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"tandem/internal/compute/detmath"
	"tandem/internal/kv"
)

func row(t *rapid.T, n int) []float32 {
	return rapid.SliceOfN(rapid.Custom(func(t *rapid.T) float32 {
		if rapid.IntRange(0, 9).Draw(t, "kind") == 0 {
			return float32(math.Inf(-1))
		}
		return float32(rapid.IntRange(-40, 40).Draw(t, "x")) / 4 // ties are frequent
	}), n, n).Draw(t, "row")
}

// slow is the plain meaning of temperature, min_p, top_k and top_p.
func slow(p Params, logits []float64, u float64) kv.Token {
	var all []cand
	best := slices.Max(logits)
	for i, x := range logits {
		if w := detmath.Exp64((x - best) / p.Temperature); w > 0 && w >= p.MinP {
			all = append(all, cand{kv.Token(i), x, w})
		}
	}
	if p.TopK > 0 && p.TopK < len(all) {
		slices.SortFunc(all, before)
		all = all[:p.TopK]
	}
	if p.TopP < 1 {
		var total, sum float64
		for _, c := range all {
			total += c.w
		}
		slices.SortFunc(all, before)
		for i, c := range all {
			if sum += c.w; sum >= p.TopP*total {
				all = all[:i+1]
				break
			}
		}
	}
	var total, sum float64
	for _, c := range all {
		total += c.w
	}
	for _, c := range all {
		if sum += c.w; sum > u*total {
			return c.token
		}
	}
	return all[len(all)-1].token
}

func TestFiltersAgainstTheirMeaning(t *testing.T) {
	var s Sampler
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, 300).Draw(t, "vocab")
		r := row(t, n)
		p := Default()
		p.Temperature = rapid.SampledFrom([]float64{1e-5, 0.01, 0.5, 1, 2, 1e6}).Draw(t, "temperature")
		p.TopK = rapid.SampledFrom([]int{-1, 0, 1, 2, 5, 40, 290}).Draw(t, "top_k")
		p.TopP = rapid.SampledFrom([]float64{1, 0.999, 0.9, 0.5, 0.1, 1e-9}).Draw(t, "top_p")
		p.MinP = rapid.SampledFrom([]float64{0, 0.01, 0.3, 1}).Draw(t, "min_p")
		seed := rapid.Uint64().Draw(t, "seed")
		st := NewState(p, []kv.Token{0, 1}, nil, 10, 3, seed)
		got, err := s.Next(st, r)
		if !slices.ContainsFunc(r, func(x float32) bool { return x > -100 }) {
			if !errors.Is(err, ErrNotFinite) {
				t.Fatalf("a row without tokens: %d, %v", got, err)
			}
			return
		}
		if err != nil {
			t.Fatal(err)
		}
		l := make([]float64, n)
		for i, x := range r {
			l[i] = float64(x)
		}
		if want := slow(p, l, Uniform(seed, 3, 2)); got != want {
			t.Fatalf("token %d, want %d", got, want)
		}
	})
}

func TestGreedyTakesTheLowestOfTheHighest(t *testing.T) {
	var s Sampler
	p := Default()
	p.Temperature = 1e-6
	st := NewState(p, []kv.Token{1}, []kv.Token{2}, 10, 0, 1)
	got, err := s.Next(st, []float32{1, 5, 5, -3})
	if err != nil || got != 1 {
		t.Errorf("token %d, %v", got, err)
	}
	inf, nan := float32(math.Inf(1)), float32(math.NaN())
	for _, r := range [][]float32{{}, {nan}, {-nan}, {1, 2, 3, 4, 5, math.Float32frombits(0xffc00000)}, {5, inf, 3, 1, 0}, {1, nan, 3}, {3, 1, nan}, {inf, 1}, {-inf, -inf}} {
		if _, err := s.Next(st, r); !errors.Is(err, ErrNotFinite) {
			t.Errorf("%v: %v", r, err)
		}
		if len(r) > 0 {
			if _, err := s.Logprobs(r, 0, 1); !errors.Is(err, ErrNotFinite) {
				t.Errorf("log-probabilities of %v: %v", r, err)
			}
		}
	}
}

func TestNucleusEndsWhereItReachesP(t *testing.T) {
	var s Sampler
	for p, want := range map[float64]int{0.25: 1, 0.26: 2, 0.5: 2, 0.75: 3, 0.99: 4} {
		s.cands = nil
		for i := range 4 {
			s.cands = append(s.cands, cand{kv.Token(i), 1, 1})
		}
		if s.nucleus(p); len(s.cands) != want {
			t.Errorf("top_p %v of four equal tokens: %d, want %d", p, len(s.cands), want)
		}
	}
}

func TestArgmax(t *testing.T) {
	nan, inf := float32(math.NaN()), float32(math.Inf(1))
	wrong := 0
	rapid.Check(t, func(t *rapid.T) {
		r := row(t, rapid.IntRange(1, 40).Draw(t, "vocab"))
		odd := rapid.SampledFrom([]float32{float32(math.Copysign(0, -1)), 0, -inf, inf, nan}).Draw(t, "odd")
		for range rapid.IntRange(1, 3).Draw(t, "times") {
			r[rapid.IntRange(0, len(r)-1).Draw(t, "at")] = odd
		}
		want, fail := 0, false
		for i, x := range r {
			if x > r[want] {
				want = i
			}
			fail = fail || x != x
		}
		if fail = fail || math.IsInf(float64(r[want]), 0); fail {
			wrong++
		}
		if got, err := Argmax(r); (err != nil) != fail || err == nil && int(got) != want {
			t.Fatalf("%v: %d, %v, want %d", r, got, err, want)
		}
	})
	if wrong == 0 {
		t.Error("all rows were finite")
	}
	for n := 1; n <= 13; n++ {
		for i := 1; i < n; i++ {
			r := make([]float32, n)
			r[0], r[i] = 1, 2
			if got, err := Argmax(r); err != nil || int(got) != i {
				t.Errorf("the highest of %d at %d: %d, %v", n, i, got, err)
			}
			r[i] = nan
			if _, err := Argmax(r); err == nil {
				t.Errorf("a NaN among %d at %d is taken", n, i)
			}
		}
	}
}

func BenchmarkArgmax(b *testing.B) {
	r, rng := make([]float32, 49152), rand.New(rand.NewPCG(1, 2))
	for i := range r {
		r[i] = float32(rng.NormFloat64())
	}
	for b.Loop() {
		if _, err := Argmax(r); err != nil {
			b.Fatal(err)
		}
	}
}

func TestAdjustments(t *testing.T) {
	var s Sampler
	pick := func(edit func(p *Params), accepted ...kv.Token) kv.Token {
		t.Helper()
		p := Default()
		p.Temperature = 0
		edit(&p)
		if err := p.Validate(5); err != nil {
			t.Fatal(err)
		}
		st := NewState(p, []kv.Token{3}, []kv.Token{4}, 100, 0, 1)
		for _, x := range accepted {
			st.Accept(x)
		}
		got, err := s.Next(st, []float32{1, 2, 3, 4, 5})
		if err != nil {
			t.Fatal(err)
		}
		return got
	}
	tests := []struct {
		name     string
		edit     func(p *Params)
		accepted []kv.Token
		want     kv.Token
	}{
		{"nothing", func(*Params) {}, nil, 4},
		{"min_tokens masks the end token", func(p *Params) { p.MinTokens = 2 }, []kv.Token{0}, 3},
		{"min_tokens masks stop tokens", func(p *Params) { p.MinTokens, p.StopTokenIDs = 2, []kv.Token{3} }, nil, 2},
		{"min_tokens is over", func(p *Params) { p.MinTokens = 2 }, []kv.Token{0, 0}, 4},
		{"bias", func(p *Params) { p.LogitBias = map[kv.Token]float64{0: 7} }, nil, 0},
		{"bias is clamped", func(p *Params) { p.LogitBias = map[kv.Token]float64{0: 1e9, 1: 100} }, nil, 1},
		{"bias against", func(p *Params) { p.LogitBias = map[kv.Token]float64{4: -100} }, nil, 3},
		{"presence, once", func(p *Params) { p.PresencePenalty = 1.5 }, []kv.Token{4, 4}, 3},
		{"presence does not see the prompt", func(p *Params) { p.PresencePenalty, p.LogitBias = 2, map[kv.Token]float64{4: -3} }, nil, 3},
		{"frequency, each time", func(p *Params) { p.FrequencyPenalty = 0.4 }, []kv.Token{4, 4, 4}, 3},
		{"frequency, too few", func(p *Params) { p.FrequencyPenalty = 0.4 }, []kv.Token{4, 4}, 4},
		{"repetition sees the prompt", func(p *Params) {
			p.RepetitionPenalty, p.LogitBias = 2, map[kv.Token]float64{4: -3}
		}, nil, 2},
		{"repetition of 1e9", func(p *Params) { p.RepetitionPenalty = 1e9 }, []kv.Token{4, 2}, 1},
		{"repetition near 0", func(p *Params) { p.RepetitionPenalty = 5e-324 }, []kv.Token{1}, 1},
	}
	for _, c := range tests {
		if got := pick(c.edit, c.accepted...); got != c.want {
			t.Errorf("%s: token %d, want %d", c.name, got, c.want)
		}
	}
}

func TestAccept(t *testing.T) {
	tests := []struct {
		name string
		edit func(p *Params)
		feed []kv.Token
		want Stop
	}{
		{"goes on", func(*Params) {}, []kv.Token{1, 2}, Continue},
		{"end token", func(*Params) {}, []kv.Token{1, 9}, StopEOS},
		{"end token ignored", func(p *Params) { p.IgnoreEOS = true }, []kv.Token{1, 9}, Continue},
		{"end token wins over the length", func(*Params) {}, []kv.Token{1, 2, 9}, StopEOS},
		{"length", func(*Params) {}, []kv.Token{1, 2, 3}, Length},
		{"stop token", func(p *Params) { p.StopTokenIDs = []kv.Token{7} }, []kv.Token{7}, StopToken},
		{"end and stop token", func(p *Params) { p.StopTokenIDs = []kv.Token{9} }, []kv.Token{9}, StopEOS},
		{"before min_tokens", func(p *Params) { p.MinTokens = 2 }, []kv.Token{9}, Continue},
	}
	for _, c := range tests {
		p := Default()
		c.edit(&p)
		st := NewState(p, []kv.Token{1}, []kv.Token{9}, 3, 0, 1)
		var got Stop
		for _, x := range c.feed {
			got = st.Accept(x)
		}
		if got != c.want || st.Tokens() != len(c.feed) {
			t.Errorf("%s: %d, want %d", c.name, got, c.want)
		}
	}
}

// Each extreme value is refused with its field or gives a token.
func TestExtremeValues(t *testing.T) {
	nan, inf := math.NaN(), math.Inf(1)
	sets := map[string]func(p *Params, x float64){
		"temperature":        func(p *Params, x float64) { p.Temperature = x },
		"top_p":              func(p *Params, x float64) { p.TopP = x },
		"min_p":              func(p *Params, x float64) { p.MinP = x },
		"repetition_penalty": func(p *Params, x float64) { p.RepetitionPenalty = x },
		"presence_penalty":   func(p *Params, x float64) { p.PresencePenalty = x },
		"frequency_penalty":  func(p *Params, x float64) { p.FrequencyPenalty = x },
		"logit_bias":         func(p *Params, x float64) { p.LogitBias = map[kv.Token]float64{3: x} },
	}
	refused := map[string]int{
		"temperature": 4, "top_p": 8, "min_p": 7, "repetition_penalty": 5,
		"presence_penalty": 5, "frequency_penalty": 5, "logit_bias": 3,
	}
	var s Sampler
	for field, set := range sets {
		n := 0
		for _, x := range []float64{0, -1, 1e-6, 1e-300, 0.5, 1, 2, 1e6, 1e300, nan, inf, -inf} {
			p := Default()
			set(&p, x)
			if err := p.Validate(6); err != nil {
				var pe *ParamError
				if !errors.As(err, &pe) || pe.Field != field {
					t.Errorf("%s = %v: %v", field, x, err)
				}
				n++
				continue
			}
			st := NewState(p, []kv.Token{1, 2}, nil, 9, 0, 4)
			for i := range 5 {
				tok, err := s.Next(st, []float32{-3, 88, 2, 3e38, 0, -3e38})
				if err != nil || tok < 0 || tok > 5 {
					t.Errorf("%s = %v, token %d: %d, %v", field, x, i, tok, err)
				}
				st.Accept(tok)
			}
		}
		if n != refused[field] {
			t.Errorf("%s: %d values refused, want %d", field, n, refused[field])
		}
	}
	for field, edit := range map[string]func(p *Params){
		"top_k":          func(p *Params) { p.TopK = -2 },
		"max_tokens":     func(p *Params) { p.MaxTokens = -1 },
		"min_tokens":     func(p *Params) { p.MaxTokens, p.MinTokens = 3, 4 },
		"logprobs":       func(p *Params) { p.Logprobs = 1e9 },
		"stop_token_ids": func(p *Params) { p.StopTokenIDs = []kv.Token{6} },
		"logit_bias":     func(p *Params) { p.LogitBias = map[kv.Token]float64{-1: 2} },
	} {
		p := Default()
		edit(&p)
		var pe *ParamError
		if err := p.Validate(6); !errors.As(err, &pe) || pe.Field != field {
			t.Errorf("%s: %v", field, err)
		}
	}
}

func TestLogprobs(t *testing.T) {
	var s Sampler
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, 200).Draw(t, "vocab")
		r := row(t, n)
		r[0] = 1
		at := kv.Token(rapid.IntRange(0, n-1).Draw(t, "token"))
		k := rapid.IntRange(0, 250).Draw(t, "top")
		got, err := s.Logprobs(r, at, k)
		if err != nil {
			t.Fatal(err)
		}
		order := make([]kv.Token, n)
		var sum float64
		for i := range order {
			order[i] = kv.Token(i)
			sum += math.Exp(float64(r[i]))
		}
		slices.SortStableFunc(order, func(a, b kv.Token) int {
			switch {
			case r[a] > r[b]:
				return -1
			case r[a] < r[b]:
				return 1
			}
			return 0
		})
		want := func(x kv.Token) float64 { return max(float64(r[x])-math.Log(sum), LogprobFloor) }
		check := func(lp Logprob) {
			if order[lp.Rank-1] != lp.Token || math.Abs(lp.Logprob-want(lp.Token)) > 1e-9 || lp.Logprob > 0 {
				t.Fatalf("%+v, want %v at rank of %v", lp, want(lp.Token), order)
			}
		}
		if got.Token != at || len(got.Top) != min(k, n) {
			t.Fatalf("%+v for token %d, %d alternatives", got, at, k)
		}
		check(got.Logprob)
		for i, lp := range got.Top {
			if lp.Rank != i+1 {
				t.Fatalf("rank %d at %d", lp.Rank, i)
			}
			check(lp)
		}
	})
}

// Draws follow the probabilities, and each of seed, choice and position counts.
func TestDraws(t *testing.T) {
	var s Sampler
	p := Default()
	r := []float32{0, float32(math.Log(2)), float32(math.Log(5))}
	var hits [3]int
	const n = 80_000
	for i := range n {
		st := NewState(p, make([]kv.Token, i%97), nil, 9, i%5, uint64(i))
		tok, err := s.Next(st, r)
		if err != nil {
			t.Fatal(err)
		}
		hits[tok]++
	}
	for i, want := range []float64{1. / 8, 2. / 8, 5. / 8} {
		if got := float64(hits[i]) / n; math.Abs(got-want) > 0.008 {
			t.Errorf("token %d: %v of the draws, want %v", i, got, want)
		}
	}
	seen := map[float64]bool{}
	for seed := range uint64(10) {
		for choice := range 10 {
			for pos := range 10 {
				u := Uniform(seed, choice, pos)
				if u < 0 || u >= 1 || seen[u] {
					t.Errorf("Uniform(%d, %d, %d) = %v", seed, choice, pos, u)
				}
				seen[u] = true
			}
		}
	}
	if u := Uniform(42, 1, 7); math.Float64bits(u) != drawn {
		t.Errorf("Uniform(42, 1, 7) has bits %#x: every seeded output changes", math.Float64bits(u))
	}
}

func TestNextDoesNotAllocate(t *testing.T) {
	var s Sampler
	r := make([]float32, 1000)
	for i := range r {
		r[i] = float32(i*7919%1000) / 100
	}
	p := Default()
	p.TopK, p.TopP = 40, 0.9
	st := NewState(p, []kv.Token{1}, nil, 1<<30, 0, 1)
	if n := testing.AllocsPerRun(100, func() {
		tok, _ := s.Next(st, r)
		st.Accept(tok)
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func BenchmarkNext(b *testing.B) {
	r := make([]float32, 49152)
	for i := range r {
		r[i] = float32(i*7919%49152) / 4000
	}
	for name, edit := range map[string]func(p *Params){
		"greedy": func(p *Params) { p.Temperature = 0 },
		"plain":  func(*Params) {},
		"top_k":  func(p *Params) { p.TopK = 40 },
		"top_p":  func(p *Params) { p.TopP = 0.9 },
	} {
		b.Run(name, func(b *testing.B) {
			var s Sampler
			p := Default()
			edit(&p)
			st := NewState(p, []kv.Token{1}, nil, 1<<30, 0, 1)
			for b.Loop() {
				if _, err := s.Next(st, r); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// drawn is Uniform(42, 1, 7), as bits.
const drawn = 0x3fe8252d0112e895

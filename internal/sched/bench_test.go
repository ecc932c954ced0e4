package sched

import (
	"fmt"
	"testing"

	"tandem/internal/kv"
)

// decoding returns a scheduler with n requests that decode in a pool of so many
// blocks, and results for a step.
func decoding(tb testing.TB, n, blocks, maxTokens int) (*Scheduler, []Result) {
	tb.Helper()
	s := New(Config{Pool: kv.NewPool(blocks, 16), MaxBatchedTokens: 8192, MaxSeqs: n,
		MaxModelLen: 1 << 20, PrefixCache: true, Seal: true})
	for i := range n {
		if err := s.Add(Request{ID: id(i), Prompt: prompt(uint64(i), 17+i%16), MaxTokens: maxTokens}); err != nil {
			tb.Fatal(err)
		}
	}
	results := make([]Result, n)
	s.Plan()
	s.Apply(results)
	if st := s.Stats(); st.Running != n {
		tb.Fatalf("%d of %d requests run", st.Running, n)
	}
	return s, results
}

func TestDecodeStepDoesNotAllocate(t *testing.T) {
	s, results := decoding(t, 64, 2000, 1000)
	got := testing.AllocsPerRun(200, func() {
		p := s.Plan()
		if len(p.Items) != len(results) {
			t.Fatalf("%d items", len(p.Items))
		}
		for i := range results {
			results[i].Token = kv.Token(i)
		}
		s.Apply(results)
	})
	if got != 0 && !audits {
		t.Errorf("%v allocations a step", got)
	}
}

// BenchmarkPlan256 measures a whole step, Plan and Apply, of 256 requests that
// decode. A sixteenth of them takes a new block and enters a full one into the
// index in each step.
func BenchmarkPlan256(b *testing.B) {
	for _, blocks := range []int{1_000, 10_000, 100_000} {
		b.Run(fmt.Sprintf("blocks=%d", blocks), func(b *testing.B) {
			s, results := decoding(b, 256, blocks, 24)
			for i := range results {
				results[i].Token = kv.Token(i)
			}
			b.ReportAllocs()
			next := 0
			for b.Loop() {
				s.Plan()
				s.Apply(results)
				if s.Stats().Running == 256 {
					continue
				}
				b.StopTimer()
				for i := range 256 {
					next++
					r := Request{ID: kv.RequestID(fmt.Sprint(next)), Prompt: prompt(uint64(next), 17+i%16), MaxTokens: 24}
					if err := s.Add(r); err != nil {
						b.Fatal(err)
					}
				}
				s.Plan()
				s.Apply(results)
				b.StartTimer()
			}
		})
	}
}

package sched

import (
	"testing"

	"tandem/internal/kv"
)

// A step is answered once: its results are not taken for those of the next one.
func TestApplyAnswersAPlanOnce(t *testing.T) {
	w := newWorld(t, pool(8))
	w.must(Request{ID: "A", Prompt: prompt(1, 10), MaxTokens: 5})
	w.tick()
	if got := w.s.Apply(nil); len(got) != 0 {
		t.Errorf("nothing was planned, and %v ended", got)
	}
	defer func() {
		if recover() == nil {
			t.Error("the results of a step are taken twice")
		}
		w.finish(20)
	}()
	w.s.Apply(make([]Result, 1))
}

// The tag comes back wherever the scheduler speaks of a request.
func TestTagsComeBack(t *testing.T) {
	w := newWorld(t, pool(8))
	w.must(Request{ID: "A", Prompt: prompt(1, 40), MaxTokens: 2, External: 40, Tag: "tag"})
	want := func(what string, tag any) {
		t.Helper()
		if tag != "tag" {
			t.Errorf("%s has tag %v", what, tag)
		}
	}
	p := w.tick()
	if len(p.Loads) != 1 {
		t.Fatalf("%d loads", len(p.Loads))
	}
	want("the load", p.Loads[0].Tag)
	w.tick()
	if st := w.s.Stats(); st.Running != 1 {
		t.Fatalf("%+v", st)
	}
	w.s.preempt(w.s.requests["A"])
	want("the preempted request", w.s.plan.Preempted[0].Tag)
	p = w.s.Plan()
	if len(p.Items) != 1 {
		t.Fatalf("%d items", len(p.Items))
	}
	want("the item", p.Items[0].Tag)
	ended := w.s.Apply([]Result{{Token: 1, Finish: Stop}})
	if len(ended) != 1 {
		t.Fatalf("%d ended", len(ended))
	}
	want("the end", ended[0].Tag)

	err := w.s.Add(Request{ID: "B", Prompt: prompt(1, 17), MaxTokens: 2, External: 16, Tag: "tag"})
	if err != nil {
		t.Fatal(err)
	}
	if p = w.s.Plan(); len(p.Unread) != 1 {
		t.Fatalf("%d hand-offs are of no use", len(p.Unread))
	}
	want("the hand-off", p.Unread[0].Tag)
}

// The sums count a prompt once, with its first token, be it the last as well.
func TestPromptsAreSummedWithTheirFirstToken(t *testing.T) {
	for _, most := range []int{1, 3} {
		w := newWorld(t, pool(8))
		w.damage = func(Load) []int { return []int{1} }
		w.must(Request{ID: "A", Prompt: prompt(1, 40), MaxTokens: most, External: 40})
		w.finish(20)
		got := w.s.Stats().Totals
		if got.Prompt != 40 || got.Loaded != 23 || got.Recomputed != 16 || got.Computed != 1 || got.Output != uint64(most) {
			t.Errorf("%d tokens: %+v", most, got)
		}
		w.damage = func(Load) []int { return nil }
		w.must(Request{ID: "B", Prompt: prompt(1, 40), MaxTokens: most})
		w.finish(20)
		if got = w.s.Stats().Totals; got.Prompt != 80 || got.Local != 32 || got.Computed != 9 {
			t.Errorf("%d tokens, again: %+v", most, got)
		}
	}
}

// Without the prefix cache nothing is indexed, so nothing that is free still
// holds the KV of a prompt.
func TestNothingIsIndexedWithoutThePrefixCache(t *testing.T) {
	cfg := pool(8)
	cfg.PrefixCache = false
	w := newWorld(t, cfg)
	for _, id := range []string{"A", "B"} {
		c := w.must(Request{ID: kv.RequestID(id), Prompt: prompt(1, 40), MaxTokens: 2})
		w.finish(20)
		if st := w.s.Stats(); st.Indexed != 0 || c.counts.Local != 0 {
			t.Errorf("%s: %d blocks indexed, %d tokens hit", id, st.Indexed, c.counts.Local)
		}
	}
}

// What is computed again after a preemption counts as often as it is computed,
// and when it is.
func TestRedoneTokensAreThoseComputedAgain(t *testing.T) {
	cfg := pool(16)
	cfg.PrefixCache, cfg.MaxBatchedTokens = false, 16
	w := newWorld(t, cfg)
	c := w.must(Request{ID: "A", Prompt: prompt(1, 100), MaxTokens: 9})
	for len(c.out) < 3 {
		w.tick()
	}
	w.preempt("A") // with 102 tokens in its blocks
	for _, want := range []int{16, 32} {
		w.tick()
		if got, _ := w.s.Counts("A"); got.Redone != want {
			t.Errorf("%d tokens are computed again, counted %d", want, got.Redone)
		}
	}
	w.preempt("A")
	w.finish(20)
	if got := c.counts.Redone; got != 32+102 {
		t.Errorf("%d tokens were computed again, counted %d", 32+102, got)
	}
}

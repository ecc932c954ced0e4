package sched

import "testing"

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

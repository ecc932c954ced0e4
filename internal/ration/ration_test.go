package ration

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"
)

var start = time.Unix(1000, 0)

func table(keys int) *Table[string, int] {
	return New(Config[string, int]{
		Window: 10 * time.Second, Keys: keys, Other: func(string) string { return "other" },
		Add: func(sum, v int) int { return sum + v },
	})
}

func TestTheFirstIsToldAtOnceAndTheRestAsOneWord(t *testing.T) {
	r := table(10)
	at := func(s int) time.Time { return start.Add(time.Duration(s) * time.Second) }
	if w, ok := r.Tell("a", 1, at(0)); !ok || w != (Word[string, int]{"a", 1, 0}) {
		t.Fatal(w, ok)
	}
	if _, ok := r.Next(); ok {
		t.Fatal("there is nothing left to tell")
	}
	for s := 1; s <= 9; s++ {
		if w, ok := r.Tell("a", s, at(s)); ok {
			t.Fatal(w)
		}
	}
	if w, ok := r.Tell("b", 7, at(9)); !ok || w.Key != "b" {
		t.Fatal("another key waits")
	}
	if next, ok := r.Next(); !ok || !next.Equal(at(10)) {
		t.Fatal(next, ok)
	}
	if w := r.Due(at(10).Add(-1)); len(w) != 0 {
		t.Fatal("early", w)
	}
	if w := r.Due(at(10)); len(w) != 1 || w[0] != (Word[string, int]{"a", 45, 8}) {
		t.Fatal(w)
	}
	// The next window began with that word.
	if w, ok := r.Tell("a", 1, at(19)); ok {
		t.Fatal(w)
	}
	if w := r.Flush(); len(w) != 1 || w[0] != (Word[string, int]{"a", 1, 0}) || len(r.open) != 0 {
		t.Fatal(w)
	}
	// When the owner is late the event itself brings what was left.
	r.Tell("a", 1, at(30))
	r.Tell("a", 2, at(31))
	if w, ok := r.Tell("a", 3, at(50)); !ok || w != (Word[string, int]{"a", 5, 1}) {
		t.Fatal(w, ok)
	}
	// A quiet key is told at once again.
	if w, ok := r.Tell("a", 3, at(90)); !ok || w != (Word[string, int]{"a", 3, 0}) {
		t.Fatal(w, ok)
	}
}

func TestWithoutAddTheLatestIsTold(t *testing.T) {
	r := New(Config[string, string]{Window: time.Second, Keys: 2})
	r.Tell("k", "first", start)
	r.Tell("k", "second", start)
	r.Tell("k", "third", start)
	if w := r.Flush(); len(w) != 1 || w[0] != (Word[string, string]{"k", "third", 1}) {
		t.Fatal(w)
	}
}

func TestKeysAreBounded(t *testing.T) {
	r := table(3)
	for i := range 100 {
		r.Tell(fmt.Sprint(i), 1, start)
	}
	if len(r.open) != 4 {
		t.Fatalf("%d keys", len(r.open))
	}
	if w := r.Flush(); len(w) != 1 || w[0] != (Word[string, int]{"other", 96, 95}) {
		t.Fatal(w)
	}
	// Keys whose window is over make room.
	for i := range 3 {
		r.Tell(fmt.Sprint(i), 1, start)
	}
	if w, ok := r.Tell("new", 1, start.Add(10*time.Second)); !ok || w.Key != "new" || len(r.open) != 1 {
		t.Fatal(w, len(r.open))
	}
}

// Whatever comes when: every event is in exactly one word, and no key has two
// words in a window.
func TestNothingIsLostOrToldTwice(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := table(3)
		now, told, events, sum := start, 0, 0, 0
		last := map[string]time.Time{}
		tell := func(words ...Word[string, int]) {
			for _, w := range words {
				if before, ok := last[w.Key]; ok && now.Sub(before) < 10*time.Second {
					t.Fatalf("%q has two words within %v", w.Key, now.Sub(before))
				}
				last[w.Key] = now
				told, sum = told+1+w.More, sum-w.What
			}
		}
		for range rapid.IntRange(1, 80).Draw(t, "steps") {
			now = now.Add(time.Duration(rapid.IntRange(0, 6000).Draw(t, "ms")) * time.Millisecond)
			if rapid.Bool().Draw(t, "due") {
				tell(r.Due(now)...)
				if at, ok := r.Next(); ok && !at.After(now) {
					t.Fatal("Due left something")
				}
				continue
			}
			v := rapid.IntRange(1, 9).Draw(t, "v")
			events, sum = events+1, sum+v
			if w, ok := r.Tell(rapid.SampledFrom([]string{"a", "b", "c", "d", "e"}).Draw(t, "key"), v, now); ok {
				tell(w)
			}
		}
		words := r.Flush()
		for _, w := range words {
			told, sum = told+1+w.More, sum-w.What
		}
		if told != events || sum != 0 || slices.ContainsFunc(words, func(w Word[string, int]) bool { return w.More < 0 }) {
			t.Fatalf("%d events, told %d, sum left %d: %v", events, told, sum, words)
		}
	})
}

package tokenizer

import (
	"testing"

	"pgregory.net/rapid"
)

// Whatever the order of pushes and pops, the least entry comes first.
func TestQueueOrder(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var q queue
		for range 2 {
			q.reset(4)
			var model []uint64
			t.Repeat(map[string]func(*rapid.T){
				"push": func(t *rapid.T) {
					rank, at := rapid.Int32Range(0, 3).Draw(t, "rank"), rapid.Int32Range(0, 20).Draw(t, "at")
					q.push(rank, at)
					model = append(model, pair(rank, at))
				},
				"pop": func(t *rapid.T) {
					rank, at, ok := q.pop()
					if ok != (len(model) > 0) {
						t.Fatalf("pop says %v with %d entries", ok, len(model))
					}
					if !ok {
						return
					}
					least := 0
					for i, x := range model {
						if x < model[least] {
							least = i
						}
					}
					if model[least] != pair(rank, at) {
						t.Fatalf("got %d/%d, want %x", rank, at, model[least])
					}
					model = append(model[:least], model[least+1:]...)
				},
			})
		}
	})
}

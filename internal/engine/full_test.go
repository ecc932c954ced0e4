package engine

import (
	"context"
	"errors"
	"io"
	"testing"
	"time"

	"tandem/internal/kv"
	"tandem/internal/sim"
)

// A stream that is full when the last output comes ends all the same, with an
// error: its reader neither waits for ever nor takes a part for the whole.
func TestFullStreamEndsWithItsLastOutput(t *testing.T) {
	now := time.Unix(1, 0)
	for _, n := range []int{1, 2, 3} { // choices
		m, err := sim.New(sim.Config{})
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = m.Close() }()
		e, err := New(Config{Model: m, MaxOutputs: 2 * n})
		if err != nil {
			t.Fatal(err)
		}
		r := greedy(prompt(5, 1), 3)
		r.N = n
		s, err := e.Submit(t.Context(), r)
		if err != nil {
			t.Fatal(err)
		}
		for b := e.Begin(now); b != nil; b = e.Begin(now) {
			rows, err := m.Step(b)
			if err != nil {
				t.Fatal(err)
			}
			e.Finish(rows, now)
		}
		gone, cancel := context.WithCancel(t.Context())
		cancel()
		var tokens []kv.Token
		var last Output
		for {
			out, err := s.Next(gone)
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				t.Fatalf("%d choices: after %d tokens: %v", n, len(tokens), err)
			}
			tokens, last = append(tokens, out.Tokens...), out
		}
		if !errors.Is(last.Err, ErrSlowReader) || last.Finish != FinishAbort || len(tokens) != 2*n {
			t.Errorf("%d choices: %d tokens, then %+v", n, len(tokens), last)
		}
		if st := e.Scheduler().Stats(); st.Free != st.Blocks || e.Status().Live != 0 {
			t.Errorf("%d choices: %+v", n, st)
		}
	}
}

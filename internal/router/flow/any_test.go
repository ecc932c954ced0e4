package flow

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"tandem/internal/backend"
)

// Whatever engines answer, are missing or fall silent, and whenever the client
// leaves: each hand-off is admitted by one D or released once, at the P that made
// it; a call is tried a bounded number of times and never on an engine that
// failed it; it ends with one answer, one stream, or because the client left.
func TestAnyFlow(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		whole, retries := rapid.Bool().Draw(t, "whole"), rapid.IntRange(0, 3).Draw(t, "retries")
		f := New[engine](whole, retries)
		failing := []Outcome{
			{Err: errors.New("cut")}, {Status: 500}, {Status: 503}, {Status: 429}, {Status: 501}, {Status: 400},
			{Status: 400, Param: "kv_transfer_params.remote_mac", Message: "no"},
		}
		var (
			made            = map[string]engine{} // open hand-offs, and who made them
			failed          []engine
			prefills, tries int
			answers, ends   int
			gone            bool
			p, d            engine
		)
		lose := func(e engine, o Outcome) Outcome {
			if o.Retryable() || o.Refuses() {
				failed = append(failed, e)
			}
			return o
		}
		due := f.Start()
		for steps := 0; len(due) > 0; steps++ {
			if steps > 100 {
				t.Fatal("the flow never ends")
			}
			e := due[0]
			due = due[1:]
			if !gone && e.Act != Release && rapid.IntRange(0, 9).Draw(t, "leaves") == 0 {
				gone = true
				due = f.Gone()
				continue
			}
			switch e.Act {
			case Pick:
				if !slices.Equal(e.Not, failed) {
					t.Fatalf("may pick all but %v, though %v failed", e.Not, failed)
				}
				var b engine
				if rapid.IntRange(0, 5).Draw(t, "ready") > 0 {
					b = engine(fmt.Sprintf("%s%d", e.Role, steps))
				}
				if b != "" && (whole || e.Role == backend.Prefill) {
					tries++
				}
				if e.Role == backend.Prefill {
					p = b
				} else {
					d = b
				}
				due = append(due, f.Picked(e.Role, b)...)
			case RunPrefill:
				prefills++
				if len(made) > 0 {
					t.Fatalf("a prefill begins while %v are open", made)
				}
				o := Outcome{Status: 200, Handoff: json.RawMessage(fmt.Sprintf(`{"n":%d}`, prefills))}
				switch rapid.IntRange(0, 4).Draw(t, "prefill") {
				case 0:
					o.Handoff = nil
				case 1, 2:
					o = lose(p, rapid.SampledFrom(failing).Draw(t, "outcome"))
				default:
					made[string(o.Handoff)] = p
				}
				due = append(due, f.Prefilled(o)...)
			case RunDecode:
				if _, open := made[string(f.Handoff())]; whole == open || f.Decode() != d {
					t.Fatalf("the decode leg on %s carries %s of %v", f.Decode(), f.Handoff(), made)
				}
				o := fine
				if rapid.Bool().Draw(t, "decode fails") {
					o = lose(d, rapid.SampledFrom(failing).Draw(t, "outcome"))
				} else {
					clear(made) // admitted
				}
				due = append(due, f.Decoded(o)...)
			case Release:
				if by, open := made[string(e.Handoff)]; !open || by != e.From {
					t.Fatalf("releases %s at %s; open are %v", e.Handoff, e.From, made)
				}
				delete(made, string(e.Handoff))
			case Stream:
				answers++
			case Answer:
				answers++
				if e.Fail == nil || e.Fail.Status < 400 {
					t.Fatalf("answers %+v", e.Fail)
				}
			}
			if answers > 0 {
				ends++
			}
		}
		if len(made) > 0 || f.Handoff() != nil {
			t.Fatalf("%v are neither admitted nor released", made)
		}
		if answers > 1 || (answers == 0) != gone || ends > 1 || tries > retries+1 || f.Attempts() != tries {
			t.Fatalf("%d answers, left %t, %d tries of %d, counted %d", answers, gone, tries, retries+1, f.Attempts())
		}
	})
}

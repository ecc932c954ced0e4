package engine

import (
	"fmt"
	"log/slog"
	"time"

	"tandem/internal/ration"
)

// recoveredEvery is the least time between two lines about recovered loads. When
// a peer dies under many requests their number is what matters, not a line for
// each.
const recoveredEvery = time.Second

// A recovery is a number of requests and their tokens that are computed here
// after their loads failed.
type recovery struct{ requests, tokens int }

// recoveries logs them: the first at once, then sums. Each is in one line. They
// belong to the loop.
type recoveries struct {
	log   *slog.Logger
	table *ration.Table[struct{}, recovery]
}

func newRecoveries(log *slog.Logger) *recoveries {
	return &recoveries{log, ration.New(ration.Config[struct{}, recovery]{
		Window: recoveredEvery, Keys: 1,
		Add: func(sum, v recovery) recovery { return recovery{sum.requests + v.requests, sum.tokens + v.tokens} },
	})}
}

func (r *recoveries) add(requests, tokens int, now time.Time) {
	if w, ok := r.table.Tell(struct{}{}, recovery{requests, tokens}, now); ok {
		r.say(w)
	}
}

// timer fires when there is something to tell; stop ends it.
func (r *recoveries) timer() (at <-chan time.Time, stop func()) {
	due, ok := r.table.Next()
	if !ok {
		return nil, func() {}
	}
	t := time.NewTimer(time.Until(due))
	return t.C, func() { t.Stop() }
}

// tell logs what is due.
func (r *recoveries) tell(now time.Time) { r.say(r.table.Due(now)...) }

// flush logs what is left when the engine ends.
func (r *recoveries) flush() { r.say(r.table.Flush()...) }

func (r *recoveries) say(words ...ration.Word[struct{}, recovery]) {
	for _, w := range words {
		//nolint:sloglint // vLLM's line, which people search for as it is
		r.log.Warn(fmt.Sprintf("Recovered from KV load failure: %d request(s) rescheduled (%d tokens affected).",
			w.What.requests, w.What.tokens))
	}
}

package main

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
)

// A row is one line of the campaign.
type row struct {
	what     string
	fired    int // faults that the injector counted, or attempts that were made
	surfaced tally
	outcome  tally
	slowest  time.Duration // answer, less what the harness's own timers were late
	limit    time.Duration // of slowest; 0: none
	back     time.Duration // until every block and table was free again
	backIn   time.Duration // limit of back
	note     string
	missed   []string // why the line is not met
}

// A tally counts by name.
type tally map[string]int

func (t *tally) add(name string) {
	if *t == nil {
		*t = tally{}
	}
	(*t)[name]++
}

// String lists the names with their counts.
func (t tally) String() string {
	var out []string
	for _, k := range slices.Sorted(maps.Keys(t)) {
		out = append(out, fmt.Sprintf("%s %d", k, t[k]))
	}
	return strings.Join(out, ", ")
}

// wrong notes why the line is not met.
func (r *row) wrong(format string, args ...any) {
	r.missed = append(r.missed, fmt.Sprintf(format, args...))
}

// patience is how many times its limit a line may take before it is not met. With
// 1 a slow machine misses lines; CI, which must not depend on the machine, has
// more, and still finds what waits without an end.
var patience time.Duration = 1

// A stretch is a limit that engines are given. On a slow machine calls that nothing
// was done to would meet it, too: with patience it is longer, up to threefold, which
// is what the campaign has time for.
type stretch time.Duration

func (s stretch) limit() time.Duration { return time.Duration(s) * min(patience, 3) }

// flag returns the setting of a limit, in seconds.
func (s stretch) flag(name string) string {
	return fmt.Sprintf("%s%s=%v", extra, name, s.limit().Seconds())
}

// took notes how long an answer took and how long it may take.
func (r *row) took(d, limit time.Duration) {
	r.slowest, r.limit = max(r.slowest, d), max(r.limit, limit)
	if limit > 0 && d > limit*patience {
		r.wrong("an answer took %.3f s, the limit is %.3f s", d.Seconds(), limit.Seconds())
	}
}

// returned notes how long blocks and tables took to be free, and how long they may.
func (r *row) returned(d, limit time.Duration) {
	r.back, r.backIn = max(r.back, d), limit
	if d > limit*patience {
		r.wrong("blocks and tables came back after %.3f s, the limit is %.3f s", d.Seconds(), limit.Seconds())
	}
}

// backLimit is how long blocks and tables may take to come back.
const backLimit = time.Second

// A table is the rows of a run.
type table struct{ rows []row }

func (t *table) add(r row) { t.rows = append(t.rows, r) }

// print writes the table and returns how many lines are not met.
func (t *table) print(w io.Writer) (missed int) {
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(tw, "line\tfired\tsurfaced\toutcome\tslowest\tback\t\tnote")
	for i := range t.rows {
		r := &t.rows[i]
		met := "ok"
		if len(r.missed) > 0 {
			missed++
			met = "MISSED"
		}
		fmt.Fprintf(tw, "%s\t%d\t%s\t%s\t%s\t%s\t%s\t%s\n", r.what, r.fired, r.surfaced, r.outcome,
			limited(r.slowest, r.limit), limited(r.back, r.backIn), met, r.note)
	}
	tw.Flush()
	for i := range t.rows {
		r := &t.rows[i]
		for k, why := range r.missed {
			if k == maxMissed {
				fmt.Fprintf(w, "\n%s: and %d more", r.what, len(r.missed)-k)
				break
			}
			fmt.Fprintf(w, "\n%s: %s", r.what, why)
		}
	}
	fmt.Fprintf(w, "\n%d of %d lines met\n", len(t.rows)-missed, len(t.rows))
	return missed
}

// maxMissed is how many reasons of a line are printed.
const maxMissed = 8

func limited(d, limit time.Duration) string {
	switch {
	case d == 0:
		return ""
	case limit == 0:
		return fmt.Sprintf("%.3f s", d.Seconds())
	}
	return fmt.Sprintf("%.3f of %.1f s", d.Seconds(), limit.Seconds())
}

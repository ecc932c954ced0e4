package main

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
)

// A row is one measurement beside what it is compared with.
type row struct {
	what   string
	ours   string
	theirs string // another program's figure, or a limit
	ratio  float64
	least  float64 // the ratio must be at least this; 0: no such target
	most   float64 // the ratio must be at most this; 0: no such target
	note   string
	noisy  bool // others used the machine: the ratio proves nothing
}

// verdict says whether the target is met.
func (r *row) verdict() string {
	switch {
	case r.least == 0 && r.most == 0:
		return ""
	case r.noisy:
		return "noisy"
	case r.least != 0 && r.ratio < r.least, r.most != 0 && r.ratio > r.most:
		return "MISSED"
	}
	return "ok"
}

func (r *row) target() string {
	switch {
	case r.least != 0:
		return fmt.Sprintf(">= %.2f", r.least)
	case r.most != 0:
		return fmt.Sprintf("<= %.2f", r.most)
	}
	return ""
}

// A table is the rows of a run in the order in which they were measured.
type table struct{ rows []row }

func (t *table) add(r row) { t.rows = append(t.rows, r) }

// under adds a value that must not exceed limit.
func (t *table) under(what string, value, limit float64, format, note string) {
	t.add(row{
		what: what, ours: fmt.Sprintf(format, value), theirs: "limit " + fmt.Sprintf(format, limit),
		ratio: value / limit, most: 1, note: note,
	})
}

// plain adds a value that has no target.
func (t *table) plain(what, value, note string) { t.add(row{what: what, ours: value, note: note}) }

// print writes the table and how many targets are missed.
func (t *table) print(w io.Writer) {
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(tw, "what\tours\ttheirs or limit\tratio\ttarget\t\tnote")
	missed, noisy, targets := 0, 0, 0
	for i := range t.rows {
		r := &t.rows[i]
		ratio := ""
		if r.ratio != 0 || r.least != 0 || r.most != 0 {
			ratio = fmt.Sprintf("%.2f", r.ratio)
		}
		v := r.verdict()
		if v != "" {
			targets++
		}
		switch v {
		case "MISSED":
			missed++
		case "noisy":
			noisy++
		}
		fmt.Fprintln(tw, strings.Join([]string{r.what, r.ours, r.theirs, ratio, r.target(), v, r.note}, "\t"))
	}
	tw.Flush()
	fmt.Fprintf(w, "\n%d of %d targets missed", missed, targets)
	if noisy > 0 {
		fmt.Fprintf(w, ", %d not decided: other programs used more than %.0f %% of the machine", noisy, 100*foreignLimit)
	}
	fmt.Fprintln(w)
}

// median returns the middle of v, the lower one of two. v is not empty.
func median[T cmp.Ordered](v []T) T {
	v = slices.Sorted(slices.Values(v))
	return v[(len(v)-1)/2]
}

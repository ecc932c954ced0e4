package simulation

import (
	"fmt"
	"io"

	"tandem/internal/fault"
)

// How often every edge and every cell must be met by a run that counts.
const (
	leastEdge = 100
	leastCell = 50
)

// Report prints the coverage as a table and returns what was met too rarely.
func (c *Coverage) Report(w io.Writer) (problems []string) {
	t := &c.Totals
	fmt.Fprintf(w, "%d requests: %d answered, %d failed, %d left, %d interrupted; %d events\n",
		c.Requests, c.Answered, c.Failed, c.Left, c.Interrupted, c.Events)
	fmt.Fprintf(w, "prompt tokens %d: %d loaded, %d local, %d recomputed, %d computed; %d preemptions, %d failed loads\n",
		t.Prompt, t.Loaded, t.Local, t.Recomputed, t.Computed, t.Preemptions, t.FailedLoads)
	for _, m := range c.Machines() {
		for _, e := range m.Edges {
			n := m.Count.Of(e)
			fmt.Fprintf(w, "%-18s %12s -> %-12s %9d\n", m.Name, e.From, e.To, n)
			if n < leastEdge {
				problems = append(problems, fmt.Sprintf("%s: %s to %s was walked %d times, want %d", m.Name, e.From, e.To, n, leastEdge))
			}
		}
	}
	for _, x := range fault.Cells() {
		n := c.Cells[x]
		fmt.Fprintf(w, "fault %-12s %-12s %9d\n", x.Point, x.Action, n)
		if n < leastCell {
			problems = append(problems, fmt.Sprintf("fault %s at %s struck %d times, want %d", x.Action, x.Point, n, leastCell))
		}
	}
	return problems
}

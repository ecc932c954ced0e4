package arch

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"tandem/internal/connector"
	"tandem/internal/fault"
)

// failurePage is what docs/failure-model.md says.
type failurePage struct {
	cells   map[string]int // "point action" in the first column, and how often
	classes []string       // of the rows of the table of classes
	named   []string       // classes anywhere in a class column
	metrics []string
	tests   []string
	lines   []string // of the table of log lines
	bad     []string
}

var (
	cellName   = regexp.MustCompile("`([a-z_]+ [a-z]+)`")
	metricName = regexp.MustCompile("`((?:vllm:|tandem_)[a-z0-9_]+)`")
	className  = regexp.MustCompile("`([a-z]+)`")
	logLine    = regexp.MustCompile("`([^`]+)`")
)

// readFailures reads the tables of the page. A row of a table whose head begins
// with faults has cells; one whose head begins with class has a class.
func readFailures(text string) failurePage {
	p := failurePage{cells: map[string]int{}}
	var head []string
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		for _, m := range metricName.FindAllStringSubmatch(line, -1) {
			p.metrics = append(p.metrics, m[1])
		}
		for _, m := range testName.FindAllStringSubmatch(line, -1) {
			p.tests = append(p.tests, m[1])
		}
		if !strings.HasPrefix(line, "|") {
			head = nil
			continue
		}
		row := strings.Split(strings.Trim(line, "|"), "|")
		for i := range row {
			row[i] = strings.TrimSpace(row[i])
		}
		switch {
		case head == nil:
			head = row
			continue
		case strings.HasPrefix(row[0], "---"):
			continue
		case len(row) != len(head):
			p.bad = append(p.bad, "a row with another number of cells than its head: "+line)
			continue
		}
		if slices.Contains(row, "") {
			p.bad = append(p.bad, "an empty cell: "+line)
		}
		if head[len(head)-1] == "tests" && !testName.MatchString(row[len(row)-1]) {
			p.bad = append(p.bad, "no test: "+line)
		}
		if head[0] == "log line" {
			for _, m := range logLine.FindAllStringSubmatch(row[0], -1) {
				p.lines = append(p.lines, m[1])
			}
		}
		if head[0] == "faults" {
			found := cellName.FindAllStringSubmatch(row[0], -1)
			if len(found) == 0 {
				p.bad = append(p.bad, "no fault: "+line)
			}
			for _, m := range found {
				p.cells[m[1]]++
			}
		}
		if i := slices.Index(head, "class"); i >= 0 {
			for _, m := range className.FindAllStringSubmatch(row[i], -1) {
				p.named = append(p.named, m[1])
				if i == 0 {
					p.classes = append(p.classes, m[1])
				}
			}
		}
	}
	return p
}

// metricsInCode returns the names of all metrics, as they are scraped.
func metricsInCode(t *testing.T) []string {
	t.Helper()
	var out []string
	counter := regexp.MustCompile(`\.(counters?|peerCounter)\(`) // helpers of telemetry that add _total
	literal := regexp.MustCompile(`"((?:vllm:|tandem_)[a-z0-9_]+)"`)
	walk(t, func(path string, data []byte) {
		if filepath.Dir(path) != "internal/telemetry" || strings.HasSuffix(path, "_test.go") {
			return
		}
		for line := range strings.Lines(string(data)) {
			for _, m := range literal.FindAllStringSubmatch(line, -1) {
				if counter.MatchString(line) {
					m[1] += "_total"
				}
				out = append(out, m[1])
			}
		}
	})
	return out
}

// productCode returns all Go code that is no test.
func productCode(t *testing.T) string {
	t.Helper()
	var b strings.Builder
	walk(t, func(path string, data []byte) {
		ours := strings.HasPrefix(path, "internal/") || strings.HasPrefix(path, "cmd/")
		if ours && strings.HasSuffix(path, ".go") && !strings.HasSuffix(path, "_test.go") {
			b.Write(data)
		}
	})
	return b.String()
}

// ofFailures tells that a metric speaks of failures, so that the page must.
var ofFailures = regexp.MustCompile(`fail|expired|recovered|recomputed|_handshakes|stalled|_releases|backend_ready`)

// docs/failure-model.md speaks of every fault, class and metric of failures, and
// of none that the code does not have; every log line and test that it names
// exists.
func TestFailurePageIsTheCode(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(root(t), "docs", "failure-model.md"))
	if err != nil {
		t.Fatal(err)
	}
	p := readFailures(string(text))
	for _, b := range p.bad {
		t.Error(b)
	}
	for _, c := range fault.Cells() {
		name := string(c.Point) + " " + string(c.Action)
		if p.cells[name] == 0 {
			t.Errorf("docs/failure-model.md: no table of faults has a row for `%s`", name)
		}
		delete(p.cells, name)
	}
	for name := range p.cells {
		t.Errorf("docs/failure-model.md: there is no fault `%s`", name)
	}
	var classes []string
	for _, c := range connector.LoadClasses() {
		classes = append(classes, string(c))
	}
	if !slices.Equal(p.classes, classes) {
		t.Errorf("docs/failure-model.md: the table of classes has %q, the code %q", p.classes, classes)
	}
	for _, c := range p.named {
		if !slices.Contains(classes, c) {
			t.Errorf("docs/failure-model.md: there is no class %s", c)
		}
	}
	metrics := metricsInCode(t)
	for _, m := range p.metrics {
		if !slices.Contains(metrics, m) {
			t.Errorf("docs/failure-model.md: there is no metric %s", m)
		}
	}
	for _, m := range metrics {
		if ofFailures.MatchString(m) && !slices.Contains(p.metrics, m) {
			t.Errorf("docs/failure-model.md: %s is a metric of failures, and no row names it", m)
		}
	}
	tests, _ := testFuncs(t)
	for _, name := range p.tests {
		if !tests[name] {
			t.Errorf("docs/failure-model.md: there is no test %s", name)
		}
	}
	logged := productCode(t)
	for _, l := range p.lines {
		if !strings.Contains(logged, `"`+l) {
			t.Errorf("docs/failure-model.md: nothing logs %q", l)
		}
	}
	if len(p.tests) < 50 || len(metrics) < 30 || len(p.lines) < 10 {
		t.Errorf("read %d tests, %d metrics and %d log lines", len(p.tests), len(metrics), len(p.lines))
	}
}

// A reader of the page that sees nothing would pass for ever.
func TestFailurePageCanFail(t *testing.T) {
	p := readFailures(strings.Join([]string{
		"| faults | class | tests |", "|---|---|---|",
		"| `claim error`, `seal drop` | `sum` | `x.TestA` |", "| `claim error` | `gone` | none |",
		"| nothing | none | `x.TestB` |", "| `a b` | |", "", "| class | metric |", "|---|---|", "| `read` | `tandem_x_total` |",
		"", "| log line | do |", "|---|---|", "| `it broke`, `it is back` | `look` |",
	}, "\n"))
	if p.cells["claim error"] != 2 || p.cells["seal drop"] != 1 || len(p.bad) != 3 || !slices.Equal(p.classes, []string{"read"}) ||
		!slices.Equal(p.named, []string{"sum", "gone", "read"}) || !slices.Equal(p.metrics, []string{"tandem_x_total"}) || len(p.tests) != 2 ||
		!slices.Equal(p.lines, []string{"it broke", "it is back"}) {
		t.Errorf("%+v", p)
	}
}

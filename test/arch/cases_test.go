package arch

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// lastCase is the number of the last reported fault that docs/cases.md speaks of.
const lastCase = 113

// mustHaveTests are the cases that need a row with a test, by first and last
// number.
var mustHaveTests = [][2]int{
	{1, 15},                                          // handshake, transfer
	{36, 43}, {44, 49}, {50, 62}, {63, 68}, {69, 74}, // scheduler, prefix cache, API, tokenizer, model file
	{76, 76}, {78, 80}, {83, 83}, {87, 88}, {90, 90}, // router
	{95, 101}, {109, 113}, // security, config
}

// A caseRow is one row of docs/cases.md.
type caseRow struct {
	line           int
	right, trigger string
	tests          []string // package.TestName
}

var (
	rowID    = regexp.MustCompile(`^H(\d{3})$`)
	anyID    = regexp.MustCompile(`\bH(\d{3})\b`)
	testName = regexp.MustCompile("`([a-z0-9]+\\.(?:Test|Fuzz)[A-Z]\\w*)`")
)

// readCases returns the rows of the tables and, by id, the lines of the section
// on later work.
func readCases(text string) (rows map[int]caseRow, later map[int]int, problems []string) {
	rows, later = map[int]caseRow{}, map[int]int{}
	inLater := false
	for i, line := range strings.Split(text, "\n") {
		if strings.HasPrefix(line, "## ") {
			inLater = strings.HasPrefix(line, "## Later")
		}
		if inLater {
			for _, m := range anyID.FindAllStringSubmatch(line, -1) {
				n, _ := strconv.Atoi(m[1])
				if later[n] != 0 {
					problems = append(problems, m[0]+" is twice in the section on later work")
				}
				later[n] = i + 1
			}
			continue
		}
		cells := strings.Split(strings.Trim(line, "|"), "|")
		id := rowID.FindStringSubmatch(strings.TrimSpace(cells[0]))
		if !strings.HasPrefix(line, "|") || id == nil {
			continue
		}
		n, _ := strconv.Atoi(id[1])
		if len(cells) != 4 {
			problems = append(problems, id[0]+": want id, right, tests, trigger")
			continue
		}
		if _, twice := rows[n]; twice {
			problems = append(problems, id[0]+" has two rows")
		}
		r := caseRow{line: i + 1, right: strings.TrimSpace(cells[1]), trigger: strings.TrimSpace(cells[3])}
		for _, m := range testName.FindAllStringSubmatch(cells[2], -1) {
			r.tests = append(r.tests, m[1])
		}
		if len(r.tests) == 0 || strings.Count(cells[2], "`") != 2*len(r.tests) || r.right == "" || r.trigger == "" {
			problems = append(problems, id[0]+": want a sentence, tests as `package.TestName`, and what shows the trigger")
		}
		rows[n] = r
	}
	return rows, later, problems
}

// testFuncs returns the tests of the tree by package.TestName, where the package
// is the folder's name, and the case ids that comments on tests name.
func testFuncs(t *testing.T) (tests map[string]bool, named map[int]string) {
	t.Helper()
	tests, named = map[string]bool{}, map[int]string{}
	walk(t, func(path string, data []byte) {
		if !strings.HasSuffix(path, "_test.go") || strings.HasPrefix(path, "test/arch/") {
			return
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, data, parser.ParseComments)
		if err != nil {
			t.Errorf("%s: %v", path, err)
			return
		}
		for _, d := range file.Decls {
			f, ok := d.(*ast.FuncDecl)
			if !ok || f.Recv != nil || !strings.HasPrefix(f.Name.Name, "Test") && !strings.HasPrefix(f.Name.Name, "Fuzz") {
				continue
			}
			name := filepath.Base(filepath.Dir(path)) + "." + f.Name.Name
			tests[name] = true
			for _, m := range anyID.FindAllStringSubmatch(f.Doc.Text(), -1) {
				n, _ := strconv.Atoi(m[1])
				named[n] = name
			}
		}
	})
	return tests, named
}

// docs/cases.md tells the truth: every case is there once, the required ones
// with tests, and every test that it names exists.
func TestCasesHaveTheirTests(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(root(t), "docs", "cases.md"))
	if err != nil {
		t.Fatal(err)
	}
	rows, later, problems := readCases(string(text))
	for _, p := range problems {
		t.Errorf("docs/cases.md: %s", p)
	}
	tests, named := testFuncs(t)
	for n, r := range rows {
		if n < 1 || n > lastCase {
			t.Errorf("docs/cases.md:%d: there is no case H%03d", r.line, n)
		}
		for _, name := range r.tests {
			if !tests[name] {
				t.Errorf("docs/cases.md:%d: H%03d names %s, which does not exist", r.line, n, name)
			}
		}
	}
	for n := 1; n <= lastCase; n++ {
		_, row := rows[n]
		required := slices.ContainsFunc(mustHaveTests, func(r [2]int) bool { return r[0] <= n && n <= r[1] })
		switch {
		case row && later[n] != 0:
			t.Errorf("docs/cases.md:%d: H%03d has tests and is later work", later[n], n)
		case required && !row:
			t.Errorf("docs/cases.md: H%03d needs a row with its test", n)
		case !row && later[n] == 0:
			t.Errorf("docs/cases.md: H%03d is nowhere", n)
		}
		if named[n] != "" && !row {
			t.Errorf("docs/cases.md: %s is a test of H%03d, which has no row", named[n], n)
		}
	}
}

// A reader of cases that sees nothing would pass for ever.
func TestCasesCanFail(t *testing.T) {
	rows, later, problems := readCases(strings.Join([]string{
		"| id | right | tests | trigger |", "|---|---|---|---|",
		"| H001 | a | `x.TestA`, `y.FuzzB` | c |", "| H002 | a | none | c |", "| H003 | a | `x.TestA` | |", "| H001 | a | `x.TestA` | c |",
		"## Later", "- sleep: H025, H026",
	}, "\n"))
	if len(problems) != 3 || !slices.Equal(rows[1].tests, []string{"x.TestA"}) || len(rows) != 3 || later[25] != 8 || later[26] != 8 {
		t.Errorf("rows %v, later %v, problems %q", rows, later, problems)
	}
}

package main

import (
	"context"
	"errors"
	"go/parser"
	"go/token"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// testBench is a bench of this module that builds nothing.
func testBench(t *testing.T) *bench {
	t.Helper()
	b, err := newBench(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.close)
	return b
}

func TestOnlyNothingIsAnError(t *testing.T) {
	for name, run := range map[string]func(context.Context, io.Writer, io.Writer, []string, int) error{"listed": runListed, "generated": runGenerated} {
		if err := run(t.Context(), io.Discard, io.Discard, []string{"nosuch"}, 1); !errors.Is(err, errNone) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// Every listed mutant fits the tree: its text is there once, what takes its
// place is Go, and its tests exist. Whether they kill it, make mutants tells.
func TestListedMutantsFitTheTree(t *testing.T) {
	b := testBench(t)
	seen := map[string]bool{}
	for _, m := range allListed() {
		src, err := b.read(m.File)
		if err != nil {
			t.Fatal(err)
		}
		mutated := strings.Replace(src, m.Old, m.New, 1)
		switch {
		case strings.Count(src, m.Old) != 1:
			t.Errorf("%s: %q occurs %d times, want once", m.File, m.Old, strings.Count(src, m.Old))
		case mutated == src || seen[m.pkg()+m.File+mutated]:
			t.Errorf("%s: %s: changes nothing, or is listed twice", m.File, m.Why)
		case m.Why == "" || len(m.names()) == 0:
			t.Errorf("%s: %q has no reason or no tests", m.File, m.Old)
		}
		seen[m.pkg()+m.File+mutated] = true
		if _, err := parser.ParseFile(token.NewFileSet(), m.File, mutated, 0); err != nil {
			t.Errorf("%s: %s: %v", m.File, m.Why, err)
		}
		var tests strings.Builder
		files, err := filepath.Glob(filepath.Join(b.root, m.pkg(), "*_test.go"))
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range files {
			text, err := os.ReadFile(f)
			if err != nil {
				t.Fatal(err)
			}
			tests.Write(text)
		}
		for _, n := range m.names() {
			if !strings.Contains(tests.String(), "func "+n+"(t *testing.T)") {
				t.Errorf("%s: %s has no %s", m.File, m.pkg(), n)
			}
		}
	}
	if len(seen) < 100 {
		t.Errorf("%d mutants are listed", len(seen))
	}
}

// Every mutant that the page argues for is one that the nightly run makes.
func TestArguedMutantsAreMade(t *testing.T) {
	b := testBench(t)
	argued, err := b.argued()
	if err != nil {
		t.Fatal(err)
	}
	if len(argued) == 0 {
		t.Errorf("%s has no line that is read", arguedPage)
	}
	for _, target := range targets {
		src, err := b.read(target.File)
		if err != nil {
			t.Fatal(err)
		}
		edits, err := generate(target.File, src)
		if err != nil {
			t.Fatal(err)
		}
		if len(edits) == 0 {
			t.Errorf("%s: no mutants", target.File)
		}
		for _, e := range edits {
			s := e.survivor(target.File, src)
			delete(argued, arguedKey(s.File, s.Old, s.New))
		}
	}
	for key := range argued {
		t.Errorf("%s argues for a mutant that is not made: %q", arguedPage, strings.Split(key, "\x00"))
	}
}

// What the rules make of a function.
func TestRules(t *testing.T) {
	const src = `package x

func (l *lease) f(now time.Time, n int) (ok bool) {
	if l.until.Before(now) && n > 3 {
		l.held, l.deadline = nil, min(n, 1)
		l.count++
		delete(l.all, n)
		fmt.Println(n + 1)
	}
	switch {
	case n == 2:
		return true
	}
	for _, x := range l.list {
		if !x.ok {
			continue
		}
		l.sum += lease{a: 1, b: x.n}.sum()
	}
	return
}

func (l *lease) String() string { return string(rune(7 + l.count)) }
`
	edits, err := generate("x.go", src)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, e := range edits {
		s := e.survivor("x.go", src)
		if s.Line != strings.Count(src[:e.from], "\n")+1 || !strings.Contains(src, s.Old) {
			t.Errorf("%+v is not where it says", s)
		}
		got = append(got, s.New)
	}
	for _, want := range []string{
		"if (l.until.Before(now) && n > 3) && false {", "if (l.until.Before(now) && n > 3) || true {",
		"if l.until.Before(now) || n > 3 {", "if l.until.Before(now) {", "if n > 3 {",
		"if l.until.After(now) && n > 3 {", "if l.until.Before(now) && n >= 3 {", "if l.until.Before(now) && n <= 3 {",
		"if l.until.Before(now) && n > 4 {",
		"l.held, _ = nil, min(n, 1)", "l.held, l.deadline = nil, max(n, 1)", "l.held, l.deadline = nil, n",
		"l.held, l.deadline = nil, 1", "l.held, l.deadline = nil, min(n, 2)", "l.held, l.deadline = nil, min(n, 0)",
		"l.count--", "", "case (n == 2) && false:", "case n != 2:", "case n == 3:", "return false",
		"if x.ok {", "if (!x.ok) && false {", "if (!x.ok) || true {",
		"l.sum -= lease{a: 1, b: x.n}.sum()", "_ = lease{a: 1, b: x.n}.sum()", "l.sum += lease{b: x.n}.sum()", "l.sum += lease{a: 1}.sum()",
	} {
		if !slices.Contains(got, want) {
			t.Errorf("%q is not made", want)
		}
	}
	for _, never := range got {
		if strings.Contains(never, "Println(n -") || strings.Contains(never, "rune(7 -") {
			t.Errorf("%q is made of words", never)
		}
	}
}

// The lines that argue for mutants are read as they are written.
func TestArgumentsAreRead(t *testing.T) {
	m := arguedLine.FindStringSubmatch("- `a/b.go`: `x = f(y)` as `_ = f(y)`: it is set: already")
	if m == nil || m[1] != "a/b.go" || m[2] != "x = f(y)" || m[3] != "_ = f(y)" || m[4] != "it is set: already" {
		t.Errorf("%q", m)
	}
}

// Package pages compares documents that are made from the code with what the
// code says now. The tests that make them write them when -update is given,
// which is what `make gen` does.
package pages

import (
	"bytes"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"text/template"

	"github.com/google/go-cmp/cmp"
)

var update = flag.Bool("update", false, "write the generated pages under docs instead of comparing them")

// Compare makes a page out of the template at file and compares it with
// docs/page.
func Compare(t *testing.T, page, file string, funcs template.FuncMap, data any) {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	tpl, err := template.New(filepath.Base(file)).Funcs(funcs).Option("missingkey=error").Parse(string(text))
	if err != nil {
		t.Fatal(err)
	}
	var want bytes.Buffer
	if err := tpl.Execute(&want, data); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(root(t), "docs", page)
	if *update {
		if err := os.WriteFile(path, want.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	have, err := os.ReadFile(path)
	if err != nil {
		t.Fatalf("%v; make gen writes it", err)
	}
	if diff := cmp.Diff(strings.Split(string(have), "\n"), strings.Split(want.String(), "\n")); diff != "" {
		t.Errorf("docs/%s is not what the code says (-page +code); make gen writes it anew:\n%s", page, diff)
	}
}

// root returns the folder of go.mod.
func root(t *testing.T) string {
	t.Helper()
	dir, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	for {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir
		}
		up := filepath.Dir(dir)
		if up == dir {
			t.Fatal("no go.mod above the test")
		}
		dir = up
	}
}

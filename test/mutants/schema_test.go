package main

import (
	"go/format"
	"slices"
	"strings"
	"testing"
)

// A merged file holds each function as it is and a copy for each edit of it, and
// says of every line whose copy it is of.
func TestMerge(t *testing.T) {
	const src = `package x

import "time"

// f counts.
func (c *counter) f(n int, _ time.Time, more ...int) (sum int) {
	if n > 1 {
		return c.n
	}
	return len(more)
}

func (counter) g(string) {
	now--
}

var now = 2
`
	var edits []edit
	for old, text := range map[string]string{"n > 1": "n > 2", "return c.n\n": "\n", "now--": "now++"} {
		at := strings.Index(src, old)
		edits = append(edits, edit{from: at, to: at + len(old), text: text})
	}
	slices.SortFunc(edits, func(a, b edit) int { return a.from - b.from })
	got, owners, err := merge("x.go", src, edits, map[int]bool{1: true})
	if err != nil {
		t.Fatal(err)
	}
	const want = `package x

import "time"

// f counts.
func (c *counter) f(n int, mutant1 time.Time, more ...int) (sum int) {
	switch mutant {
	case 0:
		return c.f_0(n, mutant1, more...)
	}

	if n > 1 {
		return c.n
	}
	return len(more)
}

func (mutant1 counter) g(mutant2 string) {
	switch mutant {
	case 2:
		mutant1.g_2(mutant2)
		return
	}

	now--
}

var now = 2

func (c *counter) f_0(n int, mutant1 time.Time, more ...int) (sum int) {
	if n > 2 {
		return c.n
	}
	return len(more)
}
func (mutant1 counter) g_2(mutant2 string) {
	now++
}
`
	formatted, err := format.Source([]byte(got))
	if err != nil {
		t.Fatalf("%v:\n%s", err, got)
	}
	if string(formatted) != want {
		t.Errorf("merged:\n%s", formatted)
	}
	lines := strings.Split(got, "\n")
	for i, l := range lines {
		want := -1
		switch {
		case i >= slices.IndexFunc(lines, func(l string) bool { return strings.Contains(l, "g_2(mutant2 string)") }):
			want = 2
		case i >= slices.IndexFunc(lines, func(l string) bool { return strings.Contains(l, "f_0(n int") }):
			want = 0
		}
		if owner := owners[i+1]; owner != want && l != "" {
			t.Errorf("line %d, %q, is of edit %d, want %d", i+1, l, owner, want)
		}
	}
}

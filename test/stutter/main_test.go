package main

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestEveryStatementHasAPoint(t *testing.T) {
	const src = `// Package p has a comment.
package p

import "time"

var f = func() int { return 1 }

func g(c chan int) (n int) {
	defer close(c)
	switch {
	case n > 0: n++
		fallthrough
	default:
	}
	select {
	case <-c: return 1
	case <-time.After(1):
	}
again:
	for i := range 3 { if i > 1 { continue }; n += f() }
	if n < 3 { goto again } else { go func() { c <- 1 }() }
	return n
}
`
	const want = `// Package p has a comment.
package p; import stutter "tandem/test/stutter/point"

import "time"

var f = func() int { stutter.Wait(10);return 1 }

func g(c chan int) (n int) {
	stutter.Wait(11);defer close(c)
	stutter.Wait(12);switch {
	case n > 0: stutter.Wait(17);n++
		stutter.Wait(18);fallthrough
	default:
	}
	stutter.Wait(13);select {
	case <-c: stutter.Wait(19);return 1
	case <-time.After(1):
	}
stutter.Wait(14);again:
	for i := range 3 { stutter.Wait(20);if i > 1 { stutter.Wait(22);continue }; stutter.Wait(21);n += f() }
	stutter.Wait(15);if n < 3 { stutter.Wait(23);goto again } else { stutter.Wait(24);go func() { stutter.Wait(25);c <- 1 }() }
	stutter.Wait(16);return n
}
`
	in := instrumenter{sites: 10}
	got, err := in.file("p.go", []byte(src))
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(want, string(got)); d != "" || in.sites != 26 {
		t.Errorf("%d sites, (-want +got)\n%s", in.sites, d)
	}
	const none = "package p\n\ntype t struct{}\n"
	if got, err := in.file("p.go", []byte(none)); err != nil || string(got) != none {
		t.Errorf("%q %v", got, err)
	}
	if _, err := in.file("p.go", []byte("package\n")); err == nil || !strings.Contains(err.Error(), "p.go:1") {
		t.Error(err)
	}
}

// A test that passes by luck is found, and told with what finds it again.
func TestLuckIsFound(t *testing.T) {
	var out strings.Builder
	r := runner{first: 1, seeds: 20, share: 1, limit: time.Minute}
	err := r.run(t.Context(), &out, []string{"./testdata/lucky"})
	if err == nil || !strings.Contains(out.String(), "the goroutine was late") || !strings.Contains(out.String(), " -seeds 1 -share 1 -timeout 1m0s ./testdata/lucky\n") {
		t.Errorf("%v\n%s", err, out.String())
	}
}

func TestWrongArguments(t *testing.T) {
	for _, c := range []struct {
		r        runner
		patterns []string
		want     string
	}{
		{runner{share: 1}, nil, "name packages"},
		{runner{share: 2}, []string{"./point"}, "-share is 2"},
		{runner{share: 1, seeds: -1}, []string{"./point"}, "-seeds is -1"},
		{runner{share: 1}, []string{"./point"}, "no tests in ./point"}, // it cannot import itself
		{runner{share: 1}, []string{"./nowhere"}, "go list"},
	} {
		if err := c.r.run(t.Context(), &strings.Builder{}, c.patterns); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%q: %v", c.want, err)
		}
	}
}

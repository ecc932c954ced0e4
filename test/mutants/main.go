// Command mutants breaks the recovery code on purpose, one small change at a
// time, and tells whether the tests notice.
//
// Without flags it applies every mutant of the list in this folder and runs the
// tests that the list names for it. It fails when one of them lives, does not
// compile, or names text or tests that are not there. With -generate it makes
// mutants by itself out of the files in targets.go, runs all tests of their
// packages, and prints those that lived as JSON lines.
//
// A mutant is an overlay of the build: the work tree is only read. The mutants of
// a file that -generate makes are in one program, and each runs by its number.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime"
	"strings"
	"sync"
	"time"
)

func main() {
	generated := flag.Bool("generate", false, "make mutants instead of taking the listed ones")
	only := flag.String("only", "", "only mutants of files whose path holds one of these words (comma-separated)")
	workers := flag.Int("j", runtime.NumCPU(), "mutants under test at the same time")
	limit := flag.Duration("for", 0, "begin no further mutant after this time; 0: no limit")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if *limit > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, *limit)
		defer cancel()
	}
	run := runListed
	if *generated {
		run = runGenerated
	}
	if err := run(ctx, os.Stdout, os.Stderr, strings.Split(*only, ","), *workers); err != nil {
		fmt.Fprintln(os.Stderr, "mutants:", err)
		os.Exit(1)
	}
}

// wanted tells whether file holds one of words.
func wanted(file string, words []string) bool {
	for _, w := range words {
		if strings.Contains(file, w) {
			return true
		}
	}
	return false
}

// errNone says that -only selects nothing.
var errNone = errors.New("-only selects no mutant; want a part of a file's path, such as core/lease.go")

// runListed tests the listed mutants that only selects.
func runListed(ctx context.Context, out, _ io.Writer, only []string, workers int) error {
	b, err := newBench(ctx)
	if err != nil {
		return err
	}
	defer b.close()
	began := time.Now()
	var list []listed
	tests := map[string][]string{}
	for _, m := range allListed() {
		if wanted(m.File+" "+m.In, only) {
			list = append(list, m)
			tests[m.pkg()] = append(tests[m.pkg()], m.names()...)
		}
	}
	if len(list) == 0 {
		return errNone
	}
	for pkg, names := range tests {
		if err := b.prepare(ctx, pkg, names); err != nil {
			return err
		}
	}
	bad := 0
	var mu sync.Mutex
	each(ctx, workers, list, func(m listed) {
		v, detail := b.tryListed(ctx, m)
		mu.Lock()
		defer mu.Unlock()
		if v != killed {
			bad++
			fmt.Fprintf(out, "%-12s %s: %s\n    %s\n    -> %s\n    tests %s: %s\n",
				v, m.File, m.Why, oneLine(m.Old), oneLine(m.New), m.Tests, detail)
		}
	})
	fmt.Fprintf(out, "%d of %d mutants are killed by the tests they are listed with (%v)\n",
		len(list)-bad, len(list), time.Since(began).Round(time.Second))
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("stopped before the end: %w", err)
	}
	if bad > 0 {
		return errors.New("a test of the list does not see what it is there for")
	}
	return nil
}

// A survivor is what the nightly run prints for a mutant that lived.
type survivor struct {
	File   string `json:"file"`
	Line   int    `json:"line"`
	Column int    `json:"column"`
	Rule   string `json:"rule"`
	Old    string `json:"old"` // the line, trimmed
	New    string `json:"new"`
	Argued string `json:"argued,omitempty"` // why it may live, as docs/mutants.md has it
}

// runGenerated makes mutants and prints those that live. It fails when one does
// that docs/mutants.md does not speak of.
func runGenerated(ctx context.Context, out, log io.Writer, only []string, workers int) error {
	b, err := newBench(ctx)
	if err != nil {
		return err
	}
	defer b.close()
	argued, err := b.argued()
	if err != nil {
		return err
	}
	began := time.Now()
	lines := json.NewEncoder(out)
	lines.SetEscapeHTML(false)
	count := map[verdict]int{}
	open, met := 0, false
	var mu sync.Mutex
	for _, t := range targets {
		if !wanted(t.File, only) {
			continue
		}
		met = true
		for _, pkg := range t.packages() {
			if err := b.prepare(ctx, pkg, nil); err != nil {
				return err
			}
		}
		src, err := b.read(t.File)
		if err != nil {
			return err
		}
		edits, err := generate(t.File, src)
		if err != nil {
			return err
		}
		s, err := newSchema(ctx, b, t, src, edits)
		if err != nil {
			return err
		}
		numbers := make([]int, len(edits))
		for i := range numbers {
			numbers[i] = i
		}
		each(ctx, workers, numbers, func(i int) {
			v := s.try(ctx, i)
			if ctx.Err() != nil {
				return
			}
			mu.Lock()
			defer mu.Unlock()
			count[v]++
			if v != survived {
				return
			}
			l := edits[i].survivor(t.File, src)
			if l.Argued = argued[arguedKey(l.File, l.Old, l.New)]; l.Argued == "" {
				open++
			}
			_ = lines.Encode(l) // to standard output, which shows its own errors
		})
		s.close()
		fmt.Fprintf(log, "%s: %d mutants (%v)\n", t.File, len(edits), time.Since(began).Round(time.Second))
	}
	if !met {
		return errNone
	}
	fmt.Fprintf(log, "%d killed, %d lived (%d without an argument in %s), %d do not compile\n",
		count[killed], count[survived], open, arguedPage, count[uncompiled])
	if open > 0 {
		return fmt.Errorf("%d mutants lived that nobody has argued for", open)
	}
	return nil
}

// each calls f for every item, workers at a time, until ctx ends.
func each[T any](ctx context.Context, workers int, items []T, f func(T)) {
	next := make(chan T)
	var wg sync.WaitGroup
	for range max(workers, 1) {
		wg.Go(func() {
			for x := range next {
				f(x)
			}
		})
	}
	for _, x := range items {
		select {
		case next <- x:
			continue
		case <-ctx.Done():
		}
		break
	}
	close(next)
	wg.Wait()
}

func oneLine(s string) string { return strings.Join(strings.Fields(s), " ") }

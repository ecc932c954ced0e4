// Command faults runs the fault campaign: clusters of real processes under every
// kind of trouble, with requests whose right answers are known. It prints one
// table and fails when a line of it is not met.
//
// Engines run with --sim, whose tokens depend on every KV byte: a wrong byte is a
// wrong token. What a fault did is taken from the counts of the process that it
// was injected into, and what it caused from the answers and from the engines'
// own books; a line whose trouble did not come about is not met.
package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"tandem/test/cluster"
)

// A campaign is what every section knows.
type campaign struct {
	short bool
	seed  uint64
	table table
	pulse *pulse
	log   io.Writer
}

// scale returns whole, or part in a short run.
func (c *campaign) scale(whole, part int) int {
	if c.short {
		return part
	}
	return whole
}

func (c *campaign) say(format string, args ...any) {
	fmt.Fprintf(c.log, "faults: "+format+"\n", args...)
}

var sections = []struct {
	name string
	run  func(*campaign, testing.TB) error
}{
	{"adversary", adversary},
	{"peers", peers},
	{"decoders", decoders},
	{"wire", wire},
	{"matrix", everyCell},
	{"requests", requests},
	{"storm", storm},
	{"exact", exact},
}

func main() {
	c := &campaign{log: os.Stderr, pulse: newPulse()}
	only := flag.String("only", "", "sections to run, separated by commas")
	flag.BoolVar(&c.short, "short", false, "fewer repetitions: for CI")
	flag.Func("patience", "how many times its time limit a line may take; the limits of the engines grow with it, up to threefold; 1 unless said", func(s string) error {
		n, err := strconv.ParseUint(s, 10, 8)
		if err == nil && n == 0 {
			err = errors.New("want at least 1")
		}
		patience = time.Duration(n)
		return err
	})
	flag.Uint64Var(&c.seed, "seed", 1, "of prompts and of what is drawn")
	flag.Parse()
	if err := run(c, *only, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "faults:", err)
		os.Exit(1)
	}
}

// run runs the sections one after the other. One that breaks off does not keep
// the others from their lines.
func run(c *campaign, only string, w io.Writer) error {
	began := time.Now()
	if err := check(only); err != nil {
		return err
	}
	for _, s := range sections {
		if only != "" && !strings.Contains(","+only+",", ","+s.name+",") {
			continue
		}
		start := time.Now()
		c.say("%s", s.name)
		err := cluster.Outside("faults", func(t testing.TB) error { return s.run(c, t) })
		if err != nil {
			c.table.add(row{what: s.name + " as a whole", missed: []string{err.Error()}})
		}
		c.say("%s: %.1f s", s.name, time.Since(start).Seconds())
	}
	fmt.Fprintf(w, "%d cores, %.0f s, seed %d; the harness's own timers were late by %.1f s in all; time limits count %d-fold\n\n",
		runtime.NumCPU(), time.Since(began).Seconds(), c.seed, c.pulse.late().Seconds(), patience)
	if missed := c.table.print(w); missed > 0 {
		return fmt.Errorf("%d lines are not met", missed)
	}
	if len(c.table.rows) == 0 {
		return errors.New("nothing was tried")
	}
	return nil
}

// check reports a name in only that no section has.
func check(only string) error {
	if only == "" {
		return nil
	}
	var names []string
	for _, s := range sections {
		names = append(names, s.name)
	}
	for _, n := range strings.Split(only, ",") {
		if !slices.Contains(names, n) {
			return fmt.Errorf("-only: no section has the name %q; there are %s", n, strings.Join(names, ", "))
		}
	}
	return nil
}

// Command stutter runs tests while the code waits at random statements, so that
// what happens in an order by luck happens in the other order too.
//
// It puts a point before each statement of the packages, their tests included, by
// an overlay of the build; the work tree is only read. A seed draws which points
// wait, how often and how long. Each seed runs the tests of every package once, in
// the short mode. It fails at the end when some did, and prints what to run again:
// a seed gives the same waits for the same packages and work tree, which bring the
// same order about most of the time.
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"tandem/test/stutter/point"
)

func main() {
	var r runner
	flag.Uint64Var(&r.first, "seed", 1, "the first seed")
	flag.IntVar(&r.seeds, "seeds", 10, "how many seeds; 0: until it is told to stop")
	flag.Float64Var(&r.share, "share", 0.05, "which part of all statements waits")
	flag.BoolVar(&r.race, "race", false, "with the race detector (needs gcc)")
	flag.StringVar(&r.tests, "run", "", "only the tests that match")
	flag.DurationVar(&r.limit, "timeout", 10*time.Minute, "of the tests of one package")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := r.run(ctx, os.Stdout, flag.Args()); err != nil {
		fmt.Fprintln(os.Stderr, "stutter:", err)
		os.Exit(1)
	}
}

// A runner has what the command line said.
type runner struct {
	first uint64
	seeds int
	share float64
	race  bool
	tests string
	limit time.Duration

	overlay string // the file that go build takes
}

// A pkg is what go list knows of a package.
type pkg struct {
	ImportPath, Dir                    string
	GoFiles, TestGoFiles, XTestGoFiles []string

	binary string // of its tests
}

// run tests the packages that patterns name, seed after seed.
func (r *runner) run(ctx context.Context, out io.Writer, patterns []string) error {
	if len(patterns) == 0 {
		return errors.New("name packages, such as ./internal/router")
	}
	switch {
	case r.share <= 0 || r.share > 1:
		return fmt.Errorf("-share is %v; want more than 0 and at most 1", r.share)
	case r.seeds < 0:
		return fmt.Errorf("-seeds is %d; want 0 or more", r.seeds)
	}
	dir, err := os.MkdirTemp("", "stutter-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	pkgs, err := r.build(ctx, out, dir, patterns)
	if err != nil {
		return err
	}
	failed := 0
	for k := 0; k < r.seeds || r.seeds == 0; k++ {
		seed := r.first + uint64(k)
		for _, p := range pkgs {
			text, err := r.test(ctx, p, seed)
			if ctx.Err() != nil {
				return verdict(failed)
			}
			if err != nil {
				failed++
				fmt.Fprintf(out, "%s\nFAIL %s (%v)\nagain: %s\n", text, p.ImportPath, err, r.again(seed, patterns))
			}
		}
		fmt.Fprintf(out, "seed %d: %d packages, %d failures so far\n", seed, len(pkgs), failed)
	}
	return verdict(failed)
}

// again is the command that runs one seed as it was run.
func (r *runner) again(seed uint64, patterns []string) string {
	args := []string{"go run ./test/stutter", fmt.Sprintf("-seed %d -seeds 1 -share %v -timeout %v", seed, r.share, r.limit)}
	if r.race {
		args = append(args, "-race")
	}
	if r.tests != "" {
		args = append(args, fmt.Sprintf("-run %q", r.tests))
	}
	return strings.Join(append(args, patterns...), " ")
}

func verdict(failed int) error {
	if failed > 0 {
		return fmt.Errorf("%d failures", failed)
	}
	return nil
}

// build compiles the tests of all packages that have some.
func (r *runner) build(ctx context.Context, out io.Writer, dir string, patterns []string) ([]*pkg, error) {
	list := exec.CommandContext(ctx, "go", append([]string{"list", "-json=ImportPath,Dir,GoFiles,TestGoFiles,XTestGoFiles", "--"}, patterns...)...)
	list.Stderr = os.Stderr
	text, err := list.Output()
	if err != nil {
		return nil, fmt.Errorf("go list: %w", err)
	}
	var all []*pkg
	var in instrumenter
	overlay := struct{ Replace map[string]string }{map[string]string{}}
	for d := json.NewDecoder(bytes.NewReader(text)); d.More(); {
		p := &pkg{}
		if err := d.Decode(p); err != nil {
			return nil, fmt.Errorf("go list: %w", err)
		}
		if p.ImportPath == pointPath {
			continue
		}
		for _, f := range slices.Concat(p.GoFiles, p.TestGoFiles, p.XTestGoFiles) {
			path := filepath.Join(p.Dir, f)
			src, err := os.ReadFile(path)
			if err != nil {
				return nil, err
			}
			made, err := in.file(path, src)
			if err != nil {
				return nil, err
			}
			to := filepath.Join(dir, fmt.Sprintf("%d.go", len(overlay.Replace)))
			if err := os.WriteFile(to, made, 0o600); err != nil {
				return nil, err
			}
			overlay.Replace[path] = to
		}
		if len(p.TestGoFiles)+len(p.XTestGoFiles) > 0 {
			all = append(all, p)
		}
	}
	if len(all) == 0 {
		return nil, fmt.Errorf("no tests in %s", strings.Join(patterns, " "))
	}
	file, err := json.Marshal(overlay)
	if err != nil {
		return nil, err
	}
	r.overlay = filepath.Join(dir, "overlay.json")
	if err := os.WriteFile(r.overlay, file, 0o600); err != nil {
		return nil, err
	}
	for i, p := range all {
		p.binary = filepath.Join(dir, fmt.Sprintf("%d.test", i))
		args := []string{"test", "-c", "-vet=off", "-overlay", r.overlay, "-o", p.binary}
		cmd := exec.CommandContext(ctx, "go", append(args, p.ImportPath)...)
		if r.race {
			cmd = exec.CommandContext(ctx, "go", append(args, "-race", p.ImportPath)...)
			cmd.Env = append(os.Environ(), "CGO_ENABLED=1")
		}
		if text, err := cmd.CombinedOutput(); err != nil {
			return nil, fmt.Errorf("building %s: %w\n%s", p.ImportPath, err, text)
		}
	}
	fmt.Fprintf(out, "%d statements, %d packages with tests\n", in.sites, len(all))
	return all, nil
}

// test runs the tests of p under a seed and returns what they print. Programs that
// they build wait as well.
func (r *runner) test(ctx context.Context, p *pkg, seed uint64) ([]byte, error) {
	cmd := exec.CommandContext(ctx, p.binary, "-test.short", "-test.timeout", r.limit.String(), "-test.run", r.tests)
	cmd.Dir = p.Dir
	cmd.WaitDelay = time.Second // a child of it may hold the output open
	flags := strings.TrimSpace(os.Getenv("GOFLAGS") + " -overlay=" + r.overlay)
	cmd.Env = append(os.Environ(), "GOFLAGS="+flags, fmt.Sprintf("%s=%d", point.SeedEnv, seed), fmt.Sprintf("%s=%v", point.ShareEnv, r.share))
	return cmd.CombinedOutput()
}

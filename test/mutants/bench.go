package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// A verdict says what became of a mutant.
type verdict string

const (
	killed     verdict = "killed"
	survived   verdict = "LIVES"
	uncompiled verdict = "NO BUILD"
	unusable   verdict = "UNUSABLE" // its text or its tests are not there
)

// A pkg is a package whose tests run.
type pkg struct {
	Dir          string
	TestImports  []string
	XTestImports []string

	limit time.Duration // for one run of the tests
	cpu   int           // seconds of processor time for it: what loops for ever is ended early, however busy the machine is

	mu      sync.Mutex
	killers map[string]int // tests that killed mutants, and how many
}

// failed is how a test binary names a test that failed.
var failed = regexp.MustCompile(`(?m)^--- FAIL: (\w+)`)

// kills notes which test killed a mutant.
func (p *pkg) kills(out []byte) {
	if m := failed.FindSubmatch(out); m != nil {
		p.mu.Lock()
		p.killers[string(m[1])]++
		p.mu.Unlock()
	}
}

// maxKillers is how many tests are tried before all are.
const maxKillers = 8

// first returns the tests that killed most mutants: most of the next are theirs.
func (p *pkg) first() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	names := slices.Collect(maps.Keys(p.killers))
	slices.SortFunc(names, func(a, b string) int {
		return cmp.Or(cmp.Compare(p.killers[b], p.killers[a]), strings.Compare(a, b))
	})
	return names[:min(len(names), maxKillers)]
}

// flags are what its test binary is called with: rapid draws the same
// cases in every run, does not shrink and leaves no files.
func (p *pkg) flags() []string {
	if slices.Contains(p.TestImports, "pgregory.net/rapid") || slices.Contains(p.XTestImports, "pgregory.net/rapid") {
		return []string{"-rapid.nofailfile", "-rapid.shrinktime=1ns", "-rapid.seed=1", "-rapid.checks=300"}
	}
	return nil
}

// A bench builds and runs test binaries of mutated packages.
type bench struct {
	root string // of the module
	tmp  string
	pkgs map[string]*pkg
	runs atomic.Int64
}

func newBench(ctx context.Context) (*bench, error) {
	out, err := exec.CommandContext(ctx, "go", "env", "GOMOD").Output()
	if err != nil {
		return nil, fmt.Errorf("finding the module: %w", err)
	}
	tmp, err := os.MkdirTemp("", "mutants")
	if err != nil {
		return nil, err
	}
	return &bench{root: filepath.Dir(strings.TrimSpace(string(out))), tmp: tmp, pkgs: map[string]*pkg{}}, nil
}

func (b *bench) close() { os.RemoveAll(b.tmp) }

func (b *bench) read(file string) (string, error) {
	src, err := os.ReadFile(filepath.Join(b.root, file))
	return string(src), err
}

// prepare sees that the package's tests pass as they are, and that names are
// among them. It must not run beside the other methods.
func (b *bench) prepare(ctx context.Context, path string, names []string) error {
	if b.pkgs[path] != nil {
		return nil
	}
	cmd := exec.CommandContext(ctx, "go", "list", "-json=Dir,TestImports,XTestImports", "./"+path)
	cmd.Dir = b.root
	out, err := cmd.Output()
	if err != nil {
		return fmt.Errorf("listing %s: %w", path, err)
	}
	p := &pkg{limit: 5 * time.Minute, cpu: 600, killers: map[string]int{}}
	if err := json.Unmarshal(out, p); err != nil {
		return fmt.Errorf("listing %s: %w", path, err)
	}
	b.pkgs[path] = p
	bin, msg := b.build(ctx, path, "")
	if bin == "" {
		return fmt.Errorf("building the tests of %s: %s", path, msg)
	}
	defer os.Remove(bin)
	have, err := exec.CommandContext(ctx, bin, "-test.list", ".").Output()
	if err != nil {
		return fmt.Errorf("listing the tests of %s: %w", path, err)
	}
	for _, n := range names {
		if !slices.Contains(strings.Fields(string(have)), n) {
			return fmt.Errorf("%s has no test %s", path, n)
		}
	}
	began := time.Now()
	v, msg, used := b.test(ctx, path, bin, round{names: names})
	if v != survived {
		return fmt.Errorf("the tests of %s do not pass without any mutant: %s", path, msg)
	}
	p.limit = max(15*time.Second, 5*time.Since(began))
	p.cpu = int(max(10, 3*used.Seconds()))
	return nil
}

// build makes the test binary of a package with an overlay file, or none. It
// returns "" and the compiler's words when that fails.
func (b *bench) build(ctx context.Context, path, overlay string, flags ...string) (bin, message string) {
	bin = filepath.Join(b.tmp, fmt.Sprintf("%d.test", b.runs.Add(1)))
	args := append([]string{"test", "-c", "-vet=off", "-ldflags=-s -w", "-o", bin}, flags...)
	if overlay != "" {
		args = append(args, "-overlay", overlay)
	}
	cmd := exec.CommandContext(ctx, "go", append(args, "./"+path)...)
	cmd.Dir = b.root
	out, err := cmd.CombinedOutput()
	if err != nil {
		return "", fmt.Sprintf("%v: %s", err, bytes.TrimSpace(out))
	}
	return bin, ""
}

// overlay writes an overlay file in which files of the module, new ones among
// them, have other texts.
func (b *bench) overlay(texts map[string]string) (path string, remove func(), err error) {
	dir, err := os.MkdirTemp(b.tmp, "overlay")
	if err != nil {
		return "", nil, err
	}
	replace := map[string]string{}
	for file, text := range texts {
		to := filepath.Join(dir, filepath.Base(file))
		replace[filepath.Join(b.root, file)] = to
		if err := os.WriteFile(to, []byte(text), 0o600); err != nil {
			return "", nil, err
		}
	}
	raw, err := json.Marshal(map[string]any{"Replace": replace})
	if err != nil {
		return "", nil, err
	}
	path = filepath.Join(dir, "overlay.json")
	return path, func() { os.RemoveAll(dir) }, os.WriteFile(path, raw, 0o600)
}

// maxMemory bounds the address space of a mutant in KiB: one that never stops
// to append must not take the machine along.
const maxMemory = 8000000

// A round is one run of tests.
type round struct {
	names []string // nil: all
	skip  []string
	short bool
	whole bool // the first failure does not end it
	env   []string
}

// rounds are those in which all tests are run: first the tests that killed most,
// then the short ones.
func (p *pkg) rounds() []round {
	rounds := []round{{short: true}, {}}
	if first := p.first(); len(first) > 0 {
		rounds = slices.Insert(rounds, 0, round{names: first, short: true})
	}
	return rounds
}

// test runs a test binary, and returns what it says and how much processor time it
// used. A mutant is killed when a test fails, panics or does not end.
func (b *bench) test(ctx context.Context, path, bin string, r round) (verdict, string, time.Duration) {
	p := b.pkgs[path]
	args := []string{"-c", fmt.Sprintf(`ulimit -v %d; ulimit -t %d; exec "$@"`, maxMemory, p.cpu), "sh",
		bin, "-test.timeout", p.limit.String()}
	if !r.whole {
		args = append(args, "-test.failfast")
	}
	if r.short {
		args = append(args, "-test.short")
	}
	for flag, names := range map[string][]string{"run": r.names, "skip": r.skip} {
		if len(names) > 0 {
			args = append(args, "-test."+flag, "^("+strings.Join(names, "|")+")$")
		}
	}
	ctx, cancel := context.WithTimeout(ctx, p.limit+10*time.Second)
	defer cancel()
	cmd := exec.CommandContext(ctx, "sh", append(args, p.flags()...)...)
	cmd.Dir = p.Dir
	cmd.Env = append(os.Environ(), r.env...)
	cmd.WaitDelay = time.Second
	out, err := cmd.CombinedOutput()
	var used time.Duration
	if s := cmd.ProcessState; s != nil {
		used = s.UserTime() + s.SystemTime()
	}
	if err == nil {
		return survived, "they pass", used
	}
	p.kills(out)
	return killed, string(out), used
}

// try tests src, the mutated text of file, against tests of a package, until a
// round of them kills it.
func (b *bench) try(ctx context.Context, file, src, path string, rounds ...round) (v verdict, msg string) {
	overlay, remove, err := b.overlay(map[string]string{file: src})
	if err != nil {
		return unusable, err.Error()
	}
	defer remove()
	bin, msg := b.build(ctx, path, overlay)
	if bin == "" {
		return uncompiled, msg
	}
	defer os.Remove(bin)
	for _, r := range rounds {
		if v, msg, _ = b.test(ctx, path, bin, r); v != survived {
			break
		}
	}
	return v, msg[max(0, len(msg)-600):]
}

// tryListed tests a listed mutant.
func (b *bench) tryListed(ctx context.Context, m listed) (verdict, string) {
	src, err := b.read(m.File)
	if err != nil {
		return unusable, err.Error()
	}
	if n := strings.Count(src, m.Old); n != 1 {
		return unusable, fmt.Sprintf("its old text occurs %d times, want once", n)
	}
	return b.try(ctx, m.File, strings.Replace(src, m.Old, m.New, 1), m.pkg(), round{names: m.names()})
}

// tryEdit tests a generated mutant with all tests of one package after the
// other, until one kills it.
func (b *bench) tryEdit(ctx context.Context, t target, src string, e edit) verdict {
	for _, path := range t.packages() {
		if v, _ := b.try(ctx, t.File, e.apply(src), path, b.pkgs[path].rounds()...); v != survived {
			return v
		}
	}
	return survived
}

// arguedPage holds the arguments for mutants that live.
const arguedPage = "docs/mutants.md"

var arguedLine = regexp.MustCompile("^- `([^`]+)`: `([^`]+)` as `([^`]*)`: (.+)$")

// arguedKey names a mutant wherever its line has moved to.
func arguedKey(file, old, mutated string) string { return file + "\x00" + old + "\x00" + mutated }

// argued returns the arguments of arguedPage by mutant.
func (b *bench) argued() (map[string]string, error) {
	text, err := b.read(arguedPage)
	if err != nil {
		return nil, err
	}
	a := map[string]string{}
	for line := range strings.Lines(text) {
		if m := arguedLine.FindStringSubmatch(strings.TrimSpace(line)); m != nil {
			a[arguedKey(m[1], m[2], m[3])] = m[4]
		}
	}
	return a, nil
}

package main

import (
	"bufio"
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
)

// projectRoot returns the folder of go.mod.
func projectRoot() string {
	_, file, _, _ := runtime.Caller(0)
	return filepath.Join(filepath.Dir(file), "..", "..")
}

// results are benchmark lines of `go test`: name, then unit, then value.
type results map[string]map[string]float64

// goBench runs the benchmarks of a package whose names match.
func (o *options) goBench(pkg, match string, args ...string) (results, error) {
	var out bytes.Buffer
	cmd := exec.Command("go", append([]string{"test", "-run", "^$", "-bench", match, pkg}, args...)...)
	cmd.Dir = projectRoot()
	cmd.Stdout, cmd.Stderr = &out, os.Stderr
	if err := cmd.Run(); err != nil {
		return nil, fmt.Errorf("benchmarks of %s: %w\n%s", pkg, err, lastLines(out.String(), 20))
	}
	return parseBench(out.String()), nil
}

// parseBench reads lines such as "BenchmarkX/y-2  100  12 ns/op  0.9 of-copy".
// When a benchmark ran several times the medians count.
func parseBench(text string) results {
	all := map[string]map[string][]float64{}
	s := bufio.NewScanner(strings.NewReader(text))
	for s.Scan() {
		f := strings.Fields(s.Text())
		if len(f) < 4 || !strings.HasPrefix(f[0], "Benchmark") {
			continue
		}
		name := strings.TrimPrefix(f[0], "Benchmark")
		if i := strings.LastIndexByte(name, '-'); i > 0 {
			name = name[:i]
		}
		if all[name] == nil {
			all[name] = map[string][]float64{}
		}
		for i := 2; i+1 < len(f); i += 2 {
			if v, err := strconv.ParseFloat(f[i], 64); err == nil {
				all[name][f[i+1]] = append(all[name][f[i+1]], v)
			}
		}
	}
	res := results{}
	for name, units := range all {
		res[name] = map[string]float64{}
		for unit, v := range units {
			res[name][unit] = median(v)
		}
	}
	return res
}

// measureCode prints what the benchmarks of single packages give.
func measureCode(o *options, t *table) error {
	count := "-count=" + strconv.Itoa(o.scale(3, 1))
	steps, err := o.goBench("./internal/sched", "Plan256", "-benchtime=200ms", count)
	if err != nil {
		return err
	}
	small, large := steps["Plan256/blocks=1000"]["ns/op"], steps["Plan256/blocks=100000"]["ns/op"]
	t.under("scheduler step, 256 running", large/1e3, 50, "%.1f µs", "pool of 100,000 blocks")
	t.add(row{what: "same, pool 100 times larger", ours: fmt.Sprintf("%.1f µs", large/1e3), theirs: fmt.Sprintf("%.1f µs", small/1e3),
		ratio: large / small, most: 1.5, note: "flat: 100,000 against 1,000 blocks"})
	t.plain("allocations of a scheduler step", fmt.Sprintf("%.0f", steps["Plan256/blocks=1000"]["allocs/op"]), "")
	return measureReads(o, t)
}

// measureReads prints what the benchmark of the transfer package reports: 90 MB
// between two processes, beside a plain copy or stream of the same pieces.
func measureReads(o *options, t *table) error {
	count := "-count=" + strconv.Itoa(o.scale(3, 1))
	all, err := o.goBench("./internal/transfer", "^BenchmarkRead$", "-benchtime=1x", count)
	if err != nil {
		return err
	}
	read := all["Read"]
	for _, c := range []struct {
		what, unit, theirs string
		least              float64
	}{
		{"KV read, memfd, 1 worker", "memfd1/copy1", "copy, 1 thread", 0.85},
		{"KV read, memfd, 2 workers", "memfd2/copy1", "copy, 1 thread", 0.85 * 1.6},
		{"KV read, memfd, sums checked", "sums1/copy1", "copy, 1 thread", 0.7},
		{"KV read, tcp", "tcp/raw", "raw writev stream", 0.75},
	} {
		v, ok := read[c.unit]
		if !ok {
			return fmt.Errorf("the benchmark of reads does not report %s", c.unit)
		}
		t.add(row{what: c.what, ours: fmt.Sprintf("%.0f %%", 100*v), theirs: c.theirs, ratio: v, least: c.least, note: "90 MB between two processes"})
	}
	post, ok := read["post-ns"]
	if !ok {
		return fmt.Errorf("the benchmark of reads does not report post-ns")
	}
	t.under("posting a read", post/1e3, 50, "%.1f µs", "median")
	return nil
}

// Command bench measures Tandem and prints ratios of one run: against what the
// machine can do, against one engine, against the limits of the project and,
// with -llama, against llama.cpp in interleaved pairs. Nothing here is a test:
// a missed target is a line of the table, not a failure.
package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"time"
)

// options are what every measurement knows.
type options struct {
	model   string
	threads int
	short   bool
	llama   string        // folder of llama.cpp's programs; "": no comparison
	limit   time.Duration // after which no further pair is begun
	only    string        // sections that run; "": all
	log     io.Writer

	began time.Time
}

// scale returns whole, or part in a short run.
func (o *options) scale(whole, part int) int {
	if o.short {
		return part
	}
	return whole
}

func (o *options) late() bool { return time.Since(o.began) > o.limit }

func main() {
	o := &options{log: os.Stderr, began: time.Now()}
	flag.StringVar(&o.model, "model", "", "GGUF file (default: the default model)")
	flag.IntVar(&o.threads, "threads", 2, "threads of each engine")
	flag.BoolVar(&o.short, "short", false, "fewer repetitions: under two minutes")
	flag.StringVar(&o.llama, "llama", os.Getenv("LLAMA_BENCH"), "llama-bench, or the folder with it, llama-batched-bench and llama-quantize")
	flag.DurationVar(&o.limit, "limit", 0, "time after which no measurement is repeated (default 8m, short 90s)")
	flag.StringVar(&o.only, "only", "", "sections to run, separated by commas: code, model, engine, recovery, llama")
	flag.Parse()
	if o.limit == 0 {
		o.limit = 8 * time.Minute
		if o.short {
			o.limit = 90 * time.Second
		}
	}
	if err := run(o, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

// run measures section by section and prints the table. A section that cannot
// be measured does not keep the others from their lines.
func run(o *options, w io.Writer) error {
	if err := o.resolve(); err != nil {
		return err
	}
	t := &table{}
	var errs []error
	for _, s := range []struct {
		name string
		run  func(*options, *table) error
	}{
		{"code", measureCode},
		{"model", measureModel},
		{"engine", measureEngine},
		{"recovery", measureRecovery},
		{"llama", measureLlama},
	} {
		if o.only != "" && !contains(o.only, s.name) {
			continue
		}
		fmt.Fprintf(o.log, "bench: measuring %s\n", s.name)
		if err := s.run(o, t); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", s.name, err))
		}
	}
	fmt.Fprintf(w, "%s, %d cores, %d threads, %s, %.0f s\n\n", cpuName(), runtime.NumCPU(), o.threads,
		filepath.Base(o.model), time.Since(o.began).Seconds())
	t.print(w)
	return errors.Join(errs...)
}

func contains(list, name string) bool {
	for s := range strings.SplitSeq(list, ",") {
		if strings.TrimSpace(s) == name {
			return true
		}
	}
	return false
}

// resolve fills in defaults that depend on the machine.
func (o *options) resolve() error {
	if o.model == "" {
		dir, err := os.UserCacheDir()
		if err != nil {
			return err
		}
		o.model = filepath.Join(dir, "tandem", "SmolLM2-135M-Instruct.Q4_1.gguf")
	}
	if _, err := os.Stat(o.model); err != nil {
		return fmt.Errorf("%w; fetch the default model with `make model`", err)
	}
	if o.llama != "" {
		st, err := os.Stat(o.llama)
		if err != nil {
			return err
		}
		if !st.IsDir() {
			o.llama = filepath.Dir(o.llama)
		}
	}
	return nil
}

// cpuName returns what the system calls its processor.
func cpuName() string {
	b, err := os.ReadFile("/proc/cpuinfo")
	if err != nil {
		return runtime.GOARCH
	}
	for line := range strings.Lines(string(b)) {
		if k, v, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(k) == "model name" {
			return strings.TrimSpace(v)
		}
	}
	return runtime.GOARCH
}

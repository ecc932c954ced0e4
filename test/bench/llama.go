package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
)

// Shapes of the comparison.
const (
	llamaPrompt = 512
	llamaDecode = 64
	batchPrompt = 128 // tokens of each sequence before decoding
	shortPrompt = 32  // the same in a short run: llama.cpp needs long for 32 prompts
	batchDecode = 32
)

// A quantization is the model in one weight type, and by how much it should be
// faster than llama.cpp: prefill, decode of 1, 8 and 32 sequences.
type quantization struct {
	name                               string
	prefill, decode, decode8, decode32 float64
}

var quantizations = []quantization{
	{"Q4_1", 4, 2.5, 6, 8},
	{"Q8_0", 2.5, 2, 4, 4},
	{"Q4_0", 2, 2, 4, 4},
}

// measureLlama compares with llama.cpp on the default file and on the same file
// in other weight types.
func measureLlama(o *options, t *table) error {
	if o.llama == "" {
		t.plain("llama.cpp", "not compared", "set LLAMA_BENCH to the folder of its programs")
		return nil
	}
	dir, err := os.MkdirTemp("", "tandem-bench-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	for i, q := range quantizations {
		path := o.model
		if i > 0 {
			path = filepath.Join(dir, q.name+".gguf")
			if _, err := o.llamaRun("llama-quantize", "--allow-requantize", o.model, path, q.name, strconv.Itoa(o.threads)); err != nil {
				return err
			}
		}
		if err := compareLlama(o, t, &q, path); err != nil {
			return fmt.Errorf("%s: %w", q.name, err)
		}
	}
	return nil
}

func compareLlama(o *options, t *table, q *quantization, path string) error {
	r, err := openRunner(path, o.threads)
	if err != nil {
		return err
	}
	defer r.close()
	prompt, steps := o.scale(batchPrompt, shortPrompt), o.scale(batchDecode, batchDecode/2)
	for _, c := range []struct {
		what   string
		least  float64
		pairs  int
		ours   func() (speed, error)
		theirs func() (float64, error)
	}{
		{"prefill 512", q.prefill, 5,
			func() (speed, error) { return r.prefill(llamaPrompt) },
			func() (float64, error) { return o.llamaBench(path, llamaPrompt, 0) }},
		{"decode, 1 sequence", q.decode, 5,
			func() (speed, error) { return r.decode(1, 0, llamaDecode) },
			func() (float64, error) { return o.llamaBench(path, 0, llamaDecode) }},
		{"decode, 8 sequences", q.decode8, 3,
			func() (speed, error) { return r.decode(8, prompt, steps) },
			func() (float64, error) { return o.llamaBatched(path, 8, prompt, steps) }},
		{"decode, 32 sequences", q.decode32, 3,
			func() (speed, error) { return r.decode(32, prompt, steps) },
			func() (float64, error) { return o.llamaBatched(path, 32, prompt, steps) }},
	} {
		if o.late() {
			t.plain(q.name+" "+c.what, "not measured", "the time of the run was over")
			continue
		}
		// As llama-bench does, once without counting.
		if _, err := c.ours(); err != nil {
			return err
		}
		p, err := o.pairs(o.scale(c.pairs, 1), func() (float64, error) {
			s, err := c.ours()
			return s.perSecond(), err
		}, c.theirs)
		if err != nil {
			return err
		}
		t.add(row{
			what: q.name + " " + c.what, ours: fmt.Sprintf("%.0f tok/s", p.ours), theirs: fmt.Sprintf("llama.cpp %.0f tok/s", p.theirs),
			ratio: p.ratio, least: c.least, note: p.note(), noisy: p.noisy,
		})
		fmt.Fprintf(o.log, "bench: %s %s: %.0f and %.0f tok/s, %.2f (%s)\n", q.name, c.what, p.ours, p.theirs, p.ratio, p.note())
	}
	return nil
}

// llamaRun runs one of llama.cpp's programs and returns its standard output.
func (o *options) llamaRun(name string, args ...string) ([]byte, error) {
	var out, log bytes.Buffer
	cmd := exec.Command(filepath.Join(o.llama, name), args...)
	cmd.Env = append(os.Environ(), "LD_LIBRARY_PATH="+o.llama)
	cmd.Stdout, cmd.Stderr = &out, &log
	if err := cmd.Run(); err != nil {
		return nil, fmt.Errorf("%s %s: %w\n%s", name, strings.Join(args, " "), err, lastLines(log.String(), 5))
	}
	return out.Bytes(), nil
}

func lastLines(s string, n int) string {
	lines := strings.Split(strings.TrimSpace(s), "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "\n")
}

// llamaField runs a program that prints JSON lines and returns a number of the
// last one.
func (o *options) llamaField(field, name string, args ...string) (float64, error) {
	out, err := o.llamaRun(name, args...)
	if err != nil {
		return 0, err
	}
	v := 0.0
	s := bufio.NewScanner(bytes.NewReader(out))
	s.Buffer(nil, 1<<20)
	for s.Scan() {
		var m map[string]any
		if json.Unmarshal(s.Bytes(), &m) != nil {
			continue // the batched one prints other lines too
		}
		if f, ok := m[field].(float64); ok {
			v = f
		}
	}
	if v <= 0 {
		return 0, errors.Join(s.Err(), fmt.Errorf("%s printed no %s:\n%s", name, field, lastLines(string(out), 5)))
	}
	return v, nil
}

func (o *options) llamaBench(path string, prompt, gen int) (float64, error) {
	return o.llamaField("avg_ts", "llama-bench", "-m", path, "-t", strconv.Itoa(o.threads), "-fa", "1",
		"-p", strconv.Itoa(prompt), "-n", strconv.Itoa(gen), "-r", "1", "-o", "jsonl")
}

func (o *options) llamaBatched(path string, seqs, prompt, gen int) (float64, error) {
	return o.llamaField("speed_tg", "llama-batched-bench", "-m", path, "-t", strconv.Itoa(o.threads), "-fa", "1",
		"-npp", strconv.Itoa(prompt), "-ntg", strconv.Itoa(gen), "-npl", strconv.Itoa(seqs), "-c", "8192", "-b", "512", "--output-format", "jsonl")
}

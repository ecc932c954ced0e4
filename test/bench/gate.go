package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"syscall"
	"time"
)

// foreignLimit is the share of the machine that others may use during a
// measurement that counts: more makes figures worthless, most of all those of
// programs whose threads spin at barriers.
const foreignLimit = 0.04

// ticksPerSecond is the unit of /proc/stat on every Linux.
const ticksPerSecond = 100

// busyTime returns the time that all processors were in use or stolen by the
// host of a virtual machine.
func busyTime() (time.Duration, error) {
	b, err := os.ReadFile("/proc/stat")
	if err != nil {
		return 0, err
	}
	line, _, _ := bytes.Cut(b, []byte("\n"))
	f := bytes.Fields(line)
	if len(f) < 9 || string(f[0]) != "cpu" {
		return 0, fmt.Errorf("/proc/stat begins with %q", line)
	}
	var ticks int64
	for i, v := range f[1:9] {
		if i == 3 || i == 4 { // idle, waiting for a device
			continue
		}
		n, err := strconv.ParseInt(string(v), 10, 64)
		if err != nil {
			return 0, fmt.Errorf("/proc/stat: %w", err)
		}
		ticks += n
	}
	return time.Duration(ticks) * time.Second / ticksPerSecond, nil
}

// ownTime returns the processor time of this process, of the children that it
// has waited for, and of the processes pids, which run.
func ownTime(pids []int) (time.Duration, error) {
	var sum time.Duration
	for _, pid := range pids {
		t, err := cpuTime(pid)
		if err != nil {
			return 0, err
		}
		sum += t
	}
	for _, who := range []int{syscall.RUSAGE_SELF, syscall.RUSAGE_CHILDREN} {
		var u syscall.Rusage
		if err := syscall.Getrusage(who, &u); err != nil {
			return 0, err
		}
		sum += time.Duration(u.Utime.Nano() + u.Stime.Nano())
	}
	return sum, nil
}

// foreign runs f and returns the share of the machine that went to others than
// this process and pids meanwhile. Other children of f must have been waited
// for when it returns.
func foreign(f func() error, pids ...int) (float64, error) {
	busy0, err0 := busyTime()
	own0, err1 := ownTime(pids)
	start := time.Now()
	err := f()
	wall := time.Since(start)
	busy1, err2 := busyTime()
	own1, err3 := ownTime(pids)
	if err := errors.Join(err, err0, err1, err2, err3); err != nil {
		return 0, err
	}
	others := (busy1 - busy0) - (own1 - own0)
	// One tick is what the counters cannot tell from nothing.
	others -= time.Second / ticksPerSecond
	return max(0, float64(others)/float64(wall)/float64(runtime.NumCPU())), nil
}

// A paired is what interleaved measurements of two things gave.
type paired struct {
	ours, theirs, ratio float64 // medians
	n                   int     // pairs that count
	noisy               bool    // they were measured beside other programs
	least, most         float64 // range of the ratios
}

// pairs measures ours and theirs in turn until n pairs saw no other program, or
// the run is late. Both return a rate. When no pair was quiet all of them
// count, and noisy tells.
func (o *options) pairs(n int, ours, theirs func() (float64, error)) (paired, error) {
	type pair struct{ a, b float64 }
	var quiet, loud []pair
	for attempt := 0; len(quiet) < n && attempt < 3*n; attempt++ {
		if attempt > 0 && o.late() {
			break
		}
		var p pair
		share, err := foreign(func() (err error) {
			p.a, err = ours()
			return err
		})
		if err != nil {
			return paired{}, err
		}
		other, err := foreign(func() (err error) {
			p.b, err = theirs()
			return err
		})
		if err != nil {
			return paired{}, err
		}
		if max(share, other) <= foreignLimit {
			quiet = append(quiet, p)
		} else {
			loud = append(loud, p)
		}
		if o.short && attempt+1 >= n {
			break
		}
	}
	res := paired{n: len(quiet)}
	if len(quiet) == 0 {
		quiet, res.n, res.noisy = loud, len(loud), true
	}
	var as, bs, rs []float64
	for _, p := range quiet {
		as, bs, rs = append(as, p.a), append(bs, p.b), append(rs, p.a/p.b)
	}
	res.ours, res.theirs, res.ratio = median(as), median(bs), median(rs)
	for _, r := range rs {
		if res.least == 0 || r < res.least {
			res.least = r
		}
		res.most = max(res.most, r)
	}
	return res, nil
}

// note says how far a paired result can be trusted.
func (p *paired) note() string {
	s := fmt.Sprintf("pairs: %d, ratios %.2f to %.2f", p.n, p.least, p.most)
	return s
}

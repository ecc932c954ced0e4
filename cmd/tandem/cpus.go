package main

import (
	"io/fs"
	"math/bits"
	"os"
	"path"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// cpuBudget returns how many threads this process should compute on: the cores
// that it may run on, or the CPU quota of its control group rounded down where
// that is less; at least one.
func cpuBudget() int {
	n := 1
	var set unix.CPUSet
	if err := unix.SchedGetaffinity(0, &set); err == nil {
		n = 0
		for _, w := range set {
			n += bits.OnesCount64(uint64(w))
		}
	}
	if q := cpuQuota(os.DirFS("/")); q > 0 {
		n = min(n, q)
	}
	return max(1, n)
}

// cpuQuota returns the whole cores of the tightest quota among the control
// groups of this process, 0 where there is none. root is the file system from
// its root.
func cpuQuota(root fs.FS) int {
	self, err := fs.ReadFile(root, "proc/self/cgroup")
	if err != nil {
		return 0
	}
	least := 0
	use := func(quota, period float64) {
		if quota <= 0 || period <= 0 {
			return
		}
		if n := max(1, int(quota/period)); least == 0 || n < least {
			least = n
		}
	}
	for line := range strings.Lines(string(self)) {
		f := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(f) != 3 {
			continue
		}
		switch {
		case f[0] == "0": // version 2: every level up to the root can limit
			for dir := path.Join("sys/fs/cgroup", f[2]); strings.HasPrefix(dir, "sys/fs/cgroup"); dir = path.Dir(dir) {
				v := strings.Fields(read(root, path.Join(dir, "cpu.max")))
				if len(v) == 2 && v[0] != "max" {
					use(number(v[0]), number(v[1]))
				}
			}
		case strings.Contains(","+f[1]+",", ",cpu,"):
			for _, dir := range []string{path.Join("sys/fs/cgroup/cpu", f[2]), "sys/fs/cgroup/cpu", path.Join("sys/fs/cgroup/cpu,cpuacct", f[2])} {
				use(number(read(root, path.Join(dir, "cpu.cfs_quota_us"))), number(read(root, path.Join(dir, "cpu.cfs_period_us"))))
			}
		}
	}
	return least
}

func read(root fs.FS, name string) string {
	b, err := fs.ReadFile(root, name)
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}

func number(s string) float64 {
	v, err := strconv.ParseFloat(s, 64)
	if err != nil {
		return 0
	}
	return v
}

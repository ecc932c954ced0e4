package main

import (
	"testing"
	"testing/fstest"
)

// H109: a quota bounds the threads, whatever the host has.
func TestQuotaBoundsThreads(t *testing.T) {
	file := func(s string) *fstest.MapFile { return &fstest.MapFile{Data: []byte(s)} }
	for _, c := range []struct {
		name string
		fs   fstest.MapFS
		want int
	}{
		{"no control groups", fstest.MapFS{}, 0},
		{"version 2, none", fstest.MapFS{"proc/self/cgroup": file("0::/a\n"), "sys/fs/cgroup/a/cpu.max": file("max 100000\n")}, 0},
		{"version 2", fstest.MapFS{"proc/self/cgroup": file("0::/a/b\n"), "sys/fs/cgroup/a/b/cpu.max": file("250000 100000\n")}, 2},
		{"version 2, the parent limits", fstest.MapFS{"proc/self/cgroup": file("0::/a/b\n"), "sys/fs/cgroup/a/b/cpu.max": file("max 100000"), "sys/fs/cgroup/a/cpu.max": file("200000 100000")}, 2},
		{"less than one core", fstest.MapFS{"proc/self/cgroup": file("0::/\n"), "sys/fs/cgroup/cpu.max": file("50000 100000\n")}, 1},
		{"version 1", fstest.MapFS{"proc/self/cgroup": file("4:cpu,cpuacct:/x\n1:name=systemd:/x\n"), "sys/fs/cgroup/cpu,cpuacct/x/cpu.cfs_quota_us": file("300000\n"), "sys/fs/cgroup/cpu,cpuacct/x/cpu.cfs_period_us": file("100000\n")}, 3},
		{"version 1, none", fstest.MapFS{"proc/self/cgroup": file("4:cpu:/x\n"), "sys/fs/cgroup/cpu/x/cpu.cfs_quota_us": file("-1\n"), "sys/fs/cgroup/cpu/x/cpu.cfs_period_us": file("100000\n")}, 0},
		{"damaged", fstest.MapFS{"proc/self/cgroup": file("0::/a\nnonsense\n"), "sys/fs/cgroup/a/cpu.max": file("x y\n")}, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := cpuQuota(c.fs); got != c.want {
				t.Errorf("%d cores, want %d", got, c.want)
			}
		})
	}
	if cpuBudget() < 1 {
		t.Error("no thread")
	}
}

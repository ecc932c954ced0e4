package main

import (
	"bufio"
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"tandem/test/cluster"
)

// memoryFiles returns the memory files that a process has mapped or open, by
// inode, with the mapped bytes. Those are arenas: its own and its peers'.
func memoryFiles(pid int) (map[uint64]int64, error) {
	out := map[uint64]int64{}
	f, err := os.Open(fmt.Sprintf("/proc/%d/maps", pid))
	if err != nil {
		return nil, err
	}
	defer f.Close()
	s := bufio.NewScanner(f)
	for s.Scan() {
		// from-to perms offset device inode path
		fields := strings.Fields(s.Text())
		if len(fields) < 6 || !strings.HasPrefix(fields[5], "/memfd:") {
			continue
		}
		inode, err := strconv.ParseUint(fields[4], 10, 64)
		if err != nil {
			return nil, err
		}
		from, to, _ := strings.Cut(fields[0], "-")
		a, err := strconv.ParseUint(from, 16, 64)
		if err != nil {
			return nil, err
		}
		b, err := strconv.ParseUint(to, 16, 64)
		if err != nil {
			return nil, err
		}
		out[inode] += int64(b - a)
	}
	if err := s.Err(); err != nil {
		return nil, err
	}
	dir := fmt.Sprintf("/proc/%d/fd", pid)
	list, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	for _, e := range list {
		path := dir + "/" + e.Name()
		if to, err := os.Readlink(path); err != nil || !strings.HasPrefix(to, "/memfd:") {
			continue // closed since, or another file
		}
		var st syscall.Stat_t
		if syscall.Stat(path, &st) == nil {
			out[st.Ino] += 0
		}
	}
	return out, nil
}

// shmem returns the machine's shared memory in bytes.
func shmem() (int64, error) { return kilobytes("/proc/meminfo", "Shmem:") }

// resident returns the shared memory that a process has touched, in bytes.
func resident(pid int) (int64, error) {
	return kilobytes(fmt.Sprintf("/proc/%d/status", pid), "RssShmem:")
}

func kilobytes(path, key string) (int64, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(b)) {
		if v, ok := strings.CutPrefix(line, key); ok {
			n, err := strconv.ParseInt(strings.Fields(v)[0], 10, 64)
			return n << 10, err
		}
	}
	return 0, fmt.Errorf("no %s in %s", key, path)
}

// stop freezes a process and returns when none of its threads runs.
func stop(t testing.TB, p *cluster.Proc) error {
	p.Signal(t, syscall.SIGSTOP)
	dir := fmt.Sprintf("/proc/%d/task", p.PID)
	for deadline := time.Now().Add(5 * time.Second); ; time.Sleep(time.Millisecond) {
		list, err := os.ReadDir(dir)
		if err != nil {
			return err
		}
		runs := 0
		for _, e := range list {
			b, err := os.ReadFile(dir + "/" + e.Name() + "/stat")
			if err != nil {
				continue // the thread has ended
			}
			if _, state, ok := strings.Cut(string(b), ") "); !ok || state[0] != 'T' {
				runs++
			}
		}
		switch {
		case runs == 0:
			return nil
		case time.Now().After(deadline):
			return fmt.Errorf("%s does not stop: %d threads run", p.Name, runs)
		}
	}
}

// gone waits until a process has none of files any more, for 10 s at most, and
// returns how long that took since w.
func gone(pid int, files map[uint64]int64, w watch) (took time.Duration, err error) {
	for {
		now, err := memoryFiles(pid)
		if err != nil {
			return 0, err
		}
		left := 0
		for inode := range files {
			if _, has := now[inode]; has {
				left++
			}
		}
		took = w.took()
		if left == 0 || took > 10*time.Second {
			return took, nil
		}
		time.Sleep(2 * time.Millisecond)
	}
}

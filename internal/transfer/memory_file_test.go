//go:build !invariants

package transfer

import (
	"os"
	"testing"

	"golang.org/x/sys/unix"
)

// paths are the paths of this build.
var paths = []string{PathMem, PathMemfd, PathTCP}

// newMemory maps a sealed memory file as an arena does.
func newMemory(t testing.TB, n int) Memory {
	t.Helper()
	m := mapFile(t, n)
	t.Cleanup(func() {
		_ = unix.Munmap(m.Bytes)
		_ = m.File.Close()
	})
	return m
}

func mapFile(t testing.TB, n int) Memory {
	t.Helper()
	fd, err := unix.MemfdCreate("test-arena", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.Ftruncate(fd, int64(n)); err != nil {
		t.Fatal(err)
	}
	b, err := unix.Mmap(fd, 0, n, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		t.Fatal(err)
	}
	const seals = unix.F_SEAL_FUTURE_WRITE | unix.F_SEAL_GROW | unix.F_SEAL_SEAL
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, seals); err != nil {
		t.Fatal(err)
	}
	return Memory{Bytes: b, File: os.NewFile(uintptr(fd), "test-arena")}
}
func child() {}

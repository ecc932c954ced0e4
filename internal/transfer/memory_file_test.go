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
	m, err := mapFile(n)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = unix.Munmap(m.Bytes)
		_ = m.File.Close()
	})
	return m
}

func mapFile(n int) (Memory, error) {
	fd, err := unix.MemfdCreate("test-arena", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return Memory{}, err
	}
	if err := unix.Ftruncate(fd, int64(n)); err != nil {
		return Memory{}, err
	}
	b, err := unix.Mmap(fd, 0, n, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return Memory{}, err
	}
	const seals = unix.F_SEAL_FUTURE_WRITE | unix.F_SEAL_GROW | unix.F_SEAL_SEAL
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, seals); err != nil {
		return Memory{}, err
	}
	return Memory{Bytes: b, File: os.NewFile(uintptr(fd), "test-arena")}, nil
}

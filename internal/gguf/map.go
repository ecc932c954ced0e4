package gguf

import (
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

func mapBytes(f *os.File, n int) ([]byte, error) {
	m, err := unix.Mmap(int(f.Fd()), 0, n, unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		return nil, os.NewSyscallError("mmap", err)
	}
	return m, nil
}

func unmap(m []byte) error { return os.NewSyscallError("munmap", unix.Munmap(m)) }

// within reports whether addr lies in m.
func within(m []byte, addr uintptr) bool {
	start := uintptr(unsafe.Pointer(unsafe.SliceData(m)))
	return addr >= start && addr < start+uintptr(len(m))
}

func dropPages(m []byte) error {
	return os.NewSyscallError("madvise", unix.Madvise(m, unix.MADV_DONTNEED))
}

//go:build !invariants

package kv

import (
	"errors"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// memory is a memory file mapped at an address reserved for it.
type memory struct {
	bytes []byte
	file  *os.File
}

// mapMemory maps n zero bytes. Their file is sealed once they are mapped: this
// map stays writable, no other can become so, and the file never grows. It may
// still shrink, since that is how its pages are given back while peers hold
// maps of it.
func mapMemory(n int) (m memory, err error) {
	fd, err := unix.MemfdCreate("tandem-kv", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return memory{}, os.NewSyscallError("memfd_create", err)
	}
	file := os.NewFile(uintptr(fd), "tandem-kv")
	defer func() {
		if err != nil {
			err = errors.Join(err, file.Close())
		}
	}()
	if err := unix.Ftruncate(fd, int64(n)); err != nil {
		return memory{}, os.NewSyscallError("ftruncate", err)
	}
	// The range is reserved first, so that a later memory can take its place.
	base, err := unix.MmapPtr(-1, 0, nil, uintptr(n), unix.PROT_NONE,
		unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_NORESERVE)
	if err != nil {
		return memory{}, os.NewSyscallError("mmap", err)
	}
	if _, err := unix.MmapPtr(fd, 0, base, uintptr(n), unix.PROT_READ|unix.PROT_WRITE,
		unix.MAP_SHARED|unix.MAP_FIXED); err != nil {
		return memory{}, errors.Join(os.NewSyscallError("mmap", err), unix.MunmapPtr(base, uintptr(n)))
	}
	const seals = unix.F_SEAL_FUTURE_WRITE | unix.F_SEAL_GROW | unix.F_SEAL_SEAL
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, seals); err != nil {
		return memory{}, errors.Join(os.NewSyscallError("fcntl", err), unix.MunmapPtr(base, uintptr(n)))
	}
	return memory{bytes: unsafe.Slice((*byte)(base), n), file: file}, nil
}

// populate makes the pages that [from, to) touches present and writable.
func (m *memory) populate(from, to int) error {
	page := os.Getpagesize()
	from -= from % page
	if from >= to {
		return nil
	}
	return os.NewSyscallError("madvise", unix.Madvise(m.bytes[from:to], unix.MADV_POPULATE_WRITE))
}

// close truncates the file, which frees its pages whoever maps them, and takes
// the map away.
func (m *memory) close() error {
	if m.file == nil {
		return nil
	}
	b := m.bytes
	err := errors.Join(
		os.NewSyscallError("ftruncate", unix.Ftruncate(int(m.file.Fd()), 0)),
		os.NewSyscallError("munmap", unix.MunmapPtr(unsafe.Pointer(unsafe.SliceData(b)), uintptr(len(b)))),
		m.file.Close(),
	)
	*m = memory{}
	return err
}

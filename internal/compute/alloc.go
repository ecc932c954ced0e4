package compute

import (
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"
)

// hugePage is the size of the pages asked for.
const hugePage = 2 << 20

// Alloc returns n bytes of zeroed memory outside the Go heap, aligned to 2 MiB,
// in huge pages where the system gives them. Nothing in it may point into the
// Go heap. Free gives it back.
func Alloc(n int) ([]byte, error) {
	if n < 1 {
		return nil, fmt.Errorf("compute: mapping %d bytes: %w", n, unix.EINVAL)
	}
	size := uintptr(n+hugePage-1) &^ (hugePage - 1)
	base, err := unix.MmapPtr(-1, 0, nil, size+hugePage, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		return nil, fmt.Errorf("compute: mapping %d bytes: %w", n, err)
	}
	// Give back what lies before and behind the aligned range.
	head := -uintptr(base) & (hugePage - 1)
	p := unsafe.Add(base, head)
	if head > 0 {
		err = unix.MunmapPtr(base, head)
	}
	if tail := hugePage - head; tail > 0 && err == nil {
		err = unix.MunmapPtr(unsafe.Add(p, size), tail)
	}
	if err != nil {
		return nil, fmt.Errorf("compute: trimming a map of %d bytes: %w", n, err)
	}
	b := unsafe.Slice((*byte)(p), size)
	// Without huge pages everything works, only slower.
	_ = unix.Madvise(b, unix.MADV_HUGEPAGE)
	return b[:n:n], nil
}

// pages returns the whole range of a slice that Alloc returned.
func pages(b []byte) []byte {
	return unsafe.Slice(unsafe.SliceData(b), (cap(b)+hugePage-1)&^(hugePage-1))
}

// Free unmaps b, which Alloc returned; it must not be used any more.
func Free(b []byte) error {
	if cap(b) == 0 {
		return nil
	}
	p := pages(b)
	if err := unix.MunmapPtr(unsafe.Pointer(unsafe.SliceData(p)), uintptr(len(p))); err != nil {
		return fmt.Errorf("compute: unmapping %d bytes: %w", cap(b), err)
	}
	return nil
}

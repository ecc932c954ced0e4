//go:build !invariants

package transfer

import (
	"errors"
	"os"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

const (
	controlBytes = 4096
	nonceOffset  = 64
)

// A control is the control page of a region: the word epoch<<1|released, and
// the region's nonce 64 bytes behind it. Readers in other processes map it
// read-only.
type control struct {
	page []byte
	file *os.File
}

func newControl(nonce [16]byte) (c *control, err error) {
	fd, err := unix.MemfdCreate("tandem-control", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return nil, os.NewSyscallError("memfd_create", err)
	}
	file := os.NewFile(uintptr(fd), "tandem-control")
	defer func() {
		if err != nil {
			err = errors.Join(err, file.Close())
		}
	}()
	if err := unix.Ftruncate(fd, controlBytes); err != nil {
		return nil, os.NewSyscallError("ftruncate", err)
	}
	page, err := unix.Mmap(fd, 0, controlBytes, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, os.NewSyscallError("mmap", err)
	}
	const seals = unix.F_SEAL_FUTURE_WRITE | unix.F_SEAL_GROW | unix.F_SEAL_SHRINK | unix.F_SEAL_SEAL
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, seals); err != nil {
		return nil, errors.Join(os.NewSyscallError("fcntl", err), unix.Munmap(page))
	}
	copy(page[nonceOffset:], nonce[:])
	return &control{page: page, file: file}, nil
}

// word is in shared memory: every access is atomic.
func (c *control) word() *atomic.Uint64 { return wordOf(c.page) }

func (c *control) close() error {
	return errors.Join(unix.Munmap(c.page), c.file.Close())
}

// wordOf views the first eight bytes of a page-aligned map.
func wordOf(page []byte) *atomic.Uint64 {
	return (*atomic.Uint64)(unsafe.Pointer(unsafe.SliceData(page)))
}

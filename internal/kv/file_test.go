//go:build !invariants

package kv

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"testing"

	"golang.org/x/sys/unix"
)

func TestArenaFileIsSealed(t *testing.T) {
	a := testArena(t, Layout{Layers: 2, Heads: 2, HeadDim: 32, BlockTiles: 1}, 16)
	fd := int(a.File().Fd())
	fill(a.Bytes(), 1) // the map of before the seals stays writable
	n := len(a.Bytes())
	if _, err := unix.Mmap(fd, 0, n, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED); !errors.Is(err, unix.EPERM) {
		t.Errorf("writable map: %v", err)
	}
	if _, err := unix.Pwrite(fd, []byte{1}, 0); !errors.Is(err, unix.EPERM) {
		t.Errorf("write: %v", err)
	}
	if err := unix.Ftruncate(fd, int64(2*n)); !errors.Is(err, unix.EPERM) {
		t.Errorf("growing: %v", err)
	}
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, unix.F_SEAL_SHRINK); !errors.Is(err, unix.EPERM) {
		t.Errorf("sealing against shrinking: %v", err)
	}
	ro, err := os.Open(fmt.Sprintf("/proc/self/fd/%d", fd))
	if err != nil {
		t.Fatal(err)
	}
	defer ro.Close()
	seen, err := unix.Mmap(int(ro.Fd()), 0, n, unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := unix.Munmap(seen); err != nil {
			t.Error(err)
		}
	}()
	if !bytes.Equal(seen, a.Bytes()) {
		t.Error("a reader's map shows other bytes")
	}
}

// Close frees the pages although a reader still has the file open.
func TestCloseFreesThePages(t *testing.T) {
	a := testArena(t, Layout{Layers: 2, Heads: 2, HeadDim: 32, BlockTiles: 1}, 64)
	fill(a.Bytes(), 1)
	ro, err := os.Open(fmt.Sprintf("/proc/self/fd/%d", a.File().Fd()))
	if err != nil {
		t.Fatal(err)
	}
	defer ro.Close()
	var st unix.Stat_t
	if err := unix.Fstat(int(ro.Fd()), &st); err != nil || st.Blocks == 0 {
		t.Fatalf("%d pages before, %v", st.Blocks, err)
	}
	if err := a.Close(); err != nil {
		t.Fatal(err)
	}
	if err := unix.Fstat(int(ro.Fd()), &st); err != nil || st.Blocks != 0 {
		t.Errorf("%d pages after, %v", st.Blocks, err)
	}
}

// Populated blocks have their pages, others do not, and what was written stays.
func TestPopulate(t *testing.T) {
	l := Layout{Layers: 8, Heads: 2, HeadDim: 64, BlockTiles: 4}
	a := testArena(t, l, 64)
	held := func() int {
		var st unix.Stat_t
		if err := unix.Fstat(int(a.File().Fd()), &st); err != nil {
			t.Fatal(err)
		}
		return int(st.Blocks) * 512
	}
	copy(a.Tile(5), "written before")
	if n := held(); n > os.Getpagesize() {
		t.Fatalf("%d bytes after one write", n)
	}
	if err := a.Populate(1, 4); err != nil {
		t.Fatal(err)
	}
	if n := held(); n != 3*l.BlockBytes() {
		t.Errorf("%d bytes of three blocks of %d", n, l.BlockBytes())
	}
	if !bytes.HasPrefix(a.Tile(5), []byte("written before")) {
		t.Error("the contents changed")
	}
	if err := a.Populate(4, 4); err != nil || held() != 3*l.BlockBytes() {
		t.Errorf("populating nothing: %v, %d bytes", err, held())
	}
}

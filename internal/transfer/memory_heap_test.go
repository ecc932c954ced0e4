//go:build invariants

package transfer

import "testing"

// paths are the paths of this build.
var paths = []string{PathMem, PathTCP}

func newMemory(t testing.TB, n int) Memory {
	t.Helper()
	return Memory{Bytes: make([]byte, n)}
}

func child() {}

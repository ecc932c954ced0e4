//go:build !invariants

package engine

import (
	"log/slog"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"

	"tandem/internal/kv"
)

// The pages ahead of the blocks in use are there before anybody writes them, in
// the arena of every rank, and no more than that.
func TestPagesAheadOfTheBlocksInUse(t *testing.T) {
	l := kv.Layout{Layers: 16, Heads: 4, HeadDim: 64, BlockTiles: 4}
	blocks := 4 * warmBytes / l.BlockBytes()
	var arenas []*kv.Arena
	for range 2 {
		a, err := kv.NewArena(l, blocks)
		if err != nil {
			t.Fatal(err)
		}
		defer func() {
			if err := a.Close(); err != nil {
				t.Error(err)
			}
		}()
		arenas = append(arenas, a)
	}
	held := func(a *kv.Arena) int64 {
		var st unix.Stat_t
		if err := unix.Fstat(int(a.File().Fd()), &st); err != nil {
			t.Fatal(err)
		}
		return st.Blocks * 512
	}
	pool := kv.NewPool(blocks, l.BlockTokens())
	w := newWarmer(pool, arenas)
	end := w.start(slog.New(slog.DiscardHandler))
	reach := func(used int) {
		t.Helper()
		w.look()
		want := int64(used*l.BlockBytes() + warmBytes)
		for _, a := range arenas {
			for held(a) < want {
				runtime.Gosched()
			}
		}
	}
	reach(0)
	first, _ := pool.Alloc(nil, 3)
	reach(3)
	pool.Release(first)
	second, _ := pool.Alloc(nil, 10)
	reach(10)
	w.look() // nothing new
	end()
	for _, a := range arenas {
		if n := held(a); n != int64(10*l.BlockBytes()+warmBytes) {
			t.Errorf("%d bytes are populated for %d blocks of %d bytes", n, len(second), l.BlockBytes())
		}
	}
}

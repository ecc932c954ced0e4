package engine

import (
	"log/slog"
	"sync"
	"sync/atomic"

	"tandem/internal/kv"
)

// warmBytes is how much of each arena, beyond the blocks in use, has its pages
// before they are needed.
const warmBytes = 64 << 20

// warmPiece is what is populated at once, in bytes. It holds the process's
// memory map for as long as clearing so much takes.
const warmPiece = 1 << 20

// A warmer keeps the blocks that a step or a load will touch for the first time
// supplied with pages. A load of a long prompt would otherwise spend more time
// on getting them from the system than on copying.
//
// The pool gives blocks out in ascending order until all were used, so the next
// ones are known.
type warmer struct {
	pool   *kv.Pool // of the loop
	arenas []*kv.Arena
	ahead  int // blocks
	piece  int // blocks

	high int // the loop's
	want atomic.Int64
	wake chan struct{}
}

func newWarmer(pool *kv.Pool, arenas []*kv.Arena) *warmer {
	size := arenas[0].Layout().BlockBytes()
	return &warmer{
		pool: pool, arenas: arenas, ahead: max(1, warmBytes/size), piece: max(1, warmPiece/size),
		high: -1, wake: make(chan struct{}, 1),
	}
}

// look tells the warmer how far the pool is. The loop calls it after planning.
func (w *warmer) look() {
	high := w.pool.High()
	if high == w.high {
		return
	}
	w.high = high
	w.want.Store(int64(min(high+w.ahead, w.pool.Blocks())))
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

// start populates in the background. The returned function ends that and waits
// for it: the arenas may be closed afterwards.
func (w *warmer) start(log *slog.Logger) (end func()) {
	quit := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		done := 0
		for {
			for done < int(w.want.Load()) {
				to := min(done+w.piece, int(w.want.Load()))
				if err := w.populate(done, to); err != nil {
					// Whoever writes there first will meet the same trouble, or none.
					log.Debug("KV pages are not populated ahead", "error", err)
					return
				}
				done = to
				select {
				case <-quit:
					return
				default:
				}
			}
			select {
			case <-quit:
				return
			case <-w.wake:
			}
		}
	})
	return func() {
		close(quit)
		wg.Wait()
	}
}

func (w *warmer) populate(from, to int) error {
	for _, a := range w.arenas {
		if err := a.Populate(from, to); err != nil {
			return err
		}
	}
	return nil
}

// Package lucky has a test that passes when a goroutine is quick.
package lucky

import (
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
)

func TestLucky(t *testing.T) {
	var n atomic.Int32
	var wg sync.WaitGroup
	wg.Go(func() { n.Store(1) })
	if runtime.Gosched(); n.Load() != 1 {
		t.Error("the goroutine was late")
	}
	wg.Wait()
}

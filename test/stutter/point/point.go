// Package point is what instrumented code calls before each of its statements.
package point

import (
	"math/rand/v2"
	"os"
	"strconv"
	"sync/atomic"
	"syscall"
	"time"
)

// Environment variables that a run is chosen by. Without a seed nothing waits.
const (
	SeedEnv  = "STUTTER_SEED"  // which statements wait, and how long
	ShareEnv = "STUTTER_SHARE" // which part of all statements that is
)

// Sites is how many statements one program may have.
const Sites = 1 << 17

// A site waits the first few times that it is met, so that a run ends.
type site struct {
	left atomic.Int32
	wait time.Duration
}

var sites = plan(os.Getenv(SeedEnv), os.Getenv(ShareEnv)) // the program under test has flags of its own

// plan draws the sites that wait: most of them for less than half a millisecond,
// some so long that a client's patience or a tick goes by.
func plan(seed, share string) *[Sites]site {
	all := new([Sites]site)
	n, err := strconv.ParseUint(seed, 10, 64)
	if err != nil {
		return all
	}
	part, err := strconv.ParseFloat(share, 64)
	if err != nil {
		return all
	}
	r := rand.New(rand.NewPCG(n, 0))
	for i := range all {
		if r.Float64() >= part {
			continue
		}
		span := 500 * time.Microsecond
		switch r.IntN(10) {
		case 0:
			span = 80 * time.Millisecond
		case 1, 2:
			span = 10 * time.Millisecond
		}
		all[i].wait = time.Duration(r.Int64N(int64(span)))
		all[i].left.Store(int32(1 + r.IntN(12)))
	}
	return all
}

// Wait is called before the statement that has the number id. It waits in the
// system, not in the scheduler: the clock of a synctest bubble stands still
// meanwhile.
func Wait(id int) {
	s := &sites[id]
	if s.left.Load() <= 0 || s.left.Add(-1) < 0 {
		return
	}
	ts := syscall.NsecToTimespec(int64(s.wait))
	_ = syscall.Nanosleep(&ts, nil) // a signal may end it early
}

package main

import (
	"sync/atomic"
	"time"
)

// A pulse measures by how much this process's own timers are late. On a machine
// that others use, that is time in which nobody here could run; the client of a
// request sees it on top of what the engines took.
type pulse struct{ sum atomic.Int64 }

const (
	beat  = 5 * time.Millisecond
	slack = 2 * time.Millisecond // lateness that timers have on a resting machine
)

func newPulse() *pulse {
	p := &pulse{}
	go func() {
		for last := time.Now(); ; {
			time.Sleep(beat)
			now := time.Now()
			if late := now.Sub(last) - beat; late > slack {
				p.sum.Add(int64(late))
			}
			last = now
		}
	}()
	return p
}

// late returns the lateness since the start.
func (p *pulse) late() time.Duration { return time.Duration(p.sum.Load()) }

// A watch measures from its start, without the lateness of the pulse.
type watch struct {
	p     *pulse
	begun time.Time
	late  time.Duration
}

func (p *pulse) start() watch { return watch{p, time.Now(), p.late()} }

// took returns the time since the start less what timers were late meanwhile.
func (w watch) took() time.Duration {
	d := time.Since(w.begun)
	return d - min(w.p.late()-w.late, d)
}

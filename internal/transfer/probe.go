package transfer

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// preferred is how much faster a later path must measure than an earlier one to
// be chosen: probes are short and machines are noisy.
const preferred = 2

// choose opens the paths that a allows, measures them and keeps one: mem in one
// process, else memfd when the peer's memory can be mapped and verified and is
// not slower than half of tcp, else tcp.
func (r *Remote) choose(ctx context.Context, d *description) error {
	a := r.agent
	if a.allows(PathMem) && a.host.cfg.Directory.find(d.Incarnation) != nil {
		v, err := r.open(ctx, d, PathMem)
		if err != nil {
			return err
		}
		r.view, r.path, r.reason = v, PathMem, "same process"
		return nil
	}
	mapped, why := r.tryMap(ctx, d)
	var epoch *EpochError
	if errors.Is(why, ErrReleased) || errors.As(why, &epoch) {
		return why
	}
	var rate float64
	if mapped != nil {
		rate = mapped.measure()
	}
	if !a.allows(PathTCP) {
		if mapped == nil {
			return fmt.Errorf("no path: %w", why)
		}
		r.view, r.path, r.reason = mapped, PathMemfd, fmt.Sprintf("the only allowed path, %s", gigabytes(rate))
		return nil
	}
	streamed, err := r.measureStream(ctx)
	if err != nil {
		mapped.unmap()
		return fmt.Errorf("probing tcp: %w", err)
	}
	switch {
	case mapped == nil:
		r.path, r.reason = PathTCP, fmt.Sprintf("%s; memfd: %v", gigabytes(streamed), why)
	case rate > 0 && streamed > preferred*rate:
		mapped.unmap()
		r.path, r.reason = PathTCP, fmt.Sprintf("%s against %s of memfd", gigabytes(streamed), gigabytes(rate))
	default:
		r.view, r.path = mapped, PathMemfd
		r.reason = fmt.Sprintf("memory file verified, %s against %s of tcp", gigabytes(rate), gigabytes(streamed))
	}
	return nil
}

func (r *Remote) tryMap(ctx context.Context, d *description) (*view, error) {
	switch {
	case !r.agent.allows(PathMemfd):
		return nil, errors.New("not allowed")
	case d.Unix == "":
		return nil, errors.New("the peer offers no memory file")
	}
	return r.open(ctx, d, PathMemfd)
}

func gigabytes(rate float64) string {
	if rate == 0 {
		return "unmeasured (empty memory)"
	}
	return fmt.Sprintf("%.1f GB/s", rate/1e9)
}

// measureStream returns the rate of a short stream over a data connection, in
// bytes a second: the better of two.
func (r *Remote) measureStream(ctx context.Context) (float64, error) {
	c, err := r.lane(ctx)
	if err != nil {
		return 0, err
	}
	stop := context.AfterFunc(ctx, func() { _ = c.SetDeadline(time.Unix(1, 0)) })
	best := 0.0
	for range 2 {
		start := time.Now()
		if _, err = c.Write(encodeFrame(frame{Type: frameCall, Kind: kindProbe, ID: 1})); err != nil {
			break
		}
		var f frame
		if f, err = readFrame(c, probeBytes); err != nil {
			break
		}
		if f.Type != frameData || len(f.Body) != probeBytes {
			err = &ProtocolError{What: "probe answered by something else"}
			break
		}
		best = max(best, probeBytes/time.Since(start).Seconds())
	}
	r.putLane(c, stop() && err == nil)
	return best, err
}

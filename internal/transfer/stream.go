package transfer

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// lane takes one of the remote's data connections, waiting for ctx when all are
// in use. putLane gives it back.
func (r *Remote) lane(ctx context.Context) (net.Conn, error) {
	select {
	case r.lanes <- struct{}{}:
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	r.mu.Lock()
	if n := len(r.idle); n > 0 {
		c := r.idle[n-1]
		r.idle = r.idle[:n-1]
		r.mu.Unlock()
		return c, nil
	}
	r.mu.Unlock()
	c, who, err := r.agent.host.open(ctx, r.peer.addr, forData, r.peer.who.Session)
	if err == nil && who.Incarnation != r.peer.who.Incarnation {
		err = errors.Join(ErrPeerGone, c.Close())
	}
	if err != nil {
		<-r.lanes
		return nil, fmt.Errorf("opening a data connection: %w", err)
	}
	return c, nil
}

// putLane keeps a connection for the next read when it is in a known state.
func (r *Remote) putLane(c net.Conn, good bool) {
	r.mu.Lock()
	if good = good && !r.gone; good {
		r.idle = append(r.idle, c)
	}
	r.mu.Unlock()
	if !good {
		_ = c.Close()
	}
	<-r.lanes
}

// stream reads the tiles of q over a data connection into the local memory.
// When it returns nothing reads from that connection into it any more.
func (r *Remote) stream(ctx context.Context, rd *Read, q *readRequest, local []byte) error {
	rd.waiting.Store(true)
	c, err := r.lane(ctx)
	rd.waiting.Store(false)
	if err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, func() { _ = c.SetDeadline(time.Unix(1, 0)) })
	clean, err := r.receive(c, rd, q, local)
	r.putLane(c, stop() && clean)
	var ne net.Error
	if err != nil && !clean && (errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) ||
		errors.Is(err, net.ErrClosed) || errors.As(err, &ne) || errors.Is(err, syscall.ECONNRESET)) {
		err = fmt.Errorf("%w: %w", ErrPeerGone, err)
	}
	return err
}

// receive carries out one framed read. clean says that the connection can be
// used for another.
func (r *Remote) receive(c net.Conn, rd *Read, q *readRequest, local []byte) (clean bool, err error) {
	if _, err := c.Write(encodeFrame(frame{Type: frameCall, Kind: kindRead, ID: 1, Body: q.encode()})); err != nil {
		return false, err
	}
	sc, ok := c.(syscall.Conn)
	if !ok {
		return false, errors.New("connection without a descriptor")
	}
	raw, err := sc.SyscallConn()
	if err != nil {
		return false, err
	}
	s, size := rd.plan.strides, rd.plan.local.geometry.TileBytes
	iov := make([][]byte, 0, s.Pieces)
	status := false
	for i := 0; i < len(q.Tiles); {
		var head [frameHead]byte
		if _, err := io.ReadFull(c, head[:]); err != nil {
			return false, err
		}
		f, n, err := parseHead(&head, max(segment+s.bytes(), maxHello))
		switch {
		case err != nil:
			return false, err
		case f.Type == frameError:
			body := make([]byte, n)
			if _, err := io.ReadFull(c, body); err != nil {
				return false, err
			}
			return true, decodeError(body)
		case f.Type == frameAnswer && !status && n == 0:
			status = true
			rd.setup.Store(int64(time.Since(rd.posted)))
			rd.progress.Add(1)
			continue
		case f.Type != frameData || !status || n == 0 || n%s.bytes() != 0 || n/s.bytes() > len(q.Tiles)-i:
			return false, &ProtocolError{What: fmt.Sprintf("frame of type %d and %d bytes in a stream", f.Type, n)}
		}
		for range n / s.bytes() {
			tile := local[int(rd.req.Local[i])*size:][:size]
			iov = iov[:0]
			for p := range s.Pieces {
				iov = append(iov, tile[s.LocalOff+p*s.LocalStep:][:s.Len])
			}
			if err := readInto(raw, iov, &rd.progress); err != nil {
				return false, err
			}
			if rd.stopped.Load() {
				return false, context.Canceled // the reason is the halt's
			}
			rd.landed(i)
			i++
		}
	}
	return true, nil
}

// readInto fills the slices of iov from a connection, many in one call, and
// counts the bytes. iov is used up.
func readInto(raw syscall.RawConn, iov [][]byte, progress *atomic.Int64) error {
	for len(iov) > 0 {
		var n int
		var err error
		wait := raw.Read(func(fd uintptr) bool {
			for {
				n, err = unix.Readv(int(fd), iov[:min(len(iov), 1024)])
				if !errors.Is(err, unix.EINTR) {
					return !errors.Is(err, unix.EAGAIN)
				}
			}
		})
		switch {
		case wait != nil:
			return wait
		case err != nil:
			return err
		case n == 0:
			return io.ErrUnexpectedEOF
		}
		progress.Add(int64(n))
		for n > 0 {
			k := min(n, len(iov[0]))
			iov[0] = iov[0][k:]
			n -= k
			if len(iov[0]) == 0 {
				iov = iov[1:]
			}
		}
	}
	return nil
}

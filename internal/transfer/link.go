package transfer

import (
	"bufio"
	"net"
	"sync"
	"time"
)

// A link is one end of an authenticated control connection: a bounded queue of
// frames to write, keepalive in both directions, and one way to end.
type link struct {
	conn   net.Conn
	in     *bufio.Reader
	limits Limits
	out    chan []byte
	done   chan struct{} // closed by end
	once   sync.Once
	before func() // or nil; called once, before done is closed
}

func newLink(c net.Conn, limits Limits) *link {
	return &link{conn: c, in: bufio.NewReader(c), limits: limits, out: make(chan []byte, 16), done: make(chan struct{})}
}

// end closes the connection, which ends both loops.
func (l *link) end() {
	l.once.Do(func() {
		if l.before != nil {
			l.before()
		}
		close(l.done)
		_ = l.conn.Close()
	})
}

// send queues an encoded frame. It waits while the queue is full and reports
// false when the link or giveUp ended first.
func (l *link) send(b []byte, giveUp <-chan struct{}) bool {
	select {
	case <-l.done:
		return false
	default:
	}
	select {
	case l.out <- b:
		return true
	case <-l.done:
		return false
	case <-giveUp:
		return false
	}
}

// write is the writer goroutine: it sends what is queued, together when several
// frames wait, and a ping when none did for a while. It ends with the link.
func (l *link) write() {
	defer l.end()
	ping := encodeFrame(frame{Type: framePing})
	tick := time.NewTimer(l.limits.KeepAlive)
	defer tick.Stop()
	buffers := make([][]byte, 0, cap(l.out)+1)
	for {
		buffers = buffers[:0]
		select {
		case <-l.done:
			return
		case b := <-l.out:
			buffers = append(buffers, b)
		case <-tick.C:
			buffers = append(buffers, ping)
		}
		for more := true; more && len(buffers) < cap(buffers); {
			select {
			case b := <-l.out:
				buffers = append(buffers, b)
			default:
				more = false
			}
		}
		tick.Reset(l.limits.KeepAlive)
		if l.conn.SetWriteDeadline(time.Now().Add(3*l.limits.KeepAlive)) != nil {
			return
		}
		nb := net.Buffers(buffers)
		if _, err := nb.WriteTo(l.conn); err != nil {
			return
		}
	}
}

// read returns the next frame that is not a ping. A connection that is silent
// for three keepalives is an error.
func (l *link) read() (frame, error) {
	for {
		if err := l.conn.SetReadDeadline(time.Now().Add(3 * l.limits.KeepAlive)); err != nil {
			return frame{}, err
		}
		f, err := readFrame(l.in, MaxBody)
		if err != nil || f.Type != framePing {
			return f, err
		}
	}
}

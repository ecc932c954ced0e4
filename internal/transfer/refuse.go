package transfer

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"
)

// errHTTP says that a client takes the peer port for an API.
var errHTTP = &ProtocolError{What: "an HTTP request came to the peer port"}

// isHTTP reports whether the first bytes of a connection are those of an HTTP
// request. Read as a head they claim a body that no frame has.
func isHTTP(head []byte) bool {
	for _, method := range [...]string{"GET /", "HEAD /", "POST /", "PUT /", "PATCH /", "DELETE /", "OPTIONS ", "CONNECT ", "TRACE /", "PRI * HTTP/2"} {
		if bytes.HasPrefix(head, []byte(method)) {
			return true
		}
	}
	return false
}

// readFirst reads the first frame of an incoming connection.
func readFirst(r io.Reader) (frame, error) {
	var head [frameHead]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return frame{}, err
	}
	if isHTTP(head[:]) {
		return frame{}, errHTTP
	}
	return readFrame(io.MultiReader(bytes.NewReader(head[:]), r), maxHello)
}

// refuse answers a connection that did not get through the handshake. The
// caller closes it.
func (h *Host) refuse(c net.Conn, err error) {
	var refused *RefusedError
	switch {
	case errors.As(err, &refused):
		h.counts.refused.Add(1)
	case isProtocol(err):
		h.counts.bad.Add(1)
	default:
		return // it ended, or was silent for too long
	}
	if args, ok := h.due(source(c), "from", c.RemoteAddr().String(), "error", err); ok {
		h.cfg.Log.Warn("refusing a connection", args...)
	}
	if errors.Is(err, errHTTP) {
		answerHTTP(c)
		return
	}
	_, _ = c.Write(encodeFrame(frame{Type: frameError, Body: encodeError(err)}))
}

// due reports whether a line about source is due, and returns what it says: args
// and how many were left out before it.
func (h *Host) due(source string, args ...any) ([]any, bool) {
	before, ok := h.quiet.speak(source, time.Now())
	if before > 0 {
		args = append(args, "unlogged_before", before)
	}
	return args, ok
}

// answerHTTP says what this port is. What the client still sends is read, within
// the deadline of the handshake: a close before that would take the answer away.
func answerHTTP(c net.Conn) {
	const text = "this is the peer port of a Tandem engine, for other engines only: its API has a port of its own\n"
	_, err := fmt.Fprintf(c, "HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%s", len(text), text)
	if err != nil {
		return
	}
	if half, ok := c.(interface{ CloseWrite() error }); ok && half.CloseWrite() == nil {
		_, _ = io.CopyN(io.Discard, c, 64<<10) // it may leave as it likes
	}
}

// source is what the log lines of a connection are counted by: its host.
func source(c net.Conn) string {
	addr := c.RemoteAddr().String()
	if host, _, err := net.SplitHostPort(addr); err == nil {
		return host
	}
	return addr
}

// Bounds of the log of refusals.
const (
	quietFor  = 10 * time.Second // between two lines about one source
	maxQuiets = 256              // sources remembered; others share one more
)

// quiet limits log lines by source, so that nobody fills the log of an engine by
// connecting to it.
type quiet struct {
	mu   sync.Mutex
	from map[string]*silence
}

type silence struct {
	until  time.Time
	missed int
}

// speak reports whether a line about source is due, and how many were left out
// since the last one.
func (q *quiet) speak(source string, now time.Time) (missed int, ok bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.from == nil {
		q.from = map[string]*silence{}
	}
	s := q.from[source]
	if s == nil && len(q.from) >= maxQuiets {
		for k, old := range q.from {
			if !now.Before(old.until) {
				delete(q.from, k)
			}
		}
		if len(q.from) >= maxQuiets {
			source = ""
			s = q.from[source]
		}
	}
	if s == nil {
		s = &silence{until: now}
		q.from[source] = s
	}
	if now.Before(s.until) {
		s.missed++
		return 0, false
	}
	missed, s.missed, s.until = s.missed, 0, now.Add(quietFor)
	return missed, true
}

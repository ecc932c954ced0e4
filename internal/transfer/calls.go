package transfer

import (
	"context"
	"fmt"
	"net"
	"sync"
	"time"
)

// A serverConn is an incoming control connection and the data connections that
// belong to it.
type serverConn struct {
	host   *Host
	link   *link
	caller Caller

	mu       sync.Mutex
	attached map[net.Conn]struct{}
	ended    bool
}

var errNoSession = &RefusedError{Code: RefusedSession, Text: "no such session"}

// attach ties a data connection to s: it is closed when s ends. The returned
// function unties it. The error is a *RefusedError: s has ended, or has as many data
// connections as it may.
func (s *serverConn) attach(c net.Conn) (detach func(), err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.ended:
		return nil, errNoSession
	case len(s.attached) >= s.host.limits.Attached:
		return nil, &RefusedError{Code: RefusedBusy, Text: "too many data connections"}
	}
	s.attached[c] = struct{}{}
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.attached, c)
	}, nil
}

func (s *serverConn) detachAll() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ended = true
	for c := range s.attached {
		_ = c.Close()
	}
}

// serveCalls is the rest of the goroutine of an incoming control connection.
func (h *Host) serveCalls(c net.Conn, hi hello, accept func(uint64) []byte) {
	s := &serverConn{
		host: h, link: newLink(c, h.limits), attached: map[net.Conn]struct{}{},
		caller: Caller{Incarnation: hi.Incarnation, Conn: h.counts.next.Add(1), Name: hi.Name},
	}
	h.mu.Lock()
	full, stopped := len(h.sessions) >= h.limits.Conns, h.stopped
	if !full && !stopped {
		h.sessions[s.caller.Conn] = s
	}
	h.mu.Unlock()
	if stopped {
		return
	}
	if full {
		h.refuse(c, &RefusedError{Code: RefusedBusy, Text: "too many connections"})
		return
	}
	h.counts.accepted.Add(1)
	_, err := c.Write(accept(s.caller.Conn)) // before any ping
	if err == nil {
		err = c.SetDeadline(time.Time{})
	}
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(s.link.write)
	wg.Go(func() { // end with the host
		select {
		case <-h.stop:
			s.link.end()
		case <-s.link.done:
		}
	})
	if err == nil {
		s.loop(ctx, &wg)
	}
	cancel()
	s.link.end()
	h.mu.Lock()
	delete(h.sessions, s.caller.Conn)
	h.mu.Unlock()
	s.detachAll()
	wg.Wait()
	if h.disconnected != nil {
		h.disconnected(s.caller)
	}
}

// loop reads calls and starts a goroutine in wg for each, at most Limits.Calls
// at once, until the connection ends. While as many answers wait for a peer that
// does not read them, it reads no more calls.
func (s *serverConn) loop(ctx context.Context, wg *sync.WaitGroup) {
	slots := make(chan struct{}, s.host.limits.Calls)
	unsent := make(chan struct{}, 2*s.host.limits.Calls) // calls, from their frame to that of their answer
	for {
		f, err := s.link.read()
		if err == nil && f.Type != frameCall {
			err = &ProtocolError{What: fmt.Sprintf("frame of type %d from a dialler", f.Type)}
		}
		if err != nil {
			if isProtocol(err) {
				s.host.counts.bad.Add(1)
				s.host.cfg.Log.Warn("closing a connection", "peer", s.caller.Name, "error", err)
			}
			return
		}
		select {
		case slots <- struct{}{}:
		default:
			s.answer(f.ID, nil, &RefusedError{Code: RefusedBusy, Text: "too many calls at once"})
			continue
		}
		select {
		case unsent <- struct{}{}:
		case <-s.link.done:
			return
		}
		wg.Go(func() {
			body, err := s.host.dispatch(ctx, s.caller, f)
			<-slots // before the answer, so that a caller who waits for it finds the slot free
			s.answer(f.ID, body, err)
			<-unsent
		})
	}
}

func (s *serverConn) answer(id uint64, body []byte, err error) {
	if err == nil && len(body) > MaxBody {
		err = fmt.Errorf("transfer: answer of %d bytes, at most %d", len(body), MaxBody)
	}
	f := frame{Type: frameAnswer, ID: id, Body: body}
	if err != nil {
		f = frame{Type: frameError, ID: id, Body: encodeError(err)}
	}
	s.link.send(encodeFrame(f), nil)
}

// dispatch answers one call.
func (h *Host) dispatch(ctx context.Context, from Caller, f frame) ([]byte, error) {
	switch f.Kind {
	case KindNotice:
		if h.notice != nil {
			h.notice(from, f.Body)
		}
		return nil, nil
	case kindBegin:
		return nil, h.begin(from, f.Body)
	default:
	}
	if handle := h.handlers[f.Kind]; handle != nil {
		return handle(ctx, from, f.Body)
	}
	return nil, &RefusedError{Code: RefusedKind, Text: fmt.Sprintf("no handler for kind %d", f.Kind)}
}

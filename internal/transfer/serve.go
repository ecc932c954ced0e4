package transfer

import (
	"fmt"
	"net"
	"sync"
	"time"
)

// A dataConn is an incoming data connection. Its goroutine serves one read
// after the other.
type dataConn struct {
	conn  net.Conn
	limit time.Duration

	mu      sync.Mutex
	hurried bool // the region is about to be released
}

// arm gives the next write its deadline.
func (d *dataConn) arm() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.hurried {
		return nil
	}
	return d.conn.SetWriteDeadline(time.Now().Add(d.limit))
}

// hurry cuts a write that takes longer than so much from here on.
func (d *dataConn) hurry(within time.Duration) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.hurried = true
	_ = d.conn.SetWriteDeadline(time.Now().Add(within))
}

func (d *dataConn) calm() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.hurried = false
}

func (d *dataConn) write(b ...[]byte) error {
	if err := d.arm(); err != nil {
		return err
	}
	buffers := net.Buffers(b)
	_, err := buffers.WriteTo(d.conn)
	return err
}

func (d *dataConn) fail(id uint64, err error) error {
	return d.write(encodeFrame(frame{Type: frameError, ID: id, Body: encodeError(err)}))
}

// serveData is the rest of the goroutine of an incoming data connection.
func (h *Host) serveData(d *dataConn, s *serverConn) {
	for {
		f, err := readFrame(d.conn, MaxBody)
		if err == nil && f.Type != frameCall {
			err = &ProtocolError{What: fmt.Sprintf("frame of type %d on a data connection", f.Type)}
		}
		if err != nil {
			if isProtocol(err) {
				h.counts.bad.Add(1)
				h.cfg.Log.Warn("closing a data connection", "peer", s.caller.Name, "error", err)
			}
			return
		}
		d.calm() // a release may have hurried the read before
		switch f.Kind {
		case kindRead:
			err = h.serveRead(d, s.caller, f)
		case kindProbe:
			err = d.write(appendHead(nil, frame{Type: frameData, ID: f.ID}, probeBytes), make([]byte, probeBytes))
		default:
			err = d.fail(f.ID, &RefusedError{Code: RefusedKind, Text: "not for a data connection"})
		}
		if err != nil {
			return
		}
	}
}

// serveRead validates one read and streams it. An error means that the
// connection is no longer in a known state.
func (h *Host) serveRead(d *dataConn, from Caller, f frame) error {
	q, err := decodeReadRequest(f.Body)
	if err != nil {
		h.counts.bad.Add(1)
		return err
	}
	r, mem, s, err := h.enterRead(from, q)
	if err != nil {
		return d.fail(f.ID, err)
	}
	defer r.leave()
	defer r.serve(d)()
	return d.stream(f.ID, r, mem, q.Tiles, s)
}

// maxVectors bounds the slices of one write.
const maxVectors = 4096

// stream writes the status and then the tiles straight from memory, a data
// frame for each segment. A region that is about to be released ends it with an
// error frame between two segments.
func (d *dataConn) stream(id uint64, r *Region, mem []byte, tiles []int32, s Strides) error {
	each := max(1, min(segment/s.bytes(), maxVectors/s.Pieces))
	vectors := make([][]byte, 0, min(each, len(tiles))*s.Pieces+2)
	vectors = append(vectors, encodeFrame(frame{Type: frameAnswer, ID: id}))
	for len(tiles) > 0 {
		if !r.guard.isOpen() {
			return d.write(append(vectors, encodeFrame(frame{Type: frameError, ID: id, Body: encodeError(ErrReleased)}))...)
		}
		n := min(each, len(tiles))
		vectors = append(vectors, appendHead(nil, frame{Type: frameData, ID: id}, n*s.bytes()))
		for _, t := range tiles[:n] {
			tile := mem[int(t)*r.geometry.TileBytes:][:r.geometry.TileBytes]
			for p := range s.Pieces {
				vectors = append(vectors, tile[s.RemoteOff+p*s.RemoteStep:][:s.Len])
			}
		}
		if err := d.write(vectors...); err != nil {
			return err
		}
		vectors, tiles = vectors[:0], tiles[n:]
	}
	if len(vectors) > 0 {
		return d.write(vectors...) // no tiles were asked for
	}
	return nil
}

//go:build !invariants

package transfer

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// serveDescriptors is the rest of the goroutine of a connection that asks for
// the descriptors of one region: its memory file, opened anew for reading only,
// and its control page. The connection must be a unix socket.
func (h *Host) serveDescriptors(c net.Conn, s *serverConn) {
	u, ok := c.(*net.UnixConn)
	if !ok || c.SetDeadline(time.Now().Add(h.limits.Handshake)) != nil {
		h.counts.bad.Add(1)
		return
	}
	f, err := readFrame(c, maxHello)
	q := reader{b: f.Body}
	rank, epoch := q.u16(), q.u64()
	if err != nil || f.Type != frameCall || f.Kind != kindDescriptor || !q.end() {
		h.counts.bad.Add(1)
		return
	}
	if err := h.sendDescriptors(u, f.ID, rank, epoch); err != nil {
		h.cfg.Log.Warn("refusing descriptors", "peer", s.caller.Name, "error", err)
		_, _ = c.Write(encodeFrame(frame{Type: frameError, ID: f.ID, Body: encodeError(err)}))
	}
}

func (h *Host) sendDescriptors(u *net.UnixConn, id uint64, rank uint16, epoch uint64) error {
	a := h.agent(rank)
	if a == nil {
		return &RefusedError{Code: RefusedRank, Text: "no such rank"}
	}
	r := a.region.Load()
	if r == nil {
		return &RefusedError{Code: RefusedRank, Text: "rank without a region"}
	}
	mem, have, err := r.enter()
	if err != nil {
		return err
	}
	defer r.leave()
	if have != epoch {
		return &EpochError{Have: have, Want: epoch}
	}
	if mem.File == nil {
		return &RefusedError{Code: RefusedRank, Text: "memory without a file"}
	}
	files := make([]*os.File, 0, 2)
	defer func() {
		for _, f := range files {
			_ = f.Close()
		}
	}()
	for _, f := range []*os.File{mem.File, r.control.file} {
		ro, err := os.OpenFile(fmt.Sprintf("/proc/self/fd/%d", f.Fd()), os.O_RDONLY, 0)
		if err != nil {
			return fmt.Errorf("opening the memory of rank %d for reading: %w", rank, err)
		}
		files = append(files, ro)
	}
	answer := encodeFrame(frame{Type: frameAnswer, ID: id})
	_, _, err = u.WriteMsgUnix(answer, unix.UnixRights(int(files[0].Fd()), int(files[1].Fd())), nil)
	return err
}

// fetch gets the descriptors of the region that d describes and maps them.
func (r *Remote) fetch(ctx context.Context, d *description) (*view, error) {
	c, who, err := r.agent.host.open(ctx, "unix:"+d.Unix, forDescriptors, r.peer.who.Session)
	if err != nil {
		return nil, fmt.Errorf("reaching the unix socket: %w", err)
	}
	defer func() { _ = c.Close() }()
	if who.Incarnation != d.Incarnation {
		return nil, &ProtocolError{What: "the unix socket is another engine's"}
	}
	u, ok := c.(*net.UnixConn)
	if !ok {
		return nil, errors.New("not a unix socket")
	}
	if err := c.SetDeadline(time.Now().Add(r.agent.host.limits.Handshake)); err != nil {
		return nil, err
	}
	defer context.AfterFunc(ctx, func() { _ = c.SetDeadline(time.Unix(1, 0)) })()
	body := binary.LittleEndian.AppendUint16(nil, d.Rank)
	body = binary.LittleEndian.AppendUint64(body, d.Epoch)
	if _, err := c.Write(encodeFrame(frame{Type: frameCall, Kind: kindDescriptor, ID: 1, Body: body})); err != nil {
		return nil, err
	}
	files, err := receiveFiles(u)
	defer func() {
		for _, f := range files {
			_ = f.Close()
		}
	}()
	if err != nil {
		return nil, err
	}
	if len(files) != 2 {
		return nil, &ProtocolError{What: fmt.Sprintf("%d descriptors, want 2", len(files))}
	}
	return mapView(files[0], files[1], d)
}

// receiveFiles reads one answer frame and the descriptors that come with it.
// It returns those that arrived also with an error.
func receiveFiles(u *net.UnixConn) ([]*os.File, error) {
	var head [frameHead]byte
	oob := make([]byte, unix.CmsgSpace(4*4))
	n, oobn, _, _, err := u.ReadMsgUnix(head[:], oob)
	if err != nil {
		return nil, err
	}
	var files []*os.File
	messages, err := unix.ParseSocketControlMessage(oob[:oobn])
	if err != nil {
		return nil, err
	}
	for _, m := range messages {
		fds, err := unix.ParseUnixRights(&m)
		if err != nil {
			return files, err
		}
		for _, fd := range fds {
			files = append(files, os.NewFile(uintptr(fd), "peer"))
		}
	}
	if _, err := io.ReadFull(u, head[n:]); err != nil {
		return files, err
	}
	f, length, err := parseHead(&head, maxHello+maxErrCode+maxErrText)
	if err != nil {
		return files, err
	}
	body := make([]byte, length)
	if _, err := io.ReadFull(u, body); err != nil {
		return files, err
	}
	switch {
	case f.Type == frameError:
		return files, decodeError(body)
	case f.Type != frameAnswer || length != 0:
		return files, &ProtocolError{What: "malformed answer with descriptors"}
	}
	return files, nil
}

// mapView maps the two files of a peer for reading and verifies that the
// control page carries the nonce of the description. The maps outlive the
// descriptors, which the caller closes.
func mapView(mem, page *os.File, d *description) (*view, error) {
	for _, f := range []struct {
		file *os.File
		want int
	}{{mem, d.Geometry.bytes()}, {page, controlBytes}} {
		fi, err := f.file.Stat()
		if err != nil {
			return nil, err
		}
		if fi.Size() == 0 {
			return nil, ErrReleased // truncated since
		}
		if fi.Size() < int64(f.want) {
			return nil, &ProtocolError{What: fmt.Sprintf("memory file of %d bytes, described as %d", fi.Size(), f.want)}
		}
	}
	v := &view{epoch: d.Epoch}
	var err error
	if v.page, err = unix.Mmap(int(page.Fd()), 0, controlBytes, unix.PROT_READ, unix.MAP_SHARED); err != nil {
		return nil, os.NewSyscallError("mmap", err)
	}
	if v.data, err = unix.Mmap(int(mem.Fd()), 0, d.Geometry.bytes(), unix.PROT_READ, unix.MAP_SHARED); err != nil {
		v.unmap()
		return nil, os.NewSyscallError("mmap", err)
	}
	err = v.guarded(func() error {
		if [16]byte(v.page[nonceOffset:nonceOffset+16]) != d.Nonce {
			return &ProtocolError{What: "the control page is another region's"}
		}
		return v.check()
	})
	if err != nil {
		v.unmap()
		return nil, err
	}
	if extents(mem, d.Geometry.bytes(), func(from, to int) bool {
		v.extents = append(v.extents, [2]int{from, to})
		return len(v.extents) < maxExtents
	}) != nil {
		v.extents = nil // prefaulting is only a help
	}
	return v, nil
}

// maxExtents bounds what is remembered of a sparse memory file.
const maxExtents = 4096

// extents calls f for the ranges of a file that have pages. Reading the others
// through a map would give the owner pages that it does not have.
func extents(file *os.File, size int, f func(from, to int) bool) error {
	for at := int64(0); at < int64(size); {
		from, err := unix.Seek(int(file.Fd()), at, unix.SEEK_DATA)
		if errors.Is(err, unix.ENXIO) {
			return nil
		}
		if err != nil {
			return os.NewSyscallError("lseek", err)
		}
		to, err := unix.Seek(int(file.Fd()), from, unix.SEEK_HOLE)
		if err != nil {
			return os.NewSyscallError("lseek", err)
		}
		to = min(to, int64(size))
		if from >= to || !f(int(from), int(to)) {
			return nil
		}
		at = to
	}
	return nil
}

// unmap takes the maps of v away. v may be nil.
func (v *view) unmap() {
	if v == nil {
		return
	}
	if v.data != nil {
		_ = unix.Munmap(v.data) // never fails on a map of ours
	}
	if v.page != nil {
		_ = unix.Munmap(v.page)
	}
	v.data, v.page = nil, nil
}

// measure returns the rate at which the peer's memory is copied, in bytes a
// second: the best of three copies of up to 1 MiB; 0 when it has no pages.
func (v *view) measure() float64 {
	if len(v.extents) == 0 {
		return 0
	}
	from, to := v.extents[0][0], v.extents[0][1]
	src := v.data[from:min(to, from+copyPiece)]
	dst := make([]byte, len(src))
	best := 0.0
	_ = v.guarded(func() error {
		for range 3 {
			start := time.Now()
			copy(dst, src)
			best = max(best, float64(len(src))/max(time.Since(start).Seconds(), 1e-9))
		}
		return nil
	})
	return best
}

// prefault fills the page tables of v in the background, so that the first read
// does not pay for it.
func (r *Remote) prefault(v *view) {
	r.mu.Lock()
	if v.dropped.Load() {
		r.mu.Unlock()
		return
	}
	v.refs++
	r.mu.Unlock()
	if !r.agent.host.spawn(func() { r.populate(v) }) {
		r.drop(v)
	}
}

// populate is the goroutine that prefaults.
func (r *Remote) populate(v *view) {
	defer r.drop(v)
	const step = 16 << 20
	for _, e := range v.extents {
		for at := e[0]; at < e[1]; at += step {
			if v.dropped.Load() {
				return
			}
			// An error means that the owner truncated the file meanwhile.
			if unix.Madvise(v.data[at:min(at+step, e[1])], unix.MADV_POPULATE_READ) != nil {
				return
			}
		}
	}
}

package transfer

import (
	"encoding/binary"
	"fmt"
	"io"
)

// A Kind tells a handler which call it is given. Kinds below 0xff00 belong to
// the callers of this package.
type Kind uint16

// The kinds that this package uses itself.
const (
	KindNotice     Kind = 0xff00 + iota // Peer.Notify; handled by Host.OnNotice
	kindBegin                           // may these tiles be read? (mem, memfd)
	kindRead                            // stream these tiles (tcp)
	kindProbe                           // stream as many zero bytes
	kindDescriptor                      // send the memory and control descriptors
)

// frameType is the first byte of a frame after its length.
type frameType uint8

const (
	frameHello     frameType = 1 + iota // dialler: versions, role of the connection, nonce
	frameChallenge                      // listener: version, nonce
	frameProof                          // dialler: proof of the token
	frameAccept                         // listener: proof of the token, session
	frameCall                           // dialler: kind, id, body
	frameAnswer                         // listener: id, body
	frameError                          // listener: id, error
	framePing                           // either
	frameData                           // listener: raw bytes of whole tiles
	frameLast
)

// frameHead is the number of bytes before a frame's body:
//
//	u32 body length | u8 type | u8 zero | u16 kind | u64 id       little endian
const frameHead = 16

type frame struct {
	Type frameType
	Kind Kind
	ID   uint64
	Body []byte
}

func appendHead(b []byte, f frame, body int) []byte {
	b = binary.LittleEndian.AppendUint32(b, uint32(body))
	b = append(b, byte(f.Type), 0)
	b = binary.LittleEndian.AppendUint16(b, uint16(f.Kind))
	return binary.LittleEndian.AppendUint64(b, f.ID)
}

func encodeFrame(f frame) []byte {
	b := make([]byte, 0, frameHead+len(f.Body))
	return append(appendHead(b, f, len(f.Body)), f.Body...)
}

// parseHead decodes a frame's head and returns the length of its body. Bodies
// longer than limit are an error, and so are heads that no version has.
func parseHead(b *[frameHead]byte, limit int) (frame, int, error) {
	n := binary.LittleEndian.Uint32(b[:])
	f := frame{
		Type: frameType(b[4]),
		Kind: Kind(binary.LittleEndian.Uint16(b[6:])),
		ID:   binary.LittleEndian.Uint64(b[8:]),
	}
	switch {
	case f.Type == 0 || f.Type >= frameLast:
		return frame{}, 0, &ProtocolError{What: fmt.Sprintf("frame of type %d", f.Type)}
	case b[5] != 0:
		return frame{}, 0, &ProtocolError{What: "frame with unknown flags"}
	case uint64(n) > uint64(limit):
		return frame{}, 0, &ProtocolError{What: fmt.Sprintf("frame of %d bytes, at most %d", n, limit)}
	}
	return f, int(n), nil
}

// readFrame reads one frame whose body has at most limit bytes. Its body is
// the caller's.
func readFrame(r io.Reader, limit int) (frame, error) {
	var head [frameHead]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return frame{}, err
	}
	f, n, err := parseHead(&head, limit)
	if err != nil || n == 0 {
		return f, err
	}
	f.Body = make([]byte, n)
	if _, err := io.ReadFull(r, f.Body); err != nil {
		return frame{}, err
	}
	return f, nil
}

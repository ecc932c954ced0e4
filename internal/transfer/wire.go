package transfer

import (
	"encoding/binary"
	"errors"
)

// A reader takes fields off the front of a message. The first field that is
// not there makes it bad, and every later one is zero.
type reader struct {
	b   []byte
	bad bool
}

func (r *reader) take(n int) []byte {
	if r.bad || n < 0 || n > len(r.b) {
		r.bad = true
		return nil
	}
	b := r.b[:n:n]
	r.b = r.b[n:]
	return b
}

func (r *reader) u8() uint8 {
	if b := r.take(1); b != nil {
		return b[0]
	}
	return 0
}

func (r *reader) u16() uint16 {
	if b := r.take(2); b != nil {
		return binary.LittleEndian.Uint16(b)
	}
	return 0
}

func (r *reader) u32() uint32 {
	if b := r.take(4); b != nil {
		return binary.LittleEndian.Uint32(b)
	}
	return 0
}

func (r *reader) u64() uint64 {
	if b := r.take(8); b != nil {
		return binary.LittleEndian.Uint64(b)
	}
	return 0
}

// text takes a string with a 16-bit length of at most limit bytes.
func (r *reader) text(limit int) string {
	n := int(r.u16())
	if n > limit {
		r.bad = true
	}
	return string(r.take(n))
}

// end reports whether all fields were there and nothing follows them.
func (r *reader) end() bool { return !r.bad && len(r.b) == 0 }

func appendText(b []byte, s string, limit int) []byte {
	if len(s) > limit {
		s = s[:limit]
	}
	b = binary.LittleEndian.AppendUint16(b, uint16(len(s)))
	return append(b, s...)
}

// Codes of an error frame.
const (
	codeRefused  = 1 // text code, text
	codeReleased = 2
	codeEpoch    = 3 // u64 have, u64 want
	codeBounds   = 4 // text
	codeProtocol = 5 // text
)

// encodeError encodes err as the body of an error frame.
func encodeError(err error) []byte {
	var (
		epoch    *EpochError
		bounds   *BoundsError
		protocol *ProtocolError
		refused  *RefusedError
	)
	switch {
	case errors.Is(err, ErrReleased):
		return []byte{codeReleased}
	case errors.As(err, &epoch):
		b := binary.LittleEndian.AppendUint64([]byte{codeEpoch}, epoch.Have)
		return binary.LittleEndian.AppendUint64(b, epoch.Want)
	case errors.As(err, &bounds):
		return appendText([]byte{codeBounds}, bounds.What, maxErrText)
	case errors.As(err, &protocol):
		return appendText([]byte{codeProtocol}, protocol.What, maxErrText)
	case errors.As(err, &refused):
		b := appendText([]byte{codeRefused}, refused.Code, maxErrCode)
		return appendText(b, refused.Text, maxErrText)
	}
	b := appendText([]byte{codeRefused}, RefusedFault, maxErrCode)
	return appendText(b, err.Error(), maxErrText)
}

// decodeError is the inverse of encodeError.
func decodeError(body []byte) error {
	r := reader{b: body}
	var err error
	switch r.u8() {
	case codeReleased:
		err = ErrReleased
	case codeEpoch:
		err = &EpochError{Have: r.u64(), Want: r.u64()}
	case codeBounds:
		err = &BoundsError{What: r.text(maxErrText)}
	case codeProtocol:
		err = &ProtocolError{What: "peer says: " + r.text(maxErrText)}
	case codeRefused:
		err = &RefusedError{Code: r.text(maxErrCode), Text: r.text(maxErrText)}
	default:
		return &ProtocolError{What: "error frame with unknown code"}
	}
	if !r.end() {
		return &ProtocolError{What: "malformed error frame"}
	}
	return err
}

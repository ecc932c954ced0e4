package transfer

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"time"
)

// Versions of the protocol that this build speaks.
const (
	minVersion = 1
	maxVersion = 1
)

const helloMagic = "TNDM"

// purpose is what a connection is for.
type purpose uint8

const (
	forCalls purpose = 1 + iota
	forData
	forDescriptors
)

// maxUnixPath is the longest path of a unix socket.
const maxUnixPath = 107

// A hello opens a connection:
//
//	"TNDM" | u8 min | u8 max | u8 purpose | [16] incarnation | [32] nonce | u64 session | text name
type hello struct {
	Min, Max    uint8
	Purpose     purpose
	Incarnation [16]byte
	Nonce       [32]byte
	Session     uint64 // of the control connection that a data connection belongs to
	Name        string
}

func (h *hello) encode() []byte {
	b := append([]byte(helloMagic), h.Min, h.Max, byte(h.Purpose))
	b = append(b, h.Incarnation[:]...)
	b = append(b, h.Nonce[:]...)
	b = binary.LittleEndian.AppendUint64(b, h.Session)
	return appendText(b, h.Name, maxName)
}

func decodeHello(b []byte) (hello, error) {
	r := reader{b: b}
	if string(r.take(4)) != helloMagic {
		return hello{}, &ProtocolError{What: "not a hello"}
	}
	h := hello{Min: r.u8(), Max: r.u8(), Purpose: purpose(r.u8())}
	copy(h.Incarnation[:], r.take(16))
	copy(h.Nonce[:], r.take(32))
	h.Session = r.u64()
	h.Name = r.text(maxName)
	if !r.end() || h.Min > h.Max || h.Purpose < forCalls || h.Purpose > forDescriptors {
		return hello{}, &ProtocolError{What: "malformed hello"}
	}
	return h, nil
}

// proof binds the token to one handshake and one of its two roles.
func proof(token []byte, role string, version uint8, h *hello, incarnation [16]byte, nonce [32]byte) []byte {
	m := hmac.New(sha256.New, token)
	m.Write([]byte("tandem peer "))
	m.Write([]byte(role))
	m.Write([]byte{0, version, byte(h.Purpose), h.Min, h.Max})
	m.Write(h.Incarnation[:])
	m.Write(incarnation[:])
	m.Write(h.Nonce[:])
	m.Write(nonce[:])
	m.Write(binary.LittleEndian.AppendUint64(nil, h.Session))
	return m.Sum(nil)
}

// identity is what one side says about itself.
type identity struct {
	Incarnation [16]byte
	Name        string
	Token       []byte
}

// accepted is what the dialler knows after a handshake.
type accepted struct {
	Incarnation [16]byte
	Name        string
	Session     uint64
}

// introduce carries out the dialler's side of the handshake by the deadline.
// The dialler proves the token first; it sends nothing else before the listener
// has proved it too.
func introduce(c net.Conn, me identity, p purpose, session uint64, deadline time.Time) (accepted, error) {
	if err := c.SetDeadline(deadline); err != nil {
		return accepted{}, err
	}
	h := hello{Min: minVersion, Max: maxVersion, Purpose: p, Incarnation: me.Incarnation, Session: session, Name: me.Name}
	_, _ = rand.Read(h.Nonce[:]) // never fails
	if _, err := c.Write(encodeFrame(frame{Type: frameHello, Body: h.encode()})); err != nil {
		return accepted{}, err
	}
	body, err := expect(c, frameChallenge)
	if err != nil {
		return accepted{}, err
	}
	r := reader{b: body}
	var a accepted
	var nonce [32]byte
	version := r.u8()
	copy(a.Incarnation[:], r.take(16))
	copy(nonce[:], r.take(32))
	a.Name = r.text(maxName)
	if !r.end() || version < minVersion || version > maxVersion {
		return accepted{}, &ProtocolError{What: "malformed challenge"}
	}
	if a.Incarnation == me.Incarnation {
		return accepted{}, &RefusedError{Code: RefusedSelf, Text: "the address leads back to this engine"}
	}
	mine := proof(me.Token, "dial", version, &h, a.Incarnation, nonce)
	if _, err := c.Write(encodeFrame(frame{Type: frameProof, Body: mine})); err != nil {
		return accepted{}, err
	}
	if body, err = expect(c, frameAccept); err != nil {
		return accepted{}, err
	}
	r = reader{b: body}
	theirs := r.take(sha256.Size)
	a.Session = r.u64()
	if !r.end() {
		return accepted{}, &ProtocolError{What: "malformed accept"}
	}
	if !hmac.Equal(theirs, proof(me.Token, "listen", version, &h, a.Incarnation, nonce)) {
		return accepted{}, &RefusedError{Code: RefusedToken, Text: "the listener does not hold the cluster token"}
	}
	return a, c.SetDeadline(time.Time{})
}

// expect reads one small frame of a type; an error frame becomes its error.
func expect(c net.Conn, t frameType) ([]byte, error) {
	f, err := readFrame(c, maxHello+maxErrText+maxErrCode)
	if err != nil {
		return nil, err
	}
	if f.Type == frameError {
		return nil, decodeError(f.Body)
	}
	if f.Type != t {
		return nil, &ProtocolError{What: fmt.Sprintf("frame of type %d, want %d", f.Type, t)}
	}
	return f.Body, nil
}

// challenge carries out the listener's side until the dialler has proved the
// token. The caller then sends accept with a session.
func challenge(c net.Conn, me identity, deadline time.Time) (h hello, accept func(session uint64) []byte, err error) {
	if err := c.SetDeadline(deadline); err != nil {
		return hello{}, nil, err
	}
	f, err := readFirst(c)
	if err != nil {
		return hello{}, nil, err
	}
	if f.Type != frameHello {
		return hello{}, nil, &ProtocolError{What: "connection does not begin with a hello"}
	}
	if h, err = decodeHello(f.Body); err != nil {
		return hello{}, nil, err
	}
	version := min(h.Max, maxVersion)
	if version < max(h.Min, minVersion) {
		return hello{}, nil, &RefusedError{Code: RefusedVersion, Text: fmt.Sprintf(
			"this engine speaks versions %d to %d, the other %d to %d", minVersion, maxVersion, h.Min, h.Max)}
	}
	var nonce [32]byte
	_, _ = rand.Read(nonce[:]) // never fails
	b := append([]byte{version}, me.Incarnation[:]...)
	b = append(b, nonce[:]...)
	b = appendText(b, me.Name, maxName)
	if _, err := c.Write(encodeFrame(frame{Type: frameChallenge, Body: b})); err != nil {
		return hello{}, nil, err
	}
	if f, err = readFrame(c, maxHello); err != nil {
		return hello{}, nil, err
	}
	if f.Type != frameProof {
		return hello{}, nil, &ProtocolError{What: "no proof after the challenge"}
	}
	if !hmac.Equal(f.Body, proof(me.Token, "dial", version, &h, me.Incarnation, nonce)) {
		return hello{}, nil, errWrongToken
	}
	return h, func(session uint64) []byte {
		b := proof(me.Token, "listen", version, &h, me.Incarnation, nonce)
		return encodeFrame(frame{Type: frameAccept, Body: binary.LittleEndian.AppendUint64(b, session)})
	}, nil
}

var errWrongToken = &RefusedError{Code: RefusedToken, Text: "wrong cluster token"}

// isProtocol reports whether err is the other side's fault against the protocol.
func isProtocol(err error) bool {
	var p *ProtocolError
	return errors.As(err, &p)
}

package transfer

import (
	"bytes"
	"errors"
	"io"
	"testing"

	"pgregory.net/rapid"
)

// FuzzFrame feeds bytes to every decoder that strangers and peers reach. None
// may panic or take more memory than its limit; what decodes encodes to the
// same bytes.
func FuzzFrame(f *testing.F) {
	h := hello{Min: 1, Max: 1, Purpose: forCalls, Name: "a"}
	f.Add(encodeFrame(frame{Type: frameHello, Body: h.encode()}))
	q := readRequest{Pieces: 1, Len: 4096, Tiles: []int32{1, 2, 3}}
	f.Add(encodeFrame(frame{Type: frameCall, Kind: kindRead, ID: 9, Body: q.encode()}))
	for _, err := range []error{ErrReleased, &EpochError{1, 2}, &BoundsError{"x"}, &ProtocolError{"y"}, &RefusedError{"c", "t"}, io.EOF} {
		f.Add(encodeFrame(frame{Type: frameError, ID: 1, Body: encodeError(err)}))
	}
	f.Add(encodeFrame(frame{Type: framePing}))
	f.Fuzz(func(t *testing.T, b []byte) {
		fr, err := readFrame(bytes.NewReader(b), maxHello)
		if err != nil {
			return
		}
		again := encodeFrame(fr)
		if !bytes.Equal(again, b[:len(again)]) {
			t.Fatalf("frame %x encodes to %x", b, again)
		}
		if h, err := decodeHello(fr.Body); err == nil && !bytes.Equal(h.encode(), fr.Body) {
			t.Fatalf("hello %x encodes to %x", fr.Body, h.encode())
		}
		if q, err := decodeReadRequest(fr.Body); err == nil {
			if !bytes.Equal(q.encode(), fr.Body) {
				t.Fatalf("read %x encodes to %x", fr.Body, q.encode())
			}
			if s, err := q.strides(4096); err == nil && s.RemoteOff+(s.Pieces-1)*s.RemoteStep+s.Len > 4096 {
				t.Fatalf("%+v leaves its tile", s)
			}
		}
		if decodeError(fr.Body) == nil {
			t.Fatal("an error frame decodes to no error")
		}
	})
}

// FuzzDescription does the same for descriptions.
func FuzzDescription(f *testing.F) {
	d := description{Rank: 1, Geometry: Geometry{Tiles: 4, TileBytes: 4096}, Epoch: 3, Unix: "/run/x.sock"}
	f.Add(d.encode())
	f.Fuzz(func(t *testing.T, b []byte) {
		d, err := decodeDescription(b)
		if err == nil && !bytes.Equal(d.encode(), b) {
			t.Fatalf("description %x encodes to %x", b, d.encode())
		}
	})
}

func TestDescriptionIsSmallAndChecked(t *testing.T) {
	d := description{Rank: 7, Geometry: Geometry{Tiles: 1<<31 - 1, TileBytes: maxTile}, Epoch: 1 << 60, Released: true,
		Unix: string(bytes.Repeat([]byte("x"), maxUnixPath))}
	b := d.encode()
	if len(b) >= maxDescribe {
		t.Fatalf("%d bytes", len(b))
	}
	got, err := decodeDescription(b)
	if err != nil || *got != d {
		t.Fatalf("%+v, %v", got, err)
	}
	for i := range b {
		c := bytes.Clone(b)
		c[i] ^= 1
		if _, err := decodeDescription(c); err == nil {
			t.Fatalf("a flipped bit in byte %d goes unnoticed", i)
		}
	}
}

func TestErrorsCrossTheWire(t *testing.T) {
	for _, err := range []error{ErrReleased, &EpochError{4, 5}, &BoundsError{"b"}, &RefusedError{"code", "text"}} {
		got := decodeError(encodeError(err))
		if got.Error() != err.Error() {
			t.Errorf("%v becomes %v", err, got)
		}
	}
	if got := decodeError(encodeError(errors.New("secret"))); !isRefused(got, RefusedFault) {
		t.Error(got)
	}
}

// A plan accepts exactly the pieces that lie in both tiles, and joins those that
// follow each other.
func TestStridesStayInTheirTiles(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(-1, 70)
		s := Strides{
			Pieces: rapid.IntRange(-1, 6).Draw(t, "pieces"), Len: n.Draw(t, "len"),
			LocalOff: n.Draw(t, "lo"), LocalStep: n.Draw(t, "ls"), RemoteOff: n.Draw(t, "ro"), RemoteStep: n.Draw(t, "rs"),
		}
		local, remote := rapid.IntRange(1, 128).Draw(t, "local"), rapid.IntRange(1, 128).Draw(t, "remote")
		ok := s.Pieces > 0 && s.Len > 0
		in := func(off, step, size int) bool {
			seen := map[int]bool{}
			for p := range s.Pieces {
				for i := range s.Len {
					at := off + p*step + i
					if at < 0 || at >= size || seen[at] {
						return false
					}
					seen[at] = true
				}
			}
			return off >= 0 && step >= 0
		}
		ok = ok && in(s.LocalOff, s.LocalStep, local) && in(s.RemoteOff, s.RemoteStep, remote)
		got, err := s.compact(local, remote)
		if (err == nil) != ok {
			t.Fatalf("%+v in %d and %d: %v", s, local, remote, err)
		}
		if err != nil {
			return
		}
		if got.bytes() != s.bytes() {
			t.Fatalf("%+v moves %d bytes, %+v %d", got, got.bytes(), s, s.bytes())
		}
		src, a, b := make([]byte, remote), make([]byte, local), make([]byte, local)
		for i := range src {
			src[i] = byte(i + 1)
		}
		var never Read
		copyPieces(a, src, s, &never.stopped)
		copyPieces(b, src, got, &never.stopped)
		if !bytes.Equal(a, b) {
			t.Fatal("joined pieces move other bytes")
		}
	})
}

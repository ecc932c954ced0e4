package fault

import (
	"bytes"
	"encoding/binary"
	"slices"
)

// Where things lie in the messages of docs/handoff.md.
const (
	incarnationBytes = 16
	leaseBytes       = 16
	wantBytes        = 4 // at the end of a claim: how long D's load may last
	sumsAt           = 9 // in a claim's answer, behind verdict, limit and count
)

// flipClaim returns a claim with one wrong bit between the lease's id and the
// duration, so that P has the lease and D gives it back.
func flipClaim(body []byte, draw uint64) []byte {
	from, to := incarnationBytes+leaseBytes, len(body)-wantBytes
	if to <= from {
		return body
	}
	return flipBit(bytes.Clone(body), from, to, draw)
}

// flipBit changes one bit of b[from:to].
func flipBit(b []byte, from, to int, draw uint64) []byte {
	bit := draw % (uint64(to-from) * 8)
	b[from+int(bit/8)] ^= 1 << (bit % 8)
	return b
}

// returnOf returns the message that gives the lease of a claim back.
func returnOf(claim []byte) []byte {
	if len(claim) < incarnationBytes+leaseBytes {
		return nil
	}
	out := bytes.Clone(claim[:incarnationBytes])
	out = binary.BigEndian.AppendUint32(out, 1)
	return append(out, claim[incarnationBytes:incarnationBytes+leaseBytes]...)
}

// otherFactor returns a hello in which the first factor has another value: text
// engine, incarnation, count, text name, text value.
func otherFactor(hello []byte) []byte {
	out := bytes.Clone(hello)
	at := 0
	text := func() []byte {
		if at < 0 || len(out)-at < 4 {
			at = -1
			return nil
		}
		n := int(binary.BigEndian.Uint32(out[at:]))
		if n > len(out)-at-4 {
			at = -1
			return nil
		}
		at += 4 + n
		return out[at-n : at]
	}
	if text(); at < 0 {
		return out
	}
	at += incarnationBytes + 4
	name, value := text(), text()
	switch {
	case len(value) > 0:
		value[0] ^= 1
	case len(name) > 0:
		name[0] ^= 1
	}
	return out
}

// sums are the sums of a claim's answer, [rank][tile][head].
type sums struct {
	head         []byte // verdict and limit
	list         []uint64
	tiles, heads int
}

// parseSums reads an answer that grants a claim.
func parseSums(body []byte, ranks, heads int) (s sums, ok bool) {
	if len(body) < sumsAt || body[0] != 0 {
		return s, false
	}
	n := int(binary.BigEndian.Uint32(body[sumsAt-4:]))
	if n == 0 || len(body) != sumsAt+8*n || n%(ranks*heads) != 0 {
		return s, false
	}
	s = sums{head: body[:sumsAt-4], list: make([]uint64, n), tiles: n / (ranks * heads), heads: heads}
	for i := range s.list {
		s.list[i] = binary.BigEndian.Uint64(body[sumsAt+8*i:])
	}
	return s, true
}

func (s *sums) encode() []byte {
	b := binary.BigEndian.AppendUint32(bytes.Clone(s.head), uint32(len(s.list)))
	for _, v := range s.list {
		b = binary.BigEndian.AppendUint64(b, v)
	}
	return b
}

// spoil returns the answer with the fault in it.
func (s *sums) spoil(f Fault) []byte {
	if f.Action == OtherTile && s.tiles == 1 {
		f.Action = Flip // a single tile has no other
	}
	old := slices.Clone(s.list)
	chosen := choose(f, s.tiles)
	row := func(tile int) int { return tile * s.heads } // of rank 0
	switch f.Action {
	case Drop:
		s.list = slices.Delete(s.list, row(chosen[0]), row(chosen[0])+s.heads)
	case Duplicate:
		s.list = slices.Insert(s.list, row(chosen[0]), old[row(chosen[0]):row(chosen[0])+s.heads]...)
	default:
		for _, t := range chosen {
			s.spoilTile(f, old, t)
		}
	}
	return s.encode()
}

// spoilTile changes the sums of one tile.
func (s *sums) spoilTile(f Fault, old []uint64, tile int) {
	ranks := len(old) / (s.tiles * s.heads)
	if f.Action == Flip {
		i := int(f.Draw >> 8 % uint64(ranks*s.heads))
		s.list[(i/s.heads*s.tiles+tile)*s.heads+i%s.heads] ^= 1 << (f.Draw % 64)
		return
	}
	other := (tile + 1) % s.tiles
	for r := range ranks {
		copy(s.list[(r*s.tiles+tile)*s.heads:][:s.heads], old[(r*s.tiles+other)*s.heads:][:s.heads])
	}
}

// choose returns the tiles of n that f hits: each Every-th, or the one that the
// draw chooses. There is always one.
func choose(f Fault, n int) []int {
	if f.Every == 0 {
		return []int{int(f.Draw >> 16 % uint64(n))}
	}
	out := []int{}
	for i := f.Every - 1; i < n; i += f.Every {
		out = append(out, i)
	}
	if len(out) == 0 {
		out = append(out, n-1)
	}
	return out
}

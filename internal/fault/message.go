package fault

import (
	"bytes"
	"slices"

	"tandem/internal/connector"
)

// flipClaim returns a claim with one wrong bit. The lease's id is right, so that P
// has the lease and D gives it back.
func flipClaim(body []byte, draw uint64) []byte {
	out := bytes.Clone(body)
	if terms := connector.TermsOf(out); len(terms) > 0 {
		flipBit(terms, 0, len(terms), draw)
	}
	return out
}

// flipBit changes one bit of b[from:to].
func flipBit(b []byte, from, to int, draw uint64) {
	bit := draw % (uint64(to-from) * 8)
	b[from+int(bit/8)] ^= 1 << (bit % 8)
}

// otherFactor changes the first factor of a hello.
func otherFactor(factors []connector.Factor) {
	if len(factors) > 0 {
		factors[0].Value = "injected"
	}
}

// sums are the sums of a claim's answer, [rank][tile][head].
type sums struct {
	answer       []byte
	list         []uint64
	tiles, heads int
}

// parseSums reads an answer that grants a claim.
func parseSums(answer []byte, ranks, heads int) (s sums, ok bool) {
	list, granted := connector.SumsOf(answer)
	if n := len(list); !granted || n == 0 || n%(ranks*heads) != 0 {
		return s, false
	}
	return sums{answer, list, len(list) / (ranks * heads), heads}, true
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
	return connector.WithSums(s.answer, s.list)
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

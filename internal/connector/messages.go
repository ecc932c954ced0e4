package connector

import "tandem/internal/connector/core"

// What Config.Decorate's network may see and change of the messages that pass it.
// What is not a message of the kind is returned as it is, or gives nothing.

// EditFactors returns a hello whose factors edit has changed.
func EditFactors(hello []byte, edit func([]Factor)) []byte {
	h, err := decodeHello(hello)
	if err != nil {
		return hello
	}
	edit(h.Factors)
	return h.encode()
}

// TermsOf returns the bytes of a claim, within it, that P compares with the lease:
// what lies between the lease's id and the time that D wants.
func TermsOf(claim []byte) []byte {
	if _, err := decodeClaim(claim); err != nil {
		return nil
	}
	return claim[len(Incarnation{})+len(LeaseID{}) : len(claim)-wantBytes]
}

// ReturnOf returns the message that gives the lease of a claim back.
func ReturnOf(claim []byte) []byte {
	c, err := decodeClaim(claim)
	if err != nil {
		return nil
	}
	return encodeLeases(c.Incarnation, []LeaseID{c.Lease})
}

// SumsOf returns the sums of an answer that grants a claim: rank, tile, head.
func SumsOf(answer []byte) (sums []uint64, granted bool) {
	a, err := decodeClaimAnswer(answer)
	if err != nil || a.Verdict != core.VerdictOK {
		return nil, false
	}
	return a.Sums, true
}

// WithSums returns an answer that grants a claim with other sums.
func WithSums(answer []byte, sums []uint64) []byte {
	a, err := decodeClaimAnswer(answer)
	if err != nil {
		return answer
	}
	a.Sums = sums
	return a.encode()
}

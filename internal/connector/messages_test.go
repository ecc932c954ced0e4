package connector

import (
	"bytes"
	"slices"
	"testing"
	"time"

	"tandem/internal/connector/core"
)

// A decorated network finds in messages what was put there, and nothing in what is
// no message.
func TestMessagesCanBeEdited(t *testing.T) {
	h := hello{Engine: "P", Factors: []Factor{{"layers", "2"}, {"heads", "3"}}, Epoch: 5}
	edited, err := decodeHello(EditFactors(h.encode(), func(f []Factor) { f[1].Value = "4" }))
	if err != nil || edited.Engine != "P" || edited.Epoch != 5 || !slices.Equal(edited.Factors, []Factor{{"layers", "2"}, {"heads", "4"}}) {
		t.Errorf("%+v, %v", edited, err)
	}

	c := core.Claim{Incarnation: Incarnation{1}, Lease: LeaseID{2}, Epoch: 3, From: 1, To: 2, Tokens: 20, Digest: core.Digest{4}, Want: time.Second}
	claim := encodeClaim(&c)
	terms := TermsOf(claim)
	for _, i := range []int{0, len(terms) - 1} {
		terms[i] ^= 1
		got, err := decodeClaim(claim)
		if err != nil || got.Incarnation != c.Incarnation || got.Lease != c.Lease || got.Want != c.Want || *got == c {
			t.Errorf("bit of byte %d of %d: %+v, %v", i, len(terms), got, err)
		}
		terms[i] ^= 1
	}
	if inc, ids, err := decodeLeases(ReturnOf(claim)); err != nil || inc != c.Incarnation || !slices.Equal(ids, []LeaseID{c.Lease}) {
		t.Errorf("return of %v %v, %v", inc, ids, err)
	}

	granted := claimAnswer{Limit: time.Second, Sums: []uint64{1, 2}}
	sums, ok := SumsOf(granted.encode())
	if !ok || !slices.Equal(sums, granted.Sums) {
		t.Errorf("sums %v, %v", sums, ok)
	}
	other, err := decodeClaimAnswer(WithSums(granted.encode(), []uint64{7}))
	if err != nil || other.Limit != time.Second || !slices.Equal(other.Sums, []uint64{7}) {
		t.Errorf("%+v, %v", other, err)
	}
	refused := claimAnswer{Verdict: core.VerdictBusy}
	if _, ok := SumsOf(refused.encode()); ok {
		t.Error("a refusal has sums")
	}

	for _, b := range [][]byte{nil, {1}, bytes.Repeat([]byte{255}, 200)} {
		_, ok := SumsOf(b)
		if ok || TermsOf(b) != nil || ReturnOf(b) != nil || !bytes.Equal(WithSums(b, sums), b) || !bytes.Equal(EditFactors(b, func([]Factor) { t.Error("edited") }), b) {
			t.Errorf("%d bytes are a message", len(b))
		}
	}
}

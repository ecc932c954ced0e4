package connector

import (
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"tandem/internal/connector/core"
	"tandem/internal/kv"
)

// errWire says that a message from a peer is malformed.
var errWire = errors.New("malformed message")

// Bounds of messages.
const (
	maxRenewals = 1024    // leases of one renew message
	maxDesc     = 1 << 10 // bytes of an agent's description
	maxSums     = 1 << 19 // sums of one claim answer
)

// appendText appends s behind its length.
func appendText(b []byte, s string) []byte {
	b = binary.BigEndian.AppendUint32(b, uint32(len(s)))
	return append(b, s...)
}

// A reader takes typed values off a message. The first error sticks and every
// later value is zero.
type reader struct {
	b   []byte
	err error
}

func (r *reader) take(n int) []byte {
	if r.err != nil || n < 0 || len(r.b) < n {
		r.err = errWire
		return nil
	}
	v := r.b[:n]
	r.b = r.b[n:]
	return v
}

func (r *reader) u8() uint8 {
	if v := r.take(1); v != nil {
		return v[0]
	}
	return 0
}

func (r *reader) u32() uint32 {
	if v := r.take(4); v != nil {
		return binary.BigEndian.Uint32(v)
	}
	return 0
}

func (r *reader) u64() uint64 {
	if v := r.take(8); v != nil {
		return binary.BigEndian.Uint64(v)
	}
	return 0
}

// count reads a length of at most limit.
func (r *reader) count(limit int) int {
	n := r.u32()
	if int64(n) > int64(limit) {
		r.err = errWire
		return 0
	}
	return int(n)
}

func (r *reader) text(limit int) string { return string(r.take(r.count(limit))) }

func (r *reader) fixed(out []byte) { copy(out, r.take(len(out))) }

// end returns the error of the whole message; left-over bytes are one.
func (r *reader) end(what string) error {
	if r.err == nil && len(r.b) > 0 {
		r.err = errWire
	}
	if r.err != nil {
		return fmt.Errorf("connector: reading a %s: %w", what, r.err)
	}
	return nil
}

// A hello is both sides' part of the handshake. Ranks is empty in the question.
type hello struct {
	Engine      kv.EngineID
	Incarnation Incarnation
	Factors     []Factor
	Epoch       kv.Epoch
	BlockTokens int
	Heads       int      // KV heads of one rank
	Ranks       [][]byte // description of each rank's agent
}

func (h *hello) encode() []byte {
	b := appendText(nil, string(h.Engine))
	b = append(b, h.Incarnation[:]...)
	b = binary.BigEndian.AppendUint32(b, uint32(len(h.Factors)))
	for _, f := range h.Factors {
		b = appendText(appendText(b, f.Name), f.Value)
	}
	b = binary.BigEndian.AppendUint64(b, uint64(h.Epoch))
	b = binary.BigEndian.AppendUint32(b, uint32(h.BlockTokens))
	b = binary.BigEndian.AppendUint32(b, uint32(h.Heads))
	b = binary.BigEndian.AppendUint32(b, uint32(len(h.Ranks)))
	for _, d := range h.Ranks {
		b = appendText(b, string(d))
	}
	return b
}

func decodeHello(body []byte) (*hello, error) {
	r := &reader{b: body}
	h := &hello{Engine: kv.EngineID(r.text(maxEngineID))}
	r.fixed(h.Incarnation[:])
	for n := r.count(maxFactors); n > 0 && r.err == nil; n-- {
		h.Factors = append(h.Factors, Factor{r.text(maxFactorBytes), r.text(maxFactorBytes)})
	}
	h.Epoch = kv.Epoch(r.u64())
	h.BlockTokens = r.count(1 << 16)
	h.Heads = r.count(1 << 16)
	for n := r.count(MaxTP); n > 0 && r.err == nil; n-- {
		h.Ranks = append(h.Ranks, []byte(r.text(maxDesc)))
	}
	return h, r.end("hello")
}

func encodeClaim(c *core.Claim) []byte {
	b := append([]byte(nil), c.Incarnation[:]...)
	b = append(b, c.Lease[:]...)
	b = binary.BigEndian.AppendUint64(b, uint64(c.Epoch))
	b = binary.BigEndian.AppendUint32(b, uint32(c.From))
	b = binary.BigEndian.AppendUint32(b, uint32(c.To))
	b = binary.BigEndian.AppendUint32(b, uint32(c.Tokens))
	b = append(b, c.Digest[:]...)
	b = append(b, c.Factors[:]...)
	return binary.BigEndian.AppendUint32(b, uint32(max(c.Want, 0)/time.Millisecond))
}

// wantBytes is the length of Want, at a claim's end.
const wantBytes = 4

func decodeClaim(body []byte) (*core.Claim, error) {
	r := &reader{b: body}
	c := &core.Claim{}
	r.fixed(c.Incarnation[:])
	r.fixed(c.Lease[:])
	c.Epoch = kv.Epoch(r.u64())
	c.From, c.To, c.Tokens = r.count(MaxTokens), r.count(MaxTokens), r.count(MaxTokens)
	r.fixed(c.Digest[:])
	r.fixed(c.Factors[:])
	c.Want = time.Duration(r.u32()) * time.Millisecond
	return c, r.end("claim")
}

// A claimAnswer carries P's sums, [rank][tile][head], when Verdict is OK.
type claimAnswer struct {
	Verdict core.Verdict
	Limit   time.Duration // the claim ends after it
	Sums    []uint64
}

func (a *claimAnswer) encode() []byte {
	b := make([]byte, 0, 9+8*len(a.Sums))
	b = append(b, byte(a.Verdict))
	b = binary.BigEndian.AppendUint32(b, uint32(a.Limit/time.Millisecond))
	b = binary.BigEndian.AppendUint32(b, uint32(len(a.Sums)))
	for _, s := range a.Sums {
		b = binary.BigEndian.AppendUint64(b, s)
	}
	return b
}

func decodeClaimAnswer(body []byte) (*claimAnswer, error) {
	r := &reader{b: body}
	a := &claimAnswer{Verdict: core.Verdict(r.u8()), Limit: time.Duration(r.u32()) * time.Millisecond}
	n := r.count(maxSums)
	if r.err == nil && len(r.b) != 8*n {
		r.err = errWire
	}
	if r.err == nil {
		a.Sums = make([]uint64, n)
		for i := range a.Sums {
			a.Sums[i] = r.u64()
		}
	}
	if a.Verdict >= core.VerdictEnd {
		r.err = errWire
	}
	return a, r.end("claim answer")
}

// encodeLeases writes the body of a renewal or a return.
func encodeLeases(inc Incarnation, ids []LeaseID) []byte {
	b := append([]byte(nil), inc[:]...)
	b = binary.BigEndian.AppendUint32(b, uint32(len(ids)))
	for _, id := range ids {
		b = append(b, id[:]...)
	}
	return b
}

func decodeLeases(body []byte) (inc Incarnation, ids []LeaseID, err error) {
	r := &reader{b: body}
	r.fixed(inc[:])
	for n := r.count(maxRenewals); n > 0 && r.err == nil; n-- {
		var id LeaseID
		r.fixed(id[:])
		ids = append(ids, id)
	}
	return inc, ids, r.end("list of leases")
}

// encodeVerdicts writes the answer to a renewal or a return, one for each lease.
func encodeVerdicts(vs []core.Verdict) []byte {
	b := make([]byte, len(vs))
	for i, v := range vs {
		b[i] = byte(v)
	}
	return b
}

func decodeVerdicts(body []byte, n int) ([]core.Verdict, error) {
	if len(body) != n {
		return nil, fmt.Errorf("connector: reading verdicts: %w", errWire)
	}
	vs := make([]core.Verdict, n)
	for i, b := range body {
		if vs[i] = core.Verdict(b); vs[i] >= core.VerdictEnd {
			return nil, fmt.Errorf("connector: reading verdicts: %w", errWire)
		}
	}
	return vs, nil
}

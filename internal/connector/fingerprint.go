package connector

import (
	"crypto/sha256"
	"encoding/binary"
	"slices"
	"strconv"

	"tandem/internal/kv"
)

// ProtocolVersion numbers the messages of this package (hello, claim, renew,
// return) and the meaning of the sums.
const ProtocolVersion = 1

// A Factor is one named property that two engines must share to exchange KV.
type Factor struct{ Name, Value string }

// Bounds of a fingerprint from the wire.
const (
	maxFactors     = 64
	maxFactorBytes = 512
)

// fingerprint appends to the engine's factors those of the layout. What may
// differ between P and D is left out: TP, block size, pool size, threads. A
// factor of the engine that the layout tells as well is the layout's.
func fingerprint(own []Factor, l kv.Layout, tp int) []Factor {
	layout := []Factor{
		{"layers", strconv.Itoa(l.Layers)},
		{"kv_heads", strconv.Itoa(l.Heads * tp)},
		{"head_size", strconv.Itoa(l.HeadDim)},
		{"kv_type", l.Elem.String()},
		{"tile_layout", "K[d][16] V[16][d]"},
	}
	out := []Factor{{"protocol_version", strconv.Itoa(ProtocolVersion)}}
	for _, f := range own {
		if !slices.ContainsFunc(layout, func(of Factor) bool { return of.Name == f.Name }) {
			out = append(out, f)
		}
	}
	return append(out, layout...)
}

// compareFactors returns a *FactorError for the first factor, in the order of
// local, that other lacks or has with another value, then for the first that
// only other has.
func compareFactors(local, other []Factor) error {
	values := make(map[string]string, len(other))
	for _, f := range other {
		values[f.Name] = f.Value
	}
	for _, f := range local {
		v, ok := values[f.Name]
		if !ok {
			v = "(absent)"
		}
		if !ok || v != f.Value {
			return &FactorError{Factor: f.Name, Local: f.Value, Other: v}
		}
		delete(values, f.Name)
	}
	for _, f := range other {
		if v, ok := values[f.Name]; ok {
			return &FactorError{Factor: f.Name, Local: "(absent)", Other: v}
		}
	}
	return nil
}

// factorSum condenses a fingerprint, so that each claim proves that the claimer
// compared the right one.
func factorSum(fs []Factor) [sha256.Size]byte {
	b := binary.BigEndian.AppendUint32(nil, uint32(len(fs)))
	for _, f := range fs {
		b = appendText(appendText(b, f.Name), f.Value)
	}
	return sha256.Sum256(b)
}

package model

import (
	"encoding/binary"
	"encoding/hex"

	"github.com/zeebo/xxh3"
)

// hashPiece is what one job of the content hash reads.
const hashPiece = 4 << 20

// A contentHash names a file by all its bytes: the xxh3-128 of the xxh3-128
// sums of its pieces, which are computed in any order.
type contentHash struct {
	data []byte
	sums []xxh3.Uint128
}

func newContentHash(data []byte) *contentHash {
	return &contentHash{data, make([]xxh3.Uint128, (len(data)+hashPiece-1)/hashPiece)}
}

// piece hashes piece i.
func (h *contentHash) piece(i int) {
	h.sums[i] = xxh3.Hash128(h.data[i*hashPiece : min(len(h.data), (i+1)*hashPiece)])
}

// String returns the hash in hexadecimal; all pieces must have been hashed.
func (h *contentHash) String() string {
	var b []byte
	for _, s := range h.sums {
		b = binary.LittleEndian.AppendUint64(binary.LittleEndian.AppendUint64(b, s.Hi), s.Lo)
	}
	sum := xxh3.Hash128(b).Bytes()
	return hex.EncodeToString(sum[:])
}

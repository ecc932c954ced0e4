package connector

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"

	"tandem/internal/connector/core"
	"tandem/internal/kv"
)

// HandoffVersion numbers the meaning of a hand-off's fields and of its MAC.
const HandoffVersion = 1

// Bounds of a hand-off. A field outside them is refused before it is used.
const (
	MaxHandoffBytes = 512 << 10 // of its JSON text
	MaxBlocks       = 1 << 16   // block ids
	MaxTokens       = 1 << 22   // remote_num_tokens
	MaxTP           = 64        // tp_size
	maxEngineID     = 128       // bytes
	maxRequestID    = 256
	maxHost         = 255
	maxAddr         = 270
	maxEpoch        = 1<<53 - 1 // what every JSON reader keeps exact
)

type (
	// An Incarnation is the random identity of one process start.
	Incarnation = core.Incarnation

	// A LeaseID is the random name of a lease. Knowing it is not enough to
	// claim the lease: the connection must have proved the cluster token.
	LeaseID = core.LeaseID

	// A Digest is the SHA-256 of token ids, each as four bytes, big-endian.
	Digest = core.Digest

	// A MAC authenticates a hand-off.
	MAC [sha256.Size]byte
)

// A Handoff tells D where the KV of a prompt is and under which lease. It is a
// value that nobody changes after it was parsed or granted.
type Handoff struct {
	EngineID    kv.EngineID // P's configured name
	RequestID   string      // P's own request id; opaque to D, for logs
	Incarnation Incarnation
	Lease       LeaseID
	Epoch       kv.Epoch // of P's registration
	TP          int      // P's ranks
	BlockTokens int      // tokens of one of P's blocks: 16, 32 or 64
	Tokens      int      // prompt tokens whose KV P offers
	Digest      Digest   // of those tokens
	Blocks      []kv.BlockID
	Addr        string // host:port of P's peer listener, the only address D dials
	Version     int
	MAC         MAC

	// Host and Port are for foreign tools, which may rewrite them. They are not
	// part of the MAC and are used for nothing.
	Host string
	Port int
}

// TokenDigest returns the digest of tokens.
func TokenDigest(tokens []kv.Token) Digest {
	s := sha256.New()
	var buf [1024]byte
	for len(tokens) > 0 {
		n := min(len(tokens), len(buf)/4)
		for i, t := range tokens[:n] {
			binary.BigEndian.PutUint32(buf[4*i:], uint32(t))
		}
		s.Write(buf[:4*n])
		tokens = tokens[n:]
	}
	var d Digest
	s.Sum(d[:0])
	return d
}

// Sign sets h.MAC with the cluster token.
func (h *Handoff) Sign(token []byte) { h.MAC = h.mac(token) }

// Vouched reports whether token made h's MAC over exactly these fields.
func (h *Handoff) Vouched(token []byte) bool {
	want := h.mac(token)
	return len(token) > 0 && hmac.Equal(want[:], h.MAC[:])
}

// mac returns HMAC-SHA256 of h under token. docs/handoff.md has the encoding.
func (h *Handoff) mac(token []byte) MAC {
	m := hmac.New(sha256.New, token)
	m.Write(h.appendSigned(make([]byte, 0, 256+4*len(h.Blocks))))
	var out MAC
	m.Sum(out[:0])
	return out
}

// macDomain separates this MAC from every other use of the cluster token.
const macDomain = "tandem hand-off mac\x00"

// appendSigned appends the signed fields: numbers big-endian with fixed width,
// texts and lists behind their length, so that no two hand-offs share an
// encoding.
func (h *Handoff) appendSigned(b []byte) []byte {
	b = append(b, macDomain...)
	b = binary.BigEndian.AppendUint32(b, uint32(h.Version))
	b = append(b, 1, 0) // do_remote_prefill, do_remote_decode
	b = append(b, h.Incarnation[:]...)
	b = append(b, h.Lease[:]...)
	b = binary.BigEndian.AppendUint64(b, uint64(h.Epoch))
	b = binary.BigEndian.AppendUint32(b, uint32(h.TP))
	b = binary.BigEndian.AppendUint32(b, uint32(h.BlockTokens))
	b = binary.BigEndian.AppendUint32(b, uint32(h.Tokens))
	b = append(b, h.Digest[:]...)
	b = appendText(b, string(h.EngineID))
	b = appendText(b, h.RequestID)
	b = appendText(b, h.Addr)
	b = binary.BigEndian.AppendUint32(b, 1) // groups
	b = binary.BigEndian.AppendUint32(b, uint32(len(h.Blocks)))
	for _, id := range h.Blocks {
		b = binary.BigEndian.AppendUint32(b, uint32(id))
	}
	return b
}

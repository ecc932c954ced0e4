package openai

import (
	"crypto/rand"
	"encoding/hex"
	"net/http"
)

// RequestID returns the client's X-Request-Id where it is printable and at most
// 256 bytes, else a new one. It is a label: nothing may be keyed by it.
func RequestID(h http.Header) string {
	id := h.Get("X-Request-Id")
	ok := id != "" && len(id) <= 256
	for i := 0; ok && i < len(id); i++ {
		ok = id[i] > ' ' && id[i] <= '~'
	}
	if ok {
		return id
	}
	var b [16]byte
	_, _ = rand.Read(b[:]) // never fails
	return hex.EncodeToString(b[:])
}

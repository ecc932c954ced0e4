package openai

import (
	"crypto/sha256"
	"crypto/subtle"
	"net/http"
	"strings"
)

// A Key is what clients must send as a bearer token. The zero Key asks for none.
type Key struct {
	sum *[sha256.Size]byte
}

// NewKey returns the key with the given text; "" is the zero Key.
func NewKey(text string) Key {
	if text == "" {
		return Key{}
	}
	sum := sha256.Sum256([]byte(text))
	return Key{&sum}
}

// Check returns nil where q brings k, else the error to answer with, of which it
// adds to the header what belongs there. It takes the same time for all wrong keys.
func (k Key) Check(h http.Header, q *http.Request) *Error {
	if k.sum == nil {
		return nil
	}
	scheme, token, _ := strings.Cut(q.Header.Get("Authorization"), " ")
	got := sha256.Sum256([]byte(token))
	if strings.EqualFold(scheme, "Bearer") && subtle.ConstantTimeCompare(got[:], k.sum[:]) == 1 {
		return nil
	}
	h.Set("WWW-Authenticate", "Bearer")
	return NewError(http.StatusUnauthorized, "", "the API key is missing or wrong: it is wanted as Authorization: Bearer KEY")
}

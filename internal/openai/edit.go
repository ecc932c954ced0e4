package openai

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math"
)

// A Body is a JSON object whose top-level members can be read and replaced
// without touching any other byte: key order, white space, duplicate keys and
// 64-bit integers come out as they went in. It aliases the bytes it was parsed
// from.
type Body struct {
	raw     []byte
	members []member
	open    int // index of '{'
	shut    int // index of its '}'
}

// A member spans raw[start:end], its value raw[value:end].
type member struct {
	key               string
	start, value, end int
}

// errNotObject says that a body is JSON but no object.
var errNotObject = errors.New("openai: body is not a JSON object")

// ParseBody finds the top-level members of raw, which must be one JSON object.
// The error of broken JSON names the byte offset.
func ParseBody(raw []byte) (*Body, error) {
	if !json.Valid(raw) {
		var v json.RawMessage
		err := json.Unmarshal(raw, &v)
		var syntax *json.SyntaxError
		if errors.As(err, &syntax) {
			return nil, fmt.Errorf("openai: parsing a body: offset %d: %w", syntax.Offset, err)
		}
		return nil, fmt.Errorf("openai: parsing a body: %w", err)
	}
	if raw[space(raw, 0)] != '{' {
		return nil, errNotObject
	}
	b, _ := scan(raw, math.MaxInt)
	return b, nil
}

// Get returns the raw value of key, the last one where it stands twice, as
// encoding/json reads it.
func (b *Body) Get(key string) (json.RawMessage, bool) {
	for i := len(b.members) - 1; i >= 0; i-- {
		if m := b.members[i]; m.key == key {
			return b.raw[m.value:m.end], true
		}
	}
	return nil, false
}

// An Edit sets the value of a top-level key, or removes the key where Value is
// nil. Value must be valid JSON.
type Edit struct {
	Key   string
	Value json.RawMessage
}

// Edit returns a copy of the body with the edits made. A key that stands
// several times is left once. New keys are added at the end, in order.
func (b *Body) Edit(edits ...Edit) []byte {
	size := len(b.raw)
	for _, e := range edits {
		size += len(e.Key) + len(e.Value) + 8
	}
	out := append(make([]byte, 0, size), b.raw[:b.open+1]...)
	kept := 0
	for i, m := range b.members {
		e, hit := find(edits, m.key)
		if hit && (e.Value == nil || b.again(i)) {
			continue
		}
		switch {
		case i > 0 && kept > 0:
			out = append(out, b.raw[b.members[i-1].end:m.start]...)
		case kept == 0:
			out = append(out, b.raw[b.open+1:b.members[0].start]...)
		}
		kept++
		if hit {
			out = append(out, b.raw[m.start:m.value]...)
			out = append(out, e.Value...)
		} else {
			out = append(out, b.raw[m.start:m.end]...)
		}
	}
	for _, e := range edits {
		if _, there := b.Get(e.Key); there || e.Value == nil {
			continue
		}
		if kept > 0 {
			out = append(out, ',')
		}
		kept++
		key, err := json.Marshal(e.Key)
		if err != nil {
			panic(err) // a string always marshals
		}
		out = append(append(append(out, key...), ':'), e.Value...)
	}
	tail := b.shut
	switch n := len(b.members); {
	case n > 0:
		tail = b.members[n-1].end
	case kept == 0:
		tail = b.open + 1
	}
	return append(out, b.raw[tail:]...)
}

// again reports whether member i's key stands once more behind it.
func (b *Body) again(i int) bool {
	for _, m := range b.members[i+1:] {
		if m.key == b.members[i].key {
			return true
		}
	}
	return false
}

func find(edits []Edit, key string) (Edit, bool) {
	for _, e := range edits {
		if e.Key == key {
			return e, true
		}
	}
	return Edit{}, false
}

// Elements returns the raw elements of a JSON array, nil where raw is none.
func Elements(raw json.RawMessage) []json.RawMessage {
	raw = bytes.TrimSpace(raw)
	if len(raw) == 0 || raw[0] != '[' || !json.Valid(raw) {
		return nil
	}
	out := []json.RawMessage{}
	each(raw, func(_ int, v json.RawMessage) bool {
		out = append(out, v)
		return true
	})
	return out
}

// space returns the index of the first byte at or after i that is no white
// space. The input is valid JSON, so there is one where a caller asks.
func space(raw []byte, i int) int {
	for i < len(raw) && (raw[i] == ' ' || raw[i] == '\t' || raw[i] == '\n' || raw[i] == '\r') {
		i++
	}
	return i
}

// valueEnd returns the index behind the value that starts at i of valid JSON.
func valueEnd(raw []byte, i int) int {
	switch raw[i] {
	case '"':
		for i++; raw[i] != '"'; i++ {
			if raw[i] == '\\' {
				i++
			}
		}
		return i + 1
	case '{', '[':
		depth := 0
		for ; ; i++ {
			switch raw[i] {
			case '"':
				i = valueEnd(raw, i) - 1
			case '{', '[':
				depth++
			case '}', ']':
				if depth--; depth == 0 {
					return i + 1
				}
			}
		}
	}
	for i < len(raw) && !bytes.ContainsRune([]byte(",]} \t\n\r"), rune(raw[i])) {
		i++
	}
	return i
}

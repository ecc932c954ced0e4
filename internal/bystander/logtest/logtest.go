// Package logtest is a log that many goroutines write and a test reads. Only
// tests import it.
package logtest

import (
	"bytes"
	"encoding/json"
	"strings"
	"sync"
	"testing"
)

// A Book takes what a slog handler writes. Its zero value is empty.
type Book struct {
	mu sync.Mutex
	b  bytes.Buffer
}

// Write implements io.Writer.
func (b *Book) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

// String returns all that was written.
func (b *Book) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

// Lines returns the lines with all of words, in order.
func (b *Book) Lines(words ...string) (out []string) {
	for l := range strings.Lines(b.String()) {
		has := true
		for _, w := range words {
			has = has && strings.Contains(l, w)
		}
		if has {
			out = append(out, l)
		}
	}
	return out
}

// Records returns the JSON lines with message msg, in order.
func (b *Book) Records(t *testing.T, msg string) (out []map[string]any) {
	t.Helper()
	for l := range strings.Lines(b.String()) {
		var m map[string]any
		if err := json.Unmarshal([]byte(l), &m); err != nil {
			t.Fatalf("%q: %v", l, err)
		}
		if m["msg"] == msg {
			out = append(out, m)
		}
	}
	return out
}

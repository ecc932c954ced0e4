package tokenizer

import "unicode/utf8"

// Piece returns the bytes that id stands for, control tokens included as their
// text. They may be part of a character. An unknown id stands for nothing.
func (t *Tokenizer) Piece(id int32) string {
	if !t.valid(id) {
		return ""
	}
	return t.pieces[id]
}

// DecodeText returns the text of ids as valid UTF-8: what a Decoder returns for
// them in all.
func (t *Tokenizer) DecodeText(ids []int32, special bool) string {
	out := make([]byte, 0, 4*len(ids))
	d := t.NewDecoder(special)
	for _, id := range ids {
		out = append(out, d.Push(id)...)
	}
	return string(append(out, d.Flush()...))
}

// A Decoder turns a stream of ids into text, never cutting a character. What
// it returns is valid UTF-8: bytes that cannot become a character are replaced
// by U+FFFD, one for each longest broken beginning of a character, as soon as
// that is certain. It belongs to one stream.
type Decoder struct {
	t       *Tokenizer
	special bool
	held    []byte // the beginning of a character, at most three bytes
}

// NewDecoder returns a decoder for one stream. Control tokens give their text
// when special is set and nothing otherwise.
func (t *Tokenizer) NewDecoder(special bool) *Decoder {
	return &Decoder{t: t, special: special}
}

// Push returns the text that is certain once id has come.
func (d *Decoder) Push(id int32) string {
	if !d.special && d.t.IsControl(id) {
		return ""
	}
	piece := d.t.Piece(id)
	if len(d.held) == 0 && utf8.ValidString(piece) {
		return piece
	}
	d.held = append(d.held, piece...)
	p := d.held
	var out []byte
	for len(p) > 0 && utf8.FullRune(p) {
		r, n := utf8.DecodeRune(p)
		if r == utf8.RuneError && n == 1 {
			out = utf8.AppendRune(out, utf8.RuneError)
			p = p[broken(p):]
			continue
		}
		out = append(out, p[:n]...)
		p = p[n:]
	}
	d.held = append(d.held[:0], p...)
	return string(out)
}

// broken returns the length of the longest beginning of p that began a
// character, p being known not to go on as one.
func broken(p []byte) int {
	n := 1
	for n < len(p) && !utf8.FullRune(p[:n]) {
		n++
	}
	// p[:n] is the first beginning that is wrong; its last byte is not part of
	// what is broken unless it stands alone.
	return max(1, n-1)
}

// Flush ends the stream: the beginning of a character that never ended becomes
// one U+FFFD.
func (d *Decoder) Flush() string {
	if len(d.held) == 0 {
		return ""
	}
	d.held = d.held[:0]
	return string(utf8.RuneError)
}

// Held returns the number of bytes waiting for the rest of their character.
func (d *Decoder) Held() int { return len(d.held) }

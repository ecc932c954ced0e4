package tokenizer

import "unicode/utf8"

// The GPT-2 alphabet spells each byte as one printable character: printable
// Latin-1 bytes as themselves, the 68 others as U+0100 and following, in order.

// spell returns the character that stands for b.
func spell(b byte) rune {
	switch {
	case b >= '!' && b <= '~', b >= 0xA1 && b <= 0xAC, b >= 0xAE:
		return rune(b)
	case b < '!': // 33 bytes
		return 0x100 + rune(b)
	case b <= 0xA0: // 0x7F to 0xA0, 34 bytes
		return 0x100 + 33 + rune(b-0x7F)
	default: // 0xAD
		return 0x100 + 33 + 34
	}
}

// unspell returns the byte that r stands for.
func unspell(r rune) (b byte, ok bool) {
	switch {
	case r >= '!' && r <= '~', r >= 0xA1 && r <= 0xAC, r >= 0xAE && r <= 0xFF:
		return byte(r), true
	case r >= 0x100 && r < 0x100+33:
		return byte(r - 0x100), true
	case r >= 0x100+33 && r < 0x100+33+34:
		return byte(r-0x100-33) + 0x7F, true
	case r == 0x100+33+34:
		return 0xAD, true
	}
	return 0, false
}

// readPieces fills pieces: the bytes of each id, all in one allocation.
func (t *Tokenizer) readPieces() {
	total := 0
	for _, s := range t.texts {
		total += len(s)
	}
	buf := make([]byte, 0, total)
	ends := make([]int, len(t.texts))
	for id, text := range t.texts {
		switch t.types[id] {
		case Control, Unknown, UserDefined:
			buf = append(buf, text...)
		case Unused:
			// stands for nothing
		default:
			buf = appendUnspelled(buf, text)
		}
		ends[id] = len(buf)
	}
	all, start := string(buf), 0
	t.pieces = make([]string, len(t.texts))
	for id, end := range ends {
		t.pieces[id] = all[start:end]
		start = end
	}
}

// appendUnspelled appends the bytes that text spells. Characters outside the
// alphabet stand for themselves.
func appendUnspelled(buf []byte, text string) []byte {
	for _, r := range text {
		if b, ok := unspell(r); ok {
			buf = append(buf, b)
		} else {
			buf = utf8.AppendRune(buf, r)
		}
	}
	return buf
}

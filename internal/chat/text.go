package chat

import (
	"strings"
	"unicode/utf8"
)

// A text is a string that knows where its bytes come from: the template or a
// message. Runs cover it in order, and neighbours differ.
type text struct {
	s    string
	runs []run
}

// A run ends at a byte of its text.
type run struct {
	end     int
	content bool
}

// lit returns template text.
func lit(s string) text { return mark(s, false) }

// foreign returns text that must not make control tokens: message content, and
// whatever cannot be traced to the template.
func foreign(s string) text { return mark(s, true) }

func mark(s string, content bool) text {
	if s == "" {
		return text{}
	}
	return text{s, []run{{len(s), content}}}
}

// tainted reports whether any byte is content.
func (t text) tainted() bool {
	for _, r := range t.runs {
		if r.content {
			return true
		}
	}
	return false
}

// slice returns the bytes from a to b.
func (t text) slice(a, b int) text {
	if a >= b {
		return text{}
	}
	if a == 0 && b == len(t.s) {
		return t
	}
	out := text{s: t.s[a:b]}
	for _, r := range t.runs {
		if r.end <= a {
			continue
		}
		out.runs = append(out.runs, run{min(r.end, b) - a, r.content})
		if r.end >= b {
			break
		}
	}
	return out
}

// A textBuilder joins texts.
type textBuilder struct {
	b    strings.Builder
	runs []run
}

func (b *textBuilder) add(t text) {
	base := b.b.Len()
	b.b.WriteString(t.s)
	for _, r := range t.runs {
		b.mark(base+r.end, r.content)
	}
}

func (b *textBuilder) addString(s string, content bool) {
	if s != "" {
		b.b.WriteString(s)
		b.mark(b.b.Len(), content)
	}
}

func (b *textBuilder) mark(end int, content bool) {
	if n := len(b.runs); n > 0 && b.runs[n-1].content == content {
		b.runs[n-1].end = end
		return
	}
	b.runs = append(b.runs, run{end, content})
}

func (b *textBuilder) len() int { return b.b.Len() }

func (b *textBuilder) text() text { return text{b.b.String(), b.runs} }

func join(ts ...text) text {
	if len(ts) == 2 {
		if ts[0].s == "" {
			return ts[1]
		}
		if ts[1].s == "" {
			return ts[0]
		}
	}
	var b textBuilder
	for _, t := range ts {
		b.add(t)
	}
	return b.text()
}

// mapRunes replaces each character by what f makes of it; that has the origin
// of the character. f sees the characters in order.
func (t text) mapRunes(f func(r rune) string) text {
	var b textBuilder
	start := 0
	for _, r := range t.runs {
		for start < r.end {
			c, n := utf8.DecodeRuneInString(t.s[start:])
			b.addString(f(c), r.content)
			start += n
		}
	}
	return b.text()
}

// trim removes characters of set, or whitespace when set is "", at the left
// and right.
func (t text) trim(set string, left, right bool) text {
	in := isSpace
	if set != "" {
		in = func(r rune) bool { return strings.ContainsRune(set, r) }
	}
	a, b := 0, len(t.s)
	if left {
		a = len(t.s) - len(strings.TrimLeftFunc(t.s, in))
	}
	if right {
		b = len(strings.TrimRightFunc(t.s, in))
	}
	return t.slice(a, b)
}

// isSpace is Python's str.isspace.
func isSpace(r rune) bool {
	switch {
	case r >= '\t' && r <= '\r', r >= 0x1C && r <= ' ', r == 0x85, r == 0xA0, r == 0x1680,
		r >= 0x2000 && r <= 0x200A, r == 0x2028, r == 0x2029, r == 0x202F, r == 0x205F, r == 0x3000:
		return true
	}
	return false
}

// replace replaces old, at most count times when count is not negative.
func (t text) replace(old, with text, count int) text {
	var b textBuilder
	at := 0
	if old.s == "" {
		for i := 0; count != 0; count-- {
			b.add(with)
			if i >= len(t.s) {
				return b.text()
			}
			_, n := utf8.DecodeRuneInString(t.s[i:])
			b.add(t.slice(i, i+n))
			i += n
			at = i
		}
		b.add(t.slice(at, len(t.s)))
		return b.text()
	}
	for ; count != 0; count-- {
		i := strings.Index(t.s[at:], old.s)
		if i < 0 {
			break
		}
		b.add(t.slice(at, at+i))
		b.add(with)
		at += i + len(old.s)
	}
	b.add(t.slice(at, len(t.s)))
	return b.text()
}

// split cuts t at sep, at most limit times when limit is not negative.
func (t text) split(sep string, limit int) []text {
	var out []text
	at := 0
	for ; limit != 0; limit-- {
		i := strings.Index(t.s[at:], sep)
		if i < 0 {
			break
		}
		out = append(out, t.slice(at, at+i))
		at += i + len(sep)
	}
	return append(out, t.slice(at, len(t.s)))
}

// rsplit is split from the right.
func (t text) rsplit(sep string, limit int) []text {
	var back []text
	end := len(t.s)
	for ; limit != 0; limit-- {
		i := strings.LastIndex(t.s[:end], sep)
		if i < 0 {
			break
		}
		back = append(back, t.slice(i+len(sep), end))
		end = i
	}
	back = append(back, t.slice(0, end))
	for i, j := 0, len(back)-1; i < j; i, j = i+1, j-1 {
		back[i], back[j] = back[j], back[i]
	}
	return back
}

// fields cuts t at whitespace, at most limit times when limit is not negative.
func (t text) fields(limit int) []text {
	var out []text
	rest := t.trim("", true, false)
	for rest.s != "" {
		if limit == 0 {
			return append(out, rest)
		}
		i := strings.IndexFunc(rest.s, isSpace)
		if i < 0 {
			return append(out, rest)
		}
		out = append(out, rest.slice(0, i))
		rest = rest.slice(i, len(rest.s)).trim("", true, false)
		limit--
	}
	return out
}

// lines cuts t at line ends, which it leaves out unless keep is set.
func (t text) lines(keep bool) []text {
	var out []text
	for at := 0; at < len(t.s); {
		i := strings.IndexAny(t.s[at:], "\n\r\v\f\x1c\x1d\x1e\u0085\u2028\u2029")
		if i < 0 {
			return append(out, t.slice(at, len(t.s)))
		}
		_, n := utf8.DecodeRuneInString(t.s[at+i:])
		if strings.HasPrefix(t.s[at+i:], "\r\n") {
			n = 2
		}
		end := at + i
		if keep {
			end += n
		}
		out = append(out, t.slice(at, end))
		at += i + n
	}
	return out
}

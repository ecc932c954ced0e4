package chat

import (
	"fmt"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// A kind is the kind of a token of a template.
type kind uint8

const (
	tokEOF kind = iota
	tokData
	tokVarBegin
	tokVarEnd
	tokBlockBegin
	tokBlockEnd
	tokName
	tokString
	tokInt
	tokFloat
	tokOp
)

type token struct {
	kind kind
	text string // the name, operator, number, or the value of a string
	line int
}

func (t token) String() string {
	switch t.kind {
	case tokEOF:
		return "end of template"
	case tokData:
		return "text"
	case tokVarBegin:
		return "{{"
	case tokVarEnd:
		return "}}"
	case tokBlockBegin:
		return "{%"
	case tokBlockEnd:
		return "%}"
	default:
		return strconv.Quote(t.text)
	}
}

// A lexer cuts a template into tokens with trim_blocks and lstrip_blocks on,
// as the programs that chat templates are written for have them.
type lexer struct {
	src       string
	pos, line int
	lineStart bool // what came last ended with a newline, or nothing came
	out       []token
}

// lex returns the tokens of src.
func lex(src string) ([]token, error) {
	src = strings.ReplaceAll(src, "\r\n", "\n")
	src = strings.ReplaceAll(src, "\r", "\n")
	src = strings.TrimSuffix(src, "\n")
	l := &lexer{src: src, line: 1, lineStart: true}
	for l.pos < len(l.src) {
		if err := l.step(); err != nil {
			return nil, err
		}
	}
	l.emit(tokEOF, "")
	return l.out, nil
}

func (l *lexer) emit(k kind, text string) { l.out = append(l.out, token{k, text, l.line}) }

// skip moves on by n bytes.
func (l *lexer) skip(n int) {
	s := l.src[l.pos : l.pos+n]
	l.line += strings.Count(s, "\n")
	l.pos += n
	if n > 0 {
		l.lineStart = s[n-1] == '\n'
	}
}

// data emits the text up to position to, less what the tag behind it strips.
func (l *lexer) data(to int, sign byte, lstrip bool) {
	s := l.src[l.pos:to]
	keep := s
	switch {
	case sign == '-':
		keep = strings.TrimRightFunc(s, unicode.IsSpace)
	case sign != '+' && lstrip:
		cut := strings.LastIndexByte(s, '\n') + 1
		if (cut > 0 || l.lineStart) && strings.TrimSpace(s[cut:]) == "" {
			keep = s[:cut]
		}
	}
	if keep != "" {
		l.emit(tokData, keep)
	}
	l.skip(len(s))
}

// sign returns the whitespace sign at the start of s, or 0.
func sign(s string) byte {
	if s != "" && (s[0] == '-' || s[0] == '+') {
		return s[0]
	}
	return 0
}

// step reads the text up to the next tag, and the tag.
func (l *lexer) step() error {
	at := l.pos
	for {
		i := strings.IndexByte(l.src[at:], '{')
		if i < 0 || at+i+1 >= len(l.src) {
			l.data(len(l.src), 0, false)
			return nil
		}
		at += i
		if c := l.src[at+1]; c == '{' || c == '%' || c == '#' {
			break
		}
		at++
	}
	open := l.src[at+1]
	sg := sign(l.src[at+2:])
	l.data(at, sg, open != '{')
	skip := 2
	if sg != 0 {
		skip = 3
	}
	switch open {
	case '#':
		return l.comment(skip)
	case '{':
		l.emit(tokVarBegin, "")
		l.skip(skip)
		return l.inside(tokVarEnd, "}}")
	}
	if body, ok := strings.CutPrefix(strings.TrimLeftFunc(l.src[l.pos+skip:], unicode.IsSpace), "raw"); ok {
		rest := strings.TrimLeftFunc(body, unicode.IsSpace)
		if strings.HasPrefix(rest, "%}") || strings.HasPrefix(rest, "-%}") {
			return l.raw(len(l.src) - len(rest))
		}
	}
	l.emit(tokBlockBegin, "")
	l.skip(skip)
	return l.inside(tokBlockEnd, "%}")
}

// closing returns the length of the end mark at s with its sign and the
// whitespace it swallows, or 0.
func closing(s, mark string, trim bool) int {
	sg := sign(s)
	n := 0
	if sg != 0 {
		n = 1
	}
	if !strings.HasPrefix(s[n:], mark) || (sg == '+' && !trim) {
		return 0
	}
	n += len(mark)
	switch {
	case sg == '-':
		return len(s) - len(strings.TrimLeftFunc(s[n:], unicode.IsSpace))
	case sg == 0 && trim && strings.HasPrefix(s[n:], "\n"):
		n++
	}
	return n
}

func (l *lexer) comment(skip int) error {
	i := strings.Index(l.src[l.pos+skip:], "#}")
	if i < 0 {
		return l.errorf("comment is not closed")
	}
	end := l.pos + skip + i
	if end > l.pos+skip && (l.src[end-1] == '-' || l.src[end-1] == '+') {
		end--
	}
	l.skip(end - l.pos)
	l.skip(closing(l.src[l.pos:], "#}", true))
	return nil
}

// raw reads the text of a raw block, whose opening tag ends with the end mark
// at position end.
func (l *lexer) raw(end int) error {
	l.skip(end - l.pos)
	l.skip(closing(l.src[l.pos:], "%}", false))
	for at := l.pos; ; {
		i := strings.Index(l.src[at:], "{%")
		if i < 0 {
			return l.errorf("raw block is not closed")
		}
		at += i
		body := l.src[at+2:]
		sg := sign(body)
		if sg != 0 {
			body = body[1:]
		}
		body = strings.TrimLeftFunc(body, unicode.IsSpace)
		if rest, ok := strings.CutPrefix(body, "endraw"); ok {
			rest = strings.TrimLeftFunc(rest, unicode.IsSpace)
			if n := closing(rest, "%}", true); n > 0 {
				l.data(at, sg, true)
				l.skip(len(l.src) - len(rest) + n - l.pos)
				return nil
			}
		}
		at += 2
	}
}

// inside reads the tokens of an expression or statement up to its end mark.
func (l *lexer) inside(end kind, mark string) error {
	var open []byte
	for l.pos < len(l.src) {
		s := l.src[l.pos:]
		if len(open) == 0 {
			if n := closing(s, mark, end == tokBlockEnd); n > 0 {
				l.emit(end, "")
				l.skip(n)
				return nil
			}
		}
		c := s[0]
		switch {
		case c == ' ' || c == '\t' || c == '\n' || c == '\f' || c == '\v':
			l.skip(1)
			continue
		case c == '\'' || c == '"':
			if err := l.str(c); err != nil {
				return err
			}
			continue
		case c >= '0' && c <= '9':
			l.number()
			continue
		}
		if n := nameLen(s); n > 0 {
			l.emit(tokName, s[:n])
			l.skip(n)
			continue
		}
		op := operator(s)
		switch op {
		case "":
			r, _ := utf8.DecodeRuneInString(s)
			return l.errorf("unexpected character %q", r)
		case "(", "[", "{":
			open = append(open, map[string]byte{"(": ')', "[": ']', "{": '}'}[op])
		case ")", "]", "}":
			if len(open) == 0 || open[len(open)-1] != op[0] {
				return l.errorf("unexpected %q", op)
			}
			open = open[:len(open)-1]
		}
		l.emit(tokOp, op)
		l.skip(len(op))
	}
	return l.errorf("tag is not closed")
}

func operator(s string) string {
	if len(s) > 1 {
		switch s[:2] {
		case "//", "**", "==", "!=", ">=", "<=":
			return s[:2]
		}
	}
	if strings.IndexByte("+-/*%~[](){}<>=.:|,", s[0]) >= 0 {
		return s[:1]
	}
	return ""
}

// nameLen returns the length of the name at the start of s.
func nameLen(s string) int {
	for i, r := range s {
		if r == '_' || unicode.IsLetter(r) || (i > 0 && unicode.IsDigit(r)) {
			continue
		}
		return i
	}
	return len(s)
}

func (l *lexer) number() {
	s := l.src[l.pos:]
	digits := func(i int) int {
		for i < len(s) && (s[i] >= '0' && s[i] <= '9' || s[i] == '_') {
			i++
		}
		return i
	}
	n, k := digits(0), tokInt
	if n+1 < len(s) && s[n] == '.' && s[n+1] >= '0' && s[n+1] <= '9' {
		n, k = digits(n+1), tokFloat
	}
	if n < len(s) && s[n]|0x20 == 'e' {
		e := n + 1
		if e < len(s) && (s[e] == '+' || s[e] == '-') {
			e++
		}
		if m := digits(e); m > e {
			n, k = m, tokFloat
		}
	}
	l.emit(k, strings.ReplaceAll(s[:n], "_", ""))
	l.skip(n)
}

// str reads a string literal with Python's escapes.
func (l *lexer) str(quote byte) error {
	var b strings.Builder
	s := l.src[l.pos:]
	for i := 1; i < len(s); {
		switch c := s[i]; {
		case c == quote:
			l.emit(tokString, b.String())
			l.skip(i + 1)
			return nil
		case c == '\\' && i+1 < len(s):
			n, err := unescape(&b, s[i:])
			if err != nil {
				return l.errorf("%w", err)
			}
			i += n
		default:
			b.WriteByte(c)
			i++
		}
	}
	return l.errorf("string is not closed")
}

// unescape writes what the escape at the start of s stands for and returns the
// length of the escape.
func unescape(b *strings.Builder, s string) (int, error) {
	if i := strings.IndexByte(`abfnrtv\'"`, s[1]); i >= 0 {
		b.WriteByte("\a\b\f\n\r\t\v\\'\""[i])
		return 2, nil
	}
	switch c := s[1]; c {
	case '\n':
		return 2, nil
	case 'x', 'u', 'U':
		n := map[byte]int{'x': 2, 'u': 4, 'U': 8}[c]
		if len(s) < 2+n {
			return 0, fmt.Errorf("escape %q is cut off", s)
		}
		v, err := strconv.ParseUint(s[2:2+n], 16, 32)
		if err != nil {
			return 0, fmt.Errorf("escape %q is not a number", s[:2+n])
		}
		b.WriteRune(rune(v))
		return 2 + n, nil
	case '0', '1', '2', '3', '4', '5', '6', '7':
		n, v := 1, rune(0)
		for n < 4 && n < len(s) && s[n] >= '0' && s[n] <= '7' {
			v = v*8 + rune(s[n]-'0')
			n++
		}
		b.WriteRune(v)
		return n, nil
	}
	b.WriteByte('\\')
	return 1, nil
}

func (l *lexer) errorf(format string, args ...any) error {
	return &ParseError{Line: l.line, Err: fmt.Errorf(format, args...)}
}

package chat

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"unicode"
)

// isFilter reports whether name is a known filter.
func isFilter(name string) bool {
	return textFilter(name) != nil || seqFilter(name) != nil || anyFilter(name) != nil
}

type filterFunc func(m *machine, v any, a args) (any, error)

func (m *machine) filters(v any, fs []filterCall) any {
	for _, f := range fs {
		v = m.filter(v, f)
	}
	return v
}

func (m *machine) filter(v any, f filterCall) any {
	a := m.args(f.args)
	if m.err != nil {
		return undef{}
	}
	m.line = f.line
	return m.applyFilter(f.line, f.name, v, a)
}

func (m *machine) applyFilter(line int, name string, v any, a args) any {
	if fn := textFilter(name); fn != nil {
		t, ok := v.(text)
		if !ok {
			t = m.str(v)
		}
		out, err := fn(t, a)
		if err != nil {
			err = fmt.Errorf("filter %s: %w", name, err)
		}
		return m.result(line, out, err)
	}
	fn := seqFilter(name)
	if fn == nil {
		fn = anyFilter(name)
	}
	if fn == nil {
		return m.fail(line, "filter %q is not supported", name)
	}
	out, err := fn(m, v, a)
	var raised *RenderError
	if err != nil && !errors.As(err, &raised) {
		err = fmt.Errorf("filter %s: %w", name, err)
	}
	return m.result(line, out, err)
}

// textFilter returns a filter that works on the text of its value.
func textFilter(name string) func(t text, a args) (any, error) {
	switch name {
	case "trim":
		return func(t text, a args) (any, error) {
			p, err := a.bind("chars")
			if err != nil {
				return nil, err
			}
			set, err := textArg(p[0], "")
			return t.trim(set.s, true, true), err
		}
	case "upper":
		return plain(func(t text) text { return t.mapRunes(upper) })
	case "lower":
		return plain(func(t text) text { return t.mapRunes(lower) })
	case "title":
		return plain(func(t text) text { return title(t, isWordBreak) })
	case "capitalize":
		return plain(capitalize)
	case "replace":
		return func(t text, a args) (any, error) {
			p, err := a.bind("old", "new", "count")
			if err != nil {
				return nil, err
			}
			return replace(t, p)
		}
	case "indent":
		return indent
	case "escape", "e":
		return plain(func(t text) text { return t.mapRunes(escape) })
	case "safe", "string":
		return plain(func(t text) text { return t })
	case "wordcount":
		return func(t text, _ args) (any, error) { return int64(len(t.fields(-1))), nil }
	}
	return nil
}

// plain makes a filter of a function without arguments.
func plain(f func(text) text) func(text, args) (any, error) {
	return func(t text, a args) (any, error) {
		if len(a.pos)+len(a.kw) > 0 {
			return nil, errors.New("takes no arguments")
		}
		return f(t), nil
	}
}

func upper(r rune) string { return strings.ToUpper(string(r)) }
func lower(r rune) string { return strings.ToLower(string(r)) }

func escape(r rune) string {
	switch r {
	case '&':
		return "&amp;"
	case '<':
		return "&lt;"
	case '>':
		return "&gt;"
	case '"':
		return "&#34;"
	case '\'':
		return "&#39;"
	}
	return string(r)
}

// isWordBreak tells where the title filter begins a word.
func isWordBreak(r rune) bool {
	return isSpace(r) || strings.ContainsRune("-({[<", r)
}

// title puts the first letter behind each break in upper case, others in lower.
func title(t text, isBreak func(rune) bool) text {
	start := true
	return t.mapRunes(func(r rune) string {
		s := lower(r)
		if start {
			s = string(unicode.ToTitle(r))
		}
		start = isBreak(r)
		return s
	})
}

func capitalize(t text) text {
	first := true
	return t.mapRunes(func(r rune) string {
		if first {
			first = false
			return string(unicode.ToTitle(r))
		}
		return lower(r)
	})
}

// replace serves the filter and the method: parameters old, new, count.
func replace(t text, p []any) (any, error) {
	old, err := textArg(p[0], "")
	if err != nil {
		return nil, err
	}
	with, err := textArg(p[1], "")
	if err != nil {
		return nil, err
	}
	count := -1
	if p[2] != nil {
		if count, err = intArg(p[2], -1); err != nil {
			return nil, err
		}
	}
	if n := (strings.Count(t.s, old.s) + 1) * len(with.s); n > maxText {
		return nil, fmt.Errorf("string of more than %d bytes", maxText)
	}
	return t.replace(old, with, count), nil
}

func indent(t text, a args) (any, error) {
	p, err := a.bind("width", "first", "blank")
	if err != nil {
		return nil, err
	}
	pad, ok := p[0].(text)
	if !ok {
		n, err := intArg(p[0], 4)
		if err != nil || n > 1000 {
			return nil, errors.New("width is not a small integer")
		}
		pad = lit(strings.Repeat(" ", max(0, n)))
	}
	first, blank := boolArg(p[1]), boolArg(p[2])
	lines := t.lines(false)
	if t.s == "" || strings.HasSuffix(t.s, "\n") {
		lines = append(lines, text{}) // Jinja adds a newline before it splits
	}
	if len(lines)*len(pad.s) > maxText {
		return nil, fmt.Errorf("string of more than %d bytes", maxText)
	}
	var b textBuilder
	for i, l := range lines {
		if i > 0 {
			b.addString("\n", t.tainted())
		}
		if (i == 0 && first) || (i > 0 && (blank || l.s != "")) {
			b.add(pad)
		}
		b.add(l)
	}
	return b.text(), nil
}

// anyFilter returns a filter that works on any value.
func anyFilter(name string) filterFunc {
	switch name {
	case "tojson":
		return toJSON
	case "default", "d":
		return func(_ *machine, v any, a args) (any, error) {
			p, err := a.bind("default_value", "boolean")
			if err != nil {
				return nil, err
			}
			if _, ok := v.(undef); ok || (boolArg(p[1]) && !truth(v)) {
				if _, ok := p[0].(absent); ok {
					return text{}, nil
				}
				return p[0], nil
			}
			return v, nil
		}
	case "int":
		return func(_ *machine, v any, a args) (any, error) {
			p, err := a.bind("default", "base")
			if err != nil {
				return nil, err
			}
			return toInt(v, p)
		}
	case "float":
		return func(_ *machine, v any, a args) (any, error) {
			p, err := a.bind("default")
			if err != nil {
				return nil, err
			}
			if f, ok := num(v); ok {
				return f, nil
			}
			if t, ok := v.(text); ok {
				if f, err := strconv.ParseFloat(strings.TrimSpace(t.s), 64); err == nil {
					return f, nil
				}
			}
			if _, ok := p[0].(absent); ok {
				return 0.0, nil
			}
			return p[0], nil
		}
	case "abs":
		return func(_ *machine, v any, _ args) (any, error) {
			if i, ok := integer(v); ok {
				return max(i, -i), nil
			}
			if f, ok := v.(float64); ok {
				return math.Abs(f), nil
			}
			return nil, fmt.Errorf("value is %s", typeName(v))
		}
	case "round":
		return round
	case "attr":
		return func(_ *machine, v any, a args) (any, error) {
			p, err := a.bind("name")
			if err != nil {
				return nil, err
			}
			name, err := textArg(p[0], "")
			if x, ok := lookup(v, name.s); ok {
				return x, err
			}
			return undef{name.s}, err
		}
	}
	return nil
}

func toInt(v any, p []any) (any, error) {
	base, err := intArg(p[1], 10)
	if err != nil || base < 2 || base > 36 {
		return nil, errors.New("base is not in 2 to 36")
	}
	switch v := v.(type) {
	case text:
		s := strings.TrimSpace(v.s)
		if i, err := strconv.ParseInt(s, base, 64); err == nil {
			return i, nil
		}
		if f, err := strconv.ParseFloat(s, 64); err == nil && math.Abs(f) < 1<<62 {
			return int64(f), nil
		}
	case float64:
		if math.Abs(v) < 1<<62 {
			return int64(v), nil
		}
	default:
		if i, ok := integer(v); ok {
			return i, nil
		}
	}
	if _, ok := p[0].(absent); ok {
		return int64(0), nil
	}
	return p[0], nil
}

func round(_ *machine, v any, a args) (any, error) {
	p, err := a.bind("precision", "method")
	if err != nil {
		return nil, err
	}
	f, ok := num(v)
	if !ok {
		return nil, fmt.Errorf("value is %s", typeName(v))
	}
	n, err := intArg(p[0], 0)
	if err != nil || n < -300 || n > 300 {
		return nil, errors.New("precision is not a small integer")
	}
	method, err := textArg(p[1], "common")
	if err != nil {
		return nil, err
	}
	scale := math.Pow(10, float64(n))
	switch method.s {
	case "ceil":
		return math.Ceil(f*scale) / scale, nil
	case "floor":
		return math.Floor(f*scale) / scale, nil
	case "common":
		if n >= 0 {
			f, err = strconv.ParseFloat(strconv.FormatFloat(f, 'f', n, 64), 64)
			return f, err
		}
		return math.RoundToEven(f*scale) / scale, nil
	}
	return nil, fmt.Errorf("method %q is not known", method.s)
}

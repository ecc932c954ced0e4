package chat

import (
	"math"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// A value of the evaluator is one of nil (None), undef, bool, int64, float64,
// text, *list, *dict, *namespace, *macro, *loop, *bound or global.

// undef is what a missing name or key gives.
type undef struct{ name string }

// A list is a list or a tuple.
type list struct {
	items []any
	tuple bool
}

// A dict keeps its keys in order of insertion.
type dict struct {
	keys, vals []any
	index      map[any]int
}

// A namespace is the one mutable value.
type namespace struct{ vars dict }

// A bound is a method of a value.
type bound struct {
	of   any
	name string
}

// A global is a function of the environment, by name.
type global string

// hashable returns v as a key of a Go map; ok is false when Python would not
// hash it.
func hashable(v any) (key any, ok bool) {
	switch v := v.(type) {
	case text:
		return v.s, true
	case bool:
		if v {
			return int64(1), true
		}
		return int64(0), true
	case float64:
		if v == math.Trunc(v) && math.Abs(v) < 1<<53 {
			return int64(v), true
		}
		return v, true
	case int64, nil:
		return v, true
	}
	return nil, false
}

func (d *dict) get(key any) (any, bool) {
	k, ok := hashable(key)
	if !ok {
		return nil, false
	}
	i, ok := d.index[k]
	if !ok {
		return nil, false
	}
	return d.vals[i], true
}

func (d *dict) getString(key string) (any, bool) {
	i, ok := d.index[key]
	if !ok {
		return nil, false
	}
	return d.vals[i], true
}

// set stores a value and reports whether the key can be one.
func (d *dict) set(key, v any) bool {
	k, ok := hashable(key)
	if !ok {
		return false
	}
	if i, ok := d.index[k]; ok {
		d.vals[i] = v
		return true
	}
	if d.index == nil {
		d.index = map[any]int{}
	}
	d.index[k] = len(d.keys)
	d.keys, d.vals = append(d.keys, key), append(d.vals, v)
	return true
}

// truth is Python's truth value.
func truth(v any) bool {
	switch v := v.(type) {
	case nil, undef:
		return false
	case bool:
		return v
	case int64:
		return v != 0
	case float64:
		return v != 0
	case text:
		return v.s != ""
	case *list:
		return len(v.items) > 0
	case *dict:
		return len(v.keys) > 0
	}
	return true
}

// typeName names v's type in errors.
func typeName(v any) string {
	switch v := v.(type) {
	case nil:
		return "none"
	case undef:
		return "undefined"
	case bool:
		return "boolean"
	case int64:
		return "integer"
	case float64:
		return "float"
	case text:
		return "string"
	case *list:
		if v.tuple {
			return "tuple"
		}
		return "list"
	case *dict:
		return "mapping"
	case *namespace:
		return "namespace"
	}
	return "function"
}

// num returns v as a number.
func num(v any) (f float64, ok bool) {
	switch v := v.(type) {
	case bool:
		if v {
			return 1, true
		}
		return 0, true
	case int64:
		return float64(v), true
	case float64:
		return v, true
	}
	return 0, false
}

// integer returns v as an integer; booleans are 0 and 1.
func integer(v any) (int64, bool) {
	switch v := v.(type) {
	case bool:
		if v {
			return 1, true
		}
		return 0, true
	case int64:
		return v, true
	}
	return 0, false
}

// maxCompare bounds how deep equality and printing go.
const maxCompare = 64

// equal is Python's ==.
func equal(a, b any, depth int) bool {
	if depth > maxCompare {
		return false
	}
	if x, ok := integer(a); ok {
		if y, ok := integer(b); ok {
			return x == y
		}
	}
	if x, ok := num(a); ok {
		y, ok := num(b)
		return ok && x == y
	}
	switch a := a.(type) {
	case nil:
		return b == nil
	case undef:
		_, ok := b.(undef)
		return ok
	case text:
		b, ok := b.(text)
		return ok && a.s == b.s
	case *list:
		b, ok := b.(*list)
		if !ok || a.tuple != b.tuple || len(a.items) != len(b.items) {
			return false
		}
		for i := range a.items {
			if !equal(a.items[i], b.items[i], depth+1) {
				return false
			}
		}
		return true
	case *dict:
		b, ok := b.(*dict)
		if !ok || len(a.keys) != len(b.keys) {
			return false
		}
		for i, k := range a.keys {
			v, ok := b.get(k)
			if !ok || !equal(a.vals[i], v, depth+1) {
				return false
			}
		}
		return true
	case *bound:
		return false
	}
	return a == b
}

// less is Python's <; ok is false for values without an order.
func less(a, b any) (lt, ok bool) {
	if x, isNum := num(a); isNum {
		y, isNum := num(b)
		return x < y, isNum
	}
	switch a := a.(type) {
	case text:
		b, ok := b.(text)
		return ok && a.s < b.s, ok
	case *list:
		b, ok := b.(*list)
		if !ok {
			return false, false
		}
		for i := range min(len(a.items), len(b.items)) {
			if !equal(a.items[i], b.items[i], 0) {
				return less(a.items[i], b.items[i])
			}
		}
		return len(a.items) < len(b.items), true
	}
	return false, false
}

// str is Python's str, as output and ~ use it. What is not a string already
// counts as content: nothing says where a number came from.
func str(v any) text {
	switch v := v.(type) {
	case text:
		return v
	case undef:
		return text{}
	}
	var b strings.Builder
	repr(&b, v, 0)
	return foreign(b.String())
}

// repr writes Python's repr of v.
func repr(b *strings.Builder, v any, depth int) {
	if depth > maxCompare {
		b.WriteString("...")
		return
	}
	switch v := v.(type) {
	case nil:
		b.WriteString("None")
	case undef:
		b.WriteString("Undefined")
	case bool:
		if v {
			b.WriteString("True")
		} else {
			b.WriteString("False")
		}
	case int64:
		b.WriteString(strconv.FormatInt(v, 10))
	case float64:
		b.WriteString(pyFloat(v))
	case text:
		reprString(b, v.s)
	case *list:
		open, end := "[", "]"
		if v.tuple {
			open, end = "(", ")"
			if len(v.items) == 1 {
				end = ",)"
			}
		}
		b.WriteString(open)
		for i, x := range v.items {
			if i > 0 {
				b.WriteString(", ")
			}
			repr(b, x, depth+1)
		}
		b.WriteString(end)
	case *dict:
		b.WriteByte('{')
		for i, k := range v.keys {
			if i > 0 {
				b.WriteString(", ")
			}
			repr(b, k, depth+1)
			b.WriteString(": ")
			repr(b, v.vals[i], depth+1)
		}
		b.WriteByte('}')
	default:
		b.WriteString("<" + typeName(v) + ">")
	}
}

// reprString writes a string with Python's quotes and escapes.
func reprString(b *strings.Builder, s string) {
	quote := byte('\'')
	if strings.Contains(s, "'") && !strings.Contains(s, `"`) {
		quote = '"'
	}
	b.WriteByte(quote)
	for _, r := range s {
		switch {
		case r == rune(quote) || r == '\\':
			b.WriteByte('\\')
			b.WriteRune(r)
		case r == '\n':
			b.WriteString(`\n`)
		case r == '\r':
			b.WriteString(`\r`)
		case r == '\t':
			b.WriteString(`\t`)
		case r < ' ' || r == 0x7f || r >= 0x80 && r < 0xA1 || r == 0xAD:
			b.WriteString(`\x` + hex(r, 2))
		case r == ' ' || unicode.IsPrint(r):
			b.WriteRune(r)
		case r < 0x10000:
			b.WriteString(`\u` + hex(r, 4))
		default:
			b.WriteString(`\U` + hex(r, 8))
		}
	}
	b.WriteByte(quote)
}

func hex(r rune, n int) string {
	s := strconv.FormatInt(int64(r), 16)
	return strings.Repeat("0", max(0, n-len(s))) + s
}

// pyFloat is Python's repr of a float.
func pyFloat(f float64) string {
	switch {
	case math.IsInf(f, 1):
		return "inf"
	case math.IsInf(f, -1):
		return "-inf"
	case math.IsNaN(f):
		return "nan"
	}
	if a := math.Abs(f); a != 0 && (a < 1e-4 || a >= 1e16) {
		return strconv.FormatFloat(f, 'e', -1, 64)
	}
	s := strconv.FormatFloat(f, 'f', -1, 64)
	if !strings.Contains(s, ".") {
		s += ".0"
	}
	return s
}

// runeLen is the number of characters, which is what Python counts.
func runeLen(t text) int { return utf8.RuneCountInString(t.s) }

// texts returns a list of texts.
func texts(ts []text) *list {
	l := &list{items: make([]any, len(ts))}
	for i, t := range ts {
		l.items[i] = t
	}
	return l
}

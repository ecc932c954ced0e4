package openai

import (
	"bytes"
	"encoding/json"
	"errors"
	"math"
	"slices"
	"strconv"
	"unicode/utf8"
)

// fields reads the members of one JSON object by name. The first mistake is
// kept and later reads return zero values, so that a request is read straight
// through and checked once. Null is the same as absent.
type fields struct {
	body *Body
	seen map[string]bool
	err  *Error
}

// newFields checks that raw is UTF-8 and a JSON object.
func newFields(raw []byte) (*fields, *Error) {
	if !utf8.Valid(raw) {
		return nil, Bad("", "the body is not valid UTF-8")
	}
	if len(bytes.TrimSpace(raw)) == 0 {
		return nil, Bad("", "the body is empty: a JSON object is needed")
	}
	if !json.Valid(raw) || raw[space(raw, 0)] != '{' {
		return nil, Bad("", "the body is not a JSON object")
	}
	b, more := scan(raw, maxMembers)
	if more {
		return nil, Bad("", "the body has more than %d members", maxMembers)
	}
	return &fields{body: b, seen: make(map[string]bool)}, nil
}

func (f *fields) fail(param, format string, args ...any) {
	if f.err == nil {
		f.err = Bad(param, format, args...)
	}
}

// get returns the value of name, or nil when it is absent, null, or a mistake
// was found before.
func (f *fields) get(name string) json.RawMessage {
	f.seen[name] = true
	if f.err != nil {
		return nil
	}
	v, ok := f.body.Get(name)
	if !ok || string(v) == "null" {
		return nil
	}
	return v
}

// unknown returns the names that nobody asked for, in order of appearance.
func (f *fields) unknown() []string {
	var out []string
	for _, m := range f.body.members {
		if !f.seen[m.key] && len(out) < 32 {
			if n := printable(m.key); !slices.Contains(out, n) {
				out = append(out, n)
			}
		}
	}
	return out
}

func (f *fields) text(name string) (string, bool) {
	v := f.get(name)
	if v == nil {
		return "", false
	}
	s, ok := textOf(v)
	if !ok {
		f.fail(name, "must be a string")
	}
	return s, ok
}

func textOf(v json.RawMessage) (string, bool) {
	var s string
	if len(v) == 0 || v[0] != '"' || json.Unmarshal(v, &s) != nil {
		return "", false
	}
	return s, true
}

func (f *fields) flag(name string, or bool) bool {
	v := f.get(name)
	switch string(v) {
	case "":
		return or
	case "true":
		return true
	case "false":
		return false
	}
	f.fail(name, "must be true or false")
	return or
}

// whole returns an integer in [lo, hi], or nil when it is absent.
func (f *fields) whole(name string, lo, hi int64) *int64 {
	v := f.get(name)
	if v == nil {
		return nil
	}
	n, ok, huge := wholeOf(v)
	switch {
	case !ok:
		f.fail(name, "must be an integer")
	case huge || n < lo || n > hi:
		f.fail(name, "must be in [%d, %d]", lo, hi)
	default:
		return &n
	}
	return nil
}

func (f *fields) small(name string, lo, hi int64) *int {
	n := f.whole(name, lo, hi)
	if n == nil {
		return nil
	}
	i := int(*n)
	return &i
}

// wholeOf reads a JSON number with an integral value. 64-bit integers are exact;
// 2.0 and 1e3 are integers too. Huge says that n does not hold the value.
func wholeOf(v json.RawMessage) (n int64, ok, huge bool) {
	if !isNumber(v) {
		return 0, false, false
	}
	if n, err := strconv.ParseInt(string(v), 10, 64); err == nil {
		return n, true, false
	}
	x, err := strconv.ParseFloat(string(v), 64)
	switch {
	case err != nil || math.Abs(x) >= 1<<63:
		return 0, true, true
	case x != math.Trunc(x):
		return 0, false, false
	}
	return int64(x), true, false
}

// Whole reads a JSON number as requests are read: 2.0 is an integer too.
func Whole(v json.RawMessage) (n int64, ok bool) {
	n, ok, huge := wholeOf(v)
	return n, ok && !huge
}

func isNumber(v json.RawMessage) bool {
	return len(v) > 0 && (v[0] == '-' || v[0] >= '0' && v[0] <= '9')
}

func (f *fields) number(name string, lo, hi float64) *float64 {
	v := f.get(name)
	if v == nil {
		return nil
	}
	x, err := strconv.ParseFloat(string(v), 64)
	switch {
	case !isNumber(v):
		f.fail(name, "must be a number")
	case err == nil && x < lo && hi == math.MaxFloat64:
		f.fail(name, "must be a number of at least %v", lo)
	case err != nil || x < lo || x > hi:
		f.fail(name, "must be a number in [%v, %v]", lo, hi)
	default:
		return &x
	}
	return nil
}

// object returns a value that is a JSON object, or nil.
func (f *fields) object(name string) json.RawMessage {
	v := f.get(name)
	if v != nil && v[0] != '{' {
		f.fail(name, "must be an object")
		return nil
	}
	return v
}

// each calls fn for the elements of an array value until fn returns false. It
// holds nothing, so that a list beyond a limit costs nothing more.
func each(array json.RawMessage, fn func(i int, v json.RawMessage) bool) {
	i := space(array, 1)
	for n := 0; i < len(array) && array[i] != ']'; n++ {
		end := valueEnd(array, i)
		if !fn(n, array[i:end]) {
			return
		}
		if i = space(array, end); i < len(array) && array[i] == ',' {
			i = space(array, i+1)
		}
	}
}

// scan returns the members of object, which is valid JSON, or that there are
// more than limit. Nothing is held beyond the limit.
func scan(object []byte, limit int) (b *Body, more bool) {
	b = &Body{raw: object, open: space(object, 0)}
	i := space(object, b.open+1)
	for object[i] != '}' {
		if len(b.members) == limit {
			return nil, true
		}
		m := member{start: i}
		end := valueEnd(object, i)
		_ = json.Unmarshal(object[i:end], &m.key) // a valid string
		m.value = space(object, space(object, end)+1)
		m.end = valueEnd(object, m.value)
		b.members = append(b.members, m)
		if i = space(object, m.end); object[i] == ',' {
			i = space(object, i+1)
		}
	}
	b.shut = i
	return b, false
}

// tokens reads a list of at most limit token ids. Ids are written as integers,
// never 1.0; whether they are in the vocabulary is for the caller.
func (f *fields) tokens(param string, array json.RawMessage, limit int) []int32 {
	var out []int32
	each(array, func(i int, v json.RawMessage) bool {
		at := param + "[" + strconv.Itoa(i) + "]"
		if i >= limit {
			f.fail(param, "must have at most %d token ids", limit)
			return false
		}
		n, err := strconv.ParseInt(string(v), 10, 64)
		switch {
		case !isNumber(v) || err != nil && !errors.Is(err, strconv.ErrRange):
			f.fail(at, "must be a token id, an integer")
		case err != nil || n < 0 || n > math.MaxInt32:
			f.fail(at, "is no token id of this model")
		default:
			out = append(out, int32(n))
		}
		return f.err == nil
	})
	return out
}

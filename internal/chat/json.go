package chat

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode/utf16"
)

// toJSON is the tojson filter as Hugging Face defines it: Python's json.dumps
// without HTML escapes, keys in their order, other scripts as they are. What it
// writes counts as content.
func toJSON(m *machine, v any, a args) (any, error) {
	p, err := a.bind("indent", "ensure_ascii", "separators", "sort_keys")
	if err != nil {
		return nil, err
	}
	w := jsonWriter{item: ", ", key: ": ", ascii: boolArg(p[1]), sort: boolArg(p[3])}
	switch in := p[0].(type) {
	case absent, nil:
	case text:
		w.pretty, w.indent = true, in.s
	default:
		n, err := intArg(in, 0)
		if err != nil || n > 100 {
			return nil, errors.New("indent is not a small integer")
		}
		w.pretty, w.indent = true, strings.Repeat(" ", max(0, n))
	}
	if w.pretty {
		w.item = ","
	}
	if l, ok := p[2].(*list); ok {
		if len(l.items) != 2 {
			return nil, errors.New("separators are not two strings")
		}
		w.item, w.key = str(l.items[0]).s, str(l.items[1]).s
	}
	if err := w.value(v, 0); err != nil {
		return nil, err
	}
	m.step(w.b.Len() / 64)
	return foreign(w.b.String()), nil
}

type jsonWriter struct {
	b           strings.Builder
	item, key   string
	indent      string
	pretty      bool
	ascii, sort bool
}

func (w *jsonWriter) value(v any, depth int) error {
	if depth > maxCompare {
		return fmt.Errorf("nested more than %d deep", maxCompare)
	}
	if w.b.Len() > maxText {
		return fmt.Errorf("string of more than %d bytes", maxText)
	}
	switch v := v.(type) {
	case nil:
		w.b.WriteString("null")
	case bool:
		w.b.WriteString(strconv.FormatBool(v))
	case int64:
		w.b.WriteString(strconv.FormatInt(v, 10))
	case float64:
		w.float(v)
	case text:
		w.str(v.s)
	case *list:
		return w.list(v, depth)
	case *dict:
		return w.dict(v, depth)
	default:
		return fmt.Errorf("%s has no JSON form", typeName(v))
	}
	return nil
}

func (w *jsonWriter) float(f float64) {
	switch s := pyFloat(f); s {
	case "inf":
		w.b.WriteString("Infinity")
	case "-inf":
		w.b.WriteString("-Infinity")
	case "nan":
		w.b.WriteString("NaN")
	default:
		w.b.WriteString(s)
	}
}

func (w *jsonWriter) line(depth int) {
	if w.pretty {
		w.b.WriteByte('\n')
		for range depth {
			w.b.WriteString(w.indent)
		}
	}
}

func (w *jsonWriter) list(l *list, depth int) error {
	if len(l.items) == 0 {
		w.b.WriteString("[]")
		return nil
	}
	w.b.WriteByte('[')
	for i, x := range l.items {
		if i > 0 {
			w.b.WriteString(w.item)
		}
		w.line(depth + 1)
		if err := w.value(x, depth+1); err != nil {
			return err
		}
	}
	w.line(depth)
	w.b.WriteByte(']')
	return nil
}

func (w *jsonWriter) dict(d *dict, depth int) error {
	if len(d.keys) == 0 {
		w.b.WriteString("{}")
		return nil
	}
	order := make([]int, len(d.keys))
	for i := range order {
		order[i] = i
	}
	if w.sort {
		slices.SortStableFunc(order, func(a, b int) int {
			return strings.Compare(str(d.keys[a]).s, str(d.keys[b]).s)
		})
	}
	w.b.WriteByte('{')
	for n, i := range order {
		if n > 0 {
			w.b.WriteString(w.item)
		}
		w.line(depth + 1)
		switch k := d.keys[i].(type) {
		case text:
			w.str(k.s)
		default:
			sub := jsonWriter{}
			if err := sub.value(k, 0); err != nil {
				return err
			}
			w.str(sub.b.String())
		}
		w.b.WriteString(w.key)
		if err := w.value(d.vals[i], depth+1); err != nil {
			return err
		}
	}
	w.line(depth)
	w.b.WriteByte('}')
	return nil
}

func (w *jsonWriter) str(s string) {
	w.b.WriteByte('"')
	for _, r := range s {
		switch {
		case r == '"' || r == '\\':
			w.b.WriteByte('\\')
			w.b.WriteRune(r)
		case r >= '\b' && r <= '\r' && r != '\v':
			w.b.WriteByte('\\')
			w.b.WriteByte("btn fr"[r-'\b'])
		case r < ' ' || (w.ascii && r >= 0x7f && r < 0x10000):
			if r == 0x7f {
				w.b.WriteRune(r)
				continue
			}
			w.b.WriteString(`\u` + hex(r, 4))
		case w.ascii && r >= 0x10000:
			hi, lo := utf16.EncodeRune(r)
			w.b.WriteString(`\u` + hex(hi, 4) + `\u` + hex(lo, 4))
		default:
			w.b.WriteRune(r)
		}
	}
	w.b.WriteByte('"')
}

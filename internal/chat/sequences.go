package chat

import (
	"errors"
	"fmt"
	"slices"
	"strings"
)

// seqFilter returns a filter that works on a sequence or mapping.
func seqFilter(name string) filterFunc {
	switch name {
	case "length", "count":
		return func(m *machine, v any, _ args) (any, error) {
			switch v := v.(type) {
			case text:
				m.step(len(v.s) / 64)
				return int64(runeLen(v)), nil
			case *list:
				return int64(len(v.items)), nil
			case *dict:
				return int64(len(v.keys)), nil
			case undef:
				return int64(0), nil
			}
			return nil, fmt.Errorf("value is %s", typeName(v))
		}
	case "first", "last", "min", "max", "sum", "list", "reverse":
		return func(m *machine, v any, a args) (any, error) { return reduce(m, name, v, a) }
	case "join":
		return joinFilter
	case "map":
		return mapFilter
	case "select", "reject":
		return func(m *machine, v any, a args) (any, error) { return choose(m, v, a, false, name == "reject") }
	case "selectattr", "rejectattr":
		return func(m *machine, v any, a args) (any, error) { return choose(m, v, a, true, name == "rejectattr") }
	case "items":
		return func(_ *machine, v any, _ args) (any, error) {
			switch v := v.(type) {
			case undef:
				return &list{}, nil
			case *dict:
				return pairs(v), nil
			}
			return nil, fmt.Errorf("value is %s, not a mapping", typeName(v))
		}
	case "sort":
		return sortFilter
	case "unique":
		return uniqueFilter
	case "dictsort":
		return dictSort
	}
	return nil
}

// pairs returns the items of d as tuples.
func pairs(d *dict) *list {
	out := &list{items: make([]any, len(d.keys))}
	for i, k := range d.keys {
		out.items[i] = &list{items: []any{k, d.vals[i]}, tuple: true}
	}
	return out
}

// lenient is itemsOf for the filters to which None is an empty sequence.
func lenient(m *machine, v any) ([]any, error) {
	if v == nil {
		return nil, nil
	}
	return itemsOf(m, v)
}

// itemsOf is iterate for filters.
func itemsOf(m *machine, v any) ([]any, error) {
	items, ok := m.iterate(m.line, v)
	if !ok {
		return nil, m.err
	}
	return items, nil
}

// reduce serves the filters that make one value of a sequence.
func reduce(m *machine, name string, v any, a args) (any, error) {
	items, err := itemsOf(m, v)
	if err != nil {
		return nil, err
	}
	p, err := a.bind("attribute", "start")
	if err != nil {
		return nil, err
	}
	if path, ok := p[0].(text); ok {
		items = slices.Clone(items)
		for i := range items {
			items[i] = follow(m, items[i], path.s)
		}
	}
	switch name {
	case "list":
		return &list{items: items}, nil
	case "reverse":
		if t, ok := v.(text); ok {
			return mark(reversed(t.s), t.tainted()), nil
		}
		items = slices.Clone(items)
		slices.Reverse(items)
		return &list{items: items}, nil
	case "sum":
		var sum any = int64(0)
		if _, ok := p[1].(absent); !ok {
			sum = p[1]
		}
		for _, it := range items {
			sum = m.binary(&binExpr{m.line, "+", &constExpr{sum}, &constExpr{it}})
		}
		return sum, m.err
	}
	if len(items) == 0 {
		return undef{"no items"}, nil
	}
	switch name {
	case "first":
		return items[0], nil
	case "last":
		return items[len(items)-1], nil
	}
	best := items[0]
	for _, it := range items[1:] {
		lt, ok := less(it, best)
		if !ok {
			return nil, fmt.Errorf("%s and %s have no order", typeName(it), typeName(best))
		}
		gt, _ := less(best, it)
		if (name == "min" && lt) || (name == "max" && gt) {
			best = it
		}
	}
	return best, nil
}

func reversed(s string) string {
	r := []rune(s)
	slices.Reverse(r)
	return string(r)
}

// follow returns the attribute of v at a path with dots; parts that are
// numbers are indexes.
func follow(m *machine, v any, path string) any {
	for name := range strings.SplitSeq(path, ".") {
		if _, ok := v.(undef); ok {
			return v
		}
		var at any = lit(name)
		if n, err := toInt(at, []any{nil, absent{}}); err == nil && n != nil {
			at = n
		}
		v = m.index(m.line, v, at)
	}
	return v
}

func joinFilter(m *machine, v any, a args) (any, error) {
	items, err := itemsOf(m, v)
	if err != nil {
		return nil, err
	}
	p, err := a.bind("d", "attribute")
	if err != nil {
		return nil, err
	}
	sep, err := textArg(p[0], "")
	if err != nil {
		return nil, err
	}
	var b textBuilder
	for i, it := range items {
		if path, ok := p[1].(text); ok {
			it = follow(m, it, path.s)
		}
		if i > 0 {
			b.add(sep)
		}
		b.add(m.str(it))
		if b.len() > maxText {
			return nil, fmt.Errorf("string of more than %d bytes", maxText)
		}
	}
	return b.text(), m.err
}

func mapFilter(m *machine, v any, a args) (any, error) {
	items, err := lenient(m, v)
	if err != nil {
		return nil, err
	}
	out := &list{items: make([]any, len(items))}
	if len(a.pos) == 0 {
		p, err := a.bind("attribute", "default")
		if err != nil {
			return nil, err
		}
		path, ok := p[0].(text)
		if !ok {
			return nil, errors.New("neither a filter nor an attribute is given")
		}
		for i, it := range items {
			out.items[i] = follow(m, it, path.s)
			if _, ok := out.items[i].(undef); ok {
				if _, none := p[1].(absent); !none {
					out.items[i] = p[1]
				}
			}
		}
		return out, m.err
	}
	name, ok := a.pos[0].(text)
	if !ok || !isFilter(name.s) {
		return nil, fmt.Errorf("filter %q is not supported", str(a.pos[0]).s)
	}
	rest := args{a.pos[1:], a.names, a.kw}
	for i, it := range items {
		out.items[i] = m.applyFilter(m.line, name.s, it, rest)
	}
	return out, m.err
}

// choose serves select, reject and their forms for attributes.
func choose(m *machine, v any, a args, byAttr, reject bool) (any, error) {
	items, err := lenient(m, v)
	if err != nil {
		return nil, err
	}
	pos := a.pos
	path := ""
	if byAttr {
		if len(pos) == 0 {
			return nil, errors.New("no attribute is given")
		}
		path = str(pos[0]).s
		pos = pos[1:]
	}
	test := ""
	if len(pos) > 0 {
		test = str(pos[0]).s
		pos = pos[1:]
		if !isTest(test) {
			return nil, fmt.Errorf("test %q is not supported", test)
		}
	}
	out := &list{}
	for _, it := range items {
		x := it
		if byAttr {
			x = follow(m, it, path)
		}
		ok := truth(x)
		if test != "" {
			ok = m.test(m.line, test, x, pos)
		}
		if ok != reject {
			out.items = append(out.items, it)
		}
	}
	return out, m.err
}

// sortKey is what an item is ordered by.
func sortKey(m *machine, v any, path any, caseless bool) any {
	if p, ok := path.(text); ok {
		v = follow(m, v, p.s)
	}
	if t, ok := v.(text); ok && caseless {
		return t.mapRunes(lower)
	}
	return v
}

// sortBy sorts items by their keys, keeping the order of equals.
func sortBy(m *machine, items, keys []any, reverse bool) (any, error) {
	m.step(len(items) * 8)
	order := make([]int, len(items))
	for i := range order {
		order[i] = i
	}
	var err error
	slices.SortStableFunc(order, func(a, b int) int {
		lt, ok := less(keys[a], keys[b])
		if !ok {
			err = fmt.Errorf("%s and %s have no order", typeName(keys[a]), typeName(keys[b]))
			return 0
		}
		gt, _ := less(keys[b], keys[a])
		c := 0
		if lt {
			c = -1
		} else if gt {
			c = 1
		}
		if reverse {
			return -c
		}
		return c
	})
	out := &list{items: make([]any, len(items))}
	for i, j := range order {
		out.items[i] = items[j]
	}
	return out, err
}

func sortFilter(m *machine, v any, a args) (any, error) {
	items, err := itemsOf(m, v)
	if err != nil {
		return nil, err
	}
	p, err := a.bind("reverse", "case_sensitive", "attribute")
	if err != nil {
		return nil, err
	}
	keys := make([]any, len(items))
	for i, it := range items {
		keys[i] = sortKey(m, it, p[2], !boolArg(p[1]))
	}
	return sortBy(m, items, keys, boolArg(p[0]))
}

func uniqueFilter(m *machine, v any, a args) (any, error) {
	items, err := itemsOf(m, v)
	if err != nil {
		return nil, err
	}
	p, err := a.bind("case_sensitive", "attribute")
	if err != nil {
		return nil, err
	}
	seen := map[any]bool{}
	out := &list{}
	for _, it := range items {
		k, ok := hashable(sortKey(m, it, p[1], !boolArg(p[0])))
		if !ok {
			return nil, fmt.Errorf("%s cannot be compared", typeName(it))
		}
		if !seen[k] {
			seen[k] = true
			out.items = append(out.items, it)
		}
	}
	return out, nil
}

func dictSort(m *machine, v any, a args) (any, error) {
	d, ok := v.(*dict)
	if !ok {
		return nil, fmt.Errorf("value is %s, not a mapping", typeName(v))
	}
	p, err := a.bind("case_sensitive", "by", "reverse")
	if err != nil {
		return nil, err
	}
	by, err := textArg(p[1], "key")
	if err != nil {
		return nil, err
	}
	items := pairs(d).items
	keys := make([]any, len(items))
	for i := range items {
		x := d.keys[i]
		if by.s == "value" {
			x = d.vals[i]
		}
		keys[i] = sortKey(m, x, nil, !boolArg(p[0]))
	}
	return sortBy(m, items, keys, boolArg(p[2]))
}

package chat

import (
	"errors"
	"fmt"
	"strings"
	"unicode"
)

// isMethod reports whether some value has a method called name.
func isMethod(name string) bool {
	return hasMethod(text{}, name) || hasMethod(&dict{}, name) || hasMethod(&list{}, name) || name == "cycle" || name == "changed"
}

// hasMethod reports whether v has a method called name.
func hasMethod(v any, name string) bool {
	switch v.(type) {
	case text:
		switch name {
		case "strip", "lstrip", "rstrip", "split", "rsplit", "splitlines", "startswith", "endswith",
			"replace", "upper", "lower", "title", "capitalize", "find", "rfind", "count", "join",
			"isdigit", "isalpha", "isalnum", "isspace", "isupper", "islower",
			"removeprefix", "removesuffix", "partition", "rpartition":
			return true
		}
	case *dict:
		switch name {
		case "items", "keys", "values", "get", "copy":
			return true
		}
	case *list:
		return name == "index" || name == "count"
	}
	return false
}

func (m *machine) method(b *bound, a args) (any, error) {
	var v any
	var err error
	switch of := b.of.(type) {
	case text:
		v, err = m.textMethod(of, b.name, a)
	case *dict:
		v, err = dictMethod(of, b.name, a)
	case *list:
		v, err = listMethod(of, b.name, a)
	case *loop:
		v, err = of.method(b.name, a)
	}
	if err != nil {
		err = fmt.Errorf("%s: %w", b.name, err)
	}
	return v, err
}

func (m *machine) textMethod(t text, name string, a args) (any, error) {
	m.step(len(t.s) / 64)
	switch name {
	case "strip", "lstrip", "rstrip":
		p, err := a.bind("chars")
		if err != nil {
			return nil, err
		}
		set, err := textArg(p[0], "")
		return t.trim(set.s, name != "rstrip", name != "lstrip"), err
	case "split", "rsplit":
		return split(t, name == "rsplit", a)
	case "splitlines":
		p, err := a.bind("keepends")
		if err != nil {
			return nil, err
		}
		return texts(t.lines(boolArg(p[0]))), nil
	case "startswith", "endswith":
		return affix(t, a, name == "startswith")
	case "replace":
		p, err := a.bind("old", "new", "count")
		if err != nil {
			return nil, err
		}
		return replace(t, p)
	case "join":
		p, err := a.bind("items")
		if err != nil {
			return nil, err
		}
		return joinFilter(m, p[0], args{pos: []any{t}})
	case "find", "rfind", "count", "removeprefix", "removesuffix", "partition", "rpartition":
		return search(t, name, a)
	}
	if len(a.pos)+len(a.kw) > 0 {
		return nil, errors.New("takes no arguments")
	}
	switch name {
	case "upper":
		return t.mapRunes(upper), nil
	case "lower":
		return t.mapRunes(lower), nil
	case "title":
		return title(t, func(r rune) bool { return !unicode.IsLetter(r) }), nil
	case "capitalize":
		return capitalize(t), nil
	case "isupper":
		return cased(t.s, true), nil
	case "islower":
		return cased(t.s, false), nil
	}
	return allRunes(t.s, name), nil
}

// allRunes serves the methods that ask about every character.
func allRunes(s, name string) bool {
	for _, r := range s {
		ok := false
		switch name {
		case "isdigit":
			ok = unicode.IsDigit(r)
		case "isalpha":
			ok = unicode.IsLetter(r)
		case "isalnum":
			ok = unicode.IsLetter(r) || unicode.IsNumber(r)
		case "isspace":
			ok = isSpace(r)
		}
		if !ok {
			return false
		}
	}
	return s != ""
}

func split(t text, right bool, a args) (any, error) {
	p, err := a.bind("sep", "maxsplit")
	if err != nil {
		return nil, err
	}
	limit, err := intArg(p[1], -1)
	if err != nil {
		return nil, err
	}
	sep, err := textArg(p[0], "")
	if err != nil {
		return nil, err
	}
	_, left := p[0].(absent)
	switch {
	case left || p[0] == nil:
		if right && limit >= 0 {
			return nil, errors.New("a limit needs a separator")
		}
		return texts(t.fields(limit)), nil
	case sep.s == "":
		return nil, errors.New("separator is empty")
	case right:
		return texts(t.rsplit(sep.s, limit)), nil
	}
	return texts(t.split(sep.s, limit)), nil
}

func affix(t text, a args, front bool) (any, error) {
	p, err := a.bind("affix")
	if err != nil {
		return nil, err
	}
	options := []any{p[0]}
	if l, ok := p[0].(*list); ok && l.tuple {
		options = l.items
	}
	for _, o := range options {
		s, ok := o.(text)
		if !ok {
			return nil, fmt.Errorf("argument is %s, not a string", typeName(o))
		}
		if (front && strings.HasPrefix(t.s, s.s)) || (!front && strings.HasSuffix(t.s, s.s)) {
			return true, nil
		}
	}
	return false, nil
}

func search(t text, name string, a args) (any, error) {
	p, err := a.bind("sub")
	if err != nil {
		return nil, err
	}
	sub, ok := p[0].(text)
	if !ok {
		return nil, errors.New("argument is not a string")
	}
	at := strings.Index(t.s, sub.s)
	if strings.HasPrefix(name, "r") && name[1] != 'e' {
		at = strings.LastIndex(t.s, sub.s)
	}
	switch name {
	case "find", "rfind":
		if at < 0 {
			return int64(-1), nil
		}
		return int64(runeLen(t.slice(0, at))), nil
	case "count":
		return int64(strings.Count(t.s, sub.s)), nil
	case "removeprefix":
		return t.slice(len(t.s)-len(strings.TrimPrefix(t.s, sub.s)), len(t.s)), nil
	case "removesuffix":
		return t.slice(0, len(strings.TrimSuffix(t.s, sub.s))), nil
	}
	if sub.s == "" {
		return nil, errors.New("separator is empty")
	}
	three := []text{t, {}, {}}
	switch {
	case at >= 0:
		end := at + len(sub.s)
		three = []text{t.slice(0, at), t.slice(at, end), t.slice(end, len(t.s))}
	case name == "rpartition":
		three = []text{{}, {}, t}
	}
	l := texts(three)
	l.tuple = true
	return l, nil
}

func dictMethod(d *dict, name string, a args) (any, error) {
	if name == "get" {
		p, err := a.bind("key", "default")
		if err != nil {
			return nil, err
		}
		if v, ok := d.get(p[0]); ok {
			return v, nil
		}
		if _, ok := p[1].(absent); ok {
			return nil, nil
		}
		return p[1], nil
	}
	if len(a.pos)+len(a.kw) > 0 {
		return nil, errors.New("takes no arguments")
	}
	switch name {
	case "keys":
		return &list{items: d.keys}, nil
	case "values":
		return &list{items: d.vals}, nil
	case "copy":
		return fromArgs(args{pos: []any{d}})
	}
	return pairs(d), nil
}

func listMethod(l *list, name string, a args) (any, error) {
	p, err := a.bind("value")
	if err != nil {
		return nil, err
	}
	n := int64(0)
	for i, it := range l.items {
		if equal(it, p[0], 0) {
			if name == "index" {
				return int64(i), nil
			}
			n++
		}
	}
	if name == "index" {
		return nil, errors.New("value is not in the list")
	}
	return n, nil
}

func (l *loop) method(name string, a args) (any, error) {
	if len(a.kw) > 0 {
		return nil, errors.New("takes no named arguments")
	}
	if name == "cycle" {
		if len(a.pos) == 0 {
			return nil, errors.New("no items")
		}
		return a.pos[l.at%len(a.pos)], nil
	}
	now := &list{items: a.pos}
	changed := !l.seen || !equal(l.last, now, 0)
	l.seen, l.last = true, now
	return changed, nil
}

package chat

import "unicode/utf8"

// eval returns the value of x.
func (m *machine) eval(x expr) any {
	if !m.step(1) {
		return undef{}
	}
	switch x := x.(type) {
	case *constExpr:
		return x.v
	case *nameExpr:
		if v, ok := m.scope.get(x.name); ok {
			return v
		}
		if isGlobal(x.name) {
			return global(x.name)
		}
		return undef{x.name}
	case *attrExpr:
		return m.attr(x.line, m.eval(x.x), x.name)
	case *indexExpr:
		return m.index(x.line, m.eval(x.x), m.eval(x.at))
	case *sliceExpr:
		return m.slice(x)
	case *callExpr:
		fn := m.eval(x.fn)
		return m.invoke(x.line, fn, m.args(x.args), nil)
	case *filterExpr:
		return m.filter(m.eval(x.x), x.f)
	case *testExpr:
		v := m.eval(x.x)
		return m.test(x.line, x.name, v, m.args(x.args).pos) != x.not
	case *unaryExpr:
		return m.unary(x)
	case *binExpr:
		return m.binary(x)
	case *compareExpr:
		return m.compare(x)
	case *condExpr:
		if truth(m.eval(x.cond)) {
			return m.eval(x.then)
		}
		if x.els == nil {
			return undef{"the inline if expression"}
		}
		return m.eval(x.els)
	case *listExpr:
		l := &list{tuple: x.tuple}
		for _, it := range x.items {
			l.items = append(l.items, m.eval(it))
		}
		return l
	case *dictExpr:
		d := &dict{}
		for i, k := range x.keys {
			if key := m.eval(k); !d.set(key, m.eval(x.vals[i])) {
				return m.fail(x.line, "%s cannot be a key", typeName(key))
			}
		}
		return d
	}
	return undef{}
}

// args evaluates the arguments of a call.
func (m *machine) args(a argList) args {
	var out args
	for _, x := range a.pos {
		out.pos = append(out.pos, m.eval(x))
	}
	out.names = a.names
	for _, x := range a.kw {
		out.kw = append(out.kw, m.eval(x))
	}
	return out
}

// lookup returns v's attribute or item called name.
func lookup(v any, name string) (any, bool) {
	switch v := v.(type) {
	case *dict:
		return v.getString(name)
	case *namespace:
		return v.vars.getString(name)
	case *loop:
		return v.attr(name)
	}
	return nil, false
}

func (m *machine) attr(line int, v any, name string) any {
	if u, ok := v.(undef); ok {
		return m.fail(line, "%s is undefined, so it has no %q", orIt(u.name), name)
	}
	// As in Jinja, x.name is a method before it is a key.
	if hasMethod(v, name) {
		return &bound{v, name}
	}
	if x, ok := lookup(v, name); ok {
		return x
	}
	return undef{name}
}

func orIt(name string) string {
	if name == "" {
		return "value"
	}
	return "'" + name + "'"
}

func (m *machine) index(line int, v, at any) any {
	switch v := v.(type) {
	case undef:
		return m.fail(line, "%s is undefined, so it has no items", orIt(v.name))
	case *dict:
		if x, ok := v.get(at); ok {
			return x
		}
	case *list:
		if i, ok := integer(at); ok {
			if j, ok := place(i, len(v.items)); ok {
				return v.items[j]
			}
		}
	case text:
		if i, ok := integer(at); ok {
			n := runeLen(v)
			m.step(n / 64)
			if j, ok := place(i, n); ok {
				a := runeOffset(v.s, j)
				_, w := utf8.DecodeRuneInString(v.s[a:])
				return v.slice(a, a+w)
			}
		}
	}
	if t, ok := at.(text); ok {
		if x, ok := lookup(v, t.s); ok {
			return x
		}
		if hasMethod(v, t.s) {
			return &bound{v, t.s}
		}
		return undef{t.s}
	}
	return undef{"item"}
}

// place turns a Python index into an offset.
func place(i int64, n int) (int, bool) {
	if i < 0 {
		i += int64(n)
	}
	return int(i), i >= 0 && i < int64(n)
}

// runeOffset returns where character i of s begins.
func runeOffset(s string, i int) int {
	at := 0
	for ; i > 0 && at < len(s); i-- {
		_, n := utf8.DecodeRuneInString(s[at:])
		at += n
	}
	return at
}

func (m *machine) slice(x *sliceExpr) any {
	v := m.eval(x.x)
	bounds := [3]*int64{}
	for i, e := range []expr{x.from, x.to, x.step} {
		if e == nil {
			continue
		}
		b := m.eval(e)
		if b == nil {
			continue
		}
		n, ok := integer(b)
		if !ok {
			return m.fail(x.line, "slice bound is %s", typeName(b))
		}
		bounds[i] = &n
	}
	if bounds[2] != nil && *bounds[2] == 0 {
		return m.fail(x.line, "slice step is zero")
	}
	switch v := v.(type) {
	case *list:
		out := &list{tuple: v.tuple}
		for _, i := range sliceIndexes(bounds, len(v.items)) {
			out.items = append(out.items, v.items[i])
		}
		m.step(len(out.items))
		return out
	case text:
		if bounds[2] == nil || *bounds[2] == 1 {
			a, b := sliceRange(bounds, runeLen(v))
			from := runeOffset(v.s, a)
			return m.pay(v.slice(from, from+runeOffset(v.s[from:], max(0, b-a))))
		}
		chars := characters(v)
		m.step(len(chars))
		var b textBuilder
		for _, i := range sliceIndexes(bounds, len(chars)) {
			b.add(chars[i].(text))
		}
		return m.pay(b.text())
	case undef:
		return m.fail(x.line, "%s is undefined, so it has no slices", orIt(v.name))
	}
	return m.fail(x.line, "%s has no slices", typeName(v))
}

// sliceRange returns the bounds of a slice with step 1.
func sliceRange(b [3]*int64, n int) (from, to int) {
	clip := func(p *int64, def int) int {
		if p == nil {
			return def
		}
		i := *p
		if i < 0 {
			i += int64(n)
		}
		return int(max(0, min(i, int64(n))))
	}
	return clip(b[0], 0), clip(b[1], n)
}

func sliceIndexes(b [3]*int64, n int) []int {
	var out []int
	step := int64(1)
	if b[2] != nil {
		step = *b[2]
	}
	if step > 0 {
		from, to := sliceRange(b, n)
		for i := int64(from); i < int64(to); i += step {
			out = append(out, int(i))
			if step > int64(n) {
				break
			}
		}
		return out
	}
	clip := func(p *int64, def int64) int64 {
		if p == nil {
			return def
		}
		i := *p
		if i < 0 {
			i += int64(n)
		}
		return max(-1, min(i, int64(n)-1))
	}
	for i, to := clip(b[0], int64(n)-1), clip(b[1], -1); i > to; i += step {
		out = append(out, int(i))
		if step < -int64(n) {
			break
		}
	}
	return out
}

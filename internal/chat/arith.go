package chat

import (
	"math"
	"strings"
)

func (m *machine) unary(x *unaryExpr) any {
	v := m.eval(x.x)
	if x.op == "not" {
		return !truth(v)
	}
	sign := int64(1)
	if x.op == "-" {
		sign = -1
	}
	if i, ok := integer(v); ok {
		return sign * i
	}
	if f, ok := v.(float64); ok {
		return float64(sign) * f
	}
	return m.fail(x.line, "%s of %s", x.op, typeName(v))
}

func (m *machine) binary(x *binExpr) any {
	l := m.eval(x.l)
	switch x.op {
	case "and":
		if !truth(l) {
			return l
		}
		return m.eval(x.r)
	case "or":
		if truth(l) {
			return l
		}
		return m.eval(x.r)
	}
	r := m.eval(x.r)
	if x.op == "~" {
		return m.concat(m.str(l), m.str(r))
	}
	for _, v := range []any{l, r} {
		if u, ok := v.(undef); ok {
			return m.fail(x.line, "%s is undefined, so it cannot be used with %s", orIt(u.name), x.op)
		}
	}
	switch lv := l.(type) {
	case text:
		switch rv := r.(type) {
		case text:
			if x.op == "+" {
				return m.concat(lv, rv)
			}
		case int64:
			if x.op == "*" {
				return m.repeat(lv, rv)
			}
		}
	case *list:
		if rv, ok := r.(*list); ok && x.op == "+" && lv.tuple == rv.tuple {
			m.step(len(lv.items) + len(rv.items))
			return &list{items: append(append([]any{}, lv.items...), rv.items...), tuple: lv.tuple}
		}
	}
	if a, ok := integer(l); ok {
		if rt, ok := r.(text); ok && x.op == "*" {
			return m.repeat(rt, a)
		}
		if b, ok := integer(r); ok {
			return m.integers(x, a, b)
		}
	}
	a, aok := num(l)
	b, bok := num(r)
	if !aok || !bok {
		return m.fail(x.line, "%s %s %s", typeName(l), x.op, typeName(r))
	}
	return m.floats(x, a, b)
}

func (m *machine) concat(a, b text) any {
	if len(a.s)+len(b.s) > maxText {
		return m.fail(m.line, "string of more than %d bytes", maxText)
	}
	return m.pay(join(a, b))
}

func (m *machine) repeat(t text, n int64) any {
	if n <= 0 || t.s == "" {
		return text{}
	}
	if n > maxText/int64(len(t.s)) {
		return m.fail(m.line, "string of more than %d bytes", maxText)
	}
	return m.pay(mark(strings.Repeat(t.s, int(n)), t.tainted()))
}

func (m *machine) integers(x *binExpr, a, b int64) any {
	over := func() any { return m.fail(x.line, "%d %s %d is out of range", a, x.op, b) }
	switch x.op {
	case "+":
		if s := a + b; (s > a) == (b > 0) {
			return s
		}
		return over()
	case "-":
		if d := a - b; (d < a) == (b > 0) {
			return d
		}
		return over()
	case "*":
		if a == 0 || b == 0 {
			return int64(0)
		}
		least := min(a, b) == math.MinInt64 && max(a, b) < 0
		if p := a * b; !least && p/b == a {
			return p
		}
		return over()
	case "//", "%":
		if b == 0 {
			return m.fail(x.line, "division by zero")
		}
		if b == -1 {
			if x.op == "%" {
				return int64(0)
			}
			return -a
		}
		q, r := a/b, a%b
		if r != 0 && (r < 0) != (b < 0) {
			q, r = q-1, r+b
		}
		if x.op == "//" {
			return q
		}
		return r
	case "**":
		if b < 0 {
			break
		}
		p := int64(1)
		for ; b > 0; b-- {
			if p != 0 && (a > 1 || a < -1) && (p > math.MaxInt64/max(a, -a) || p < math.MinInt64/max(a, -a)) {
				return over()
			}
			p *= a
			if !m.step(1) {
				return undef{}
			}
		}
		return p
	}
	return m.floats(x, float64(a), float64(b))
}

func (m *machine) floats(x *binExpr, a, b float64) any {
	switch x.op {
	case "+":
		return a + b
	case "-":
		return a - b
	case "*":
		return a * b
	case "**":
		return math.Pow(a, b)
	}
	if b == 0 {
		return m.fail(x.line, "division by zero")
	}
	switch x.op {
	case "/":
		return a / b
	case "//":
		return math.Floor(a / b)
	}
	r := math.Mod(a, b)
	if r != 0 && (r < 0) != (b < 0) {
		r += b
	}
	return r
}

func (m *machine) compare(x *compareExpr) any {
	l := m.eval(x.x)
	for i, op := range x.ops {
		r := m.eval(x.xs[i])
		if !m.holds(x.line, op, l, r) {
			return false
		}
		l = r
	}
	return true
}

// holds reports whether l op r, for the comparison operators.
func (m *machine) holds(line int, op string, l, r any) bool {
	switch op {
	case "==":
		return equal(l, r, 0)
	case "!=":
		return !equal(l, r, 0)
	case "in":
		return m.contains(line, r, l)
	case "not in":
		return !m.contains(line, r, l)
	}
	lt, ok := less(l, r)
	if !ok {
		m.fail(line, "%s %s %s", typeName(l), op, typeName(r))
		return false
	}
	switch op {
	case "<":
		return lt
	case ">=":
		return !lt
	}
	gt, _ := less(r, l)
	if op == ">" {
		return gt
	}
	return !gt
}

func (m *machine) contains(line int, in, v any) bool {
	switch in := in.(type) {
	case undef:
		return false
	case text:
		t, ok := v.(text)
		if !ok {
			m.fail(line, "%s in string", typeName(v))
			return false
		}
		m.step(len(in.s) / 64)
		return strings.Contains(in.s, t.s)
	case *list:
		m.step(len(in.items))
		for _, it := range in.items {
			if equal(it, v, 0) {
				return true
			}
		}
		return false
	case *dict:
		_, ok := in.get(v)
		return ok
	case *namespace:
		_, ok := in.vars.get(v)
		return ok
	}
	m.fail(line, "in %s", typeName(in))
	return false
}

package chat

import "unicode"

// isTest reports whether name is a known test.
func isTest(name string) bool {
	switch name {
	case "defined", "undefined", "none", "string", "number", "integer", "float", "boolean",
		"mapping", "iterable", "sequence", "callable", "true", "false", "odd", "even",
		"divisibleby", "in", "eq", "equalto", "==", "ne", "!=", "lt", "lessthan", "<", "gt",
		"greaterthan", ">", "le", "<=", "ge", ">=", "sameas", "lower", "upper", "filter", "test":
		return true
	}
	return false
}

// test reports whether v passes the test called name.
func (m *machine) test(line int, name string, v any, pos []any) bool {
	want := 0
	op := ""
	switch name {
	case "divisibleby", "sameas":
		want = 1
	case "in":
		want, op = 1, "in"
	case "eq", "equalto", "==":
		want, op = 1, "=="
	case "ne", "!=":
		want, op = 1, "!="
	case "lt", "lessthan", "<":
		want, op = 1, "<"
	case "gt", "greaterthan", ">":
		want, op = 1, ">"
	case "le", "<=":
		want, op = 1, "<="
	case "ge", ">=":
		want, op = 1, ">="
	}
	if len(pos) != want {
		m.fail(line, "test %s takes %d arguments", name, want)
		return false
	}
	if op != "" {
		return m.holds(line, op, v, pos[0])
	}
	switch name {
	case "odd", "even", "divisibleby":
		n, ok := integer(v)
		by := int64(2)
		if name == "divisibleby" && ok {
			by, ok = integer(pos[0])
		}
		if !ok || by == 0 {
			m.fail(line, "test %s of %s", name, typeName(v))
			return false
		}
		return (n%by == 0) != (name == "odd")
	case "sameas":
		switch v.(type) {
		case nil, bool, *list, *dict, *namespace:
			return v == pos[0]
		}
		_, isBool := pos[0].(bool)
		return !isBool && equal(v, pos[0], 0)
	case "filter", "test":
		t, ok := v.(text)
		return ok && (name == "filter" && isFilter(t.s) || name == "test" && isTest(t.s))
	case "lower", "upper":
		return cased(str(v).s, name == "upper")
	}
	return hasType(name, v)
}

// cased is Python's islower and isupper.
func cased(s string, up bool) bool {
	any := false
	for _, r := range s {
		if (up && unicode.IsLower(r)) || (!up && unicode.IsUpper(r)) || unicode.IsTitle(r) {
			return false
		}
		any = any || unicode.IsLower(r) || unicode.IsUpper(r)
	}
	return any
}

// hasType serves the tests that ask what kind of value v is.
func hasType(name string, v any) bool {
	switch name {
	case "defined":
		_, ok := v.(undef)
		return !ok
	case "undefined":
		_, ok := v.(undef)
		return ok
	case "none":
		return v == nil
	case "string":
		_, ok := v.(text)
		return ok
	case "number":
		_, ok := num(v)
		return ok
	case "integer":
		_, ok := v.(int64)
		return ok
	case "float":
		_, ok := v.(float64)
		return ok
	case "boolean":
		_, ok := v.(bool)
		return ok
	case "true":
		return v == true
	case "false":
		return v == false
	case "mapping":
		_, ok := v.(*dict)
		return ok
	case "iterable", "sequence":
		switch v.(type) {
		case undef, text, *list, *dict:
			return true
		}
		return false
	}
	switch v.(type) { // callable
	case *macro, *bound, global:
		return true
	}
	return false
}

package chat

import (
	"errors"
	"fmt"
	"strings"
	"time"
)

// args are evaluated arguments.
type args struct {
	pos   []any
	names []string
	kw    []any
}

// absent stands for an argument that was not given.
type absent struct{}

// bind puts the arguments at the places of the named parameters.
func (a args) bind(params ...string) ([]any, error) {
	if len(a.pos) > len(params) {
		return nil, fmt.Errorf("%d arguments, at most %d are possible", len(a.pos), len(params))
	}
	out := make([]any, len(params))
	for i := range out {
		out[i] = absent{}
	}
	copy(out, a.pos)
next:
	for i, name := range a.names {
		for j, p := range params {
			if p == name {
				out[j] = a.kw[i]
				continue next
			}
		}
		return nil, fmt.Errorf("argument %q is not known", name)
	}
	return out, nil
}

// textArg returns an argument that must be a string.
func textArg(v any, def string) (text, error) {
	switch v := v.(type) {
	case absent:
		return lit(def), nil
	case nil:
		return lit(def), nil
	case text:
		return v, nil
	}
	return text{}, fmt.Errorf("argument is %s, not a string", typeName(v))
}

// intArg returns an argument that must be an integer.
func intArg(v any, def int) (int, error) {
	if _, ok := v.(absent); ok {
		return def, nil
	}
	n, ok := integer(v)
	if !ok || n > maxText || n < -maxText {
		return 0, errors.New("argument is not an integer in range")
	}
	return int(n), nil
}

// boolArg returns the truth of an argument; one not given is false.
func boolArg(v any) bool {
	_, missing := v.(absent)
	return !missing && truth(v)
}

// invoke calls fn; caller is the macro of a call block, or nil.
func (m *machine) invoke(line int, fn any, a args, caller *macro) any {
	if m.err != nil {
		return undef{}
	}
	m.line = line
	var v any
	var err error
	switch fn := fn.(type) {
	case *macro:
		return m.callMacro(line, fn, a, caller)
	case *bound:
		v, err = m.method(fn, a)
	case global:
		v, err = m.global(fn, a)
	case undef:
		return m.fail(line, "%s is undefined, so it cannot be called", orIt(fn.name))
	default:
		return m.fail(line, "%s cannot be called", typeName(fn))
	}
	return m.result(line, v, err)
}

// result pays for a value that a function made.
func (m *machine) result(line int, v any, err error) any {
	var raised *RenderError
	switch {
	case errors.As(err, &raised):
		if m.err == nil {
			raised.Line = line
			m.err = raised
		}
		return undef{}
	case err != nil:
		return m.fail(line, "%v", err)
	}
	switch v := v.(type) {
	case text:
		return m.pay(v)
	case *list:
		m.step(len(v.items))
	}
	return v
}

func (m *machine) callMacro(line int, mc *macro, a args, caller *macro) any {
	if m.calls++; m.calls > maxCalls {
		return m.fail(line, "macros nested more than %d deep", maxCalls)
	}
	defer func() { m.calls-- }()
	def := mc.def
	vals, err := a.bind(def.params...)
	if err != nil {
		return m.fail(line, "%s: %v", def.name, err)
	}
	var out text
	m.inner(mc.scope, func() {
		if caller != nil {
			m.scope.vars["caller"] = caller
		}
		first := len(def.params) - len(def.defaults)
		for i, p := range def.params {
			v := vals[i]
			if _, ok := v.(absent); ok {
				v = undef{p}
				if i >= first {
					v = m.eval(def.defaults[i-first])
				}
			}
			m.scope.vars[p] = v
		}
		out = m.capture(def.body)
	})
	return out
}

// isGlobal reports whether name is a function of the environment.
func isGlobal(name string) bool {
	switch name {
	case "range", "namespace", "dict", "raise_exception", "strftime_now":
		return true
	}
	return false
}

func (m *machine) global(name global, a args) (any, error) {
	switch name {
	case "range":
		return m.rangeOf(a)
	case "namespace":
		ns := &namespace{}
		d, err := fromArgs(a)
		if err != nil {
			return nil, err
		}
		ns.vars = *d
		return ns, nil
	case "dict":
		return fromArgs(a)
	case "raise_exception":
		v, err := a.bind("message")
		if err != nil {
			return nil, err
		}
		return nil, &RenderError{Msg: str(v[0]).s, Raised: true}
	}
	v, err := a.bind("format")
	if err != nil {
		return nil, err
	}
	f, err := textArg(v[0], "%c")
	if err != nil {
		return nil, err
	}
	s, err := strftime(m.now, f.s)
	return mark(s, f.tainted()), err
}

// fromArgs makes a dict of named arguments, and of one mapping before them.
func fromArgs(a args) (*dict, error) {
	d := &dict{}
	if len(a.pos) > 0 {
		src, ok := a.pos[0].(*dict)
		if !ok || len(a.pos) > 1 {
			return nil, errors.New("argument is not a mapping")
		}
		for i, k := range src.keys {
			d.set(k, src.vals[i])
		}
	}
	for i, n := range a.names {
		d.set(lit(n), a.kw[i])
	}
	return d, nil
}

func (m *machine) rangeOf(a args) (any, error) {
	if len(a.pos) == 0 || len(a.pos) > 3 || len(a.kw) > 0 {
		return nil, errors.New("range takes one to three arguments")
	}
	b := [3]int{0, 0, 1}
	for i, v := range a.pos {
		n, err := intArg(v, 0)
		if err != nil {
			return nil, err
		}
		b[i] = n
	}
	if len(a.pos) == 1 {
		b[0], b[1] = 0, b[0]
	}
	if b[2] == 0 {
		return nil, errors.New("step of range is zero")
	}
	out := &list{}
	for i := b[0]; (b[2] > 0 && i < b[1]) || (b[2] < 0 && i > b[1]); i += b[2] {
		if !m.step(1) {
			return nil, m.err
		}
		out.items = append(out.items, int64(i))
	}
	return out, nil
}

// strftime formats t as C's strftime does in the C locale.
func strftime(t time.Time, format string) (string, error) {
	var b strings.Builder
	for i := 0; i < len(format); i++ {
		if format[i] != '%' || i+1 == len(format) {
			b.WriteByte(format[i])
			continue
		}
		i++
		plain := false
		if format[i] == '-' && i+1 < len(format) {
			i++
			plain = true
		}
		s, ok := timeField(t, format[i])
		if !ok {
			return "", fmt.Errorf("time format %%%c is not supported", format[i])
		}
		if plain {
			if s = strings.TrimLeft(s, "0 "); s == "" {
				s = "0"
			}
		}
		b.WriteString(s)
	}
	return b.String(), nil
}

func timeField(t time.Time, c byte) (string, bool) {
	switch c {
	case '%':
		return "%", true
	case 'n':
		return "\n", true
	case 't':
		return "\t", true
	case 'j':
		return fmt.Sprintf("%03d", t.YearDay()), true
	case 's':
		return fmt.Sprint(t.Unix()), true
	case 'u':
		return fmt.Sprint((int(t.Weekday())+6)%7 + 1), true
	case 'w':
		return fmt.Sprint(int(t.Weekday())), true
	case 'f':
		return fmt.Sprintf("%06d", t.Nanosecond()/1000), true
	case 'C':
		return fmt.Sprintf("%02d", t.Year()/100), true
	}
	i := strings.IndexByte("YymdHIMSpBbhAaZzFTDRecxX", c)
	if i < 0 {
		return "", false
	}
	return t.Format([]string{
		"2006", "06", "01", "02", "15", "03", "04", "05", "PM", "January", "Jan", "Jan",
		"Monday", "Mon", "MST", "-0700", "2006-01-02", "15:04:05", "01/02/06", "15:04",
		"_2", "Mon Jan _2 15:04:05 2006", "01/02/06", "15:04:05",
	}[i]), true
}

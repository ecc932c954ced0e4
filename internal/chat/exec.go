package chat

import (
	"fmt"
	"time"
	"unicode/utf8"
)

// A machine renders one template once. Its first error ends the rendering:
// every step then fails, and values are of no account.
type machine struct {
	err   error
	line  int
	steps int
	calls int
	now   time.Time
	scope *scope
	out   *textBuilder
	jump  jump
}

// A jump is a loop control on its way to its loop.
type jump uint8

const (
	noJump jump = iota
	jumpNext
	jumpOut
)

// A scope holds the variables of a block; names not in it are looked up
// outside.
type scope struct {
	vars  map[string]any
	outer *scope
}

func (s *scope) get(name string) (any, bool) {
	for ; s != nil; s = s.outer {
		if v, ok := s.vars[name]; ok {
			return v, true
		}
	}
	return nil, false
}

// A macro is a macro together with where it was defined.
type macro struct {
	def   *macroNode
	scope *scope
}

// fail sets the error of the rendering unless it has one.
func (m *machine) fail(line int, format string, args ...any) any {
	if m.err == nil {
		m.err = &RenderError{Line: line, Msg: fmt.Sprintf(format, args...)}
	}
	return undef{}
}

// step pays for n units of work and reports whether rendering may go on.
func (m *machine) step(n int) bool {
	if m.err != nil {
		return false
	}
	if m.steps += n; m.steps > maxSteps {
		m.fail(m.line, "more than %d steps", maxSteps)
		return false
	}
	return true
}

// pay charges for a text that came to be, and refuses one too long.
func (m *machine) pay(t text) text {
	if len(t.s) > maxText {
		m.fail(m.line, "string of more than %d bytes", maxText)
		return text{}
	}
	m.step(1 + len(t.s)/64)
	return t
}

func (m *machine) write(t text) {
	if m.out.len()+len(t.s) > maxText {
		m.fail(m.line, "output of more than %d bytes", maxText)
		return
	}
	if m.step(1 + len(t.s)/64) {
		m.out.add(t)
	}
}

// capture returns what body writes.
func (m *machine) capture(body []node) text {
	out := m.out
	m.out = &textBuilder{}
	m.exec(body)
	t := m.out.text()
	m.out = out
	return m.pay(t)
}

// inner runs f in a new scope inside outer.
func (m *machine) inner(outer *scope, f func()) {
	was := m.scope
	m.scope = &scope{vars: map[string]any{}, outer: outer}
	f()
	m.scope = was
}

func (m *machine) exec(body []node) {
	for _, n := range body {
		if !m.step(1) || m.jump != noJump {
			return
		}
		m.execNode(n)
	}
}

func (m *machine) execNode(n node) {
	switch n := n.(type) {
	case *dataNode:
		m.write(n.text)
	case *outNode:
		m.line = n.line
		m.write(m.str(m.eval(n.x)))
	case *ifNode:
		for i, c := range n.conds {
			m.line = n.line
			if truth(m.eval(c)) {
				m.exec(n.thens[i])
				return
			}
		}
		m.exec(n.els)
	case *forNode:
		m.loop(n)
	case *setNode:
		m.set(n)
	case *macroNode:
		m.scope.vars[n.name] = &macro{n, m.scope}
	case *callNode:
		caller := &macro{n.caller, m.scope}
		fn := m.eval(n.call.fn)
		m.write(m.str(m.invoke(n.line, fn, m.args(n.call.args), caller)))
	case *filterNode:
		m.inner(m.scope, func() {
			m.write(m.str(m.filters(m.capture(n.body), n.filters)))
		})
	case *withNode:
		vars := map[string]any{}
		for i, x := range n.xs {
			vars[n.names[i]] = m.eval(x)
		}
		m.inner(m.scope, func() {
			m.scope.vars = vars
			m.exec(n.body)
		})
	case *blockNode:
		m.exec(n.body)
	case *loopControl:
		m.jump = jumpNext
		if n.stop {
			m.jump = jumpOut
		}
	}
}

// str is what output makes of a value. Printing a thing that has no text of its
// own would be a silent mistake.
func (m *machine) str(v any) text {
	switch v.(type) {
	case *macro, *bound, *loop, *namespace, global:
		m.fail(m.line, "%s has no text", typeName(v))
		return text{}
	}
	return m.pay(str(v))
}

func (m *machine) set(n *setNode) {
	var v any
	if n.x != nil {
		v = m.eval(n.x)
	} else {
		m.inner(m.scope, func() { v = m.filters(m.capture(n.body), n.filters) })
	}
	if len(n.targets) == 1 {
		m.assign(n.line, n.targets[0], v)
		return
	}
	items, ok := m.iterate(n.line, v)
	if ok && len(items) != len(n.targets) {
		m.fail(n.line, "%d values for %d names", len(items), len(n.targets))
		return
	}
	for i, t := range n.targets {
		if ok {
			m.assign(n.line, t, items[i])
		}
	}
}

func (m *machine) assign(line int, t target, v any) {
	if t.attr == "" {
		m.scope.vars[t.name] = v
		return
	}
	x, _ := m.scope.get(t.name)
	ns, ok := x.(*namespace)
	if !ok {
		m.fail(line, "%s is no namespace", t.name)
		return
	}
	ns.vars.set(lit(t.attr), v)
}

// A loop is the variable "loop" of a for statement.
type loop struct {
	items []any
	at    int
	depth int
	last  any // what changed saw
	seen  bool
}

func (m *machine) loop(n *forNode) {
	m.line = n.line
	items, ok := m.iterate(n.line, m.eval(n.iter))
	if !ok {
		return
	}
	outer := m.scope
	if n.filter != nil {
		var kept []any
		for _, it := range items {
			m.inner(outer, func() {
				m.spread(n, it)
				if truth(m.eval(n.filter)) {
					kept = append(kept, it)
				}
			})
			if m.err != nil {
				return
			}
		}
		items = kept
	}
	if len(items) == 0 {
		m.inner(outer, func() { m.exec(n.els) })
		return
	}
	lp := &loop{items: items, depth: 1}
	if v, ok := outer.get("loop"); ok {
		if l, ok := v.(*loop); ok {
			lp.depth = l.depth + 1
		}
	}
	for i, it := range items {
		if !m.step(1) {
			return
		}
		lp.at = i
		m.inner(outer, func() {
			m.scope.vars["loop"] = lp
			m.spread(n, it)
			m.exec(n.body)
		})
		j := m.jump
		m.jump = noJump
		if j == jumpOut {
			return
		}
	}
}

// spread gives the loop's names their values for one item.
func (m *machine) spread(n *forNode, item any) {
	if len(n.targets) == 1 {
		m.scope.vars[n.targets[0]] = item
		return
	}
	vals, ok := m.iterate(n.line, item)
	if !ok {
		return
	}
	if len(vals) != len(n.targets) {
		m.fail(n.line, "%d values for %d names", len(vals), len(n.targets))
		return
	}
	for i, name := range n.targets {
		m.scope.vars[name] = vals[i]
	}
}

func (l *loop) attr(name string) (any, bool) {
	n := len(l.items)
	switch name {
	case "index":
		return int64(l.at + 1), true
	case "index0":
		return int64(l.at), true
	case "revindex":
		return int64(n - l.at), true
	case "revindex0":
		return int64(n - l.at - 1), true
	case "first":
		return l.at == 0, true
	case "last":
		return l.at == n-1, true
	case "length":
		return int64(n), true
	case "depth":
		return int64(l.depth), true
	case "depth0":
		return int64(l.depth - 1), true
	case "previtem":
		if l.at > 0 {
			return l.items[l.at-1], true
		}
		return undef{"previtem"}, true
	case "nextitem":
		if l.at+1 < n {
			return l.items[l.at+1], true
		}
		return undef{"nextitem"}, true
	case "cycle", "changed":
		return &bound{l, name}, true
	}
	return nil, false
}

// iterate returns the items of v; undefined has none.
func (m *machine) iterate(line int, v any) ([]any, bool) {
	var out []any
	switch v := v.(type) {
	case undef:
	case *list:
		out = v.items
	case *dict:
		out = v.keys
	case text:
		out = characters(v)
	default:
		m.fail(line, "%s is not iterable", typeName(v))
		return nil, false
	}
	return out, m.step(1 + len(out))
}

// characters returns each character of t.
func characters(t text) []any {
	out := make([]any, 0, len(t.s))
	start := 0
	for _, r := range t.runs {
		for start < r.end {
			_, n := utf8.DecodeRuneInString(t.s[start:])
			out = append(out, mark(t.s[start:start+n], r.content))
			start += n
		}
	}
	return out
}

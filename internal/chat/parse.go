package chat

import (
	"fmt"
	"slices"
)

// maxNesting bounds how deep statements and expressions may nest.
const maxNesting = 200

// A parser turns tokens into statements.
type parser struct {
	toks  []token
	pos   int
	depth int
	loops int             // loops around the statement being read
	bound map[string]bool // names that the template itself gives a value
	calls []*nameExpr     // names that the template calls
	uses  features
}

// features are what a template does with message content, which decides the
// form in which it gets it.
type features struct {
	loopsContent bool // it goes through the content's parts
	testsString  bool // it asks whether content is a string
}

func (p *parser) peek() token { return p.toks[p.pos] }

func (p *parser) next() token {
	t := p.toks[p.pos]
	if t.kind != tokEOF {
		p.pos++
	}
	return t
}

func (p *parser) errorf(format string, args ...any) error {
	return p.errorAt(p.peek().line, format, args...)
}

func (p *parser) errorAt(line int, format string, args ...any) error {
	return &ParseError{Line: line, Err: fmt.Errorf(format, args...)}
}

func (p *parser) isOp(s string) bool   { t := p.peek(); return t.kind == tokOp && t.text == s }
func (p *parser) isName(s string) bool { t := p.peek(); return t.kind == tokName && t.text == s }

func (p *parser) skipOp(s string) bool {
	if p.isOp(s) {
		p.pos++
		return true
	}
	return false
}

func (p *parser) skipName(s string) bool {
	if p.isName(s) {
		p.pos++
		return true
	}
	return false
}

func (p *parser) wantOp(s string) error {
	if !p.skipOp(s) {
		return p.errorf("expected %q, found %v", s, p.peek())
	}
	return nil
}

func (p *parser) wantKind(k kind) error {
	if p.peek().kind != k {
		return p.errorf("expected %v, found %v", token{kind: k}, p.peek())
	}
	p.pos++
	return nil
}

func (p *parser) name() (string, error) {
	t := p.peek()
	if t.kind != tokName {
		return "", p.errorf("expected a name, found %v", t)
	}
	p.pos++
	return t.text, nil
}

// bind reads a name that gets a value here.
func (p *parser) bind() (string, error) {
	s, err := p.name()
	if err == nil {
		p.bound[s] = true
	}
	return s, err
}

// enter counts nesting; leave must follow when it returns nil.
func (p *parser) enter() error {
	if p.depth++; p.depth > maxNesting {
		return p.errorf("nested more than %d deep", maxNesting)
	}
	return nil
}

func (p *parser) leave() { p.depth-- }

// body reads statements up to a block tag whose name is in ends, and that
// name; the rest of the tag is left to the caller. Without ends it reads the
// whole template.
func (p *parser) body(ends ...string) ([]node, string, error) {
	if err := p.enter(); err != nil {
		return nil, "", err
	}
	defer p.leave()
	var out []node
	for {
		t := p.next()
		switch t.kind {
		case tokEOF:
			if len(ends) > 0 {
				return nil, "", p.errorf("%s is missing", ends[len(ends)-1])
			}
			return out, "", nil
		case tokData:
			out = append(out, &dataNode{lit(t.text)})
		case tokVarBegin:
			x, err := p.tuple()
			if err != nil {
				return nil, "", err
			}
			if err := p.wantKind(tokVarEnd); err != nil {
				return nil, "", err
			}
			out = append(out, &outNode{t.line, x})
		case tokBlockBegin:
			name, err := p.name()
			if err != nil {
				return nil, "", err
			}
			if slices.Contains(ends, name) {
				return out, name, nil
			}
			n, err := p.statement(name, t.line)
			if err != nil {
				return nil, "", err
			}
			out = append(out, n)
		default:
			return nil, "", p.errorAt(t.line, "unexpected %v", t)
		}
	}
}

// block reads the end of a tag, statements up to the tag end, and that tag.
func (p *parser) block(end string) ([]node, error) {
	if err := p.wantKind(tokBlockEnd); err != nil {
		return nil, err
	}
	out, _, err := p.body(end)
	if err != nil {
		return nil, err
	}
	return out, p.wantKind(tokBlockEnd)
}

// statement reads the statement whose tag begins with name.
func (p *parser) statement(name string, line int) (node, error) {
	switch name {
	case "if":
		return p.ifStmt(line)
	case "for":
		return p.forStmt(line)
	case "set":
		return p.setStmt(line)
	case "macro":
		return p.macroStmt(line)
	case "call":
		return p.callStmt(line)
	case "with":
		return p.withStmt(line)
	case "filter":
		f, err := p.filters(true)
		if err != nil {
			return nil, err
		}
		body, err := p.block("endfilter")
		return &filterNode{line, f, body}, err
	case "generation":
		body, err := p.block("endgeneration")
		return &blockNode{body}, err
	case "break", "continue":
		if p.loops == 0 {
			return nil, p.errorAt(line, "%s outside a loop", name)
		}
		return &loopControl{line, name == "break"}, p.wantKind(tokBlockEnd)
	}
	return nil, p.errorAt(line, "statement %q is not supported", name)
}

func (p *parser) ifStmt(line int) (node, error) {
	n := &ifNode{line: line}
	for {
		cond, err := p.tuple()
		if err != nil {
			return nil, err
		}
		if err := p.wantKind(tokBlockEnd); err != nil {
			return nil, err
		}
		body, end, err := p.body("elif", "else", "endif")
		if err != nil {
			return nil, err
		}
		n.conds, n.thens = append(n.conds, cond), append(n.thens, body)
		switch end {
		case "else":
			n.els, err = p.block("endif")
			return n, err
		case "endif":
			return n, p.wantKind(tokBlockEnd)
		}
	}
}

func (p *parser) forStmt(line int) (node, error) {
	n := &forNode{line: line}
	var err error
	if n.targets, err = p.names(); err != nil {
		return nil, err
	}
	if !p.skipName("in") {
		return nil, p.errorf("expected \"in\", found %v", p.peek())
	}
	if n.iter, err = p.tupleOf(p.orExpr); err != nil {
		return nil, err
	}
	if isContent(n.iter) {
		p.uses.loopsContent = true
	}
	if p.skipName("if") {
		if n.filter, err = p.expr(); err != nil {
			return nil, err
		}
	}
	if p.isName("recursive") {
		return nil, p.errorf("recursive loops are not supported")
	}
	if err := p.wantKind(tokBlockEnd); err != nil {
		return nil, err
	}
	p.loops++
	body, end, err := p.body("else", "endfor")
	p.loops--
	if err != nil {
		return nil, err
	}
	n.body = body
	if end == "else" {
		n.els, err = p.block("endfor")
		return n, err
	}
	return n, p.wantKind(tokBlockEnd)
}

// isContent reports whether x is a message's content.
func isContent(x expr) bool {
	switch x := x.(type) {
	case *attrExpr:
		return x.name == "content"
	case *indexExpr:
		c, ok := x.at.(*constExpr)
		if !ok {
			return false
		}
		t, ok := c.v.(text)
		return ok && t.s == "content"
	case *nameExpr:
		return x.name == "content"
	}
	return false
}

// names reads one or more names that get values, with or without parentheses.
func (p *parser) names() ([]string, error) {
	paren := p.skipOp("(")
	var out []string
	for {
		s, err := p.bind()
		if err != nil {
			return nil, err
		}
		out = append(out, s)
		if !p.skipOp(",") {
			break
		}
	}
	if paren {
		return out, p.wantOp(")")
	}
	return out, nil
}

func (p *parser) setStmt(line int) (node, error) {
	n := &setNode{line: line}
	for {
		name, err := p.bind()
		if err != nil {
			return nil, err
		}
		t := target{name: name}
		if p.skipOp(".") {
			if t.attr, err = p.name(); err != nil {
				return nil, err
			}
		}
		n.targets = append(n.targets, t)
		if !p.skipOp(",") {
			break
		}
	}
	if p.skipOp("=") {
		x, err := p.tuple()
		if err != nil {
			return nil, err
		}
		n.x = x
		return n, p.wantKind(tokBlockEnd)
	}
	if len(n.targets) > 1 {
		return nil, p.errorf("expected \"=\", found %v", p.peek())
	}
	var err error
	if n.filters, err = p.filters(false); err != nil {
		return nil, err
	}
	n.body, err = p.block("endset")
	return n, err
}

// params reads the parameters of a macro, the opening parenthesis being read.
func (p *parser) params(m *macroNode) error {
	for !p.skipOp(")") {
		if len(m.params) > 0 {
			if err := p.wantOp(","); err != nil {
				return err
			}
			if p.skipOp(")") {
				return nil
			}
		}
		s, err := p.bind()
		if err != nil {
			return err
		}
		m.params = append(m.params, s)
		if p.skipOp("=") {
			x, err := p.expr()
			if err != nil {
				return err
			}
			m.defaults = append(m.defaults, x)
		} else if len(m.defaults) > 0 {
			return p.errorf("parameter %q without a default follows one with", s)
		}
	}
	return nil
}

func (p *parser) macroStmt(line int) (node, error) {
	m := &macroNode{line: line}
	var err error
	if m.name, err = p.bind(); err != nil {
		return nil, err
	}
	if err := p.wantOp("("); err != nil {
		return nil, err
	}
	if err := p.params(m); err != nil {
		return nil, err
	}
	m.body, err = p.outsideLoops("endmacro")
	return m, err
}

// outsideLoops reads the body of a macro, which loops around it cannot see
// into.
func (p *parser) outsideLoops(end string) ([]node, error) {
	loops := p.loops
	p.loops = 0
	body, err := p.block(end)
	p.loops = loops
	return body, err
}

func (p *parser) callStmt(line int) (node, error) {
	m := &macroNode{line: line, name: "caller"}
	if p.skipOp("(") {
		if err := p.params(m); err != nil {
			return nil, err
		}
	}
	x, err := p.expr()
	if err != nil {
		return nil, err
	}
	call, ok := x.(*callExpr)
	if !ok {
		return nil, p.errorAt(line, "call block without a call")
	}
	m.body, err = p.outsideLoops("endcall")
	return &callNode{line, m, call}, err
}

func (p *parser) withStmt(line int) (node, error) {
	n := &withNode{line: line}
	for p.peek().kind != tokBlockEnd {
		if len(n.names) > 0 {
			if err := p.wantOp(","); err != nil {
				return nil, err
			}
		}
		s, err := p.bind()
		if err != nil {
			return nil, err
		}
		if err := p.wantOp("="); err != nil {
			return nil, err
		}
		x, err := p.expr()
		if err != nil {
			return nil, err
		}
		n.names, n.xs = append(n.names, s), append(n.xs, x)
	}
	var err error
	n.body, err = p.block("endwith")
	return n, err
}

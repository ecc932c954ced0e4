package chat

import "slices"

// expr reads an expression with its conditional part.
func (p *parser) expr() (expr, error) {
	if err := p.enter(); err != nil {
		return nil, err
	}
	defer p.leave()
	x, err := p.orExpr()
	for err == nil && p.skipName("if") {
		c := &condExpr{then: x}
		if c.cond, err = p.orExpr(); err != nil {
			return nil, err
		}
		if p.skipName("else") {
			if c.els, err = p.expr(); err != nil {
				return nil, err
			}
		}
		x = c
	}
	return x, err
}

// tuple reads an expression, or several with commas as a tuple.
func (p *parser) tuple() (expr, error) { return p.tupleOf(p.expr) }

func (p *parser) tupleOf(item func() (expr, error)) (expr, error) {
	x, err := item()
	if err != nil || !p.isOp(",") {
		return x, err
	}
	t := &listExpr{items: []expr{x}, tuple: true}
	for p.skipOp(",") {
		if k := p.peek(); k.kind == tokVarEnd || k.kind == tokBlockEnd || p.isOp(")") {
			break
		}
		if x, err = item(); err != nil {
			return nil, err
		}
		t.items = append(t.items, x)
	}
	return t, nil
}

func (p *parser) orExpr() (expr, error) { return p.logical("or", p.andExpr) }

func (p *parser) andExpr() (expr, error) { return p.logical("and", p.notExpr) }

func (p *parser) logical(op string, operand func() (expr, error)) (expr, error) {
	x, err := operand()
	for err == nil && p.isName(op) {
		line := p.next().line
		var r expr
		if r, err = operand(); err == nil {
			x = &binExpr{line, op, x, r}
		}
	}
	return x, err
}

func (p *parser) notExpr() (expr, error) {
	if !p.isName("not") {
		return p.compare()
	}
	if err := p.enter(); err != nil {
		return nil, err
	}
	defer p.leave()
	line := p.next().line
	x, err := p.notExpr()
	return &unaryExpr{line, "not", x}, err
}

func (p *parser) compare() (expr, error) {
	x, err := p.binary(0)
	if err != nil {
		return nil, err
	}
	c := &compareExpr{line: p.peek().line, x: x}
	for {
		op := ""
		t := p.peek()
		switch {
		case t.kind == tokOp && slices.Contains([]string{"==", "!=", "<", "<=", ">", ">="}, t.text):
			op = t.text
		case p.isName("in"):
			op = "in"
		case p.isName("not") && p.toks[p.pos+1].kind == tokName && p.toks[p.pos+1].text == "in":
			p.pos++
			op = "not in"
		}
		if op == "" {
			break
		}
		p.pos++
		r, err := p.binary(0)
		if err != nil {
			return nil, err
		}
		c.ops, c.xs = append(c.ops, op), append(c.xs, r)
	}
	if len(c.ops) == 0 {
		return x, nil
	}
	return c, nil
}

// binaryOps returns the left-associative operators by rising precedence.
func binaryOps(level int) []string {
	switch level {
	case 0:
		return []string{"+", "-"}
	case 1:
		return []string{"~"}
	case 2:
		return []string{"*", "/", "//", "%"}
	case 3:
		return []string{"**"}
	}
	return nil
}

func (p *parser) binary(level int) (expr, error) {
	ops := binaryOps(level)
	if ops == nil {
		return p.unary(true)
	}
	x, err := p.binary(level + 1)
	for err == nil && p.peek().kind == tokOp && slices.Contains(ops, p.peek().text) {
		t := p.next()
		var r expr
		if r, err = p.binary(level + 1); err == nil {
			x = &binExpr{t.line, t.text, x, r}
		}
	}
	return x, err
}

// unary reads signs, a primary expression, what follows it, and filters and
// tests when they may follow.
func (p *parser) unary(filters bool) (expr, error) {
	if err := p.enter(); err != nil {
		return nil, err
	}
	defer p.leave()
	var x expr
	var err error
	if t := p.peek(); t.kind == tokOp && (t.text == "-" || t.text == "+") {
		p.pos++
		x, err = p.unary(false)
		x = &unaryExpr{t.line, t.text, x}
	} else {
		x, err = p.primary()
	}
	if err == nil {
		x, err = p.postfix(x)
	}
	for err == nil && filters {
		switch {
		case p.skipOp("|"):
			f, ferr := p.filter()
			x, err = &filterExpr{x, f}, ferr
		case p.isName("is"):
			x, err = p.test(x)
		case p.isOp("("):
			x, err = p.call(x)
		default:
			return x, nil
		}
	}
	return x, err
}

func (p *parser) test(x expr) (expr, error) {
	t := &testExpr{line: p.next().line, x: x}
	t.not = p.skipName("not")
	name := p.next()
	t.name = name.text
	if name.kind != tokName && name.kind != tokOp || !isTest(t.name) {
		return nil, p.errorAt(name.line, "test %v is not supported", name)
	}
	if t.name == "string" && isContent(x) {
		p.uses.testsString = true
	}
	var err error
	switch k := p.peek(); {
	case p.skipOp("("):
		t.args, err = p.args()
	case k.kind == tokString, k.kind == tokInt, k.kind == tokFloat, p.isOp("["), p.isOp("{"),
		k.kind == tokName && !slices.Contains([]string{"else", "or", "and", "is", "if", "in", "not", "recursive"}, k.text):
		var arg expr
		if arg, err = p.primary(); err == nil {
			arg, err = p.postfix(arg)
		}
		t.args.pos = []expr{arg}
	}
	return t, err
}

func (p *parser) primary() (expr, error) {
	t := p.next()
	switch t.kind {
	case tokName:
		switch t.text {
		case "true", "True":
			return &constExpr{true}, nil
		case "false", "False":
			return &constExpr{false}, nil
		case "none", "None":
			return &constExpr{nil}, nil
		}
		return &nameExpr{t.line, t.text}, nil
	case tokString:
		s := t.text
		for p.peek().kind == tokString {
			s += p.next().text
		}
		return &constExpr{lit(s)}, nil
	case tokInt, tokFloat:
		v, err := number(t)
		if err != nil {
			return nil, p.errorAt(t.line, "number %s is out of range", t.text)
		}
		return &constExpr{v}, nil
	case tokOp:
		switch t.text {
		case "(":
			if p.skipOp(")") {
				return &listExpr{tuple: true}, nil
			}
			x, err := p.tuple()
			if err != nil {
				return nil, err
			}
			return x, p.wantOp(")")
		case "[":
			l := &listExpr{}
			err := p.items("]", func() error {
				x, err := p.expr()
				l.items = append(l.items, x)
				return err
			})
			return l, err
		case "{":
			return p.dict(t.line)
		}
	default: // no expression begins with it
	}
	return nil, p.errorAt(t.line, "unexpected %v in an expression", t)
}

// items reads items with commas between them up to the operator end.
func (p *parser) items(end string, item func() error) error {
	for n := 0; !p.skipOp(end); n++ {
		if n > 0 {
			if err := p.wantOp(","); err != nil {
				return err
			}
			if p.skipOp(end) {
				return nil
			}
		}
		if err := item(); err != nil {
			return err
		}
	}
	return nil
}

func (p *parser) dict(line int) (expr, error) {
	d := &dictExpr{line: line}
	err := p.items("}", func() error {
		k, err := p.expr()
		if err != nil {
			return err
		}
		if err := p.wantOp(":"); err != nil {
			return err
		}
		v, err := p.expr()
		d.keys, d.vals = append(d.keys, k), append(d.vals, v)
		return err
	})
	return d, err
}

// postfix reads attributes, subscripts and calls behind x.
func (p *parser) postfix(x expr) (expr, error) {
	for depth := 0; ; depth++ {
		if depth > maxNesting {
			return nil, p.errorf("nested more than %d deep", maxNesting)
		}
		var err error
		t := p.peek()
		switch {
		case p.skipOp("."):
			at := p.next()
			switch at.kind {
			case tokName:
				x = &attrExpr{t.line, x, at.text}
			case tokInt:
				v, nerr := number(at)
				x, err = &indexExpr{t.line, x, &constExpr{v}}, nerr
			default:
				err = p.errorAt(at.line, "expected a name, found %v", at)
			}
		case p.skipOp("["):
			x, err = p.subscript(x, t.line)
		case p.isOp("("):
			x, err = p.call(x)
		default:
			return x, nil
		}
		if err != nil {
			return nil, err
		}
	}
}

func (p *parser) call(fn expr) (expr, error) {
	c := &callExpr{line: p.next().line, fn: fn}
	switch f := fn.(type) {
	case *nameExpr:
		p.calls = append(p.calls, f)
	case *attrExpr:
		if !isMethod(f.name) {
			return nil, p.errorAt(f.line, "method %q is not supported", f.name)
		}
	}
	var err error
	c.args, err = p.args()
	return c, err
}

func (p *parser) subscript(x expr, line int) (expr, error) {
	var parts [3]expr
	n := 0
	for {
		if !p.isOp(":") && !p.isOp("]") {
			at, err := p.tuple()
			if err != nil {
				return nil, err
			}
			parts[n] = at
		}
		if p.skipOp("]") {
			break
		}
		if err := p.wantOp(":"); err != nil {
			return nil, err
		}
		if n++; n > 2 {
			return nil, p.errorf("slice with more than three parts")
		}
	}
	if n > 0 {
		return &sliceExpr{line, x, parts[0], parts[1], parts[2]}, nil
	}
	if parts[0] == nil {
		return nil, p.errorAt(line, "empty subscript")
	}
	return &indexExpr{line, x, parts[0]}, nil
}

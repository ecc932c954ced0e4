package chat

import "strconv"

// filters reads a chain of filters; first says that the first has no "|".
func (p *parser) filters(first bool) ([]filterCall, error) {
	var out []filterCall
	for first || p.skipOp("|") {
		first = false
		f, err := p.filter()
		if err != nil {
			return nil, err
		}
		out = append(out, f)
	}
	return out, nil
}

// filter reads a filter's name and arguments.
func (p *parser) filter() (filterCall, error) {
	f := filterCall{line: p.peek().line}
	var err error
	if f.name, err = p.name(); err != nil {
		return f, err
	}
	if !isFilter(f.name) {
		return f, p.errorAt(f.line, "filter %q is not supported", f.name)
	}
	if p.skipOp("(") {
		f.args, err = p.args()
	}
	return f, err
}

// args reads arguments, the opening parenthesis being read.
func (p *parser) args() (argList, error) {
	var a argList
	for n := 0; !p.skipOp(")"); n++ {
		if n > 0 {
			if err := p.wantOp(","); err != nil {
				return a, err
			}
			if p.skipOp(")") {
				break
			}
		}
		if p.isOp("*") || p.isOp("**") {
			return a, p.errorf("arguments with %s are not supported", p.peek().text)
		}
		if p.peek().kind == tokName && p.toks[p.pos+1].kind == tokOp && p.toks[p.pos+1].text == "=" {
			a.names = append(a.names, p.peek().text)
			p.pos += 2
			x, err := p.expr()
			if err != nil {
				return a, err
			}
			a.kw = append(a.kw, x)
			continue
		}
		x, err := p.expr()
		if err != nil {
			return a, err
		}
		if len(a.kw) > 0 {
			return a, p.errorf("positional argument follows a named one")
		}
		a.pos = append(a.pos, x)
	}
	return a, nil
}

// number returns the value of a number token.
func number(t token) (any, error) {
	if t.kind == tokInt {
		n, err := strconv.ParseInt(t.text, 10, 64)
		return n, err
	}
	f, err := strconv.ParseFloat(t.text, 64)
	return f, err
}

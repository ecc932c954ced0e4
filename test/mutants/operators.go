package main

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"strconv"
	"strings"
)

// An edit is one generated mutant: text in place of the bytes [from, to).
type edit struct {
	from, to int
	text     string
	rule     string
}

func (e edit) apply(src string) string { return src[:e.from] + e.text + src[e.to:] }

// survivor describes e by the line in which it begins.
func (e edit) survivor(file, src string) survivor {
	start := strings.LastIndexByte(src[:e.from], '\n') + 1
	line := func(s string) string {
		l, _, _ := strings.Cut(s[start:], "\n")
		return strings.TrimSpace(l)
	}
	return survivor{
		File: file, Line: strings.Count(src[:e.from], "\n") + 1, Column: e.from - start + 1,
		Rule: e.rule, Old: line(src), New: line(e.apply(src)),
	}
}

// swaps are the operators that take another's place.
var swaps = map[token.Token][]token.Token{
	token.LSS: {token.LEQ, token.GEQ}, token.LEQ: {token.LSS, token.GTR},
	token.GTR: {token.GEQ, token.LEQ}, token.GEQ: {token.GTR, token.LSS},
	token.EQL: {token.NEQ}, token.NEQ: {token.EQL},
	token.LAND: {token.LOR}, token.LOR: {token.LAND},
	token.ADD: {token.SUB}, token.SUB: {token.ADD}, token.MUL: {token.QUO}, token.QUO: {token.MUL},
	token.REM: {token.MUL}, token.SHL: {token.SHR}, token.SHR: {token.SHL},
	token.AND: {token.OR}, token.OR: {token.AND},
	token.ADD_ASSIGN: {token.SUB_ASSIGN}, token.SUB_ASSIGN: {token.ADD_ASSIGN},
	token.INC: {token.DEC}, token.DEC: {token.INC},
}

// words are the calls that take another's place.
var words = map[string]string{"min": "max", "max": "min", "Before": "After", "After": "Before"}

// generate returns the mutants of a file: comparisons, conditions and sums that
// turn round, operands and bounds left out, statements and fields dropped,
// numbers off by one. What only words errors, panics or checks invariants is
// left alone.
func generate(file, src string) ([]edit, error) {
	fset := token.NewFileSet()
	f, err := parser.ParseFile(fset, file, src, parser.SkipObjectResolution)
	if err != nil {
		return nil, err
	}
	g := &generator{src: src, at: func(p token.Pos) int { return fset.Position(p).Offset }}
	for _, d := range f.Decls {
		if fn, ok := d.(*ast.FuncDecl); ok && fn.Body != nil && !wordy(fn.Name.Name) {
			ast.Inspect(fn.Body, g.visit)
		}
	}
	return g.edits, nil
}

// wordy tells that a function only words things or checks invariants.
func wordy(name string) bool {
	return name == "String" || name == "Error" || strings.HasPrefix(name, "check") || name == "Check"
}

type generator struct {
	src   string
	at    func(token.Pos) int
	edits []edit
}

func (g *generator) add(from, to token.Pos, text, rule string) {
	g.edits = append(g.edits, edit{g.at(from), g.at(to), text, rule})
}

func (g *generator) text(n ast.Node) string { return g.src[g.at(n.Pos()):g.at(n.End())] }

func (g *generator) swap(pos token.Pos, op token.Token, rule string) {
	for _, to := range swaps[op] {
		g.add(pos, pos+token.Pos(len(op.String())), to.String(), rule)
	}
}

// visit is called for every node of a function.
func (g *generator) visit(n ast.Node) bool {
	switch n := n.(type) {
	case *ast.BinaryExpr:
		g.swap(n.OpPos, n.Op, "operator")
		if n.Op == token.LAND || n.Op == token.LOR {
			g.add(n.Pos(), n.End(), g.text(n.X), "right operand dropped")
			g.add(n.Pos(), n.End(), g.text(n.Y), "left operand dropped")
		}
	case *ast.UnaryExpr:
		if n.Op == token.NOT || n.Op == token.SUB {
			g.add(n.Pos(), n.X.Pos(), "", "sign dropped")
		}
	case *ast.IfStmt:
		g.add(n.Cond.Pos(), n.Cond.End(), "("+g.text(n.Cond)+") && false", "condition never holds")
		g.add(n.Cond.Pos(), n.Cond.End(), "("+g.text(n.Cond)+") || true", "condition always holds")
	case *ast.ForStmt:
		if n.Cond != nil {
			g.add(n.Cond.Pos(), n.Cond.End(), "("+g.text(n.Cond)+") && false", "loop never runs")
		}
	case *ast.SwitchStmt:
		g.cases(n)
	case *ast.IncDecStmt:
		g.swap(n.TokPos, n.Tok, "operator")
		g.add(n.Pos(), n.End(), "", "statement dropped")
	case *ast.AssignStmt:
		g.assignment(n)
	case *ast.ExprStmt:
		if c, ok := n.X.(*ast.CallExpr); ok && !saying(c) {
			g.add(n.Pos(), n.End(), "", "call dropped")
		}
	case *ast.DeferStmt:
		g.add(n.Pos(), n.End(), "", "call dropped")
	case *ast.BranchStmt:
		g.add(n.Pos(), n.End(), "", "jump dropped")
	case *ast.ReturnStmt:
		if len(n.Results) == 0 {
			g.add(n.Pos(), n.End(), "", "return dropped")
		}
	case *ast.BasicLit:
		if v, err := strconv.Atoi(n.Value); err == nil && n.Kind == token.INT {
			g.add(n.Pos(), n.End(), strconv.Itoa(v+1), "number off by one")
			if v == 1 {
				g.add(n.Pos(), n.End(), "0", "number off by one")
			}
		}
	case *ast.Ident:
		if n.Name == "true" || n.Name == "false" {
			g.add(n.Pos(), n.End(), strconv.FormatBool(n.Name == "false"), "boolean turned")
		}
	case *ast.CompositeLit:
		g.fields(n)
	case *ast.CallExpr:
		if saying(n) {
			return false
		}
		g.call(n)
	}
	return true
}

// saying tells that a call only words something, or checks invariants.
func saying(c *ast.CallExpr) bool {
	switch f := c.Fun.(type) {
	case *ast.Ident:
		return f.Name == "panic"
	case *ast.SelectorExpr:
		x, ok := f.X.(*ast.Ident)
		return f.Sel.Name == "audited" || ok && (x.Name == "fmt" || x.Name == "errors" && f.Sel.Name == "New")
	}
	return false
}

// cases drops the cases of a switch, one by one.
func (g *generator) cases(n *ast.SwitchStmt) {
	for _, s := range n.Body.List {
		c := s.(*ast.CaseClause)
		if n.Tag == nil {
			for _, x := range c.List {
				g.add(x.Pos(), x.End(), "("+g.text(x)+") && false", "case never holds")
			}
		}
		if len(c.Body) > 0 {
			g.add(c.Body[0].Pos(), c.Body[len(c.Body)-1].End(), "", "case does nothing")
		}
	}
}

func (g *generator) assignment(n *ast.AssignStmt) {
	if n.Tok != token.ASSIGN {
		if n.Tok != token.DEFINE {
			g.swap(n.TokPos, n.Tok, "operator")
			g.add(n.Pos(), n.End(), "_ = "+g.text(n.Rhs[0]), "assignment dropped")
		}
		return
	}
	for i, x := range n.Lhs {
		if id, ok := x.(*ast.Ident); ok && id.Name == "_" {
			continue
		}
		if len(n.Rhs) == len(n.Lhs) {
			if id, ok := n.Rhs[i].(*ast.Ident); ok && id.Name == "nil" {
				if len(n.Lhs) == 1 {
					g.add(n.Pos(), n.End(), "", "assignment dropped")
				}
				continue
			}
		}
		g.add(x.Pos(), x.End(), "_", "assignment dropped")
	}
}

// fields drops the fields of a composite literal, one by one.
func (g *generator) fields(n *ast.CompositeLit) {
	for i, x := range n.Elts {
		kv, ok := x.(*ast.KeyValueExpr)
		if !ok {
			continue
		}
		if _, ok := kv.Key.(*ast.Ident); !ok {
			continue
		}
		switch {
		case i+1 < len(n.Elts):
			g.add(x.Pos(), n.Elts[i+1].Pos(), "", "field dropped")
		case i > 0:
			g.add(n.Elts[i-1].End(), x.End(), "", "field dropped")
		}
	}
}

func (g *generator) call(n *ast.CallExpr) {
	switch f := n.Fun.(type) {
	case *ast.Ident:
		to, ok := words[f.Name]
		if !ok {
			return
		}
		g.add(f.Pos(), f.End(), to, "bound turned")
		if len(n.Args) == 2 {
			for i, a := range n.Args {
				g.add(n.Pos(), n.End(), g.text(a), fmt.Sprintf("bound %d dropped", 2-i))
			}
		}
	case *ast.SelectorExpr:
		if to, ok := words[f.Sel.Name]; ok {
			g.add(f.Sel.Pos(), f.Sel.End(), to, "order turned")
		}
	}
}

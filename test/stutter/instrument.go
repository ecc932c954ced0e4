package main

import (
	"bytes"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"slices"

	"tandem/test/stutter/point"
)

// pointPath is the package that instrumented code imports.
const pointPath = "tandem/test/stutter/point"

// An instrumenter puts a call of point.Wait before each statement. Its statements
// are numbered through all files.
type instrumenter struct {
	sites int
}

// An insertion is text to be put into a file at a byte.
type insertion struct {
	at   int
	text string
}

// file returns src with the calls in it, each on the line of its statement.
func (in *instrumenter) file(name string, src []byte) ([]byte, error) {
	fset := token.NewFileSet()
	tree, err := parser.ParseFile(fset, name, src, parser.ParseComments|parser.SkipObjectResolution)
	if err != nil {
		return nil, err
	}
	offset := func(p token.Pos) int { return fset.Position(p).Offset }
	var all []insertion
	before := func(list []ast.Stmt) {
		for _, s := range list {
			switch s.(type) {
			case *ast.CaseClause, *ast.CommClause, *ast.EmptyStmt:
				continue
			}
			all = append(all, insertion{offset(s.Pos()), fmt.Sprintf("stutter.Wait(%d);", in.sites)})
			in.sites++
		}
	}
	ast.Inspect(tree, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.BlockStmt:
			before(n.List)
		case *ast.CaseClause:
			before(n.Body)
		case *ast.CommClause:
			before(n.Body)
		}
		return true
	})
	if len(all) == 0 {
		return src, nil
	}
	if in.sites > point.Sites {
		return nil, fmt.Errorf("%s: more than %d statements; name fewer packages", name, point.Sites)
	}
	all = append(all, insertion{offset(tree.Name.End()), fmt.Sprintf("; import stutter %q", pointPath)})
	slices.SortStableFunc(all, func(a, b insertion) int { return a.at - b.at })
	var out bytes.Buffer
	done := 0
	for _, i := range all {
		out.Write(src[done:i.at])
		out.WriteString(i.text)
		done = i.at
	}
	out.Write(src[done:])
	return out.Bytes(), nil
}

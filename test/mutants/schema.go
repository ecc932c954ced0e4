package main

import (
	"bytes"
	"context"
	"fmt"
	"go/ast"
	"go/parser"
	"go/printer"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// A schema is the test binaries of a target in which every mutant of its file is
// there at once, and an environment variable chooses one: building a binary for
// each takes most of the time of a run. (R. Untch, A. Offutt, M. Harrold:
// Mutation Analysis Using Mutant Schemata, ISSTA 1993.)
type schema struct {
	b     *bench
	t     target
	src   string
	edits []edit
	bins  map[string]string   // by package
	skip  map[string][]string // tests that fail for the form of the code alone, as those that count allocations do
	none  map[int]bool        // edits that do not compile
}

// chosen is the variable, by the number of an edit; unset: no mutant.
const chosen = "MUTANT"

// newSchema builds the binaries and sees what they do without a mutant.
func newSchema(ctx context.Context, b *bench, t target, src string, edits []edit) (*schema, error) {
	s := &schema{b: b, t: t, src: src, edits: edits, bins: map[string]string{}, skip: map[string][]string{}, none: map[int]bool{}}
	for _, path := range t.packages() {
		if err := s.build(ctx, path); err != nil {
			s.close()
			return nil, fmt.Errorf("building all mutants of %s at once: %w", t.File, err)
		}
		v, out, _ := b.test(ctx, path, s.bins[path], round{whole: true})
		for _, m := range failed.FindAllStringSubmatch(out, -1) {
			s.skip[path] = append(s.skip[path], m[1])
		}
		if n := len(s.skip[path]); v != survived && (n == 0 || n > 3) {
			s.close()
			return nil, fmt.Errorf("the tests of %s fail where no mutant is chosen: %s", path, out[max(0, len(out)-600):])
		}
	}
	return s, nil
}

func (s *schema) close() {
	for _, bin := range s.bins {
		os.Remove(bin)
	}
}

// build builds the tests of a package, without the mutants that do not compile.
func (s *schema) build(ctx context.Context, path string) error {
	for {
		text, owners, err := merge(s.t.File, s.src, s.edits, s.none)
		if err != nil {
			return err
		}
		overlay, remove, err := s.b.overlay(map[string]string{s.t.File: text, filepath.Join(filepath.Dir(s.t.File), "mutant.go"): chooser(text)})
		if err != nil {
			return err
		}
		bin, msg := s.b.build(ctx, path, overlay, "-gcflags=-e") // all errors
		remove()
		if bin != "" {
			s.bins[path] = bin
			return nil
		}
		before := len(s.none)
		for _, m := range regexp.MustCompile(regexp.QuoteMeta(filepath.Base(s.t.File))+`:(\d+)`).FindAllStringSubmatch(msg, -1) {
			line, _ := strconv.Atoi(m[1])
			if line < len(owners) && owners[line] >= 0 {
				s.none[owners[line]] = true
			}
		}
		if len(s.none) == before {
			return fmt.Errorf("%s", msg)
		}
	}
}

// try tests edit i. What lives is tried once more by itself, so that no test is
// left out and the code has its own form.
func (s *schema) try(ctx context.Context, i int) verdict {
	if s.none[i] {
		return uncompiled
	}
	env := []string{chosen + "=" + strconv.Itoa(i)}
	for _, path := range s.t.packages() {
		for _, r := range s.b.pkgs[path].rounds() {
			r.env, r.skip = env, s.skip[path]
			if v, _, _ := s.b.test(ctx, path, s.bins[path], r); v != survived {
				return v
			}
		}
	}
	return s.b.tryEdit(ctx, s.t, s.src, s.edits[i])
}

// chooser is the file beside a merged one that says which mutant is chosen.
func chooser(merged string) string {
	pkg, _, _ := strings.Cut(merged[strings.Index(merged, "package "):], "\n")
	return pkg + `

import (
	"os"
	"strconv"
)

var mutant = func() int {
	n, err := strconv.Atoi(os.Getenv("` + chosen + `"))
	if err != nil {
		return -1
	}
	return n
}()
`
}

// merge returns the text of a file in which each function that has edits begins
// by going to a copy of itself where one of them is chosen, but for the edits of
// none. It also returns by line, from 1, whose copy it is of, or -1.
func merge(file, src string, edits []edit, none map[int]bool) (text string, owners []int, err error) {
	set := token.NewFileSet()
	f, err := parser.ParseFile(set, file, src, parser.SkipObjectResolution)
	if err != nil {
		return "", nil, err
	}
	at := func(p token.Pos) int { return set.Position(p).Offset }
	var out bytes.Buffer
	var copies []string // each with its edit in the same place of of
	var of []int
	done := 0
	for _, d := range f.Decls {
		fn, ok := d.(*ast.FuncDecl)
		if !ok || fn.Body == nil {
			continue
		}
		from, to := at(fn.Body.Lbrace), at(fn.Body.End())
		args := name(fn)
		var cases strings.Builder
		for i, e := range edits {
			if e.from < from || e.to > to || none[i] {
				continue
			}
			head, call, err := signature(set, fn, fmt.Sprintf("%s_%d", fn.Name.Name, i), args)
			if err != nil {
				return "", nil, err
			}
			fmt.Fprintf(&cases, "\tcase %d:\n\t\t%s\n", i, call)
			copies, of = append(copies, head+" "+src[from:e.from]+e.text+src[e.to:to]), append(of, i)
		}
		if cases.Len() == 0 {
			continue
		}
		head, _, err := signature(set, fn, fn.Name.Name, args)
		if err != nil {
			return "", nil, err
		}
		out.WriteString(src[done:at(fn.Type.Func)])
		fmt.Fprintf(&out, "%s {\n\tswitch mutant {\n%s\t}\n%s", head, cases.String(), src[from+1:to])
		done = to
	}
	out.WriteString(src[done:] + "\n")
	owners = slices.Repeat([]int{-1}, 1+bytes.Count(out.Bytes(), []byte("\n"))+1)
	for k, c := range copies {
		out.WriteString(c + "\n")
		// The copy begins in the line that the one before has left open.
		owners[len(owners)-1] = of[k]
		owners = append(owners, slices.Repeat([]int{of[k]}, strings.Count(c, "\n")+1)...)
	}
	return out.String(), owners, nil
}

// name gives a name to the receiver and to every parameter that has none, and
// returns what the parameters are passed on as.
func name(fn *ast.FuncDecl) (args []string) {
	fresh := 0
	fields := fn.Type.Params.List
	if fn.Recv != nil {
		fields = append(slices.Clone(fn.Recv.List), fields...)
	}
	for i, f := range fields {
		if len(f.Names) == 0 {
			f.Names = []*ast.Ident{ast.NewIdent("_")}
		}
		for _, n := range f.Names {
			if n.Name == "_" {
				fresh++
				n.Name = fmt.Sprintf("mutant%d", fresh)
			}
			if fn.Recv != nil && i == 0 {
				continue
			}
			arg := n.Name
			if _, ok := f.Type.(*ast.Ellipsis); ok {
				arg += "..."
			}
			args = append(args, arg)
		}
	}
	return args
}

// signature returns the head of fn under another name, and what calls it.
func signature(set *token.FileSet, fn *ast.FuncDecl, name string, args []string) (head, call string, err error) {
	var b strings.Builder
	err = printer.Fprint(&b, set, &ast.FuncDecl{Recv: fn.Recv, Name: ast.NewIdent(name), Type: fn.Type})
	call = name + "(" + strings.Join(args, ", ") + ")"
	if fn.Recv != nil {
		call = fn.Recv.List[0].Names[0].Name + "." + call
	}
	if fn.Type.Results == nil {
		return b.String(), call + "\n\t\treturn", err
	}
	return b.String(), "return " + call, err
}

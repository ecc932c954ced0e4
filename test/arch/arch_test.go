// Package arch holds the rules about the shape of the code that no linter
// knows: who may import whom, how long a file may be, that every package says
// what it hides.
package arch

import (
	"bufio"
	"encoding/json"
	"errors"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

const module = "tandem"

// A rule forbids packages to depend, directly or through others, on what they
// must not know.
type rule struct {
	packages  []string // under internal/
	forbidden []string // import paths; a leading "./" means under internal/
	direct    bool     // only direct imports count
	reason    string
}

// effects is what a core never imports: it decides, others act.
var effects = []string{"context", "sync", "sync/atomic", "log", "log/slog", "os", "net", "net/http", "math/rand", "math/rand/v2", "crypto/rand"}

var rules = []rule{
	{[]string{"router", "backend"}, []string{"./engine", "./sched", "./model", "./kv", "./connector", "./transfer"}, false,
		"the router must drive a real vLLM with no hidden knowledge"},
	{[]string{"engine", "sched", "kv", "connector", "transfer", "model", "compute", "sample", "sim"}, []string{"net/http", "./openai", "./tokenizer", "./chat"}, false,
		"tokens in, tokens out: wire shapes and text must not leak inward"},
	{[]string{"sched"}, []string{"time", "context", "sync", "log", "log/slog", "os", "net"}, true,
		"the same calls must give the same plans"},
	{[]string{"router/flow"}, append([]string{"time"}, effects...), true, "a core: the same events must give the same effects"},
	{[]string{"connector/core"}, effects, true, "cores: time is an argument, and the same events must give the same effects"},
	{[]string{"bystander", "moves", "ration"}, []string{"./"}, false, "leaves that every part may use"},
	{[]string{"moves", "ration"}, effects, true, "parts of cores: time is an argument"},
	{[]string{"kv"}, []string{"./sched", "./connector", "./transfer"}, false, "it is the ground floor"},
	{[]string{"transfer"}, []string{"./kv", "./sched"}, false, "it moves byte ranges and knows no tokens"},
	{[]string{"connector"}, []string{"./engine", "./sched", "./openai"}, false, "it satisfies interfaces declared by its users"},
	{[]string{"gguf", "openai", "chat"}, []string{"./"}, false, "leaves"},
	{[]string{"compute"}, []string{"./"}, false, "a leaf; its own sub-packages excepted"},
	{[]string{"model"}, []string{"./sched", "./connector"}, false, "it runs a plan and does not make one"},
	{[]string{"sim"}, []string{"./model", "./sched", "./connector"}, false, "a stand-in for model"},
	{[]string{"engine", "server", "router", "backend", "connector", "sched", "kv", "transfer"}, []string{"./model", "./sim", "./fault"}, false,
		"only the command wires implementations together"},
	{[]string{"chat", "compute", "gguf", "model", "openai", "sample", "sim", "telemetry", "tokenizer"}, []string{"./fault"}, false,
		"nothing but the command and tests knows of faults"},
	{[]string{"fault"}, []string{"./engine", "./sched", "./server", "./router", "./model", "./openai"}, false,
		"it breaks what runs between engines and knows no requests"},
}

// mayUnsafe is every package that may touch raw memory.
var mayUnsafe = []string{"compute", "kv", "gguf", "transfer"}

type pkg struct {
	ImportPath string
	Imports    []string
	Deps       []string
	GoFiles    []string
	SFiles     []string
	Dir        string
	Doc        string
	Name       string
}

func list(t *testing.T) map[string]pkg {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "go", "list", "-deps", "-json=ImportPath,Imports,Deps,GoFiles,SFiles,Dir,Doc,Name", module+"/...")
	cmd.Dir = root(t)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	pkgs := map[string]pkg{}
	dec := json.NewDecoder(out)
	for {
		var p pkg
		if err := dec.Decode(&p); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		pkgs[p.ImportPath] = p
	}
	if err := cmd.Wait(); err != nil {
		t.Fatal(err)
	}
	return pkgs
}

func root(t *testing.T) string {
	t.Helper()
	dir, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

// violates returns the dependency of p that rule r forbids, or "".
func (r rule) violates(p pkg) string {
	deps := p.Deps
	if r.direct {
		deps = p.Imports
	}
	own := module + "/internal/" + strings.TrimPrefix(p.ImportPath, module+"/internal/")
	top := module + "/internal/" + strings.SplitN(strings.TrimPrefix(own, module+"/internal/"), "/", 2)[0]
	for _, d := range deps {
		for _, f := range r.forbidden {
			if rest, ok := strings.CutPrefix(f, "./"); ok {
				f = module + "/internal/" + rest
				if rest == "" {
					if strings.HasPrefix(d, f) && d != top && !strings.HasPrefix(d, top+"/") {
						return d
					}
					continue
				}
			}
			if d == f || strings.HasPrefix(d, f+"/") && strings.HasPrefix(f, module) {
				return d
			}
		}
	}
	return ""
}

func TestDependencyDirections(t *testing.T) {
	pkgs := list(t)
	for _, r := range rules {
		for _, name := range r.packages {
			found := false
			for path, p := range pkgs {
				base := module + "/internal/" + name
				if path != base && !strings.HasPrefix(path, base+"/") || strings.HasSuffix(path, "test") {
					continue
				}
				found = true
				if d := r.violates(p); d != "" {
					t.Errorf("%s depends on %s: %s", path, d, r.reason)
				}
			}
			if !found {
				t.Errorf("the rule %q names internal/%s, which does not exist", r.reason, name)
			}
		}
	}
}

// What only tests need is not in the program.
func TestProgramHoldsNoTestHelpers(t *testing.T) {
	p, ok := list(t)[module+"/cmd/tandem"]
	if !ok || !slices.Contains(p.Deps, module+"/internal/engine") {
		t.Fatal("the program is not listed")
	}
	if slices.Contains(p.Deps, "testing") {
		t.Error("the program depends on package testing")
	}
}

// A rule that can match nothing would pass for ever.
func TestRulesCanFail(t *testing.T) {
	r := rule{packages: []string{"kv"}, forbidden: []string{"./sched", "time"}}
	for _, dep := range []string{module + "/internal/sched", module + "/internal/sched/x", "time"} {
		if r.violates(pkg{ImportPath: module + "/internal/kv", Deps: []string{"fmt", dep}}) != dep {
			t.Errorf("a dependency on %s is not seen", dep)
		}
	}
	leaf := rule{forbidden: []string{"./"}}
	if leaf.violates(pkg{ImportPath: module + "/internal/gguf", Deps: []string{module + "/internal/kv"}}) == "" {
		t.Error("a leaf may import a package of ours")
	}
	if d := leaf.violates(pkg{ImportPath: module + "/internal/compute", Deps: []string{module + "/internal/compute/detmath"}}); d != "" {
		t.Errorf("a leaf's own sub-package %s counts as foreign", d)
	}
}

func TestUnsafeAndAssemblyStayInFewPlaces(t *testing.T) {
	for path, p := range list(t) {
		rest, ok := strings.CutPrefix(path, module+"/internal/")
		if !ok {
			continue
		}
		allowed := slices.Contains(mayUnsafe, strings.SplitN(rest, "/", 2)[0])
		if !allowed && slices.Contains(p.Imports, "unsafe") {
			t.Errorf("%s imports unsafe", path)
		}
		if len(p.SFiles) > 0 && !strings.HasPrefix(rest, "compute") {
			t.Errorf("%s holds assembly", path)
		}
	}
}

func TestEveryPackageSaysWhatItHides(t *testing.T) {
	for path, p := range list(t) {
		if !strings.HasPrefix(path, module+"/") || len(p.GoFiles) == 0 {
			continue
		}
		if p.Name != "main" && !strings.HasPrefix(p.Doc, "Package "+p.Name+" ") || p.Doc == "" {
			t.Errorf("%s has no package comment", path)
		}
	}
}

var (
	unfinished = regexp.MustCompile(`\b(TODO|FIXME|XXX|HACK)\b|(?i)not (yet )?implemented|\bfor now\b|\bplaceholder\b`)
	machine    = regexp.MustCompile(`/(work|root|home)/[a-z]`)
)

// walk calls f for every text file of ours.
func walk(t *testing.T, f func(path string, data []byte)) {
	t.Helper()
	top := root(t)
	err := filepath.WalkDir(top, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(top, path)
		if err != nil {
			return err
		}
		if d.IsDir() {
			if rel == ".git" || rel == "bin" || rel == "testdata" || filepath.Base(rel) == "testdata" {
				return filepath.SkipDir
			}
			return nil
		}
		switch filepath.Ext(rel) {
		case ".go", ".md", ".yml", ".sh", ".py", ".s":
		default:
			return nil
		}
		data, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		f(rel, data)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

func TestFilesAreShortAndFinished(t *testing.T) {
	walk(t, func(path string, data []byte) {
		if strings.HasPrefix(path, "test/arch/") {
			return // names the words it looks for
		}
		if m := machine.Find(data); m != nil {
			t.Errorf("%s names a path of one machine: %s", path, m)
		}
		if filepath.Ext(path) != ".go" {
			return
		}
		s := bufio.NewScanner(strings.NewReader(string(data)))
		s.Buffer(nil, 1<<20)
		n := 0
		generated := false
		for s.Scan() {
			n++
			generated = generated || n < 5 && strings.Contains(s.Text(), "DO NOT EDIT")
			if m := unfinished.FindString(s.Text()); m != "" {
				t.Errorf("%s:%d says %q", path, n, m)
			}
		}
		if n > 900 && !generated {
			t.Errorf("%s has %d lines; 900 is the limit", path, n)
		}
	})
}

// Tests never sleep: time belongs to synctest bubbles and to the caller.
func TestTestsDoNotSleep(t *testing.T) {
	walk(t, func(path string, data []byte) {
		if !strings.HasSuffix(path, "_test.go") {
			return
		}
		fset := token.NewFileSet()
		file, err := parser.ParseFile(fset, path, data, 0)
		if err != nil {
			t.Errorf("%s: %v", path, err)
			return
		}
		if strings.Contains(string(data), "testing/synctest") {
			return // a bubble's clock is not the machine's
		}
		ast.Inspect(file, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok {
				return true
			}
			if sel, ok := call.Fun.(*ast.SelectorExpr); ok && sel.Sel.Name == "Sleep" {
				if x, ok := sel.X.(*ast.Ident); ok && x.Name == "time" {
					t.Errorf("%s sleeps", fset.Position(call.Pos()))
				}
			}
			return true
		})
	})
}

// Command gen writes the AVX-512 and AVX2 assembly of package compute with avo.
//
//	go run .          writes the files into the parent directory
//	go run . -check   compares them with what it would write
package main

import (
	"bytes"
	"flag"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/mmcloughlin/avo/attr"
	"github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/pass"
	"github.com/mmcloughlin/avo/printer"
	. "github.com/mmcloughlin/avo/reg"
)

func main() {
	check := flag.Bool("check", false, "compare with the files in place instead of writing them")
	dir := flag.String("dir", "..", "directory of package compute")
	flag.Parse()
	if err := run(*dir, *check); err != nil {
		fmt.Fprintln(os.Stderr, "gen:", err)
		os.Exit(1)
	}
}

// run writes all files, or checks them.
func run(dir string, check bool) error {
	for _, f := range []struct {
		name string
		emit func(*asm)
	}{
		{"mul", mulKernels},
		{"attend", attendKernels},
		{"rows", rowKernels},
		{"mul_avx2", mulKernelsAVX2},
		{"attend_avx2", attendKernelsAVX2},
		{"rows_avx2", rowKernelsAVX2},
	} {
		code, stubs, err := generate(f.emit)
		if err != nil {
			return fmt.Errorf("generating %s: %w", f.name, err)
		}
		if r := newer.Find(code); r != nil && strings.HasSuffix(f.name, "_avx2") {
			return fmt.Errorf("generating %s: %s is not in AVX2; too many registers may be alive at once", f.name, r)
		}
		if err := put(filepath.Join(dir, f.name+"_amd64.s"), code, check); err != nil {
			return err
		}
		if err := put(filepath.Join(dir, f.name+"_stubs_amd64.go"), stubs, check); err != nil {
			return err
		}
	}
	return nil
}

// newer finds registers and instructions that only AVX-512 has.
var newer = regexp.MustCompile(`\b([XY](1[6-9]|[23]\d)|Z\d+|K\d)\b|AVX512\w*`)

// put writes a file or compares it.
func put(path string, want []byte, check bool) error {
	if !check {
		return os.WriteFile(path, want, 0o644)
	}
	got, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	if !bytes.Equal(got, want) {
		return fmt.Errorf("%s is not what the generator makes: run make gen", path)
	}
	return nil
}

// generate returns the assembly and the Go declarations of what emit emits.
func generate(emit func(*asm)) (code, stubs []byte, err error) {
	a := &asm{Context: build.NewContext()}
	a.ConstraintExpr("amd64")
	emit(a)
	f, err := a.Result()
	if err != nil {
		return nil, nil, err
	}
	if err := pass.Compile.Execute(f); err != nil {
		return nil, nil, err
	}
	cfg := printer.Config{Name: "gen", Argv: []string{"make", "gen"}, Pkg: "compute"}
	if code, err = printer.NewGoAsm(cfg).Print(f); err != nil {
		return nil, nil, err
	}
	stubs, err = printer.NewStubs(cfg).Print(f)
	return code, stubs, err
}

// asm is the context of one file and the function in it.
type asm struct {
	*build.Context
	name string
}

// fn begins a function; doc follows its name.
func (a *asm) fn(name, signature, doc string) {
	a.name = name
	a.Function(name)
	a.Attributes(attr.NOSPLIT)
	a.SignatureExpr(signature)
	a.Doc(name + " " + doc)
	a.Pragma("noescape")
}

// end ends a function.
func (a *asm) end() {
	a.VZEROUPPER()
	a.RET()
}

// param loads an integer or pointer parameter.
func (a *asm) param(name string) Register { return a.Load(a.Param(name), a.GP64()) }

// label begins a block; jumps name it with ref.
func (a *asm) label(s string) { a.Label(a.name + "_" + s) }

func (a *asm) ref(s string) LabelRef { return LabelRef(a.name + "_" + s) }

// zmms returns n vector registers.
func (a *asm) zmms(n int) []VecVirtual {
	v := make([]VecVirtual, n)
	for i := range v {
		v[i] = a.ZMM()
	}
	return v
}

func (a *asm) zero(v ...VecVirtual) {
	for _, z := range v {
		a.VPXORD(z, z, z)
	}
}

// dword returns a vector of 16 copies of v.
func (a *asm) dword(v uint32) VecVirtual {
	r, z := a.GP32(), a.ZMM()
	a.MOVL(U32(v), r)
	a.VPBROADCASTD(r, z)
	return z
}

// float is dword for a float32.
func (a *asm) float(v float32) VecVirtual { return a.dword(math.Float32bits(v)) }

// scalar broadcasts a float32 parameter.
func (a *asm) scalar(name string) VecVirtual {
	x, z := a.XMM(), a.ZMM()
	a.Load(a.Param(name), x)
	a.VBROADCASTSS(x, z)
	return z
}

// step adds n bytes to pointers.
func (a *asm) step(n int, p ...Register) {
	for _, r := range p {
		a.ADDQ(U32(uint32(n)), r)
	}
}

package main

import (
	"path"
	"slices"
	"strings"
)

// A target is a file of the recovery code that the nightly run mutates.
type target struct {
	File string
	Also []string // packages whose tests run after those of the file's own
}

func (t target) packages() []string { return append([]string{path.Dir(t.File)}, t.Also...) }

// targets are the files that decide what becomes of a fault.
var targets = []target{
	{File: leaseFile, Also: []string{"internal/connector"}},
	{File: loadFile, Also: []string{"internal/connector"}},
	{File: peerFile, Also: []string{"internal/connector"}},
	{File: tileFile, Also: []string{"internal/connector"}},
	{File: "internal/sched/load.go"},
	{File: "internal/sched/apply.go"},
	{File: flowFile, Also: []string{"internal/router"}},
	{File: outcomeFile, Also: []string{"internal/router"}},
	{File: "internal/kv/pool.go", Also: []string{"internal/sched"}},
	{File: "internal/kv/prefix.go", Also: []string{"internal/sched"}},
	{File: "internal/kv/seal.go"},
	{File: "internal/sched/request.go"},
	{File: "internal/sched/plan.go"},
	{File: "internal/sched/sched.go"},
	{File: "internal/sched/admit.go"},
	{File: engineFile, Also: []string{"internal/server"}},
	{File: coreFile, Also: []string{"internal/server"}},
	{File: carryFile, Also: []string{"internal/server"}},
	{File: runFile},
	{File: leasesFile},
	{File: consumeFile},
	{File: viewFile},
}

// A listed mutant is one that CI applies.
type listed struct {
	File  string
	Old   string // occurs once in File
	New   string
	Tests string // names of tests, any of which must fail, with blanks between
	In    string // package of the tests; "": the file's own
	Why   string // what would go wrong
}

func (m listed) pkg() string {
	if m.In != "" {
		return m.In
	}
	return path.Dir(m.File)
}

func (m listed) names() []string { return strings.Fields(m.Tests) }

// allListed returns every listed mutant.
func allListed() []listed {
	return slices.Concat(kvMutants, schedMutants, coreMutants, shellMutants, simulationMutants)
}

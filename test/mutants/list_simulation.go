package main

// simulationMutants break promises that the simulation of whole systems must find
// by itself, whatever the tests of the packages say.
var simulationMutants = []listed{
	{
		File: tileFile, In: "test/simulation", Tests: "TestSeeds",
		Old: "if kv.SumHead(tile, arena.Layout(), s.LocalHead+j) != want[j] {",
		New: "if false && kv.SumHead(tile, arena.Layout(), s.LocalHead+j) != want[j] {",
		Why: "sums are not compared",
	},
	{
		File: "internal/sched/load.go", In: "test/simulation", Tests: "TestSeeds",
		Old: "\t\t\tbad[t-from] = true\n", New: "\t\t\t_ = t\n",
		Why: "tiles that were not verified are used",
	},
	{
		File: "internal/sched/apply.go", In: "test/simulation", Tests: "TestSeeds",
		Old: "\t\tr.blocks = nil\n\t\ts.leased", New: "\t\ts.leased",
		Why: "leased blocks are freed as well, so twice",
	},
	{
		File: leaseFile, In: "test/simulation", Tests: "TestSeeds",
		Old: "if l.claimed() && l.claimer == from {", New: "if false && l.claimed() && l.claimer == from {",
		Why: "a claim outlives its connection",
	},
	{
		File: leaseFile, In: "test/simulation", Tests: "TestSeeds",
		Old: "\te.Ended = append(e.Ended, EndedLease{l.id, l.blocks, why})\n", New: "",
		Why: "the blocks of an ended lease do not come back",
	},
	{
		File: loadFile, In: "test/simulation", Tests: "TestSeeds",
		Old: "if l.open == 0 {", New: "if l.open <= 1 {",
		Why: "a load is reported while a read can still write",
	},
	{
		File: loadFile, In: "test/simulation", Tests: "TestSeeds",
		Old: "if now.Before(at) {", New: "if now.Before(at) || l.state != LoadReading {",
		Why: "a load has no deadline",
	},
	{
		File: "internal/sched/load.go", In: "test/simulation", Tests: "TestSeeds",
		Old: "\t\ts.held -= len(g.blocks) - g.hits\n", New: "",
		Why: "quarantined blocks are still counted when their load has ended",
	},
	{
		File: "internal/sched/plan.go", In: "test/simulation", Tests: "TestSeeds",
		Old: "r.holding = holding{}", New: "r.holding = holding{verified: r.verified}",
		Why: "a preempted request takes other memory for what it had loaded",
	},
	{
		File: loadFile, In: "test/simulation", Tests: "TestSeeds",
		Old: "if at := l.started.Add(ev.Limit - ev.Limit/8); at.Before(l.deadline) {",
		New: "if at := l.started.Add(ev.Limit - ev.Limit/8); false && at.Before(l.deadline) {",
		Why: "a load reads on when its claim has ended",
	},
	{
		File: leaseFile, In: "test/simulation", Tests: "TestSeeds",
		Old: "\t\tt.move(l, LeaseLeaving)\n", New: "\t\tt.end(l, EndRevoked, e)\n",
		Why: "a release takes the blocks away from a running claim",
	},
	{
		File: "internal/sched/sched.go", In: "test/simulation", Tests: "TestSeeds",
		Old: "if was == loading {", New: "if false && was == loading {",
		Why: "blocks of an aborted request are free while its load still writes to them",
	},
	{
		File: peerFile, In: "test/simulation", Tests: "TestSeeds",
		Old: "\t\te.Close = append(e.Close, p.view)\n\t\tvar none V\n", New: "\t\tvar none V\n",
		Why: "the connection of an older registration stays for ever",
	},
}

package main

// schedMutants break what the scheduler does after a load, and its counters.
var schedMutants = []listed{
	{
		File: "internal/sched/load.go", Tests: "TestLoadFailsAtEveryTile TestAnyHistory",
		Old: "bad[t-from] = true", New: "bad[t-from] = false",
		Why: "invalid tiles count as verified",
	},
	{
		File: "internal/sched/load.go", Tests: "TestLoadBehindAHitFailsAtEveryTile",
		Old: "v := span{t * kv.TileTokens, min((t+1)*kv.TileTokens, held)}",
		New: "v := span{(t - from) * kv.TileTokens, min((t-from+1)*kv.TileTokens, held)}",
		Why: "verified tiles are kept in the wrong place when the load begins behind a hit",
	},
	{
		File: "internal/sched/load.go", Tests: "TestLoadFailsAtEveryTile",
		Old: "if bad[t-from] {\n\t\t\tcontinue\n\t\t}", New: "if bad[t-from] {\n\t\t\tbreak\n\t\t}",
		Why: "tiles behind the first invalid one are computed again",
	},
	{
		File: "internal/sched/load.go", Tests: "TestAmountToLoadIsClamped TestAnyHistory",
		Old: "held := min(r.External, len(r.Prompt))", New: "held := len(r.Prompt)",
		Why: "slots behind what was handed over count as verified",
	},
	{
		File: "internal/sched/load.go", Tests: "TestLoadFailsAtEveryTile",
		Old: "loaded += min(v.to, r.load.to) - v.from", New: "loaded += v.to - v.from",
		Why: "the last prompt token counts as loaded and as computed",
	},
	{
		File: "internal/sched/load.go", Tests: "TestSharersOfAFailedLoad",
		Old: "if res.Missing > 0 && rep.Fail {", New: "if res.Missing > 0 && !rep.Fail {",
		Why: "the policies fail and recompute are mixed up",
	},
	{
		File: "internal/sched/load.go", Tests: "TestSharersOfAFailedLoad",
		Old: "if res.Missing > 0 && rep.Fail {", New: "if rep.Fail {",
		Why: "a complete load ends its request under the policy fail",
	},
	{
		File: "internal/sched/load.go", Tests: "TestSharersOfAFailedLoad",
		Old: "s.total.Finished[LoadFailed]++\n\t\ts.pool.Release(r.blocks)", New: "s.total.Finished[LoadFailed]++",
		Why: "a failed request keeps its blocks for ever",
	},
	{
		File: "internal/sched/load.go", Tests: "TestCountersAddUp",
		Old: "s.total.FailedLoads++", New: "",
		Why: "failed loads are not counted",
	},
	{
		File: "internal/sched/load.go", Tests: "TestAnyHistory",
		Old: "delete(s.ghosts, id)\n", New: "",
		Why: "an aborted load is reported twice and frees its blocks twice",
	},
	{
		File: "internal/sched/load.go", Tests: "TestOnlyTheLoadsBlocksAreQuarantined",
		Old: "s.held -= len(g.blocks) - g.hits", New: "s.held -= len(g.blocks)",
		Why: "the count of quarantined blocks is wrong for ever after",
	},
	{
		File: "internal/sched/load.go", Tests: "TestLateAndDoubleReportsChangeNothing",
		Old: "if r == nil || r.status != loading {", New: "if r == nil {",
		Why: "a late report reaches a request that no longer loads",
	},
	{
		File: "internal/sched/sched.go", Tests: "TestAbortInEveryState TestAnyHistory",
		Old: "if was == loading {", New: "if was == queued {",
		Why: "the quarantine is released early: bytes may still land in the blocks",
	},
	{
		File: "internal/sched/sched.go", Tests: "TestLateAndDoubleReportsChangeNothing",
		Old: "if s.requests[r.ID] != nil || s.ghosts[r.ID] != nil {", New: "if s.requests[r.ID] != nil {",
		Why: "the report of an aborted load hits a new request of the same id",
	},
	{
		File: "internal/sched/sched.go", Tests: "TestAbortInEveryState TestAnyHistory",
		Old: "Unread: r.External > 0 && !r.spent,", New: "Unread: r.External > 0,",
		Why: "a hand-off that was read is given back as unread",
	},
	{
		File: "internal/sched/sched.go", Tests: "TestAnyHistory",
		Old: "s.leased -= len(blocks)", New: "s.leased -= 0",
		Why: "returned blocks count as leased for ever",
	},
	{
		File: "internal/sched/request.go", Tests: "TestLoadFailsAtEveryTile",
		Old: "r.done = max(r.done, min(v.to, len(r.tokens)-1))", New: "r.done = max(r.done, min(v.to, len(r.tokens)))",
		Why: "the last prompt token is not computed and there are no logits",
	},
	{
		File: "internal/sched/request.go", Tests: "TestAnyHistory",
		Old: "r.next < len(r.verified) && r.verified[r.next].from <= r.done", New: "r.next < len(r.verified)",
		Why: "the request skips tokens that were lost",
	},
	{
		File: "internal/sched/request.go", Tests: "TestLastPromptTokenIsAlwaysComputed TestAnyHistory",
		Old: "r.slots = v.to", New: "r.slots = 0",
		Why: "verified slots are written again",
	},
	{
		File: "internal/sched/request.go", Tests: "TestPreemptedAfterLoad",
		Old: "if r.counts.Output > 0 {\n\t\treturn\n\t}", New: "",
		Why: "the counters of a prompt move after its first token",
	},
	{
		File: "internal/sched/request.go", Tests: "TestLoadFailsAtEveryTile",
		Old: "c.Recomputed = max(0, promised-hit-loaded)", New: "c.Recomputed = 0",
		Why: "what was lost counts as if nobody had promised it",
	},
	{
		File: "internal/sched/plan.go", Tests: "TestPreemptedAfterLoad TestAnyHistory",
		Old: "r.holding = holding{}", New: "r.holding = holding{verified: r.verified}",
		Why: "verified places outlive the blocks that held them",
	},
	{
		File: "internal/sched/plan.go", Tests: "TestPreemptedAfterLoad TestAnyHistory",
		Old: "r.holding = holding{}", New: "r.holding = holding{slots: r.slots}",
		Why: "slots of the old blocks count as written after a preemption",
	},
	{
		File: "internal/sched/plan.go", Tests: "TestLeaseAfterPreemption",
		Old: "if part := end % kv.TileTokens; part > 0 && r.Lease && last {",
		New: "if part := end % kv.TileTokens; part > 0 && !r.Lease && last {",
		Why: "the partial last tile is handed over without a seal",
	},
	{
		File: "internal/sched/plan.go", Tests: "TestSmallPoolsNeverStall",
		Old: "r.holding = holding{}", New: "r.holding = holding{known: r.known}",
		Why: "a preempted request remembers blocks in the index that it does not hold",
	},
	{
		File: "internal/sched/plan.go", Tests: "TestLoadFailsAtEveryTile TestAnyHistory",
		Old: "n = min(n, r.verified[r.next].from-r.done)", New: "n = min(n, r.verified[r.next].to-r.done)",
		Why: "a chunk runs over verified tiles and computes them again",
	},
	{
		File: "internal/sched/plan.go", Tests: "TestAnyHistory",
		Old: "return r.sealed, end / kv.TileTokens, kv.TileTokens",
		New: "return max(r.sealed, end/kv.TileTokens-1), end / kv.TileTokens, kv.TileTokens",
		Why: "of the tiles that a step fills only the last is sealed",
	},
	{
		File: "internal/sched/request.go", Tests: "TestAnyHistory",
		Old: "r.sealed = max(r.sealed, v.to/kv.TileTokens)", New: "r.sealed = 0",
		Why: "verified tiles are sealed again, whatever is in them by then",
	},
	{
		File: "internal/sched/apply.go", Tests: "TestAnyHistory",
		Old: "for (r.known+1)*n <= r.done {", New: "for r.known*n < r.done {",
		Why: "a block that is not full or not verified enters the prefix index",
	},
	{
		File: "internal/sched/apply.go", Tests: "TestAbortInEveryState",
		Old: "if r.status != running { // aborted during the step\n\t\t\tcontinue\n\t\t}", New: "",
		Why: "the results of an aborted request are taken",
	},
	{
		File: "internal/sched/apply.go", Tests: "TestLeaseAfterPreemption TestAnyHistory",
		Old: "f.Blocks = r.blocks\n\t\tr.blocks = nil", New: "f.Blocks = r.blocks",
		Why: "leased blocks are free at once",
	},
	{
		File: "internal/sched/admit.go", Tests: "TestLoadsCoverWhatIsMissing",
		Old: "r.load = span{hit, promised}", New: "r.load = span{0, promised}",
		Why: "tiles that are hits here are loaded over",
	},
	{
		File: "internal/sched/admit.go", Tests: "TestPreemptedAfterLoad TestAnyHistory",
		Old: "load := !r.spent && promised > hit", New: "load := promised > hit",
		Why: "a hand-off is read twice",
	},
	{
		File: "internal/sched/admit.go", Tests: "TestLoadsCoverWhatIsMissing",
		Old: "s.plan.Unread = append(s.plan.Unread, Item{ID: r.ID, Tag: r.Tag})", New: "",
		Why: "a hand-off of no use is never given back",
	},
	{
		File: "internal/sched/admit.go", Tests: "TestLastPromptTokenIsAlwaysComputed",
		Old: "return min(r.External, len(r.Prompt)-1)", New: "return min(r.External, len(r.Prompt))",
		Why: "the load is to bring the token whose logits are computed here",
	},
	{
		File: "internal/sched/admit.go", Tests: "TestSevenBlocks TestSmallPoolsNeverStall",
		Old: "need := s.blocksFor(len(r.tokens)) - hits", New: "need := max(1, s.blocksFor(promised)-hits)",
		Why: "loads are admitted without the block of their first step and starve each other",
	},
	{
		File: "internal/sched/admit.go", Tests: "TestHandoffOfNoUseIsNotMissed",
		Old: "if r.NoCache || (r.spent && r.load == span{}) {", New: "if r.NoCache {",
		Why: "a hand-off of no use counts as lost when its request is computed again",
	},
	{
		File: "internal/sched/admit.go", Tests: "TestWhatMustBeFreeForAStart",
		Old: "all = all || (x.counts.Preempted >= sure && s.before(x, r))", New: "",
		Why: "a request that was preempted often gives way again to those behind it",
	},
	{
		File: "internal/sched/plan.go", Tests: "TestOnlyAsManyWaitAsBlocksComeBack",
		Old: "idle++\n", New: "",
		Why: "all wait for one block that comes back from an aborted load",
	},
	{
		File: "internal/sched/plan.go", Tests: "TestTheLowestRankedGivesWay",
		Old: "n > 0 && s.before(v, s.parked[n-1])", New: "n > 0 && s.before(s.parked[n-1], v)",
		Why: "what was loaded is given up for one that ranks lower",
	},
	{
		File: "internal/sched/apply.go", Tests: "TestRedoneTokensAreThoseComputedAgain",
		Old: "s.redone(r, seq.Pos, end)", New: "",
		Why: "nobody sees what preemptions cost",
	},
	{
		File: "internal/sched/sched.go", Tests: "TestStuck",
		Old: "len(s.parked)+len(s.loads)+len(s.ghosts) > 0", New: "len(s.parked)+len(s.loads) > 0",
		Why: "renewals stop although an aborted load gives its blocks back soon",
	},
	{
		File: "internal/sched/sched.go", Tests: "TestStuck",
		Old: "if !s.short(r) {\n\t\t\treturn false", New: "if r != nil {\n\t\t\treturn false",
		Why: "two engines whose running requests are short of a block keep each other waiting until the leases' cap",
	},
}

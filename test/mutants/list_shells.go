package main

const (
	engineFile  = "internal/engine/outcome.go"
	coreFile    = "internal/engine/core.go"
	carryFile   = "internal/engine/carry.go"
	runFile     = "internal/connector/loadrun.go"
	leasesFile  = "internal/connector/leaseloop.go"
	consumeFile = "internal/connector/consume.go"
	viewFile    = "internal/connector/view.go"
	flowFile    = "internal/router/flow/flow.go"
	outcomeFile = "internal/router/flow/outcome.go"
)

// shellMutants break what carries decisions out: connector, engine and router.
var shellMutants = []listed{
	{
		File: runFile, Tests: "TestCancelReportsOnlyWhenNothingCanLand",
		Old: "r.Cancel()\n\t\t<-r.Done()", New: "go r.Cancel()",
		Why: "a cancelled load reports while bytes still land",
	},
	{
		File: runFile, Tests: "TestDamagedReferencesNeverLoad",
		Old: "if l.digest != h.Digest {", New: "if false && l.digest != h.Digest {",
		Why: "a hand-off of another prompt costs a handshake and a claim",
	},
	{
		File: runFile, Tests: "TestOnlyMissingTilesAreRead",
		Old: "remote[i] = core.TileIn(h.Blocks, h.BlockTokens/kv.TileTokens, l.spec.FromTile+i)",
		New: "remote[i] = core.TileIn(h.Blocks, h.BlockTokens/kv.TileTokens, i)",
		Why: "a load that begins behind a hit reads the tiles of the beginning",
	},
	{
		File: runFile, Tests: "TestStallAndCutOnTheWire",
		Old: "case errors.Is(err, transfer.ErrStalled):\n\t\treturn ClassTimeout\n", New: "case false:\n\t\treturn ClassTimeout\n",
		Why: "a stalled read is told as a broken one",
	},
	{
		File: leasesFile, Tests: "TestOnlyTheClaimersConnectionReads",
		Old: "case !ok || c.From != from:\n\t\treturn ErrLeaseGone\n", New: "case !ok:\n\t\treturn ErrLeaseGone\n",
		Why: "another connection reads under a claim",
	},
	{
		File: leasesFile, Tests: "TestOnlyTheClaimersConnectionReads",
		Old: "kv.BlockID(int(t)/blockTiles)); !ok {\n\t\t\treturn ErrLeaseGone\n\t\t}", New: "kv.BlockID(int(t)/blockTiles)); !ok {\n\t\t\tcontinue\n\t\t}",
		Why: "blocks that the lease does not hold are read",
	},
	{
		File: leasesFile, Tests: "TestExpiredLeaseIsNeverRead",
		Old: "if end.Why == core.EndExpired {\n\t\t\t\tl.metrics.Expired()\n\t\t\t}", New: "",
		Why: "expired leases are not counted",
	},
	{
		File: consumeFile, Tests: "TestNothingIsDialledThatTheMACDidNotVouchFor",
		Old: "case !s.Handoff.Vouched(c.cfg.Token):\n\t\treturn ErrMAC\n", New: "",
		Why: "a client chooses whom the engine dials",
	},
	{
		File: consumeFile, Tests: "TestReturnIsTriedUntilItIsAcknowledged",
		Old: "pause *= 2\n\t\t\t\tcontinue", New: "pause *= 2",
		Why: "a lost return is not sent again, and P keeps the blocks until the lease runs out",
	},
	{
		File: consumeFile, Tests: "TestReturnIsTriedUntilItIsAcknowledged",
		Old: "pause *= 2\n", New: "",
		Why: "a peer that does not answer is asked as fast as ever",
	},
	{
		File: viewFile, Tests: "TestRestartedEngineIsANewPeer TestAddressOfAnotherEngineReadsNothing",
		Old: "got != v.key.Incarnation || v.hello.Incarnation != got", New: "v.hello.Incarnation != got",
		Why: "the engine that now listens at an address is read in place of the one that made the KV",
	},
	{
		File: viewFile, Tests: "TestIncompatiblePeerNamesTheFactor",
		Old: "if err := compareFactors(c.factors, v.hello.Factors); err != nil {", New: "if err := compareFactors(c.factors, v.hello.Factors); false && err != nil {",
		Why: "KV of another model is read",
	},
	{
		File: viewFile, Tests: "TestEveryAdversityOfALoad",
		Old: "got != v.key.Incarnation || v.hello.Incarnation != got", New: "got != v.key.Incarnation",
		Why: "a peer that names another process than its connection proved is read",
	},
	{
		File: viewFile, Tests: "TestHandshakesReplaceConnectionsThatHaveEnded",
		Old: "again := attempt < redials && v.ended(err)", New: "again := false",
		Why: "a connection to a process that has gone fails the first load from its successor",
	},
	{
		File: runFile, Tests: "TestClaimsAreMadeAgainOverAnotherConnection",
		Old: "if err != nil && l.view.ended(err) {", New: "if false {",
		Why: "a connection that ended unnoticed fails the next load",
	},
	{
		File: runFile, Tests: "TestClaimsAreMadeAgainOverAnotherConnection",
		Old: "if err != nil || a.Verdict != core.VerdictBusy || attempt == reclaims {", New: "if err != nil || a.Verdict != core.VerdictBusy || true {",
		Why: "a claim over a new connection fails while P still holds the old one's",
	},
	{
		File: runFile, Tests: "TestCancelledLoadsEndWithTheirLastMessage",
		Old: "l.cancel()\n\tl.parts.Wait()", New: "l.cancel()",
		Why: "the return of a lease overtakes its claim",
	},
	{
		File: consumeFile, Tests: "TestLoadsThatCannotStart",
		Old: "if b < 0 || int(b) >= c.cfg.Arenas[0].Blocks() {", New: "if false {",
		Why: "a load of blocks outside the arena ends the engine",
	},
	{
		File: consumeFile, Tests: "TestReturnsThatAreNotTaken",
		Old: "if err == nil && vs[0] == core.VerdictBusy {", New: "if err == nil && vs[0] == core.VerdictEnd {",
		Why: "a lease that another engine has claimed counts as given back",
	},
	{
		File: engineFile, Tests: "TestLoadFailures",
		Old: "Fail: policy == PolicyFail})", New: "Fail: policy != PolicyFail})",
		Why: "the policies fail and recompute are mixed up",
	},
	{
		File: engineFile, In: "internal/server", Tests: "TestRequestsChooseTheirPolicy",
		Old: "if g.req.Policy != \"\" {\n\t\tpolicy = g.req.Policy\n\t}", New: "",
		Why: "the policy of a request is ignored",
	},
	{
		File: engineFile, In: "internal/server", Tests: "TestRequestsChooseTheirPolicy",
		Old: "g.usage.Failure = err.Class", New: "",
		Why: "the client does not learn that a load failed",
	},
	{
		File: engineFile, Tests: "TestFailedLoadOfAReaderThatLeft",
		Old: "if err != nil { // also when its request has gone", New: "if err != nil && !g.over { //",
		Why: "the log and the metrics count other failures when clients leave",
	},
	{
		File: engineFile, Tests: "TestAbortInEveryState",
		Old: "if a.Loading {\n\t\tc.do(effect{kind: doCancel, id: ch.id})\n\t}", New: "",
		Why: "the load of an aborted request runs on",
	},
	{
		File: engineFile, Tests: "TestAbortInEveryState",
		Old: "if a.Unread {\n\t\tc.giveBack(ch.g)\n\t}", New: "",
		Why: "the lease of an aborted request is kept until it runs out",
	},
	{
		File: "internal/server/status.go", Tests: "TestFailedLoadsFollowThePolicy",
		Old: "e.Reason = \"kv_load_\" + string(load.Class)", New: "e.Reason = \"kv_load\"",
		Why: "the error does not say why the load failed",
	},
	{
		File: "internal/server/transfer.go", Tests: "TestRequestsChooseTheirPolicy",
		Old: "if !c.s.cfg.AllowRequestPolicy {", New: "if false {",
		Why: "clients choose the policy though they may not",
	},
	{
		File: "internal/server/transfer.go", Tests: "TestAnswersSayWhereTheKVCameFrom",
		Old: "to.Recomputed += u.Recomputed", New: "to.Recomputed += u.Computed",
		Why: "the numbers of an answer do not add up",
	},
	{
		File: "internal/telemetry/engine.go", Tests: "TestTokensBySourceAddUp",
		Old: "own.WithLabelValues(\"recomputed\").Add(float64(u.Recomputed))", New: "own.WithLabelValues(\"recomputed\").Add(0)",
		Why: "the metrics of prompt tokens do not add up",
	},
	{
		File: "internal/bystander/hooks.go", Tests: "TestPanicsOfHooksEndInOneLine",
		Old: "recover()", New: "any(nil)",
		Why: "a metric that panics ends the engine",
	},
	{
		File: "internal/backend/wait.go", Tests: "TestLegThatFallsSilent",
		Old: "l.wait.begin(l.silence)", New: "l.wait.begin(0)",
		Why: "an engine that falls silent holds its client for ever",
	},
	{
		File: engineFile, Tests: "TestWhatTheConnectorIsTold",
		Old: "c.untrack(g)\n\terr := rep.Err", New: "err := rep.Err",
		Why: "the lease of a load that has ended is renewed until its request ends",
	},
	{
		File: engineFile, Tests: "TestWhatTheConnectorIsTold",
		Old: "c.untrack(g)\n\tdelete(c.groups, g)", New: "delete(c.groups, g)",
		Why: "the lease of an aborted request is renewed until its load has ended",
	},
	{
		File: engineFile, Tests: "TestWhatIsToldOfALoad",
		Old: "g.counts(res.Counts)\n\tc.fail", New: "c.fail",
		Why: "the client of a failed load does not learn what was lost",
	},
	{
		File: carryFile, Tests: "TestEndOfAnEngine",
		Old: "\t\t\t\te.cfg.Connector.ReturnUnread(g.req.Handoff)\n", New: "",
		Why: "the lease of a request of the last moment is kept until it runs out",
	},
	{
		File: carryFile, Tests: "TestEndOfAnEngine",
		Old: "if cause == nil {\n\t\t\t\te.core.sched.Release(b)\n\t\t\t}", New: "_ = b",
		Why: "blocks that come back while the engine ends are lost",
	},
	{
		File: carryFile, Tests: "TestReaderThatLeavesDuringItsLastStep",
		Old: "if !quit {\n\t\tf.out.Handoff", New: "{\n\t\tf.out.Handoff",
		Why: "a lease is made for a reader that has gone",
	},
	{
		File: carryFile, Tests: "TestReaderThatLeavesDuringItsLastStep",
		Old: "e.core.sched.Release(f.fin.Blocks)\n\t\tf.out.Finish", New: "f.out.Finish",
		Why: "the blocks of a hand-off that nobody gets are lost",
	},
	{
		File: carryFile, Tests: "TestFullStreamEndsWithItsLastOutput",
		Old: "if f.out.Err == nil && f.g.stream.behind() {", New: "if false {",
		Why: "a reader that was too slow takes a part of its answer for the whole",
	},
	{
		File: "internal/engine/loop.go", Tests: "TestAnEngineThatRestsIsNotHungAnyMore",
		Old: "e.goesOn() // also from a turn without a step\n", New: "",
		Why: "an engine that was held up refuses all requests while it rests",
	},
	{
		File: flowFile, Tests: "TestFlows",
		Old: "return append(f.drop(), f.Start()...)", New: "return f.Start()",
		Why: "the lease of a failed attempt is not released",
	},
	{
		File: flowFile, Tests: "TestFlows",
		Old: "return append(f.drop(), Effect[B]{Act: Answer, Fail: o.Failure(f.attempts)})",
		New: "return []Effect[B]{{Act: Answer, Fail: o.Failure(f.attempts)}}",
		Why: "the lease is not released when a flow fails at its last leg",
	},
	{
		File: flowFile, Tests: "TestFlows",
		Old: "return append(f.drop(), Effect[B]{Act: Answer, Fail: NoBackend(role)})",
		New: "return []Effect[B]{{Act: Answer, Fail: NoBackend(role)}}",
		Why: "the lease is not released when no decode engine can serve",
	},
	{
		File: flowFile, Tests: "TestFlows",
		Old: "f.move(Left)\n\treturn f.drop()", New: "f.move(Left)\n\treturn nil",
		Why: "the lease is not released when the client leaves",
	},
	{
		File: flowFile, Tests: "TestFlows",
		Old: "f.handoff = nil\n\t\tf.move(Streaming)", New: "f.move(Streaming)",
		Why: "a lease that D is using is released",
	},
	{
		File: flowFile, Tests: "TestAnyFlow",
		Old: "f.handoff = nil\n\treturn []Effect[B]{e}", New: "return []Effect[B]{e}",
		Why: "a hand-off is released twice, or read after its release",
	},
	{
		File: flowFile, Tests: "TestAnyFlow",
		Old: "Effect[B]{Act: Release, From: f.prefill,", New: "Effect[B]{Act: Release, From: f.decode,",
		Why: "the wrong engine is asked to release",
	},
	{
		File: flowFile, Tests: "TestFlows",
		Old: "f.retries--\n", New: "",
		Why: "a call is tried for ever",
	},
	{
		File: flowFile, Tests: "TestFlows",
		Old: "f.failed = append(f.failed, b)", New: "",
		Why: "the engine that failed is tried again",
	},
	{
		File: outcomeFile, Tests: "TestFlows",
		Old: "o.Status == 0 || o.Refusal != \"\" ||", New: "o.Status == 0 || o.Status/100 == 4 ||",
		Why: "a client's mistake is tried on every engine",
	},
}

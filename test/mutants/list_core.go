package main

const (
	leaseFile = "internal/connector/core/lease.go"
	loadFile  = "internal/connector/core/load.go"
	peerFile  = "internal/connector/core/peer.go"
	tileFile  = "internal/connector/core/geometry.go"
)

// coreMutants break the decisions about leases, loads and peers.
var coreMutants = []listed{
	{
		File: tileFile, In: "internal/connector", Tests: "TestSpoiledTileIsFoundAndOthersAreKept TestDataThatChangedUnderTheLeaseIsFound",
		Old: "if kv.SumHead(tile, arena.Layout(), s.LocalHead+j) != want[j] {",
		New: "if false && kv.SumHead(tile, arena.Layout(), s.LocalHead+j) != want[j] {",
		Why: "sums are not compared",
	},
	{
		File: tileFile, In: "internal/connector", Tests: "TestEveryTPReadsEveryOther",
		Old: "want := sums[(s.Remote*n+i)*peerHeads+s.RemoteHead:]", New: "want := sums[(s.Remote*n+i)*peerHeads:]",
		Why: "sums of other heads are compared",
	},
	{
		File: tileFile, In: "internal/connector", Tests: "TestEveryBlockSizeReadsEveryOther",
		Old: "return int32(table[i/blockTiles])*int32(blockTiles) + int32(i%blockTiles)",
		New: "return int32(table[i/blockTiles])*int32(blockTiles)",
		Why: "tiles land in the place of another tile of their block",
	},
	{
		File: leaseFile, Tests: "TestClaimIsJudged",
		Old: "case ev.Incarnation != t.self:\n\t\treturn VerdictIncarnation\n", New: "",
		Why: "a hand-off of another process is served",
	},
	{
		File: leaseFile, Tests: "TestClaimIsJudged",
		Old: "case ev.Epoch != t.epoch:\n\t\treturn VerdictEpoch\n", New: "",
		Why: "a hand-off of another registration is served",
	},
	{
		File: leaseFile, Tests: "TestLeaseTableEqualsTheSlowOne",
		Old: "case l.epoch != t.epoch:\n\t\treturn VerdictEpoch\n", New: "",
		Why: "a lease of an older registration is served",
	},
	{
		File: leaseFile, Tests: "TestClaimIsJudged",
		Old: "case ev.Tokens != l.tokens || ev.Digest != l.digest:\n\t\treturn VerdictDigest\n", New: "",
		Why: "a reader with other tokens is served",
	},
	{
		File: leaseFile, Tests: "TestClaimIsJudged",
		Old: "ev.Claim.From >= ev.To || ev.To > TilesOf(l.tokens)", New: "ev.Claim.From >= ev.To",
		Why: "tiles behind the lease are served",
	},
	{
		File: leaseFile, Tests: "TestOneClaimAtATime",
		Old: "case l.state != LeaseHeld:\n\t\treturn VerdictBusy\n", New: "",
		Why: "a lease is claimed twice at a time",
	},
	{
		File: leaseFile, Tests: "TestBusyIsToldBeforeContent",
		Old: "case l.state != LeaseHeld:\n\t\treturn VerdictBusy\n\tcase ev.Tokens != l.tokens || ev.Digest != l.digest:\n\t\treturn VerdictDigest",
		New: "case ev.Tokens != l.tokens || ev.Digest != l.digest:\n\t\treturn VerdictDigest\n\tcase l.state != LeaseHeld:\n\t\treturn VerdictBusy",
		Why: "the order of verdicts: a busy lease tells whether tokens match, and D gives back what another reads",
	},
	{
		File: leaseFile, Tests: "TestLeaseTableEqualsTheSlowOne",
		Old: "min(max(ev.Want+ev.Want/4, time.Second), t.limits.MaxClaim)", New: "max(ev.Want+ev.Want/4, time.Second)",
		Why: "a claim lasts as long as its reader likes",
	},
	{
		File: leaseFile, Tests: "TestLeaseTableEqualsTheSlowOne",
		Old: "min(max(ev.Want+ev.Want/4, time.Second), t.limits.MaxClaim)", New: "min(ev.Want+ev.Want/4, t.limits.MaxClaim)",
		Why: "a claim ends before it can be used",
	},
	{
		File: leaseFile, Tests: "TestRenewalIsCappedAndNeverShortens",
		Old: "if last := l.granted.Add(t.limits.longest()); to.After(last) {", New: "if last := l.granted.Add(t.limits.longest()); false && to.After(last) {",
		Why: "a lease is renewed for ever",
	},
	{
		File: leaseFile, Tests: "TestRenewalIsCappedAndNeverShortens",
		Old: "if to.After(l.deadline) {", New: "if to != l.deadline {",
		Why: "a renewal shortens a lease",
	},
	{
		File: leaseFile, Tests: "TestRenewalIsCappedAndNeverShortens",
		Old: "case t.draining:\n\t\treturn VerdictDraining\n", New: "",
		Why: "leases are renewed while the engine drains, so it never ends",
	},
	{
		File: leaseFile, Tests: "TestRenewedLeaseHidesNoExpiredOne",
		Old: "l.deadline = to\n\t\theap.Fix(&t.due, l.index)", New: "l.deadline = to",
		Why: "a renewed lease at the head hides those that have run out",
	},
	{
		File: leaseFile, Tests: "TestLateAndDoubleEventsEndALeaseOnce",
		Old: "delete(t.byID, l.id)\n\theap.Remove", New: "heap.Remove",
		Why: "a lease ends twice",
	},
	{
		File: leaseFile, Tests: "TestLeaseOutlastsItsDeadlineWhileClaimed",
		Old: "if l.claimed() {\n\t\treturn l.until\n\t}", New: "if l.claimed() && l.until.Before(l.deadline) {\n\t\treturn l.until\n\t}",
		Why: "a lease ends while it is being read",
	},
	{
		File: leaseFile, Tests: "TestReleaseOfAClaimedLeaseWaitsForTheClaim",
		Old: "case l.state == LeaseClaimed && !ev.Now:\n\t\tt.move(l, LeaseLeaving)", New: "case l.state == LeaseClaimed && !ev.Now:",
		Why: "the release of a claimed lease is forgotten",
	},
	{
		File: leaseFile, Tests: "TestReleaseOfAClaimedLeaseWaitsForTheClaim",
		Old: "case l.state == LeaseClaimed && !ev.Now:", New: "case l.state == LeaseClaimed && ev.Now:",
		Why: "a release takes the blocks from under a reader",
	},
	{
		File: leaseFile, Tests: "TestOneClaimAtATime",
		Old: "case l.claimed() && l.claimer.Incarnation != ev.From.Incarnation:\n\t\te.Verdict = VerdictBusy\n", New: "",
		Why: "anybody ends the claim of another",
	},
	{
		File: leaseFile, Tests: "TestLeaseTableEqualsTheSlowOne",
		Old: "if l.claimed() && l.claimer == from {", New: "if l.claimed() && l.claimer.Incarnation == from.Incarnation {",
		Why: "a lost connection ends the claims of the process's other one",
	},
	{
		File: leaseFile, Tests: "TestLateAndDoubleEventsEndALeaseOnce",
		Old: "if l.claimed() {\n\t\te.Unclaim = append(e.Unclaim, l.id)\n\t}\n\tt.move(l, LeaseEnded)", New: "t.move(l, LeaseEnded)",
		Why: "a claim outlives its lease: recycled blocks can be read",
	},
	{
		File: leaseFile, Tests: "TestLeaseTableEqualsTheSlowOne",
		Old: "t.ends[l.id] = why", New: "t.ends[l.id] = EndReturned",
		Why: "nobody learns that a lease ran out",
	},
	{
		File: leaseFile, Tests: "TestEndsAreRememberedForAWhile",
		Old: "delete(t.ends, t.ring[t.next])", New: "",
		Why: "the table grows with every lease that it has seen",
	},
	{
		File: loadFile, Tests: "TestLoadEqualsTheSlowOne",
		Old: "if l.state == LoadEnded {\n\t\treturn e\n\t}\n\tswitch", New: "switch",
		Why: "late events reach a load that has reported",
	},
	{
		File: loadFile, Tests: "TestReadsReportOnceAfterTheLastOne",
		Old: " || l.terminal[ev.Read] {", New: " {",
		Why: "one read counts twice, so a load reports while another still writes",
	},
	{
		File: loadFile, Tests: "TestReadsReportOnceAfterTheLastOne",
		Old: "r.Valid[i] = reading && n == l.reads && l.reads > 0", New: "r.Valid[i] = reading && n > 0 && l.reads > 0",
		Why: "a tile is valid though a rank did not bring its heads",
	},
	{
		File: loadFile, Tests: "TestReadsReportOnceAfterTheLastOne",
		Old: "if l.open == 0 {", New: "if l.open == 0 || ev.Err != nil {",
		Why: "a load reports its failure while other reads still write",
	},
	{
		File: loadFile, Tests: "TestLoadDeadlines TestLoadEqualsTheSlowOne",
		Old: "if l.state < LoadReading {\n\t\tl.end(e)\n\t}", New: "l.end(e)",
		Why: "a load that is stopped reports before its reads have ended",
	},
	{
		File: loadFile, Tests: "TestLoadDeadlines",
		Old: "if at := l.started.Add(ev.Limit - ev.Limit/8); at.Before(l.deadline) {\n\t\t\tl.deadline = at\n\t\t}", New: "",
		Why: "D reads longer than P keeps the claim",
	},
	{
		File: loadFile, Tests: "TestLoadEqualsTheSlowOne",
		Old: "at.Before(l.deadline) {\n\t\t\tl.deadline = at", New: "at.After(l.deadline) {\n\t\t\tl.deadline = at",
		Why: "the longer of two deadlines counts",
	},
	{
		File: loadFile, Tests: "TestLoadDeadlines",
		Old: "if ev.Landed > l.landed {\n\t\t\tl.landed, l.moved = ev.Landed, now\n\t\t}", New: "l.landed, l.moved = ev.Landed, now",
		Why: "looking counts as progress, so a stalled read never ends",
	},
	{
		File: loadFile, Tests: "TestLoadDeadlines",
		Old: "\tcase LoadClaiming:\n", New: "\tcase LoadEnded:\n",
		Why: "a peer that does not answer a claim is waited for until the load's limit",
	},
	{
		File: loadFile, Tests: "TestClaimVerdictsBecomeClasses",
		Old: "l.keep = ev.Verdict == VerdictBusy", New: "l.keep = false",
		Why: "D gives back a lease that another engine is reading",
	},
	{
		File: loadFile, Tests: "TestClaimVerdictsBecomeClasses",
		Old: "l.keep = ev.Verdict == VerdictBusy", New: "l.keep = true",
		Why: "a refused lease is never returned",
	},
	{
		File: loadFile, Tests: "TestLoadEqualsTheSlowOne",
		Old: "case !ev.Sums:\n\t\tl.fail(ClassRefused,", New: "case false:\n\t\tl.fail(ClassRefused,",
		Why: "bytes are read that there are no sums for",
	},
	{
		File: loadFile, Tests: "TestFirstCauseNamesTheClass",
		Old: "if l.err == nil && !l.canceled {", New: "if !l.canceled {",
		Why: "the last cause of a failure is told, not the first",
	},
	{
		File: loadFile, Tests: "TestFirstCauseNamesTheClass",
		Old: "case ev.Bad > 0:", New: "case ev.Bad > 0 && ev.Err == nil:",
		Why: "wrong bytes are told as a broken read",
	},
	{
		File: peerFile, Tests: "TestHandshakeIsSharedAndRetriedWithBackoff",
		Old: "if p.retry.After(now) {\n\t\t\tt.move(p, PeerWaiting)\n\t\t\treturn\n\t\t}", New: "",
		Why: "a dead peer is dialled by every request",
	},
	{
		File: peerFile, Tests: "TestHandshakeIsSharedAndRetriedWithBackoff",
		Old: "now.Add(min(firstBackoff<<min(p.fails-2, 10), lastBackoff))", New: "now.Add(max(firstBackoff<<min(p.fails-2, 10), lastBackoff))",
		Why: "the back-off has no bound, or starts at its end",
	},
	{
		File: peerFile, Tests: "TestPeerThatCameBackStartsAfresh",
		Old: "p.fails, p.retry, p.view = 0, time.Time{}, ev.View", New: "p.view = ev.View",
		Why: "a peer that is back is still punished at its next failure",
	},
	{
		File: peerFile, Tests: "TestHandshakeIsSharedAndRetriedWithBackoff",
		Old: "p.state == PeerReady && p.view == ev.View {", New: "p.state == PeerReady {",
		Why: "the end of an old connection takes the new snapshot away",
	},
	{
		File: peerFile, Tests: "TestEveryWaiterIsAnsweredOnceAndEveryViewClosedOnce TestPeerTableEqualsTheSlowOne",
		Old: "p.view = none\n\t\t\tt.move(p, PeerIdle)\n\t\t\te.Close = append(e.Close, ev.View)", New: "p.view = none\n\t\t\tt.move(p, PeerIdle)",
		Why: "maps and descriptors of a gone peer are kept for ever",
	},
	{
		File: peerFile, Tests: "TestIdlePeerIsClosed",
		Old: "case p.state == PeerReady:\n\t\t\te.Close = append(e.Close, p.view)\n\t\t\tt.remove(p)", New: "case p.state == PeerReady:\n\t\t\tt.remove(p)",
		Why: "an idle peer's memory stays mapped",
	},
	{
		File: peerFile, Tests: "TestPeerTableEqualsTheSlowOne",
		Old: "p.epoch = ev.View.PeerEpoch()", New: "",
		Why: "one hand-off of an epoch that the peer never had makes every request shake hands anew",
	},
}

package core

import (
	"cmp"
	"container/heap"
	"slices"
	"time"

	"tandem/internal/kv"
	"tandem/internal/moves"
)

// LeaseLimits bound the life of leases and claims.
type LeaseLimits struct {
	Lease    time.Duration // from grant to expiry while nothing renews it
	MaxClaim time.Duration // longest claim
}

// extension is what a renewal gives from its arrival.
func (l LeaseLimits) extension() time.Duration { return l.Lease * 2 / 3 }

// longest is how long after its grant renewals keep a lease at most.
func (l LeaseLimits) longest() time.Duration { return 10 * l.Lease }

// An EndReason says how a lease ended.
type EndReason uint8

// The ends of a lease.
const (
	EndReturned EndReason = iota + 1
	EndRevoked
	EndExpired
)

// A LeaseState is what a lease waits for.
type LeaseState uint8

// The states of a lease.
const (
	LeaseHeld    LeaseState = iota // unclaimed: ends at its deadline
	LeaseClaimed                   // read by one peer, for a bounded time
	LeaseLeaving                   // claimed, and released meanwhile: ends with its claim
	LeaseEnded                     // out of the table
)

// String returns the name in the drawing.
func (s LeaseState) String() string {
	return [...]string{"held", "claimed", "leaving", "ended"}[s]
}

// LeaseMoves is the drawing of a lease.
var LeaseMoves = moves.Draw("connector: lease",
	[]LeaseState{LeaseClaimed, LeaseEnded},
	[]LeaseState{LeaseHeld, LeaseLeaving, LeaseEnded},
	[]LeaseState{LeaseEnded},
	nil,
)

// A lease keeps a finished request's blocks until it ends, once.
type lease struct {
	id       LeaseID
	number   uint64 // in the order of grants
	blocks   []kv.BlockID
	tokens   int
	digest   Digest
	epoch    kv.Epoch
	granted  time.Time
	deadline time.Time // while unclaimed

	state   LeaseState
	claimer CallerID
	until   time.Time // end of the claim

	index int // in the heap
}

func (l *lease) claimed() bool { return l.state == LeaseClaimed || l.state == LeaseLeaving }

// due returns when the lease or its claim ends on its own.
func (l *lease) due() time.Time {
	if l.claimed() {
		return l.until
	}
	return l.deadline
}

// The events of a lease table.
type (
	// GrantEvent makes a lease. The table keeps Blocks until the lease ends.
	GrantEvent struct {
		ID     LeaseID
		Blocks []kv.BlockID
		Tokens int
		Digest Digest
		Epoch  kv.Epoch
	}
	// ClaimEvent asks for a claim; Verdict answers.
	ClaimEvent struct {
		Claim
		From CallerID
	}
	// RenewEvent moves a deadline later; Verdict answers.
	RenewEvent struct{ ID LeaseID }
	// ReturnEvent ends a lease that its reader, or one who never claimed it, gives
	// back; Verdict answers.
	ReturnEvent struct {
		ID   LeaseID
		From CallerID
	}
	// RevokeEvent ends a lease from this side.
	RevokeEvent struct {
		ID LeaseID
		// Now ends the lease even under a running claim: the memory itself goes.
		// Otherwise a claimed lease ends with its claim.
		Now bool
	}
	// LostEvent ends the claims of a connection that has ended.
	LostEvent struct{ From CallerID }
	// DrainEvent stops renewals, or allows them again.
	DrainEvent struct{ On bool }
	// TickEvent only tells the time; due at Next.
	TickEvent struct{}
)

// LeaseEffects are what the shell does after an event.
type LeaseEffects struct {
	Verdict Verdict
	Limit   time.Duration // of the claim
	Claimed *Running      // a claim began: publish it before the answer
	Unclaim []LeaseID     // claims that ended: withdraw them
	Ended   []EndedLease
}

// A Running claim is what a connection may read under a lease.
type Running struct {
	ID     LeaseID
	From   CallerID
	Epoch  kv.Epoch
	Blocks []kv.BlockID
}

// An EndedLease gives its blocks back.
type EndedLease struct {
	ID     LeaseID
	Blocks []kv.BlockID
	Why    EndReason
}

// A LeaseTable decides about every lease of an engine. Its zero value is not
// usable; see NewLeaseTable. Ended leases leave the table at once; the reasons of
// the last few are remembered so that a late claim learns why.
type LeaseTable struct {
	self     Incarnation
	epoch    kv.Epoch
	factors  [32]byte
	limits   LeaseLimits
	draining bool
	moves    moves.Count

	byID    map[LeaseID]*lease
	due     leaseHeap
	granted uint64

	ends map[LeaseID]EndReason
	ring []LeaseID // of ends, oldest at next
	next int
}

// remembered is how many ended leases a table can still explain.
const remembered = 4096

// NewLeaseTable returns the empty table of the process self, whose arena is
// registered with epoch. Factors are the condensed fingerprint that claims must
// name.
func NewLeaseTable(self Incarnation, epoch kv.Epoch, factors [32]byte, limits LeaseLimits) *LeaseTable {
	return &LeaseTable{
		self: self, epoch: epoch, factors: factors, limits: limits,
		byID: map[LeaseID]*lease{}, ends: map[LeaseID]EndReason{},
	}
}

// Handle applies an event at time now. Whatever the event, leases whose time has
// come end first, so an answer never depends on when the shell last ticked.
func (t *LeaseTable) Handle(event any, now time.Time) (e LeaseEffects) {
	t.expire(now, &e)
	switch ev := event.(type) {
	case GrantEvent:
		t.grant(ev, now)
	case ClaimEvent:
		t.claim(ev, now, &e)
	case RenewEvent:
		e.Verdict = t.renew(ev.ID, now)
	case ReturnEvent:
		t.giveBack(ev, &e)
	case RevokeEvent:
		t.revoke(ev, &e)
	case LostEvent:
		t.lost(ev.From, now, &e)
	case DrainEvent:
		t.draining = ev.On
	case TickEvent:
	}
	return e
}

// Next returns when the next lease or claim ends on its own.
func (t *LeaseTable) Next() (time.Time, bool) {
	if len(t.due) == 0 {
		return time.Time{}, false
	}
	return t.due[0].due(), true
}

// Len returns the number of leases.
func (t *LeaseTable) Len() int { return len(t.byID) }

// Held adds to refs the references to blocks that the leases hold.
func (t *LeaseTable) Held(refs map[kv.BlockID]int) {
	for _, l := range t.due {
		for _, b := range l.blocks {
			refs[b]++
		}
	}
}

// Moves returns how often leases have moved along each edge of LeaseMoves.
func (t *LeaseTable) Moves() *moves.Count { return &t.moves }

func (t *LeaseTable) move(l *lease, to LeaseState) {
	l.state = LeaseMoves.Move(l.state, to, &t.moves, l.id)
}

func (t *LeaseTable) grant(ev GrantEvent, now time.Time) {
	t.granted++
	l := &lease{
		id: ev.ID, number: t.granted, blocks: ev.Blocks, tokens: ev.Tokens, digest: ev.Digest,
		epoch: ev.Epoch, granted: now, deadline: now.Add(t.limits.Lease),
	}
	t.byID[l.id] = l
	heap.Push(&t.due, l)
}

func (t *LeaseTable) claim(ev ClaimEvent, now time.Time, e *LeaseEffects) {
	l := t.byID[ev.Lease]
	if e.Verdict = t.judge(l, ev); e.Verdict != VerdictOK {
		return
	}
	e.Limit = min(max(ev.Want+ev.Want/4, time.Second), t.limits.MaxClaim)
	t.move(l, LeaseClaimed)
	l.claimer, l.until = ev.From, now.Add(e.Limit)
	heap.Fix(&t.due, l.index)
	e.Claimed = &Running{l.id, l.claimer, l.epoch, l.blocks}
}

// judge returns what stands against a claim, the identity first.
func (t *LeaseTable) judge(l *lease, ev ClaimEvent) Verdict {
	switch {
	case ev.Incarnation != t.self:
		return VerdictIncarnation
	case ev.Epoch != t.epoch:
		return VerdictEpoch
	case ev.Factors != t.factors:
		return VerdictFingerprint
	case l == nil:
		return t.missing(ev.Lease)
	case l.epoch != t.epoch:
		return VerdictEpoch
	case l.state != LeaseHeld:
		return VerdictBusy
	case ev.Tokens != l.tokens || ev.Digest != l.digest:
		return VerdictDigest
	case ev.From.isZero():
		return VerdictIncarnation
	case ev.Claim.From < 0 || ev.Claim.From >= ev.To || ev.To > TilesOf(l.tokens):
		return VerdictTiles
	}
	return VerdictOK
}

func (c CallerID) isZero() bool { return c == CallerID{} }

// missing explains why a lease is not in the table.
func (t *LeaseTable) missing(id LeaseID) Verdict {
	if t.ends[id] == EndExpired {
		return VerdictExpired
	}
	return VerdictGone
}

// renew moves a deadline later, never earlier and never beyond the cap.
func (t *LeaseTable) renew(id LeaseID, now time.Time) Verdict {
	l := t.byID[id]
	switch {
	case l == nil:
		return t.missing(id)
	case t.draining:
		return VerdictDraining
	}
	to := now.Add(t.limits.extension())
	if last := l.granted.Add(t.limits.longest()); to.After(last) {
		to = last
	}
	if to.After(l.deadline) {
		l.deadline = to
		heap.Fix(&t.due, l.index)
	}
	return VerdictOK
}

// giveBack ends a lease that its reader, or one who never claimed it, returns.
// While a claim runs nobody but the claimer's process may.
func (t *LeaseTable) giveBack(ev ReturnEvent, e *LeaseEffects) {
	l := t.byID[ev.ID]
	switch {
	case l == nil:
		e.Verdict = t.missing(ev.ID)
	case l.claimed() && l.claimer.Incarnation != ev.From.Incarnation:
		e.Verdict = VerdictBusy
	default:
		t.end(l, EndReturned, e)
	}
}

func (t *LeaseTable) revoke(ev RevokeEvent, e *LeaseEffects) {
	l := t.byID[ev.ID]
	switch {
	case l == nil:
		e.Verdict = t.missing(ev.ID)
	case l.state == LeaseClaimed && !ev.Now:
		t.move(l, LeaseLeaving)
	case l.state == LeaseLeaving && !ev.Now:
	default:
		t.end(l, EndRevoked, e)
	}
}

// lost ends the claims of a connection, in the order of the grants. A lease whose
// own deadline has not passed can be claimed again.
func (t *LeaseTable) lost(from CallerID, now time.Time, e *LeaseEffects) {
	var all []*lease
	for _, l := range t.due {
		if l.claimed() && l.claimer == from {
			all = append(all, l)
		}
	}
	slices.SortFunc(all, func(a, b *lease) int { return cmp.Compare(a.number, b.number) })
	for _, l := range all {
		t.unclaim(l, now, e)
	}
}

func (t *LeaseTable) unclaim(l *lease, now time.Time, e *LeaseEffects) {
	switch {
	case l.state == LeaseLeaving:
		t.end(l, EndRevoked, e)
	case !l.deadline.After(now):
		t.end(l, EndExpired, e)
	default:
		t.move(l, LeaseHeld)
		l.claimer = CallerID{}
		heap.Fix(&t.due, l.index)
		e.Unclaim = append(e.Unclaim, l.id)
	}
}

func (t *LeaseTable) expire(now time.Time, e *LeaseEffects) {
	for len(t.due) > 0 && !t.due[0].due().After(now) {
		if l := t.due[0]; l.claimed() {
			t.unclaim(l, now, e)
		} else {
			t.end(l, EndExpired, e)
		}
	}
}

// end takes l out of the table and hands its blocks to the shell. It is the
// only way out, so a lease ends once.
func (t *LeaseTable) end(l *lease, why EndReason, e *LeaseEffects) {
	delete(t.byID, l.id)
	heap.Remove(&t.due, l.index)
	if l.claimed() {
		e.Unclaim = append(e.Unclaim, l.id)
	}
	t.move(l, LeaseEnded)
	e.Ended = append(e.Ended, EndedLease{l.id, l.blocks, why})
	if len(t.ring) < remembered {
		t.ring = append(t.ring, l.id)
	} else {
		delete(t.ends, t.ring[t.next])
		t.ring[t.next] = l.id
		t.next = (t.next + 1) % remembered
	}
	t.ends[l.id] = why
}

// leaseHeap orders leases by when they end on their own.
type leaseHeap []*lease

func (h leaseHeap) Len() int           { return len(h) }
func (h leaseHeap) Less(i, j int) bool { return h[i].due().Before(h[j].due()) }
func (h leaseHeap) Swap(i, j int)      { h[i], h[j] = h[j], h[i]; h[i].index, h[j].index = i, j }

// Push adds a *lease; for container/heap.
func (h *leaseHeap) Push(x any) {
	l := x.(*lease)
	l.index = len(*h)
	*h = append(*h, l)
}

// Pop removes the last lease; for container/heap.
func (h *leaseHeap) Pop() any {
	old := *h
	l := old[len(old)-1]
	*h = old[:len(old)-1]
	return l
}

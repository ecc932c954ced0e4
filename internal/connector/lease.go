package connector

import (
	"container/heap"
	"time"

	"tandem/internal/kv"
)

// leaseLimits bound the life of leases and claims.
type leaseLimits struct {
	Lease    time.Duration // from grant to expiry while nothing renews it
	Extend   time.Duration // what a renewal gives from its arrival
	Cap      time.Duration // no renewal reaches beyond grant + Cap
	MaxClaim time.Duration // longest claim
}

// An endReason says how a lease ended.
type endReason uint8

// The ends of a lease.
const (
	endReturned endReason = iota + 1
	endRevoked
	endExpired
)

// A CallerID names a peer's connection: a claim ends with it.
type CallerID struct {
	Incarnation Incarnation
	Conn        uint64
}

// A lease keeps a finished request's blocks until it ends, once.
type lease struct {
	id       LeaseID
	request  kv.RequestID
	blocks   []kv.BlockID
	tokens   int
	digest   Digest
	epoch    kv.Epoch
	granted  time.Time
	deadline time.Time // while unclaimed

	claimed  bool
	released bool // ends with its claim
	claimer  CallerID
	until    time.Time // end of the claim

	index int // in the heap
}

// due returns when the lease or its claim ends on its own.
func (l *lease) due() time.Time {
	if l.claimed {
		return l.until
	}
	return l.deadline
}

// The events of a lease table.
type (
	grantEvent struct {
		ID      LeaseID
		Request kv.RequestID
		Blocks  []kv.BlockID
		Tokens  int
		Digest  Digest
		Epoch   kv.Epoch
	}
	claimEvent struct {
		claim
		From CallerID
	}
	renewEvent  struct{ ID LeaseID }
	returnEvent struct {
		ID   LeaseID
		From CallerID
	}
	revokeEvent struct {
		ID LeaseID
		// Now ends the lease even under a running claim: the memory itself goes.
		// Otherwise a claimed lease ends with its claim.
		Now bool
	}
	lostEvent  struct{ From CallerID }
	drainEvent struct{ On bool }
	tickEvent  struct{}
)

// leaseEffects are what the shell does after an event.
type leaseEffects struct {
	Verdict verdict
	Limit   time.Duration // of the claim
	Claimed *lease        // a claim began: publish it before the answer
	Sums    []uint64      // of the claimed tiles; the shell adds them
	Unclaim []LeaseID     // claims that ended: withdraw them
	Ended   []endedLease
}

// An endedLease gives its blocks back.
type endedLease struct {
	ID      LeaseID
	Request kv.RequestID
	Blocks  []kv.BlockID
	Why     endReason
}

// A leaseTable decides about every lease of an engine. Its zero value is not
// usable; see newLeaseTable. Ended leases leave the table at once; the reasons of
// the last few are remembered so that a late claim learns why.
type leaseTable struct {
	self     Incarnation
	epoch    kv.Epoch
	factors  [32]byte
	limits   leaseLimits
	draining bool

	byID map[LeaseID]*lease
	due  leaseHeap

	ends map[LeaseID]endReason
	ring []LeaseID // of ends, oldest at next
	next int
}

// remembered is how many ended leases a table can still explain.
const remembered = 4096

func newLeaseTable(self Incarnation, epoch kv.Epoch, factors [32]byte, limits leaseLimits) *leaseTable {
	return &leaseTable{
		self: self, epoch: epoch, factors: factors, limits: limits,
		byID: map[LeaseID]*lease{}, ends: map[LeaseID]endReason{},
	}
}

// Handle applies an event at time now. Whatever the event, leases whose time has
// come end first, so an answer never depends on when the shell last ticked.
func (t *leaseTable) Handle(event any, now time.Time) (e leaseEffects) {
	t.expire(now, &e)
	switch ev := event.(type) {
	case grantEvent:
		t.grant(ev, now)
	case claimEvent:
		t.claim(ev, now, &e)
	case renewEvent:
		e.Verdict = t.renew(ev.ID, now)
	case returnEvent:
		t.giveBack(ev, &e)
	case revokeEvent:
		t.revoke(ev, &e)
	case lostEvent:
		t.lost(ev.From, now, &e)
	case drainEvent:
		t.draining = ev.On
	case tickEvent:
	}
	return e
}

// Next returns when the next lease or claim ends on its own.
func (t *leaseTable) Next() (time.Time, bool) {
	if len(t.due) == 0 {
		return time.Time{}, false
	}
	return t.due[0].due(), true
}

func (t *leaseTable) grant(ev grantEvent, now time.Time) {
	l := &lease{
		id: ev.ID, request: ev.Request, blocks: ev.Blocks, tokens: ev.Tokens, digest: ev.Digest, epoch: ev.Epoch,
		granted: now, deadline: now.Add(t.limits.Lease),
	}
	t.byID[l.id] = l
	heap.Push(&t.due, l)
}

func (t *leaseTable) claim(ev claimEvent, now time.Time, e *leaseEffects) {
	l := t.byID[ev.Lease]
	if e.Verdict = t.judge(l, ev); e.Verdict != verdictOK {
		return
	}
	e.Limit = min(max(ev.Want+ev.Want/4, time.Second), t.limits.MaxClaim)
	l.claimed, l.claimer, l.until = true, ev.From, now.Add(e.Limit)
	heap.Fix(&t.due, l.index)
	e.Claimed = l
}

// judge returns what stands against a claim, the identity first.
func (t *leaseTable) judge(l *lease, ev claimEvent) verdict {
	switch {
	case ev.Incarnation != t.self:
		return verdictIncarnation
	case ev.Epoch != t.epoch:
		return verdictEpoch
	case ev.Factors != t.factors:
		return verdictFingerprint
	case l == nil:
		return t.missing(ev.Lease)
	case l.epoch != t.epoch:
		return verdictEpoch
	case l.claimed || l.released:
		return verdictBusy
	case ev.Tokens != l.tokens || ev.Digest != l.digest:
		return verdictDigest
	case ev.From.isZero():
		return verdictIncarnation
	case ev.claim.From < 0 || ev.claim.From >= ev.To || ev.To > tilesOf(l.tokens):
		return verdictTiles
	}
	return verdictOK
}

func (c CallerID) isZero() bool { return c == CallerID{} }

// missing explains why a lease is not in the table.
func (t *leaseTable) missing(id LeaseID) verdict {
	if t.ends[id] == endExpired {
		return verdictExpired
	}
	return verdictGone
}

// renew moves a deadline later, never earlier and never beyond the cap.
func (t *leaseTable) renew(id LeaseID, now time.Time) verdict {
	l := t.byID[id]
	switch {
	case l == nil:
		return t.missing(id)
	case t.draining:
		return verdictDraining
	}
	to := now.Add(t.limits.Extend)
	if last := l.granted.Add(t.limits.Cap); to.After(last) {
		to = last
	}
	if to.After(l.deadline) {
		l.deadline = to
		heap.Fix(&t.due, l.index)
	}
	return verdictOK
}

// giveBack ends a lease that its reader, or one who never claimed it, returns.
// While a claim runs nobody but the claimer's process may.
func (t *leaseTable) giveBack(ev returnEvent, e *leaseEffects) {
	l := t.byID[ev.ID]
	switch {
	case l == nil:
		e.Verdict = t.missing(ev.ID)
	case l.claimed && l.claimer.Incarnation != ev.From.Incarnation:
		e.Verdict = verdictBusy
	default:
		t.end(l, endReturned, e)
	}
}

func (t *leaseTable) revoke(ev revokeEvent, e *leaseEffects) {
	l := t.byID[ev.ID]
	switch {
	case l == nil:
		e.Verdict = t.missing(ev.ID)
	case l.claimed && !ev.Now:
		l.released = true
	default:
		t.end(l, endRevoked, e)
	}
}

// lost ends the claims of a connection. A lease whose own deadline has not
// passed can be claimed again.
func (t *leaseTable) lost(from CallerID, now time.Time, e *leaseEffects) {
	for _, l := range t.byID {
		if l.claimed && l.claimer == from {
			t.unclaim(l, now, e)
		}
	}
}

func (t *leaseTable) unclaim(l *lease, now time.Time, e *leaseEffects) {
	l.claimed = false
	switch {
	case l.released:
		l.claimed = true // so that end withdraws it
		t.end(l, endRevoked, e)
	case !l.deadline.After(now):
		l.claimed = true
		t.end(l, endExpired, e)
	default:
		l.claimer = CallerID{}
		heap.Fix(&t.due, l.index)
		e.Unclaim = append(e.Unclaim, l.id)
	}
}

func (t *leaseTable) expire(now time.Time, e *leaseEffects) {
	for len(t.due) > 0 && !t.due[0].due().After(now) {
		if l := t.due[0]; l.claimed {
			t.unclaim(l, now, e)
		} else {
			t.end(l, endExpired, e)
		}
	}
}

// end takes l out of the table and hands its blocks to the shell. It is the
// only way out, so a lease ends once.
func (t *leaseTable) end(l *lease, why endReason, e *leaseEffects) {
	delete(t.byID, l.id)
	heap.Remove(&t.due, l.index)
	if l.claimed {
		e.Unclaim = append(e.Unclaim, l.id)
	}
	e.Ended = append(e.Ended, endedLease{l.id, l.request, l.blocks, why})
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

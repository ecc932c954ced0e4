package connector

import (
	"context"
	"errors"
	"testing"
	"time"

	"tandem/internal/connector/core"
	"tandem/internal/kv"
)

// Only the connection that claimed reads, only what the lease holds, only of the
// registration that it names, and only while the claim runs.
func TestOnlyTheClaimersConnectionReads(t *testing.T) {
	self := Incarnation{1}
	l := newLeaseLoop(Metrics{}, func([]kv.BlockID, int, int) []uint64 { return []uint64{1} })
	ctx, cancel := context.WithCancel(t.Context())
	limits := core.LeaseLimits{Lease: time.Hour, MaxClaim: time.Hour}
	go l.run(ctx, core.NewLeaseTable(self, 3, [32]byte{}, limits))
	defer func() { cancel(); <-l.closed }()
	do := func(ev any) leaseAnswer {
		t.Helper()
		e, err := l.handle(ctx, ev)
		if err != nil {
			t.Fatal(err)
		}
		return e
	}
	id, from := LeaseID{7}, CallerID{Incarnation: Incarnation{2}, Conn: 5}
	do(core.GrantEvent{ID: id, Blocks: []kv.BlockID{4, 9, 2}, Tokens: 90, Epoch: 3})
	tiles := []int32{8, 9, 18, 19, 4, 5} // two to a block
	ask := func(c CallerID, epoch kv.Epoch, id LeaseID, tiles ...int32) error {
		return l.authorize(c, epoch, id, tiles, 2)
	}
	if err := ask(from, 3, id, tiles...); !errors.Is(err, ErrLeaseGone) {
		t.Fatalf("unclaimed: %v", err)
	}
	if e := do(core.ClaimEvent{Claim: core.Claim{
		Incarnation: self, Lease: id, Epoch: 3, To: 6, Tokens: 90, Want: time.Minute,
	}, From: from}); e.Verdict != core.VerdictOK || len(e.sums) != 1 {
		t.Fatalf("%+v", e)
	}
	for _, c := range []struct {
		name  string
		from  CallerID
		epoch kv.Epoch
		id    LeaseID
		tiles []int32
		want  error
	}{
		{"the claimer", from, 3, id, tiles, nil},
		{"in another order", from, 3, id, []int32{5, 8, 18, 4}, nil},
		{"nothing", from, 3, id, nil, nil},
		{"another connection of the process", CallerID{Incarnation: from.Incarnation, Conn: 6}, 3, id, tiles, ErrLeaseGone},
		{"another process", CallerID{Incarnation: Incarnation{3}, Conn: 5}, 3, id, tiles, ErrLeaseGone},
		{"another lease", from, 3, LeaseID{8}, tiles, ErrLeaseGone},
		{"another registration", from, 2, id, tiles, ErrStale},
		{"nobody, an unknown lease", CallerID{}, 0, LeaseID{8}, tiles, ErrLeaseGone},
		{"another block", from, 3, id, []int32{8, 10}, ErrLeaseGone},
		{"another block first", from, 3, id, []int32{0, 8}, ErrLeaseGone},
		{"another block last", from, 3, id, append(tiles[:6:6], 20), ErrLeaseGone},
	} {
		if err := ask(c.from, c.epoch, c.id, c.tiles...); !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", c.name, err, c.want)
		}
	}
	do(core.LostEvent{From: from})
	if err := ask(from, 3, id, tiles...); !errors.Is(err, ErrLeaseGone) {
		t.Fatalf("after the connection's end: %v", err)
	}
}

package transfer

import (
	"context"
	"errors"
	"regexp"
	"runtime"
	"sync/atomic"
	"testing"
)

func TestReadMovesTiles(t *testing.T) {
	for _, path := range paths {
		t.Run(path, func(t *testing.T) {
			p := newPair(t, pairOption{path: path})
			local, remote := lists(50, 64)
			var checked atomic.Int64
			r := p.plan(t).Read(t.Context(), ReadRequest{Epoch: 1, Local: local, Remote: remote, Check: func(int) error {
				checked.Add(1)
				return nil
			}})
			if err := finish(t, r); err != nil {
				t.Fatal(err)
			}
			p.equal(t, local, remote)
			if got := r.Failed(); len(got) != 0 || checked.Load() != 50 {
				t.Fatalf("failed %v, %d checks", got, checked.Load())
			}
			if s := r.Stats(); s.Tiles != 50 || s.Bytes != 50*8<<10 || s.Path != path {
				t.Fatalf("stats %+v", s)
			}
		})
	}
}

func TestReadMovesPiecesOfTiles(t *testing.T) {
	for _, path := range paths {
		t.Run(path, func(t *testing.T) {
			p := newPair(t, pairOption{path: path})
			s := Strides{Pieces: 16, LocalOff: 64, LocalStep: 512, RemoteOff: 128, RemoteStep: 256, Len: 192}
			pl, err := p.agent.Plan(p.local, p.remote, s)
			if err != nil {
				t.Fatal(err)
			}
			local, remote := lists(64, 64)
			if err := finish(t, pl.Read(t.Context(), ReadRequest{Epoch: 1, Local: local, Remote: remote})); err != nil {
				t.Fatal(err)
			}
			want := make([]byte, len(p.arrived))
			for i := range local {
				for k := range s.Pieces {
					copy(want[int(local[i])*8192+s.LocalOff+k*s.LocalStep:][:s.Len],
						p.memory[int(remote[i])*8192+s.RemoteOff+k*s.RemoteStep:][:s.Len])
				}
			}
			if string(want) != string(p.arrived) {
				t.Fatal("the pieces, or bytes between them, differ")
			}
		})
	}
}

func TestFailedCheckMarksOnlyItsTile(t *testing.T) {
	for _, path := range paths {
		t.Run(path, func(t *testing.T) {
			p := newPair(t, pairOption{path: path})
			bad := errors.New("sum differs")
			local, remote := lists(20, 64)
			r := p.plan(t).Read(t.Context(), ReadRequest{Epoch: 1, Local: local, Remote: remote, Check: func(i int) error {
				if i == 3 || i == 17 {
					return bad
				}
				return nil
			}})
			err := finish(t, r)
			var ce *CheckError
			if !errors.As(err, &ce) || ce.Tiles != 2 || !errors.Is(err, bad) {
				t.Fatalf("error %v", err)
			}
			if f := r.Failed(); len(f) != 2 || f[0] != 3 || f[1] != 17 {
				t.Fatalf("failed %v", f)
			}
			p.equal(t, local, remote)
		})
	}
}

func TestRefusedReads(t *testing.T) {
	for _, path := range paths {
		t.Run(path, func(t *testing.T) {
			lease := [16]byte{9}
			p := newPair(t, pairOption{path: path, authorize: func(from Caller, epoch uint64, l [16]byte, tiles []int32) error {
				if from.Name != "reader" || epoch != 1 || l != lease || len(tiles) != 1 {
					return &RefusedError{Code: "lease", Text: "no such lease"}
				}
				return nil
			}})
			for _, c := range []struct {
				name string
				req  ReadRequest
				is   func(error) bool
			}{
				{"another lease", ReadRequest{Epoch: 1, Local: []int32{1}, Remote: []int32{1}}, func(err error) bool {
					var r *RefusedError
					return errors.As(err, &r) && r.Code == "lease"
				}},
				{"a later epoch", ReadRequest{Epoch: 2, Lease: lease, Local: []int32{1}, Remote: []int32{1}}, isEpoch},
				{"a local tile outside", ReadRequest{Epoch: 1, Lease: lease, Local: []int32{64}, Remote: []int32{1}}, isBounds},
				{"a remote tile outside", ReadRequest{Epoch: 1, Lease: lease, Local: []int32{1}, Remote: []int32{-1}}, isBounds},
				{"lists of two lengths", ReadRequest{Epoch: 1, Lease: lease, Local: []int32{1}, Remote: []int32{1, 2}}, isBounds},
			} {
				r := p.plan(t).Read(t.Context(), c.req)
				if err := finish(t, r); !c.is(err) || len(r.Failed()) != len(c.req.Local) {
					t.Errorf("%s: %v, failed %v", c.name, err, r.Failed())
				}
			}
			r := p.plan(t).Read(t.Context(), ReadRequest{Epoch: 1, Lease: lease, Local: []int32{1}, Remote: []int32{2}})
			if err := finish(t, r); err != nil {
				t.Fatalf("the right lease: %v", err)
			}
			p.equal(t, []int32{1}, []int32{2})
		})
	}
}

func isBounds(err error) bool {
	var b *BoundsError
	return errors.As(err, &b)
}

// The owner validates what a reader skips.
func TestOwnerChecksBounds(t *testing.T) {
	p := newPair(t, pairOption{path: PathTCP})
	for _, q := range []readRequest{
		{Epoch: 1, Pieces: 1, Len: 8192, Tiles: []int32{64}},
		{Epoch: 1, Pieces: 1, Len: 8192, Tiles: []int32{-5}},
		{Epoch: 1, Pieces: 1, Off: 1, Len: 8192, Tiles: []int32{0}},
		{Epoch: 1, Pieces: 2, Step: 8192, Len: 1, Tiles: []int32{0}},
		{Epoch: 1, Pieces: 0, Len: 1, Tiles: []int32{0}},
		{Epoch: 1, Pieces: 1, Len: 0, Tiles: []int32{0}},
		{Epoch: 1, Pieces: 1 << 30, Step: 1 << 30, Len: 1 << 30, Tiles: []int32{0}},
	} {
		if _, err := p.peer.Call(t.Context(), kindBegin, q.encode()); !isBounds(err) {
			t.Errorf("%+v: %v", q, err)
		}
	}
}

func TestCancelWaitsForTheLastWrite(t *testing.T) {
	for _, path := range paths {
		t.Run(path, func(t *testing.T) {
			p := newPair(t, pairOption{path: path, workers: 1})
			local, remote := lists(64, 64)
			entered, leave := make(chan struct{}), make(chan struct{})
			var calls atomic.Int64
			r := p.plan(t).Read(t.Context(), ReadRequest{Epoch: 1, Local: local, Remote: remote, Check: func(int) error {
				if calls.Add(1) == 5 {
					close(entered)
					<-leave
				}
				return nil
			}})
			<-entered
			canceled := make(chan struct{})
			go func() {
				r.Cancel()
				close(canceled)
			}()
			<-r.stop
			select {
			case <-canceled:
				t.Fatal("Cancel returned while a tile was in hand")
			default:
			}
			close(leave)
			<-canceled
			snapshot := append([]byte(nil), p.arrived...)
			if err := r.Err(); !errors.Is(err, ErrCanceled) {
				t.Fatalf("error %v", err)
			}
			if n := len(r.Failed()); n != 59 {
				t.Fatalf("%d tiles failed, want 59", n)
			}
			// The next read still works, and nothing of the old one landed meanwhile.
			if err := finish(t, p.plan(t).Read(t.Context(), ReadRequest{Epoch: 1, Local: local[:1], Remote: remote[:1]})); err != nil {
				t.Fatal(err)
			}
			copy(snapshot[int(local[0])*8192:][:8192], p.arrived[int(local[0])*8192:])
			if string(snapshot) != string(p.arrived) {
				t.Fatal("bytes landed after Cancel")
			}
		})
	}
}

func TestReadEndsWithItsContext(t *testing.T) {
	for _, path := range paths {
		t.Run(path, func(t *testing.T) {
			p := newPair(t, pairOption{path: path})
			ctx, cancel := context.WithCancelCause(t.Context())
			why := errors.New("deadline of the load")
			cancel(why)
			// The connection breaks off because of it, and among many either is seen
			// first.
			plan := p.plan(t)
			var reads []*Read
			for i := range int32(200) {
				tile := []int32{i % 64}
				reads = append(reads, plan.Read(ctx, ReadRequest{Epoch: 1, Local: tile, Remote: tile}))
			}
			for _, r := range reads {
				if err := finish(t, r); !errors.Is(err, why) {
					t.Fatal(err)
				}
			}
		})
	}
}

// Posting a read waits for none of its tiles; BenchmarkRead prints what it costs.
func TestReadIsPostedBeforeItsTilesLand(t *testing.T) {
	for _, path := range paths {
		t.Run(path, func(t *testing.T) {
			p := newPair(t, pairOption{path: path, geometry: Geometry{Tiles: 100_000, TileBytes: 64}})
			local, remote := lists(100_000, 100_000)
			posted := make(chan struct{})
			r := p.plan(t).Read(t.Context(), ReadRequest{Epoch: 1, Local: local, Remote: remote, Check: func(int) error {
				<-posted
				return nil
			}})
			close(posted)
			if err := finish(t, r); err != nil {
				t.Fatal(err)
			}
			p.equal(t, local, remote)
		})
	}
}

// Many reads at once share the copiers and the calls in flight.
func TestManyReadsAtOnce(t *testing.T) {
	for _, path := range paths {
		t.Run(path, func(t *testing.T) {
			p := newPair(t, pairOption{path: path, geometry: Geometry{Tiles: 256, TileBytes: 4096}})
			pl := p.plan(t)
			local, remote := lists(256, 256)
			var reads []*Read
			for i := range local {
				reads = append(reads, pl.Read(t.Context(), ReadRequest{Epoch: 1, Local: local[i : i+1], Remote: remote[i : i+1]}))
			}
			for _, r := range reads {
				if err := finish(t, r); err != nil {
					t.Fatal(err)
				}
			}
			p.equal(t, local, remote)
		})
	}
}

// Nothing of an idle agent runs, spins or sleeps to look again.
func TestIdleAgentUsesNoProcessor(t *testing.T) {
	for _, path := range paths {
		p := newPair(t, pairOption{path: path})
		if err := finish(t, p.plan(t).Read(t.Context(), ReadRequest{Epoch: 1, Local: []int32{1}, Remote: []int32{1}})); err != nil {
			t.Fatal(err)
		}
	}
	busy := regexp.MustCompile(`(?m)^goroutine \d+ \[(running|runnable|sleep)`)
	stacks := make([]byte, 1<<20)
	eventually(t, "all but the test wait", func() bool {
		return len(busy.FindAll(stacks[:runtime.Stack(stacks, true)], -1)) == 1
	})
}

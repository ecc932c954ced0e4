package compute

import (
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"
	"unsafe"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestTeamRunsEveryChunkOnce(t *testing.T) {
	for _, n := range []int{1, 2, 3, 5} {
		for _, spin := range []time.Duration{0, 20 * time.Microsecond, DefaultSpin} {
			team := NewTeam(n, spin)
			for _, chunks := range []int{0, 1, 2, 7, 64, MaxChunks} {
				for range 20 {
					count := make([]atomic.Int32, chunks)
					busy := make([]atomic.Int32, n)
					team.Rouse()
					team.Do(chunks, func(m, c int) {
						if busy[m].Add(1) != 1 {
							t.Error("two chunks under one member")
						}
						count[c].Add(1)
						busy[m].Add(-1)
					})
					for c := range count {
						if got := count[c].Load(); got != 1 {
							t.Fatalf("%d members: chunk %d of %d ran %d times", n, c, chunks, got)
						}
					}
				}
			}
			team.Close()
			team.Close()
		}
	}
}

// The other members take part when they are needed: a chunk waits for another
// that only a second member can run.
func TestTeamMembersWorkTogether(t *testing.T) {
	team := NewTeam(2, DefaultSpin)
	defer team.Close()
	for range 50 {
		var arrived atomic.Int32
		all := make(chan struct{})
		team.Do(2, func(int, int) {
			team.Rouse() // the job is there by now, so whoever parks sees it first
			if arrived.Add(1) == 2 {
				close(all)
			}
			<-all
		})
	}
}

func TestTeamPanicsWithAChunksValue(t *testing.T) {
	team := NewTeam(3, DefaultSpin)
	defer team.Close()
	for _, n := range []int{1, 40} {
		var ran atomic.Int32
		func() {
			defer func() {
				if v := recover(); v != "chunk 0" {
					t.Errorf("recovered %v", v)
				}
			}()
			team.Do(n, func(_, c int) {
				ran.Add(1)
				if c == 0 {
					panic("chunk 0")
				}
			})
		}()
		if ran.Load() != int32(n) {
			t.Errorf("%d of %d chunks ran", ran.Load(), n)
		}
	}
	team.Do(4, func(int, int) {}) // works on
}

func TestDoDoesNotAllocate(t *testing.T) {
	team := NewTeam(2, DefaultSpin)
	defer team.Close()
	var sum atomic.Int64
	f := func(_, c int) { sum.Add(int64(c)) }
	if n := testing.AllocsPerRun(100, func() { team.Do(8, f) }); n != 0 {
		t.Fatalf("%v allocations", n)
	}
}

func TestAllocAligns(t *testing.T) {
	for _, n := range []int{1, 4096, hugePage, hugePage + 1, 5*hugePage - 7} {
		b, err := Alloc(n)
		if err != nil {
			t.Fatal(err)
		}
		if len(b) != n || cap(b) != n {
			t.Fatalf("%d bytes, room for %d, want %d", len(b), cap(b), n)
		}
		if p := uintptr(unsafe.Pointer(unsafe.SliceData(b))); p%hugePage != 0 {
			t.Fatalf("at %#x", p)
		}
		if b[0] != 0 || b[n-1] != 0 {
			t.Fatal("the memory is not zeroed")
		}
		b[0], b[n-1] = 1, 1
		if err := Free(b); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := Alloc(0); err == nil {
		t.Fatal("no bytes were mapped")
	}
}

func BenchmarkDo(b *testing.B) {
	team := NewTeam(2, DefaultSpin)
	defer team.Close()
	f := func(int, int) {}
	for b.Loop() {
		team.Do(8, f)
	}
}

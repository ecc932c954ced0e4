package point

import (
	"testing"
	"time"
)

func TestPlan(t *testing.T) {
	waits := func(all *[Sites]site) (n, long int) {
		for i := range all {
			s := &all[i]
			k := s.left.Load()
			if k < 0 || k > 12 || s.wait < 0 || s.wait >= 80*time.Millisecond {
				t.Fatalf("site %d waits %d times %s", i, k, s.wait)
			}
			if k > 0 {
				n++
			}
			if s.wait > 10*time.Millisecond {
				long++
			}
		}
		return n, long
	}
	for _, bad := range [][2]string{{"", ""}, {"1", ""}, {"", "1"}, {"x", "1"}} {
		if n, _ := waits(plan(bad[0], bad[1])); n != 0 {
			t.Errorf("%q: %d sites wait", bad, n)
		}
	}
	if n, _ := waits(plan("1", "1")); n != Sites {
		t.Errorf("%d of %d sites wait", n, Sites)
	}
	n, long := waits(plan("7", "0.25"))
	if n < Sites/4-Sites/100 || n > Sites/4+Sites/100 || long < n/20 || long > n/5 {
		t.Errorf("%d of %d sites wait, %d of them long", n, Sites, long)
	}
	a, b, c := plan("7", "0.25"), plan("7", "0.25"), plan("8", "0.25")
	same, others := true, 0
	for i := range a {
		same = same && a[i].wait == b[i].wait && a[i].left.Load() == b[i].left.Load()
		if a[i].wait != c[i].wait {
			others++
		}
	}
	if !same || others < Sites/4 {
		t.Errorf("one seed is the same twice: %t; another differs at %d sites", same, others)
	}
}

// A site waits as often as was drawn and then no more, the others never.
func TestWait(t *testing.T) {
	sites[3].left.Store(2)
	for _, want := range []int32{1, 0, -1, -1} {
		Wait(3)
		Wait(4)
		if here, there := sites[3].left.Load(), sites[4].left.Load(); here > max(want, 0) || here < -1 || there != 0 {
			t.Errorf("%d and %d waits are left, want %d and 0", here, there, want)
		}
	}
}

package moves

import (
	"fmt"
	"testing"
)

type light uint8

func (l light) String() string { return [...]string{"red", "green"}[l] }

func TestMoves(t *testing.T) {
	d := Draw("light", []light{1}, []light{0, 1})
	if got, want := fmt.Sprint(d.Edges()), "[{red green 0 1} {green red 1 0} {green green 1 1}]"; got != want {
		t.Errorf("edges %s, want %s", got, want)
	}
	var n, sum Count
	s := d.Move(light(0), 1, &n, "at home")
	s = d.Move(s, 0, nil, "at home")
	if s = d.Move(s, 1, &n, "at home"); s != 1 {
		t.Errorf("in state %v", s)
	}
	sum.Add(&n)
	sum.Add(&n)
	for i, want := range []uint64{4, 0, 0} {
		if got := sum.Of(d.Edges()[i]); got != want {
			t.Errorf("edge %d was counted %d times, want %d", i, got, want)
		}
	}
	defer func() {
		if got, want := fmt.Sprint(recover()), "light 7: red to red"; got != want {
			t.Errorf("a move that is not drawn: %s, want %s", got, want)
		}
	}()
	d.Move(light(0), 0, &n, 7)
}

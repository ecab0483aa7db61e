package observe_test

import (
	"encoding/json"
	"fmt"
	"testing"

	"sagecomm/internal/coll"
	"sagecomm/internal/observe"
	"sagecomm/pgbackend"
)

// A rank can read the records of another rank, including its call stacks.
func TestFlightsOfAPeer(t *testing.T) {
	w := newWorld(t, 2, options{"fr_stacks": "on"})
	stack := "train.py\t12\tstep\nmain.py\t3\t<module>\n"
	w.each(func(g *pgbackend.Group) error {
		if !g.RecordsStacks() {
			return fmt.Errorf("no stacks")
		}
		first, again, other := g.Stack(stack), g.Stack(stack), g.Stack("x\t1\ty\n")
		if first == 0 || first != again || other == first || other == 0 || g.Stack("") != 0 {
			return fmt.Errorf("numbers %d, %d, %d", first, again, other)
		}
		b := one(make([]byte, 8))
		_, f := g.Issue(coll.Op{Kind: coll.AllReduce, Type: coll.Float32, Stack: uint64(first)}, b, b)
		return asError(f)
	})
	for _, g := range w.groups {
		for rank := range 2 {
			log := w.view(g.Rank()).Lanes()[0].Run.Recorder(rank).Flights()
			if len(log.Flights) != 1 || log.Flights[0].Stack != stack || log.Completed != 1 || log.Flights[0].Started.IsZero() {
				t.Errorf("rank %d sees of rank %d: %+v", g.Rank(), rank, log)
			}
			text, err := json.Marshal(observe.FramesOf(w.view(g.Rank()), log))
			if want := `[{"name":"step","filename":"train.py","line":12},{"name":"\u003cmodule\u003e","filename":"main.py","line":3}]`; err != nil || string(text) != want {
				t.Errorf("frames %s, %v", text, err)
			}
		}
	}
	// The room for stacks is bounded.
	g, n := w.groups[0], 0
	for ; g.Stack(fmt.Sprintf("%1000d\t1\tf\n", n)) != 0; n++ {
		if n > 1000 {
			t.Fatal("it has no end")
		}
	}
	if n < 400 || g.Stack(stack) == 0 {
		t.Errorf("room for %d stacks", n)
	}
}

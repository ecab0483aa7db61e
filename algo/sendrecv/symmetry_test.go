package sendrecv

import (
	"fmt"
	"slices"
	"testing"

	"sagecomm/algo/plan"
	"sagecomm/internal/coll"
)

// turnedBy returns the plan of rank 0 turned for another rank, see [plan.Group.Turned]. It leaves out which cells of
// scratch memory are used.
func turnedBy(p plan.SendRecvPlan, rank int) plan.SendRecvPlan {
	shift := func(regions []plan.Region) []plan.Region {
		list := slices.Clone(regions)
		for i, r := range list {
			switch {
			case !plan.IsFlat(p.Kind):
				list[i].Block = mod(r.Block+rank, p.Size)
			case p.Pieces == p.Size && r.Count < p.Pieces:
				list[i].First = mod(r.First+rank, p.Pieces)
			}
			if r.Space == plan.Scratch {
				list[i].Cell, list[i].Block = 0, 0
			}
		}
		return list
	}
	steps := slices.Clone(p.Steps)
	for i, s := range steps {
		steps[i].From, steps[i].To = shift(s.From), shift(s.To)
		if s.Op <= plan.RecvReduce {
			steps[i].Peer = mod(s.Peer+rank, p.Size)
		}
	}
	p.Rank, p.Steps = rank, steps
	return p
}

// turns reports whether the plans of all ranks are rank 0's turned.
func turns(plans []plan.SendRecvPlan) bool {
	for rank, p := range plans {
		if fmt.Sprint(turnedBy(plans[0], rank).Steps) != fmt.Sprint(turnedBy(p, 0).Steps) {
			return false
		}
	}
	return true
}

func TestPlansThatTurnDo(t *testing.T) {
	for _, f := range families {
		for _, size := range []int{1, 2, 3, 5, 8, 12, 13, 33} {
			at := Place{Size: size, Chunk: 4 * plan.Unit}
			if got := turns(buildAll(t, f, at)); Turns(f.kind, f.name) && !got {
				t.Errorf("%v %s, %d ranks: the plans are not those of rank 0 turned", f.kind, f.name, size)
			}
		}
	}
	// The test notices plans that do not turn: neighbours in a tree are at other distances.
	if turns(buildAll(t, family{coll.Barrier, Binomial, TreeBarrier}, Place{Size: 8, Chunk: plan.Unit})) {
		t.Error("a tree turns")
	}
}

// Every listed symmetry is that of an algorithm that exists.
func TestSymmetriesAreOfAlgorithms(t *testing.T) {
	for kind, names := range symmetric {
		for name := range names {
			if _, err := Build(kind, name, Place{Size: 4, Chunk: plan.Unit}); err != nil {
				t.Error(err)
			}
		}
	}
	for kind := range alongHosts {
		if !slices.Contains(Algorithms(kind), Hierarchical) {
			t.Errorf("%v has no hierarchical algorithm", kind)
		}
	}
	for kind, names := range logarithmic {
		for _, name := range names {
			if !slices.Contains(Algorithms(kind), name) {
				t.Errorf("%v has no algorithm %s", kind, name)
			}
		}
	}
}

// The hosts of a hierarchical plan make its ranks alike only where they have consecutive ranks, equally many.
func TestRanksPerHost(t *testing.T) {
	for _, c := range []struct {
		hosts [][]int
		want  int
	}{
		{nil, 0}, {[][]int{{0, 1}}, 0}, {[][]int{{0, 1}, {2, 3}, {4, 5}}, 2}, {[][]int{{0}, {1}}, 1},
		{[][]int{{0, 1}, {2}}, 0}, {[][]int{{0, 2}, {1, 3}}, 0}, {[][]int{{2, 3}, {0, 1}}, 0},
	} {
		if got := RanksPerHost(c.hosts); got != c.want {
			t.Errorf("%v: %d ranks per host, expected %d", c.hosts, got, c.want)
		}
	}
}

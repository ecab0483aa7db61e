package shmplan

import (
	"fmt"
	"strings"

	"sagecomm/algo/plan"
	"sagecomm/internal/coll"
)

// Place is where a plan runs: the rank that it is for and the slots that it uses. Root counts for rooted kinds only.
type Place struct {
	Rank, Size, Root int
	Slots            plan.Slots
	Chunk            int
}

// plan returns a plan of some stages with the layouts of its kind.
func (at Place) plan(algorithm string, kind coll.Kind, stages ...plan.Stage) plan.SlotPlan {
	p := plan.SlotPlan{Algorithm: algorithm, Kind: kind, Rank: at.Rank, Size: at.Size, Slots: at.Slots, Chunk: at.Chunk,
		Stages: stages}
	if kind.Rooted() {
		p.Root = at.Root
	}
	switch kind {
	case coll.AllGather, coll.Gather:
		p.Output = plan.Blocks
	case coll.ReduceScatter, coll.Scatter:
		p.Input = plan.Blocks
	case coll.AllToAll:
		p.Input, p.Output = plan.Blocks, plan.Blocks
	}
	return p
}

// Names of the algorithms. In a one-shot algorithm every reader takes all that it needs straight from the slots of the
// ranks that contribute, in one round of flags. In a two-shot algorithm each rank first reduces a share, and the shares
// are then collected, in two rounds of flags.
const (
	OneShot = "one_shot"
	TwoShot = "two_shot"
	Local   = "local"
)

// family is one algorithm of one kind.
type family struct {
	kind  coll.Kind
	name  string
	build func(Place) plan.SlotPlan
}

// families lists all algorithms that the selector may choose from. Of two that cost the same the selector takes the
// first one, so the simpler one comes first.
var families = []family{
	{coll.AllReduce, OneShot, OneShotAllReduce},
	{coll.AllReduce, TwoShot, TwoShotAllReduce},
	{coll.Broadcast, OneShot, OneShotBroadcast},
	{coll.AllGather, OneShot, OneShotAllGather},
	{coll.Reduce, OneShot, OneShotReduce},
	{coll.Reduce, TwoShot, TwoShotReduce},
	{coll.Barrier, OneShot, OneShotBarrier},
	{coll.ReduceScatter, OneShot, OneShotReduceScatter},
	{coll.AllToAll, OneShot, OneShotAllToAll},
	{coll.Gather, OneShot, OneShotGather},
	{coll.Scatter, OneShot, OneShotScatter},
}

// Algorithms returns the names of the slot algorithms of a kind in a group of several ranks.
func Algorithms(kind coll.Kind) []string {
	var names []string
	for _, f := range families {
		if f.kind == kind {
			names = append(names, f.name)
		}
	}
	return names
}

// find returns an algorithm by its name.
func find(kind coll.Kind, algorithm string) (family, bool) {
	if algorithm == Local && kind.Collective() {
		return family{kind, Local, func(at Place) plan.SlotPlan { return LocalCopy(kind, at) }}, true
	}
	for _, f := range families {
		if f.kind == kind && f.name == algorithm {
			return f, true
		}
	}
	return family{}, false
}

// Build returns the plan of one rank. It refuses a plan that no runner could carry out.
func Build(kind coll.Kind, algorithm string, at Place) (plan.SlotPlan, error) {
	f, ok := find(kind, algorithm)
	if !ok {
		return plan.SlotPlan{}, fmt.Errorf("%v: unknown algorithm %q, there are: %s",
			kind, algorithm, strings.Join(Algorithms(kind), ", "))
	}
	p := f.build(at)
	if err := p.Validate(); err != nil {
		return plan.SlotPlan{}, err
	}
	return p, nil
}

// Make returns the plan of one rank for slots of any length: it does not compare the chunk with the slots of the runner. The algorithm is
// one of [Algorithms], or [Local].
func Make(kind coll.Kind, algorithm string, at Place) plan.SlotPlan {
	f, ok := find(kind, algorithm)
	if !ok {
		panic(fmt.Sprintf("%v has no algorithm %q", kind, algorithm))
	}
	return f.build(at)
}

// Roles returns one plan for each role of a kind: for a rooted kind the root's plan and another rank's, else a single
// plan. All ranks with the same role do the same; Roles takes the lowest one, whose shares are the longest. The rank of
// the place does not matter.
func Roles(kind coll.Kind, algorithm string, at Place) ([]plan.SlotPlan, error) {
	ranks := []int{0}
	switch {
	case !kind.Rooted() || at.Size == 1:
	case at.Root == 0:
		ranks = []int{0, 1}
	default:
		ranks = []int{at.Root, 0}
	}
	plans := make([]plan.SlotPlan, len(ranks))
	for i, rank := range ranks {
		at.Rank = rank
		p, err := Build(kind, algorithm, at)
		if err != nil {
			return nil, err
		}
		plans[i] = p
	}
	return plans, nil
}

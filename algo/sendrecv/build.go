package sendrecv

import (
	"fmt"
	"strings"

	"sagecomm/algo/plan"
	"sagecomm/internal/coll"
)

// Names of the algorithms.
const (
	Ring                 = "ring"
	RecursiveDoubling    = "recursive_doubling"
	RecursiveMultiplying = "recursive_multiplying"
	Rabenseifner         = "rabenseifner"
	Binomial             = "binomial"
	DoubleTree           = "double_tree"
	Torus                = "torus"
	Hierarchical         = "hierarchical"
	RecursiveHalving     = "recursive_halving"
	Bruck                = "bruck"
	Direct               = "direct"
	Chain                = "chain"
	ScatterAllGather     = "scatter_all_gather"
	ScatterGather        = "scatter_gather"
	Pairwise             = "pairwise"
	Dissemination        = "dissemination"
)

// family is one algorithm of one kind.
type family struct {
	kind  coll.Kind
	name  string
	build func(Place) plan.SendRecvPlan
}

// families lists all algorithms. A new algorithm is a builder and a line here, the last one of its kind; the tests of this
// package prove every line. Of two that cost the same the first one is taken.
var families = []family{
	{coll.AllReduce, Ring, RingAllReduce},
	{coll.AllReduce, RecursiveDoubling, RecursiveDoublingAllReduce},
	{coll.AllReduce, RecursiveMultiplying, RecursiveMultiplyingAllReduce},
	{coll.AllReduce, Rabenseifner, RabenseifnerAllReduce},
	{coll.AllReduce, Binomial, BinomialAllReduce},
	{coll.AllReduce, DoubleTree, DoubleTreeAllReduce},
	{coll.AllReduce, Torus, TorusAllReduce},
	{coll.AllReduce, Hierarchical, HierarchicalAllReduce},
	{coll.AllGather, Ring, RingAllGather},
	{coll.AllGather, RecursiveDoubling, RecursiveDoublingAllGather},
	{coll.AllGather, Bruck, BruckAllGather},
	{coll.AllGather, Direct, DirectAllGather},
	{coll.AllGather, Hierarchical, HierarchicalAllGather},
	{coll.ReduceScatter, Ring, RingReduceScatter},
	{coll.ReduceScatter, RecursiveHalving, RecursiveHalvingReduceScatter},
	{coll.ReduceScatter, Bruck, BruckReduceScatter},
	{coll.ReduceScatter, Direct, DirectReduceScatter},
	{coll.ReduceScatter, Hierarchical, HierarchicalReduceScatter},
	{coll.Broadcast, Binomial, BinomialBroadcast},
	{coll.Broadcast, Chain, ChainBroadcast},
	{coll.Broadcast, ScatterAllGather, ScatterAllGatherBroadcast},
	{coll.Broadcast, DoubleTree, DoubleTreeBroadcast},
	{coll.Broadcast, Hierarchical, HierarchicalBroadcast},
	{coll.Reduce, Binomial, BinomialReduce},
	{coll.Reduce, Chain, ChainReduce},
	{coll.Reduce, ScatterGather, ScatterGatherReduce},
	{coll.Reduce, DoubleTree, DoubleTreeReduce},
	{coll.Reduce, Hierarchical, HierarchicalReduce},
	{coll.AllToAll, Pairwise, PairwiseAllToAll},
	{coll.AllToAll, Direct, DirectAllToAll},
	{coll.AllToAll, Bruck, BruckAllToAll},
	{coll.AllToAll, Hierarchical, HierarchicalAllToAll},
	{coll.Gather, Direct, DirectGather},
	{coll.Gather, Binomial, BinomialGather},
	{coll.Scatter, Direct, DirectScatter},
	{coll.Scatter, Binomial, BinomialScatter},
	{coll.Barrier, Dissemination, DisseminationBarrier},
	{coll.Barrier, Binomial, TreeBarrier},
}

// Algorithms returns the names of the algorithms of a kind.
func Algorithms(kind coll.Kind) []string {
	var names []string
	for _, f := range families {
		if f.kind == kind {
			names = append(names, f.name)
		}
	}
	return names
}

// find returns an algorithm that can be built for a place.
func find(kind coll.Kind, algorithm string, at Place) (family, error) {
	if at.Size < 1 || at.Rank < 0 || at.Rank >= at.Size || at.Root < 0 || at.Root >= at.Size {
		return family{}, fmt.Errorf("%v %s: rank %d, root %d in a group of %d", kind, algorithm, at.Rank, at.Root, at.Size)
	}
	if err := checkHosts(at); err != nil {
		return family{}, fmt.Errorf("%v %s: %w", kind, algorithm, err)
	}
	for _, f := range families {
		if f.kind == kind && f.name == algorithm {
			return f, nil
		}
	}
	return family{}, fmt.Errorf("%v: unknown algorithm %q, there are: %s",
		kind, algorithm, strings.Join(Algorithms(kind), ", "))
}

// Build makes the plan of one rank.
func Build(kind coll.Kind, algorithm string, at Place) (plan.SendRecvPlan, error) {
	f, err := find(kind, algorithm, at)
	if err != nil {
		return plan.SendRecvPlan{}, err
	}
	p := f.build(at)
	return p, p.Validate()
}

// Plans returns the plans of a whole group. The rank of the place does not matter, and a chunk of 0 means the shortest
// one.
func Plans(kind coll.Kind, algorithm string, at Place) (plan.Group, error) {
	at.Rank, at.Chunk = 0, max(at.Chunk, plan.Unit)
	f, err := find(kind, algorithm, at)
	if err != nil {
		return plan.Group{}, err
	}
	if err := f.build(at).Validate(); err != nil {
		return plan.Group{}, err
	}
	build := func(rank int) plan.SendRecvPlan {
		at := at
		at.Rank = rank
		return f.build(at)
	}
	return plan.Group{Size: at.Size, Build: build, Turned: Turns(kind, algorithm), Digits: alike(kind, algorithm, at),
		Telling: telling(kind, algorithm, at)}, nil
}

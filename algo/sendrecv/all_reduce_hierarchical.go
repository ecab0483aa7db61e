package sendrecv

import (
	"math"

	"sagecomm/algo/plan"
	"sagecomm/internal/coll"
)

// HierarchicalAllReduce reduces and scatters inside each host, all-reduces between hosts on parallel rails, each with
// the part of one local rank, and gathers inside each host (Goyal et al. 2017, section 4; Cho et al., BlueConnect,
// MLSys 2019).
//
//	chunk k: reduce-scatter among the q ranks of the host | chunk k-1: all-reduce of part l among the H ranks of
//	rail l | chunk k-2: all-gather among the ranks of the host
//
// Steps and bytes are those of its parts: RS(q, n) + AR(H, n/q) + AG(q, n); between hosts each rank moves 2 (H-1)/H
// n/q, so a host n in each direction twice, the least possible, with all of its ranks. Chunks follow one another with a
// lag, so that the levels work at the same time.
// For: groups of several hosts, where links between hosts are slower than those inside.
func HierarchicalAllReduce(at Place) plan.SendRecvPlan {
	return ComposeAllReduce(at, RingReduceScatter, RabenseifnerAllReduce, RingAllGather)
}

// ComposeAllReduce is [HierarchicalAllReduce] with any three algorithms: a reduce-scatter and an all-gather inside
// hosts, and an all-reduce between them.
// Requires: hosts that [Build] accepts.
func ComposeAllReduce(at Place, scatter, between, gather func(Place) plan.SendRecvPlan) plan.SendRecvPlan {
	return composeAllReduce(at, Hierarchical, gridOf(at), scatter, between, gather, 1)
}

// TorusAllReduce reduces and scatters along the rows of a torus, all-reduces along its columns, and gathers along the
// rows (Mikami et al. 2018; Ying et al. 2018).
//
//	ring reduce-scatter along the row of A ranks | ring all-reduce of the parts along the column of B | ring all-gather
//
// Steps: 2 (A+B-2), against 2 (P-1) of one ring; bytes as one ring: 2 (P-1)/P n sent, (P-1)/P n reduced.
// 2 (A+B-2) a + 2 (P-1)/P n b + (P-1)/P n g. A and B are the factors of P that are closest to each other; a prime P is
// one ring.
// For: long messages in groups of about 8 to some hundreds; networks that are a torus.
func TorusAllReduce(at Place) plan.SendRecvPlan {
	return composeAllReduce(at, Torus, rows(at), RingReduceScatter, RingAllReduce, RingAllGather, 0)
}

// rows arranges consecutive ranks as a matrix that is as square as possible.
func rows(at Place) grid {
	height := 1
	for f := 1; f <= int(math.Sqrt(float64(at.Size))); f++ {
		if at.Size%f == 0 {
			height = f
		}
	}
	width := at.Size / height
	hosts := make([][]int, height)
	for rank := range at.Size {
		hosts[rank/width] = append(hosts[rank/width], rank)
	}
	return grid{hosts: hosts, host: at.Rank / width, local: at.Rank % width}
}

// composeAllReduce composes an all-reduce of a reduce-scatter and an all-gather inside hosts and an all-reduce between
// hosts. Each level is lag chunks behind the one before.
func composeAllReduce(at Place, name string, g grid, scatter, reduce, gather func(Place) plan.SendRecvPlan, lag int) plan.SendRecvPlan {
	between := reduce(g.inRail(at, 0))
	m := newMaker(at, coll.AllReduce, name, g.width()*between.Pieces)
	// A host of one rank has nothing to do inside, so the input itself goes between hosts.
	from := plan.Space(plan.Input)
	if g.width() > 1 {
		m.embed(scatter(g.inHost(at, 0)), partView(g.locals(), plan.Input, plan.Output, between.Pieces))
		m.lag += lag
		from = plan.Output
	}
	if g.height() > 1 || g.width() == 1 {
		m.embed(between, flatView(g.rail(), from, plan.Output, g.local*between.Pieces, 1))
		m.lag += between.MaxLag() + lag
	}
	if g.width() > 1 {
		m.embed(gather(g.inHost(at, 0)), partView(g.locals(), plan.Output, plan.Output, between.Pieces))
	}
	return m.done()
}

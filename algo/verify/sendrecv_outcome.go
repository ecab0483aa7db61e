package verify

import (
	"fmt"

	"sagecomm/algo/plan"
	"sagecomm/internal/coll"
)

// outcome checks the memory of a rank after the collective.
func (r *sendRecvRun) outcome(rank int) error {
	p := r.call.Plans[rank]
	var wrong error
	output := func(rank, block int) []unitValue {
		return r.memoryOf(r.ranks[rank], plan.Region{Space: plan.Output, Block: block}, 0).cells
	}
	// holds checks every unit of a block of the output by expect.
	holds := func(block int, expect func(at source) error) {
		region := plan.Region{Space: plan.Output, Block: block}
		cells := output(rank, block)
		for unit := range units(p.BlockBytes(r.call.Lengths, region)) {
			if wrong != nil {
				return
			}
			if err := expect(source{int32(block), int32(unit)}); err != nil {
				wrong = fmt.Errorf("unit %d of block %d of the output: %w", unit, block, err)
			} else if cells[unit].tree == 0 {
				wrong = fmt.Errorf("unit %d of block %d of the output was never written", unit, block)
			}
		}
	}
	// from checks that the output's block is a block of one rank's input, unreduced.
	from := func(block, owner, inputBlock int) {
		cells := output(rank, block)
		holds(block, func(at source) error {
			want := unitValue{r.trees.leaf(owner), source{int32(inputBlock), at.unit}}
			if got := cells[at.unit]; got != want && got.tree != 0 {
				return fmt.Errorf("it holds %s, expected %s", r.trees.format(got), r.trees.format(want))
			}
			return nil
		})
	}
	// reduced checks that a block has each rank's contribution once, and that all ranks reduced it in the same order.
	reduced := func(block, inputBlock int) {
		cells := output(rank, block)
		first := output(0, block)
		holds(block, func(at source) error {
			got := cells[at.unit]
			want := source{int32(inputBlock), at.unit}
			switch {
			case got.tree == 0:
				return nil
			case got.source != want:
				return fmt.Errorf("it holds %s, expected unit %d of block %d", r.trees.format(got), want.unit, want.block)
			case r.trees.missing(got.tree) >= 0:
				return fmt.Errorf("it holds %s, which lacks rank %d", r.trees.format(got), r.trees.missing(got.tree))
			case p.Kind == coll.AllReduce && got != first[at.unit]:
				return fmt.Errorf("it holds %s, rank 0 has %s: the bits may differ",
					r.trees.format(got), r.trees.format(first[at.unit]))
			}
			return nil
		})
	}
	switch p.Kind {
	case coll.AllReduce:
		reduced(0, 0)
	case coll.ReduceScatter:
		reduced(rank, rank)
	case coll.Broadcast:
		from(0, p.Root, 0)
	case coll.Scatter:
		from(rank, p.Root, rank)
	case coll.AllGather, coll.AllToAll:
		for owner := range p.Size {
			from(owner, owner, inputBlockOf(p.Kind, owner, rank))
		}
	case coll.Gather, coll.Reduce:
		switch {
		case rank == p.Root && p.Kind == coll.Reduce:
			reduced(0, 0)
		case rank == p.Root:
			for owner := range p.Size {
				from(owner, owner, owner)
			}
		case r.ranks[rank].outputWritten:
			wrong = fmt.Errorf("a rank that is not the root wrote its output")
		}
	case coll.Barrier:
		if peer := r.ranks[rank].met.missing(p.Size); peer >= 0 {
			wrong = fmt.Errorf("it may leave before rank %d has entered", peer)
		}
	}
	return wrong
}

// inputBlockOf returns which block of the owner's input goes to a rank.
func inputBlockOf(k coll.Kind, owner, rank int) int {
	if k == coll.AllToAll {
		return rank
	}
	return owner
}

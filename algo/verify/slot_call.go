package verify

import (
	"fmt"

	"sagecomm/algo/plan"
	"sagecomm/internal/coll"
)

// Call is one collective of a group: the plans of all ranks in rank order.
type SlotCall struct {
	Plans []plan.SlotPlan
	Bytes uint64 // of the buffer, or of each block
	// Blocks, if not nil, are the bytes of blocks that differ: of each rank's block for all_gather and reduce_scatter;
	// for all_to_all of what rank 0 has for each rank, then of what rank 1 has, and so on.
	Blocks []uint64
	// InPlace has input and output in the same memory: equal buffers, or, where one is blocks, the rank's own one. A
	// broadcast's root is always in place, an all_to_all never.
	InPlace bool
}

func (c SlotCall) lengths() plan.Lengths { return plan.Lengths{Bytes: c.Bytes, Blocks: c.Blocks} }

func (c SlotCall) validate() error {
	for rank, p := range c.Plans {
		if err := p.Validate(); err != nil {
			return err
		}
		if p.Rank != rank {
			return fmt.Errorf("%v %s: the plan in place %d is that of rank %d", p.Kind, p.Algorithm, rank, p.Rank)
		}
	}
	return nil
}

// shared says whether a rank's input and output are the same memory.
func (c SlotCall) shared(rank int) bool {
	p := c.Plans[rank]
	switch p.Kind {
	case coll.AllToAll:
		return false
	case coll.Gather, coll.Scatter:
		return c.InPlace && rank == p.Root
	case coll.Broadcast:
		return c.InPlace || rank == p.Root
	}
	return c.InPlace
}

// base is where a buffer begins in its memory: at the own block of the other one, if they share it and that is blocks.
func (c SlotCall) base(p plan.SlotPlan, s plan.Space) uint64 {
	switch {
	case !c.shared(p.Rank):
		return 0
	case s == plan.Input:
		return p.OutputAt(c.lengths(), p.Rank)
	default:
		return p.InputAt(c.lengths(), p.Rank)
	}
}

// inputBytes is the length of a rank's input.
func inputBytes(p plan.SlotPlan, l plan.Lengths) uint64 {
	switch {
	case p.Kind == coll.Scatter && p.Rank != p.Root:
		return 0
	case p.Input == plan.Blocks:
		return p.InputAt(l, p.Size)
	default:
		return p.BlockBytes(l, p.Rank, p.Rank)
	}
}

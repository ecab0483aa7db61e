package verify

import (
	"fmt"

	"sagecomm/algo/plan"
	"sagecomm/internal/coll"
)

// SlotCall is one collective of a group: the slot plans of all ranks in rank order.
type SlotCall struct {
	Plans []plan.SlotPlan
	plan.Lengths
	// InPlace has input and output in the same memory: equal buffers, or, where one buffer is blocks, the rank's own
	// block. A broadcast's root is always in place, an all_to_all never.
	InPlace bool
}

// validate checks each plan by itself.
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

// shared reports whether a rank's input and output are the same memory.
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

// base returns where a buffer begins in its memory. If input and output share memory and one of them has blocks, the
// other one begins at the rank's own block.
func (c SlotCall) base(p plan.SlotPlan, s plan.Space) uint64 {
	switch {
	case !c.shared(p.Rank):
		return 0
	case s == plan.Input:
		return p.OutputAt(c.Lengths, p.Rank)
	default:
		return p.InputAt(c.Lengths, p.Rank)
	}
}

// inputBytes returns the length of a rank's input.
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

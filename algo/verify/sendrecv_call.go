package verify

import (
	"fmt"

	"sagecomm/algo/plan"
)

// SendRecvCall is one collective of a group: the sendrecv plans of all ranks in rank order.
type SendRecvCall struct {
	Plans []plan.SendRecvPlan
	plan.Lengths
	// InPlace has input and output in the same memory: equal buffers, or, where one buffer is blocks, the rank's own
	// block. A broadcast's root is always in place, an all_to_all never.
	InPlace bool
}

// failed adds a description of the call to an error.
func (c SendRecvCall) failed(err error) error {
	p := c.Plans[0]
	text := fmt.Sprintf("%v %s, %d ranks, %d bytes", p.Kind, p.Algorithm, len(c.Plans), c.Bytes)
	if c.Blocks != nil {
		text = fmt.Sprintf("%v %s, %d ranks, blocks %v", p.Kind, p.Algorithm, len(c.Plans), c.Blocks)
	}
	if p.Kind.Rooted() {
		text += fmt.Sprintf(", root %d", p.Root)
	}
	if c.InPlace {
		text += ", in place"
	}
	return fmt.Errorf("%s, chunk %d: %w", text, p.Chunk, err)
}

// validate makes the checks that need no run.
func (c SendRecvCall) validate() error {
	if len(c.Plans) == 0 {
		return fmt.Errorf("nothing to check")
	}
	if err := c.fit(); err != nil {
		return c.failed(err)
	}
	return nil
}

// fit checks that the plans are valid and go together.
func (c SendRecvCall) fit() error {
	first := &c.Plans[0]
	for rank := range c.Plans {
		p := &c.Plans[rank]
		switch {
		case p.Rank != rank:
			return fmt.Errorf("the plan in place %d is that of rank %d", rank, p.Rank)
		case p.Kind != first.Kind || p.Algorithm != first.Algorithm || p.Size != len(c.Plans) || p.Root != first.Root ||
			p.Chunk != first.Chunk || p.Pieces != first.Pieces || p.Even != first.Even:
			return fmt.Errorf("the plan of rank %d (%v %s, size %d, root %d, chunk %d, %d pieces) "+
				"does not go with that of rank 0 (%v %s, size %d, root %d, chunk %d, %d pieces)",
				rank, p.Kind, p.Algorithm, p.Size, p.Root, p.Chunk, p.Pieces,
				first.Kind, first.Algorithm, first.Size, first.Root, first.Chunk, first.Pieces)
		case p.Even && c.Blocks != nil:
			return fmt.Errorf("the algorithm needs blocks of equal length")
		}
		if err := p.Validate(); err != nil {
			return err
		}
	}
	return nil
}

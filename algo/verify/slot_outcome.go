package verify

import (
	"errors"
	"fmt"

	"sagecomm/algo/plan"
	"sagecomm/internal/coll"
)

// outcome checks the outputs of all ranks after a collective.
func (r *slotRun) outcome(call int) error {
	c := r.calls[call]
	everyone := make([]int, r.size)
	for i := range everyone {
		everyone[i] = i
	}
	for rank, p := range c.Plans {
		var err error
		out := r.output[call*r.size+rank].spanMemory
		switch p.Kind {
		case coll.AllReduce:
			err = out.expect(0, c.Bytes, everyone, 0)
		case coll.Broadcast:
			err = out.expect(0, c.Bytes, []int{p.Root}, 0)
		case coll.AllGather, coll.AllToAll:
			err = c.gathered(p, out)
		case coll.ReduceScatter:
			base := uint64(0)
			if c.shared(rank) {
				base = p.InputAt(c.Lengths, rank)
			}
			err = out.expect(base, base+p.BlockBytes(c.Lengths, rank, rank), everyone, p.InputAt(c.Lengths, rank))
		case coll.Gather:
			if rank == p.Root {
				err = c.gathered(p, out)
			} else if len(out.spans) > 0 {
				err = errors.New("a rank that is not the root wrote its output")
			}
		case coll.Scatter:
			base := uint64(0)
			if c.shared(rank) {
				base = p.InputAt(c.Lengths, rank)
			}
			err = out.expect(base, base+c.Bytes, []int{p.Root}, p.InputAt(c.Lengths, rank))
		case coll.Reduce:
			switch {
			case rank == p.Root:
				err = out.expect(0, c.Bytes, everyone, 0)
			case c.InPlace:
				err = out.expect(0, c.Bytes, []int{rank}, 0)
			case len(out.spans) > 0:
				err = errors.New("a rank that is not the root wrote its output")
			}
		case coll.Barrier:
			err = r.met(call, rank)
		default:
			err = fmt.Errorf("%v is no collective", p.Kind)
		}
		if err != nil {
			return fmt.Errorf("rank %d, at the end of the call: %w", rank, err)
		}
	}
	return nil
}

// gathered checks an output that has a block of each rank.
func (c SlotCall) gathered(p plan.SlotPlan, out *spanMemory) (err error) {
	l := c.Lengths
	for owner := range p.Size {
		lo := p.OutputAt(l, owner)
		err = errors.Join(err, out.expect(lo, lo+p.BlockBytes(l, owner, p.Rank), []int{owner}, c.Plans[owner].InputAt(l, p.Rank)))
	}
	return err
}

// met checks that rank's last step of a call comes after every other rank's first one.
func (r *slotRun) met(call, rank int) error {
	end := len(r.steps[rank])
	if call+1 < len(r.calls) {
		end = r.starts[call+1][rank]
	}
	for peer := range r.size {
		if peer != rank && r.after(rank, end-1)[peer] <= int32(r.starts[call][peer]) {
			return fmt.Errorf("it may leave before rank %d has entered", peer)
		}
	}
	return nil
}

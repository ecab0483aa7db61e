// The proof that the plans of all ranks together carry out their collective.

package message

import (
	"fmt"

	"sagecomm/internal/coll"
)

// Call is one collective of a group: the plans of all ranks in rank order.
type Call struct {
	Plans []Plan
	Lengths
	// InPlace has input and output in the same memory: equal buffers, or, where one is blocks, the rank's own one. A
	// broadcast's root is always in place, an all_to_all never.
	InPlace bool
}

// Check proves that the plans of all ranks, in rank order, carry out their collective for these lengths, in place and
// out of place, over channels that hold one message.
func Check(plans []Plan, l Lengths) error {
	c := Call{Plans: plans, Lengths: l}
	if err := c.validate(); err != nil {
		return err
	}
	known := newTrees(len(plans))
	for _, c.InPlace = range []bool{false, true} {
		if _, err := newRun(c, 1, known).prove(); err != nil {
			return err
		}
	}
	return nil
}

// CheckCall proves that a collective gives every rank what it must, over channels that hold capacity messages. It runs
// the steps of all ranks on memory that holds, for each unit, the tree of reductions that it is the result of, and
// finds
//   - an output that lacks a rank's contribution, has one twice or a wrong one; ranks whose results were reduced in
//     different orders, so that their bits may differ;
//   - bytes that are read before they are written, or written while a send may still read them;
//   - a message whose length, or that of whose blocks, is not what its receiver expects, and one that nobody takes;
//   - a step that reads what it writes elsewhere, or reads other lengths than it writes: programs go through both at once;
//   - a barrier that a rank may leave before all have entered;
//   - a deadlock.
//
// It returns the rounds of the collective: in each a rank sends at most one message and takes at most one, which it can
// send on in the next (the model of one port in which the literature counts steps; Chan et al., CCPE 2007).
//
// # Why one run decides about all interleavings
//
// Each channel has one sender and one receiver, and each rank carries out its steps in one order, whatever arrives.
// That is a network of Kahn (IFIP 1974) with bounded buffers. A step waits for one of three things: that a message has
// been put into a channel, that the channel has room, or that a message sent earlier has been taken. Each is a
// statement that one of the channel's two counters, put and taken, has reached a number, and counters only grow. A step
// that may run can therefore not be kept from running by what other ranks do first: steps of different ranks commute,
// and every run that goes on until nothing more can run carries out the same set of steps. If one such maximal run gets
// through all steps, there is no deadlock under any interleaving; if it gets stuck, every run does, at the same place.
//
// The nth message taken from a channel is the nth put into it. So what a step reads is the same in all runs, as long as
// nobody writes to bytes that a channel has still to read. Only the sender's later steps could, and the checker counts
// a send as read when the rank has itself waited for that ([Step.After], the wait before scratch cells are used again,
// the one at the end), not when it happened in this run: the verdict does not depend on the schedule. One run decides
// about values, too.
//
// The waits here are the hardest that an implementation may have: a message counts as taken when its receiver's step
// has taken it, as if the channel read from the sender's memory until then. A channel that copies lets go earlier, one
// that holds more messages has room earlier; waits that are over earlier cannot cause a deadlock, by the same argument.
// So what is proved for capacity 1 holds for every capacity and every time of copying.
//
// Collectives that follow one another on the same channels need no proof of their own: each takes all of its messages,
// and the run that completes the first one everywhere before the second begins is a maximal run.
func CheckCall(c Call, capacity int) (rounds int, err error) {
	if err := c.validate(); err != nil {
		return 0, err
	}
	return newRun(c, capacity, newTrees(len(c.Plans))).prove()
}

// prove carries out all steps, looks at what has come out, and returns the rounds that it took.
func (r *run) prove() (rounds int, err error) {
	if err := r.finish(); err != nil {
		return 0, r.call.failed(err)
	}
	for rank, a := range r.ranks {
		if err := r.outcome(rank); err != nil {
			return 0, r.call.failed(fmt.Errorf("rank %d, at the end: %w", rank, err))
		}
		rounds = max(rounds, a.sending, a.taking)
	}
	return rounds, nil
}

// failed says of which call an error is.
func (c Call) failed(err error) error {
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

func (c Call) validate() error {
	if len(c.Plans) == 0 {
		return fmt.Errorf("nothing to check")
	}
	if err := c.fit(); err != nil {
		return c.failed(err)
	}
	return nil
}

// fit says whether plans are valid and go together.
func (c Call) fit() error {
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

// outcome checks what the collective must have left on a rank.
func (r *run) outcome(rank int) error {
	p := r.call.Plans[rank]
	var wrong error
	output := func(rank, block int) []value {
		return r.memoryOf(r.ranks[rank], Region{Space: Output, Block: block}, 0).cells
	}
	// holds wants every unit of a block of the output to be what expect says of it.
	holds := func(block int, expect func(at source) error) {
		region := Region{Space: Output, Block: block}
		cells := output(rank, block)
		for unit := range units(p.block(r.call.Lengths, region)) {
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
	// from wants the output's block to be a rank's own block of its input, unreduced.
	from := func(block, owner, inputBlock int) {
		cells := output(rank, block)
		holds(block, func(at source) error {
			want := value{r.trees.leaf(owner), source{int32(inputBlock), at.unit}}
			if got := cells[at.unit]; got != want && got.tree != 0 {
				return fmt.Errorf("it holds %s, expected %s", r.trees.format(got), r.trees.format(want))
			}
			return nil
		})
	}
	// reduced wants each rank's contribution to an input's block once, and the same tree as the first rank has.
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

// inputBlockOf is which block of the owner's input goes to a rank.
func inputBlockOf(k coll.Kind, owner, rank int) int {
	if k == coll.AllToAll {
		return rank
	}
	return owner
}

func units(bytes uint64) uint64 { return (bytes + Unit - 1) / Unit }

package verify

import (
	"fmt"

	"sagecomm/algo/plan"
)

// CheckSendRecv proves that the plans of all ranks, in rank order, carry out their collective for these lengths, in
// place and out of place, over channels that hold one message. See [CheckSendRecvCall].
func CheckSendRecv(plans []plan.SendRecvPlan, l plan.Lengths) error {
	c := SendRecvCall{Plans: plans, Lengths: l}
	if err := c.validate(); err != nil {
		return err
	}
	known := newTrees(len(plans))
	for _, c.InPlace = range []bool{false, true} {
		if _, err := newSendRecvRun(c, 1, known).prove(); err != nil {
			return err
		}
	}
	return nil
}

// CheckSendRecvCall proves that a collective gives every rank what it must, over channels that hold capacity messages.
// It runs the steps of all ranks on memory that holds, for each unit, the tree of reductions that it is the result of.
// It finds
//   - an output that lacks a rank's contribution, has one twice or a wrong one;
//   - results that ranks have reduced in different orders, so that their bits may differ;
//   - bytes that are read before they are written, or written while a send may still read them;
//   - a message whose length, or whose blocks' length, differs from the one that its receiver expects;
//   - a message that no rank takes;
//   - a step whose reads and writes overlap in different places or differ in length: programs do both at once;
//   - a barrier that a rank may leave before all have entered;
//   - a deadlock.
//
// It returns the rounds of the collective. In each round a rank sends at most one message and takes at most one, which
// it can send on in the next round (the one-port model, in which the literature counts steps; Chan et al., CCPE 2007).
//
// # Why one run decides about all interleavings
//
// Each channel has one sender and one receiver, and each rank carries out its steps in one order, whatever arrives.
// This is a Kahn network (IFIP 1974) with bounded buffers. A step waits for one of three things: that a message has been
// put into a channel, that the channel has room, or that a message sent earlier has been taken. Each is a statement that
// one of the channel's two counters, put and taken, has reached a number, and counters only grow. So nothing that other
// ranks do first can keep a step from running that may run: steps of different ranks commute, and every run that goes on
// until nothing more can run carries out the same set of steps. If one such maximal run gets through all steps, there is
// no deadlock under any interleaving; if it gets stuck, every run gets stuck at the same place.
//
// The nth message taken from a channel is the nth message put into it. So a step reads the same values in all runs, as
// long as nobody writes to bytes that a channel has still to read. Only later steps of the sender could do so. The
// checker counts the bytes of a send as read when the rank has itself waited for that ([plan.Step.After], the wait
// before scratch cells are used again, the wait at the end), not when the message was taken in this run. So the verdict
// does not depend on the schedule, and one run decides about values too.
//
// The waits here are the longest that an implementation may have: a message counts as taken when its receiver's step
// has taken it, as if the channel read from the sender's memory until then. A channel that copies frees the sender's
// memory earlier, and one that holds more messages has room earlier. Waits that end earlier cannot cause a deadlock, by
// the same argument. So a proof for capacity 1 holds for every capacity and every time of copying.
//
// Collectives that follow one another on the same channels need no proof of their own: each takes all of its messages,
// and the run that completes the first one everywhere before the second begins is a maximal run.
func CheckSendRecvCall(c SendRecvCall, capacity int) (rounds int, err error) {
	if err := c.validate(); err != nil {
		return 0, err
	}
	return newSendRecvRun(c, capacity, newTrees(len(c.Plans))).prove()
}

// prove carries out all steps, checks the outcome, and returns the number of rounds.
func (r *sendRecvRun) prove() (rounds int, err error) {
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

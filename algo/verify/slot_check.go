package verify

import "sagecomm/algo/plan"

// CheckSlots proves that the plans of all ranks, in rank order, carry out their collective for these lengths, in place
// and out of place. See [CheckSlotCalls].
func CheckSlots(plans []plan.SlotPlan, l plan.Lengths) error {
	m, err := prepare(SlotCall{Plans: plans, Lengths: l})
	if err != nil {
		return err
	}
	for _, m.calls[0].InPlace = range []bool{false, true} { // the steps are the same
		if err := m.check(schedules(m.size)); err != nil {
			return err
		}
	}
	return nil
}

// CheckSlotCalls proves that collectives of one group, one after the other on the same slots, give every rank what they
// must. It runs the concrete steps of all ranks on memory that holds, for each range of bytes, the ordered list of
// (rank, offset) that were reduced into it. It finds
//   - an output that lacks contributions, has wrong ones, or has them out of rank order;
//   - a read of something not written, or of another ticket's chunk;
//   - a slot that is written while another rank may still read it, or read while it may still be written;
//   - a barrier that a rank may leave before all have entered;
//   - a deadlock.
//
// # Why a few runs decide about all interleavings
//
// Steps wait for counters only, and counters only grow. So nothing that other ranks do first can keep a step from
// running that may run: steps commute, and every run that goes on until nothing more can run carries out the same set
// of steps. If one such maximal run gets through all steps, there is no deadlock under any interleaving; if it gets
// stuck, every run gets stuck at the same place.
//
// What the steps read could still depend on the order. So each rank carries a vector clock, and a wait joins it with the
// clock of the step that posted the counter. The clocks give the order that the protocol enforces, as opposed to the one
// that happened. Two accesses to a slot of which one writes must be ordered by these clocks. Where all are, every
// interleaving reads the same values, and one run decides about values too. The clocks do not depend on the schedule;
// several schedules are run all the same, as a check of the checker.
func CheckSlotCalls(calls ...SlotCall) error {
	m, err := prepare(calls...)
	if err != nil {
		return err
	}
	return m.check(schedules(m.size))
}

// prepare returns the machine of some calls, each plan of which is valid by itself.
func prepare(calls ...SlotCall) (*slotMachine, error) {
	for _, c := range calls {
		if err := c.validate(); err != nil {
			return nil, err
		}
	}
	return newSlotMachine([2]int{plan.SmallSlotCount, plan.LargeSlotCount}, calls...)
}

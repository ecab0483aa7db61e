package cost

import "sagecomm/algo/plan"

// Traffic counts what one rank does.
type SlotTraffic struct {
	Steps   int    // stages carried out
	Flags   int    // peers' flags that say filled or reduced, looked at
	Near    uint64 // bytes copied without leaving this rank's memory
	Far     uint64 // bytes taken out of slots where other ranks have put them, to be copied or folded
	Claims  uint64 // bytes published into slots that other ranks have read and not written since
	Reduced uint64 // bytes of operands folded, this rank's own included
	Stored  uint64 // bytes that folds stored to targets after the first
}

func (t *SlotTraffic) add(s plan.SlotStep, p plan.SlotPlan) {
	t.Steps++
	for _, w := range s.Waits {
		if w.Counter != plan.Consumed { // known from the last look, as a rule
			t.Flags++
		}
	}
	for _, m := range s.Moves {
		for _, from := range m.From {
			switch {
			case from.Space == plan.Slot && (from.Rank != p.Rank || s.Action == plan.Collect):
				t.Far += from.Len
			case !m.Reduce:
				t.Near += from.Len
			}
			if m.Reduce {
				t.Reduced += from.Len
			}
		}
		if s.Action == plan.Publish && !returns(p) {
			t.Claims += m.To[0].Len
		}
		for _, to := range m.To[1:] {
			t.Stored += to.Len
		}
	}
}

// returns says whether slots come back to this rank's core: the last that was done to them is its own collect.
func returns(p plan.SlotPlan) bool {
	for _, s := range p.Stages {
		if s.Action == plan.Collect {
			return true
		}
	}
	return false
}

// Count adds up what a plan does for a collective of that many bytes. Its time is proportional to the chunks.
func CountSlots(p plan.SlotPlan, bytes uint64) SlotTraffic {
	var t SlotTraffic
	for s := range plan.Concrete(p, bytes) {
		t.add(s, p)
	}
	return t
}

// join adds a number of times what another one counts, or takes it away.
func (t *SlotTraffic) join(other SlotTraffic, times int) {
	n := uint64(times) // modulo 2^64, as the sums are
	t.Steps += times * other.Steps
	t.Flags += times * other.Flags
	t.Near += n * other.Near
	t.Far += n * other.Far
	t.Claims += n * other.Claims
	t.Reduced += n * other.Reduced
	t.Stored += n * other.Stored
}

package cost

import "sagecomm/algo/plan"

// SlotTraffic counts what one rank does in a slot plan.
type SlotTraffic struct {
	Steps   int    // stages carried out
	Flags   int    // peers' filled or reduced flags looked at
	Near    uint64 // bytes copied without leaving this rank's memory
	Far     uint64 // bytes copied or reduced from slots that other ranks have written
	Claims  uint64 // bytes published into slots that other ranks have read since the last write
	Reduced uint64 // bytes of operands reduced, this rank's own included
	Stored  uint64 // bytes that reductions stored to targets after the first
}

// add counts one step of a plan.
func (t *SlotTraffic) add(s plan.SlotStep, p plan.SlotPlan) {
	t.Steps++
	for _, w := range s.Waits {
		if w.Counter != plan.Consumed { // usually known from the last look
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

// returns reports whether slots come back to this rank's core: their last access is the rank's own collect.
func returns(p plan.SlotPlan) bool {
	for _, s := range p.Stages {
		if s.Action == plan.Collect {
			return true
		}
	}
	return false
}

// CountSlots counts the work of a plan for a collective of that many bytes. It takes time in proportion to the number of chunks.
func CountSlots(p plan.SlotPlan, bytes uint64) SlotTraffic {
	var t SlotTraffic
	for s := range plan.Concrete(p, bytes) {
		t.add(s, p)
	}
	return t
}

// join adds other times times, or subtracts it if times is negative.
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

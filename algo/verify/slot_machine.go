package verify

import (
	"errors"
	"fmt"

	"sagecomm/algo/plan"
)

// instruction is a step of one rank with its place in the sequence.
type instruction struct {
	plan.SlotStep
	call   int
	ticket int64 // of the step's chunk, counted from the first one of its slots
}

// slotMachine holds what all runs of a sequence of calls have in common.
type slotMachine struct {
	size    int
	slots   [2]int
	calls   []SlotCall
	steps   [][]instruction // by rank
	starts  [][]int         // by call and rank: index of its first step
	tickets [2]int64        // of the whole sequence, of small and large slots
}

// newSlotMachine spells out the steps of all calls, for some numbers of small and large slots.
func newSlotMachine(slots [2]int, calls ...SlotCall) (*slotMachine, error) {
	if len(calls) == 0 || len(calls[0].Plans) == 0 {
		return nil, errors.New("nothing to check")
	}
	m := &slotMachine{size: len(calls[0].Plans), slots: slots, calls: calls}
	m.steps = make([][]instruction, m.size)
	for i, c := range calls {
		first := c.Plans[0]
		if len(c.Plans) != m.size {
			return nil, fmt.Errorf("call %d has %d plans, the first one %d", i, len(c.Plans), m.size)
		}
		starts := make([]int, m.size)
		for rank, p := range c.Plans {
			if p.Kind != first.Kind || p.Algorithm != first.Algorithm || p.Size != m.size || p.Root != first.Root ||
				p.Slots != first.Slots || p.Chunk != first.Chunk || p.Head != first.Head ||
				p.Input != first.Input || p.Output != first.Output {
				return nil, fmt.Errorf("call %d: the plan of rank %d (%v %s, size %d, root %d, %v slots, chunk %d) "+
					"does not go with that of rank 0 (%v %s, size %d, root %d, %v slots, chunk %d)",
					i, rank, p.Kind, p.Algorithm, p.Size, p.Root, p.Slots, p.Chunk,
					first.Kind, first.Algorithm, first.Size, first.Root, first.Slots, first.Chunk)
			}
			starts[rank] = len(m.steps[rank])
			for s := range plan.ConcreteLengths(p, c.Lengths, slots) {
				m.steps[rank] = append(m.steps[rank], instruction{s, i, m.tickets[s.Slots] + s.Chunk})
			}
		}
		m.starts = append(m.starts, starts)
		if first.HasHeads() {
			m.tickets[plan.SmallSlots]++
		}
		m.tickets[first.Slots] += int64(first.Chunks(c.Lengths.Longest()))
	}
	return m, nil
}

// check runs the steps under each schedule.
func (m *slotMachine) check(schedules []schedule) error {
	r := newSlotRun(m)
	for _, s := range schedules {
		r.begin()
		if err := r.finish(s); err != nil {
			c := m.calls[0]
			what := fmt.Sprintf("%v %s, %d ranks, %d bytes, chunk %d",
				c.Plans[0].Kind, c.Plans[0].Algorithm, m.size, c.Bytes, c.Plans[0].Chunk)
			if len(m.calls) > 1 {
				what = fmt.Sprintf("%d calls, %d ranks", len(m.calls), m.size)
			} else {
				if c.Blocks != nil {
					what += fmt.Sprintf(", blocks %v", c.Blocks)
				}
				if c.InPlace {
					what += ", in place"
				}
			}
			return fmt.Errorf("%s, %s: %w", what, s.name, err)
		}
	}
	return nil
}

// name returns where a rank is. Every error begins with it.
func (m *slotMachine) name(a access) string {
	in := m.steps[a.rank][a.step]
	call := ""
	if len(m.calls) > 1 {
		call = fmt.Sprintf("call %d (%v), ", in.call, m.calls[in.call].Plans[0].Kind)
	}
	return fmt.Sprintf("rank %d, %schunk %d, stage %d (%v)", a.rank, call, in.Chunk, in.Stage, in.Action)
}

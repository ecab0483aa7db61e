package board

import (
	"errors"
	"fmt"

	"sagecomm/internal/coll"
)

// Call is one collective of a group: the plans of all ranks in rank order.
type Call struct {
	Plans []Plan
	Bytes uint64 // of the buffer, or of each block
	// Blocks, if not nil, are the bytes of blocks that differ: of each rank's block for all_gather and reduce_scatter;
	// for all_to_all of what rank 0 has for each rank, then of what rank 1 has, and so on.
	Blocks []uint64
	// InPlace has input and output in the same memory: equal buffers, or, where one is blocks, the rank's own one. A
	// broadcast's root is always in place, an all_to_all never.
	InPlace bool
}

func (c Call) lengths() lengths { return lengths{c.Bytes, c.Blocks} }

// Check proves that the plans of all ranks, in rank order, carry out their collective for that many bytes, in place and
// out of place. See [CheckSequence].
func Check(plans []Plan, bytes uint64) error {
	return CheckBlocks(plans, bytes, nil)
}

// CheckBlocks is [Check] for blocks of different lengths, see [Call.Blocks].
func CheckBlocks(plans []Plan, bytes uint64, blocks []uint64) error {
	m, err := prepare(Call{Plans: plans, Bytes: bytes, Blocks: blocks})
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

// CheckSequence proves that collectives of one group, one after the other on the same slots, give every rank what they
// must. It runs the concrete steps of all ranks on memory that holds, for each range of bytes, the ordered list of
// (rank, offset) whose fold it is, and finds
//   - an output that lacks contributions, has wrong ones, or has them out of rank order;
//   - a read of something not written, or of another ticket's chunk;
//   - a slot that is written while another rank may still read it, or read while it may still be written;
//   - a barrier that a rank may leave before all have entered;
//   - a deadlock.
//
// # Why a few runs decide about all interleavings
//
// Steps wait for counters only, and counters only grow. A step that may run can therefore not be kept from running by
// what others do first: steps commute, and every run that goes on until nothing more can run carries out the same set
// of steps. If one such maximal run gets through all steps there is no deadlock under any interleaving; if it gets
// stuck, every run does, at the same place.
//
// What the steps read could still depend on the order. So each rank carries a vector clock, which a wait joins with
// the clock of the step that posted the counter: the order that the protocol enforces, as opposed to the one that
// happened. Two accesses to a slot of which one writes must be ordered by these clocks. Where all are, every
// interleaving reads the same values, and one run decides about values too. The clocks do not depend on the schedule;
// several schedules are run all the same, as a check of the checker.
func CheckSequence(calls ...Call) error {
	m, err := prepare(calls...)
	if err != nil {
		return err
	}
	return m.check(schedules(m.size))
}

// prepare makes the machine of plans each of which is valid by itself.
func prepare(calls ...Call) (*machine, error) {
	for _, c := range calls {
		if err := c.validate(); err != nil {
			return nil, err
		}
	}
	return newMachine([2]int{SmallSlots, LargeSlots}, calls...)
}

func (c Call) validate() error {
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

// instruction is a step of one rank with its place in the sequence.
type instruction struct {
	Step
	call   int
	ticket int64 // of the step's chunk, counted from the lane's first
}

// machine is what all runs of a sequence have in common.
type machine struct {
	size    int
	slots   [2]int
	calls   []Call
	steps   [][]instruction // by rank
	starts  [][]int         // by call and rank: index of its first step
	tickets [2]int64        // of the whole sequence, by lane
}

func newMachine(slots [2]int, calls ...Call) (*machine, error) {
	if len(calls) == 0 || len(calls[0].Plans) == 0 {
		return nil, errors.New("nothing to check")
	}
	m := &machine{size: len(calls[0].Plans), slots: slots, calls: calls}
	m.steps = make([][]instruction, m.size)
	for i, c := range calls {
		first := c.Plans[0]
		if len(c.Plans) != m.size {
			return nil, fmt.Errorf("call %d has %d plans, the first one %d", i, len(c.Plans), m.size)
		}
		starts := make([]int, m.size)
		for rank, p := range c.Plans {
			if p.Kind != first.Kind || p.Algorithm != first.Algorithm || p.Size != m.size || p.Root != first.Root ||
				p.Lane != first.Lane || p.Chunk != first.Chunk || p.Head != first.Head ||
				p.Input != first.Input || p.Output != first.Output {
				return nil, fmt.Errorf("call %d: the plan of rank %d (%v %s, size %d, root %d, %v lane, chunk %d) "+
					"does not go with that of rank 0 (%v %s, size %d, root %d, %v lane, chunk %d)",
					i, rank, p.Kind, p.Algorithm, p.Size, p.Root, p.Lane, p.Chunk,
					first.Kind, first.Algorithm, first.Size, first.Root, first.Lane, first.Chunk)
			}
			starts[rank] = len(m.steps[rank])
			for s := range concrete(p, c.lengths(), slots) {
				m.steps[rank] = append(m.steps[rank], instruction{s, i, m.tickets[s.Lane] + s.Chunk})
			}
		}
		m.starts = append(m.starts, starts)
		if first.heads() {
			m.tickets[SmallLane]++
		}
		m.tickets[first.Lane] += int64(first.Chunks(c.lengths().longest()))
	}
	return m, nil
}

func (m *machine) check(schedules []schedule) error {
	r := newRun(m)
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

// name says where a rank is: what every error begins with.
func (m *machine) name(a access) string {
	in := m.steps[a.rank][a.step]
	call := ""
	if len(m.calls) > 1 {
		call = fmt.Sprintf("call %d (%v), ", in.call, m.calls[in.call].Plans[0].Kind)
	}
	return fmt.Sprintf("rank %d, %schunk %d, stage %d (%v)", a.rank, call, in.Chunk, in.Stage, in.Action)
}

// outcome checks what the collective must have left on each rank.
func (r *run) outcome(call int) error {
	c := r.calls[call]
	everyone := make([]int, r.size)
	for i := range everyone {
		everyone[i] = i
	}
	for rank, p := range c.Plans {
		var err error
		out := r.output[call*r.size+rank].memory
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
				base = p.inputAt(c.lengths(), rank)
			}
			err = out.expect(base, base+p.block(c.lengths(), rank, rank), everyone, p.inputAt(c.lengths(), rank))
		case coll.Gather:
			if rank == p.Root {
				err = c.gathered(p, out)
			} else if len(out.spans) > 0 {
				err = errors.New("a rank that is not the root wrote its output")
			}
		case coll.Scatter:
			base := uint64(0)
			if c.shared(rank) {
				base = p.inputAt(c.lengths(), rank)
			}
			err = out.expect(base, base+c.Bytes, []int{p.Root}, p.inputAt(c.lengths(), rank))
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

// gathered checks an output of blocks.
func (c Call) gathered(p Plan, out *memory) (err error) {
	l := c.lengths()
	for owner := range p.Size {
		lo := p.outputAt(l, owner)
		err = errors.Join(err, out.expect(lo, lo+p.block(l, owner, p.Rank), []int{owner}, c.Plans[owner].inputAt(l, p.Rank)))
	}
	return err
}

// met checks that rank's last step of a call comes after every other rank's first one.
func (r *run) met(call, rank int) error {
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

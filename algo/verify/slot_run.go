package verify

import (
	"fmt"
	"strings"

	"sagecomm/algo/plan"
	"sagecomm/internal/coll"
)

// slotRun is one execution of a machine's steps. It is symbolic: memory holds contributions, time is vector clocks. The
// next execution uses the same memory, see [slotRun.begin].
type slotRun struct {
	*slotMachine
	input, output []place                   // by call and rank; the same memory in place
	slot          [2][]spanMemory           // by set, rank and slot
	buffers       []spanMemory              // of inputs and outputs
	next          []int                     // by rank: its next step
	waited        []int                     // by rank: number of waits of its next step that are known to be over
	clock         []int32                   // by rank: number of steps of each rank that come before this point
	history       [][]int32                 // by rank, step and rank: its clock after the step
	posted        [2][plan.Counters][]int32 // by rank and ticket: the step that posted the counter, from 1; 0: none

	own     []contribution // contribution of each rank
	lists   []contribution // memory of lists that values hold
	spare   [][]access     // memory of lists of readers
	sources [][]span       // sources of the present move
	taken   []span         // memory of the sources
	reduced []span         // result of reducing the sources
	places  []int          // present position in each source
	moved   []span         // the result, moved to where it is written
}

// place is where a buffer lies.
type place struct {
	*spanMemory
	base uint64
}

// newSlotRun allocates a run.
// Requires: begin before the first schedule.
func newSlotRun(m *slotMachine) *slotRun {
	r := &slotRun{
		slotMachine: m, next: make([]int, m.size), waited: make([]int, m.size), clock: make([]int32, m.size*m.size),
		buffers: make([]spanMemory, 2*m.size*len(m.calls)), own: make([]contribution, m.size),
	}
	r.input, r.output = make([]place, m.size*len(m.calls)), make([]place, m.size*len(m.calls))
	for rank, steps := range m.steps {
		r.history = append(r.history, make([]int32, len(steps)*m.size))
		r.own[rank].rank = rank
	}
	for set := range r.slot {
		r.slot[set] = make([]spanMemory, m.size*m.slots[set])
		for c := range r.posted[set] {
			r.posted[set][c] = make([]int32, int64(m.size)*m.tickets[set])
		}
	}
	return r
}

// begin resets the run: all ranks have their inputs and nothing has been done.
func (r *slotRun) begin() {
	clear(r.next)
	clear(r.waited)
	clear(r.clock)
	r.lists = r.lists[:0]
	for set := range r.slot {
		for i := range r.slot[set] {
			r.slot[set][i].spans = r.slot[set][i].spans[:0]
		}
		for c := range r.posted[set] {
			clear(r.posted[set][c])
		}
	}
	for i := range r.buffers {
		r.buffers[i].spans = r.buffers[i].spans[:0]
	}
	for i, c := range r.calls {
		for rank, p := range c.Plans {
			at := i*r.size + rank
			in, out := &r.buffers[2*at], &r.buffers[2*at+1]
			if c.shared(rank) {
				in = out
			}
			r.input[at], r.output[at] = place{in, c.base(p, plan.Input)}, place{out, c.base(p, plan.Output)}
			if base, n := r.input[at].base, inputBytes(p, c.Lengths); n > 0 {
				in.spans = append(in.spans, span{lo: base, hi: base + n, val: spanValue{of: r.own[rank : rank+1]}})
			}
		}
	}
}

// clockOf returns the present clock of a rank, after the clock that it had after a step.
func (r *slotRun) clockOf(rank int) []int32 { return r.clock[rank*r.size : (rank+1)*r.size] }

func (r *slotRun) after(rank, step int) []int32 {
	return r.history[rank][step*r.size : (step+1)*r.size]
}

// finish runs until nothing can run any more and then checks the outcome.
func (r *slotRun) finish(s schedule) error {
	for {
		progress := false
		for i, rank := range s.order() {
			n, err := r.advance(rank, s.burst(i))
			if err != nil {
				return err
			}
			progress = progress || n > 0
			if n > 0 && i > 0 && s.restart {
				break
			}
		}
		if !progress {
			break
		}
	}
	if err := r.stuck(); err != nil {
		return err
	}
	for call := range r.calls {
		if err := r.outcome(call); err != nil {
			return err
		}
	}
	return nil
}

// advance carries out at most limit steps of a rank and returns how many there were.
func (r *slotRun) advance(rank, limit int) (n int, err error) {
	for ; n < limit && r.next[rank] < len(r.steps[rank]); n++ {
		in := &r.steps[rank][r.next[rank]]
		for ; r.waited[rank] < len(in.Waits); r.waited[rank]++ {
			w := in.Waits[r.waited[rank]]
			ticket := in.ticket - in.Chunk + w.Chunk
			if ticket < 0 {
				continue // before the first ticket
			}
			post := r.posted[in.Slots][w.Counter][int64(w.Rank)*r.tickets[in.Slots]+ticket]
			if post == 0 {
				return n, nil
			}
			r.learn(rank, w.Rank, post)
		}
		if err := r.execute(access{rank, r.next[rank]}, in); err != nil {
			return n, fmt.Errorf("%s: %w", r.name(access{rank, r.next[rank]}), err)
		}
		r.next[rank]++
		r.waited[rank] = 0
	}
	return n, nil
}

// learn joins a rank's clock with the clock that another rank had after the given number of steps.
func (r *slotRun) learn(rank, from int, steps int32) {
	mine := r.clockOf(rank)
	if mine[from] >= steps {
		return // clocks only grow, so a later clock of that rank included this one
	}
	for i, t := range r.after(from, int(steps-1)) {
		mine[i] = max(mine[i], t)
	}
}

// execute carries out a step whose waits are over.
func (r *slotRun) execute(me access, in *instruction) error {
	for _, m := range in.Moves {
		r.sources, r.taken = r.sources[:0], r.taken[:0]
		for _, from := range m.From {
			spans, err := r.read(me, in, from)
			if err != nil {
				return err
			}
			r.sources = append(r.sources, spans)
		}
		result := r.reduce(r.sources, m.From[0].Len)
		for _, to := range m.To {
			if err := r.write(me, in, to, result); err != nil {
				return err
			}
		}
	}
	now := r.clockOf(me.rank)
	now[me.rank] = int32(me.step + 1)
	copy(r.after(me.rank, me.step), now)
	for _, c := range in.Posts {
		r.posted[in.Slots][c][int64(me.rank)*r.tickets[in.Slots]+in.ticket] = int32(me.step + 1)
	}
	return nil
}

// happened reports whether access a comes before the rank's next step under every interleaving.
func (r *slotRun) happened(a access, rank int) bool {
	return r.clock[rank*r.size+a.rank] > int32(a.step)
}

// memoryOf returns the memory of a region and the region's place in it.
func (r *slotRun) memoryOf(in *instruction, g plan.Range) (m *spanMemory, lo uint64) {
	switch at := in.call*r.size + g.Rank; g.Space {
	case plan.Input:
		return r.input[at].spanMemory, r.input[at].base + g.Off
	case plan.Output:
		return r.output[at].spanMemory, r.output[at].base + g.Off
	default:
		slots := r.slots[in.Slots]
		return &r.slot[in.Slots][g.Rank*slots+int(in.ticket%int64(slots))], g.Off
	}
}

// read returns the spans of a region, based at 0. They are valid until the next move.
func (r *slotRun) read(me access, in *instruction, g plan.Range) ([]span, error) {
	m, lo := r.memoryOf(in, g)
	hi := lo + g.Len
	spans := m.over(lo, hi)
	if from, to, found := gap(spans, lo, hi); found {
		return nil, fmt.Errorf("reads bytes [%d, %d) of %s, which nobody has written", from, to, r.describe(in, g))
	}
	if g.Space == plan.Slot {
		for i := range spans {
			s := &spans[i]
			if !r.happened(s.writer, me.rank) && s.writer.rank != me.rank {
				return nil, fmt.Errorf("reads bytes [%d, %d) of %s without waiting for %s, which writes them",
					s.lo, s.hi, r.describe(in, g), r.name(s.writer))
			}
			if s.ticket != in.ticket {
				return nil, fmt.Errorf("reads bytes [%d, %d) of %s, which hold ticket %d instead of %d",
					s.lo, s.hi, r.describe(in, g), s.ticket, in.ticket)
			}
			if last := len(r.spare) - 1; s.readers == nil && last >= 0 {
				s.readers, r.spare = r.spare[last], r.spare[:last]
			}
			s.readers = append(s.readers, me)
		}
	}
	first := len(r.taken)
	for _, s := range spans {
		r.taken = append(r.taken, span{lo: s.lo - lo, hi: s.hi - lo, val: s.val})
	}
	return r.taken[first:], nil
}

// write replaces the content of a region by spans that are based at 0.
func (r *slotRun) write(me access, in *instruction, g plan.Range, with []span) error {
	m, lo := r.memoryOf(in, g)
	hi := lo + g.Len
	r.moved = r.moved[:0]
	for _, s := range with {
		r.moved = append(r.moved, span{lo: s.lo + lo, hi: s.hi + lo, val: s.val})
	}
	if g.Space == plan.Slot {
		for _, s := range m.over(lo, hi) {
			for _, reader := range s.readers {
				if reader.rank != me.rank && !r.happened(reader, me.rank) {
					return fmt.Errorf("writes bytes [%d, %d) of %s, which %s may still be reading",
						s.lo, s.hi, r.describe(in, g), r.name(reader))
				}
			}
			if s.readers != nil {
				r.spare = append(r.spare, s.readers[:0])
			}
		}
		for i := range r.moved {
			r.moved[i].ticket, r.moved[i].writer = in.ticket, me
		}
	}
	m.write(lo, hi, r.moved)
	return nil
}

// describe names the memory of a range in an error.
func (r *slotRun) describe(in *instruction, g plan.Range) string {
	switch g.Space {
	case plan.Input:
		return "the input"
	case plan.Output:
		return "the output"
	default:
		return fmt.Sprintf("rank %d's slot %d", g.Rank, in.ticket%int64(r.slots[in.Slots]))
	}
}

// stuck returns an error that names the ranks which wait forever.
func (r *slotRun) stuck() error {
	var lines []string
	for rank, next := range r.next {
		if next == len(r.steps[rank]) {
			continue
		}
		in := r.steps[rank][next]
		w := in.Waits[r.waited[rank]]
		lines = append(lines, fmt.Sprintf("%s waits for rank %d's %v of chunk %d",
			r.name(access{rank, next}), w.Rank, w.Counter, w.Chunk))
	}
	if len(lines) == 0 {
		return nil
	}
	if more := len(lines) - 4; more > 0 {
		lines = append(lines[:4], "and "+coll.Count(more, "rank")+" more")
	}
	return fmt.Errorf("deadlock: %s", strings.Join(lines, "; "))
}

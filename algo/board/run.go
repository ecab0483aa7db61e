package board

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"

	"sagecomm/internal/coll"
)

// run is one execution of a machine's steps. It is symbolic: memory holds contributions, time is vector clocks.
type run struct {
	*machine
	input, output [][]*memory    // by call and rank; the same memory in place
	slot          [2][][]*memory // by lane, rank and slot
	next          []int          // by rank: its next step
	waited        []int          // by rank: waits of that step already found fulfilled
	clock         [][]int32      // by rank: how many steps of each rank come before this point
	history       [][][]int32    // by rank and step: its clock after it; posted counters refer to it
	posted        [2][counters][][][]int32
}

func newRun(m *machine) *run {
	r := &run{machine: m, next: make([]int, m.size), waited: make([]int, m.size)}
	for range m.size {
		r.clock = append(r.clock, make([]int32, m.size))
	}
	r.history = make([][][]int32, m.size)
	for lane := range r.slot {
		for range m.size {
			slots := make([]*memory, m.slots[lane])
			for i := range slots {
				slots[i] = &memory{}
			}
			r.slot[lane] = append(r.slot[lane], slots)
			for c := range counters {
				r.posted[lane][c] = append(r.posted[lane][c], make([][]int32, m.tickets[lane]))
			}
		}
	}
	for _, c := range m.calls {
		var input, output []*memory
		for rank, p := range c.Plans {
			in, out := &memory{}, &memory{}
			if c.shared(rank) {
				in = out
			}
			if base, n := c.base(p, Input), p.inputBytes(c.lengths()); n > 0 {
				in.spans = []span{{lo: base, hi: base + n, val: value{of: []contribution{{rank: rank}}}}}
			}
			input, output = append(input, in), append(output, out)
		}
		r.input, r.output = append(r.input, input), append(r.output, output)
	}
	return r
}

// shared says whether a rank's input and output are the same memory.
func (c Call) shared(rank int) bool {
	p := c.Plans[rank]
	switch p.Kind {
	case coll.AllToAll:
		return false
	case coll.Gather, coll.Scatter:
		return c.InPlace && rank == p.Root
	case coll.Broadcast:
		return c.InPlace || rank == p.Root
	}
	return c.InPlace
}

// base is where a buffer begins in its memory: at the own block of the other one, if they share it and that is blocks.
func (c Call) base(p Plan, s Space) uint64 {
	switch {
	case !c.shared(p.Rank):
		return 0
	case s == Input:
		return p.outputAt(c.lengths(), p.Rank)
	default:
		return p.inputAt(c.lengths(), p.Rank)
	}
}

// inputBytes is the length of a rank's input.
func (p Plan) inputBytes(l lengths) uint64 {
	switch {
	case p.Kind == coll.Scatter && p.Rank != p.Root:
		return 0
	case p.Input == Blocks:
		return p.inputAt(l, p.Size)
	default:
		return p.block(l, p.Rank, p.Rank)
	}
}

// finish runs until nothing can run any more and then looks at what came out.
func (r *run) finish(s schedule) error {
	for {
		progress := false
		for i, rank := range s.order(r.size) {
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
func (r *run) advance(rank, limit int) (n int, err error) {
	for ; n < limit && r.next[rank] < len(r.steps[rank]); n++ {
		in := r.steps[rank][r.next[rank]]
		for ; r.waited[rank] < len(in.Waits); r.waited[rank]++ {
			w := in.Waits[r.waited[rank]]
			ticket := in.ticket - in.Chunk + w.Chunk
			if ticket < 0 {
				continue // before the lane's first ticket
			}
			post := r.posted[in.Lane][w.Counter][w.Rank][ticket]
			if post == nil {
				return n, nil
			}
			for i, t := range post {
				r.clock[rank][i] = max(r.clock[rank][i], t)
			}
		}
		if err := r.execute(access{rank, r.next[rank]}, in); err != nil {
			return n, fmt.Errorf("%s: %w", r.name(access{rank, r.next[rank]}), err)
		}
		r.next[rank]++
		r.waited[rank] = 0
	}
	return n, nil
}

func (r *run) execute(me access, in instruction) error {
	for _, m := range in.Moves {
		var sources [][]span
		for _, from := range m.From {
			spans, err := r.read(me, in, from)
			if err != nil {
				return err
			}
			sources = append(sources, spans)
		}
		result := fold(sources, m.From[0].Len)
		for _, to := range m.To {
			if err := r.write(me, in, to, result); err != nil {
				return err
			}
		}
	}
	r.clock[me.rank][me.rank] = int32(me.step + 1)
	now := slices.Clone(r.clock[me.rank])
	r.history[me.rank] = append(r.history[me.rank], now)
	for _, c := range in.Posts {
		r.posted[in.Lane][c][me.rank][in.ticket] = now
	}
	return nil
}

// happened reports whether a comes before rank's present under every interleaving.
func (r *run) happened(a access, rank int) bool { return r.clock[rank][a.rank] > int32(a.step) }

// memoryOf returns the memory of a region and the region's place in it.
func (r *run) memoryOf(in instruction, g Region) (m *memory, lo uint64) {
	switch c := r.calls[in.call]; g.Space {
	case Input:
		return r.input[in.call][g.Rank], g.Off + c.base(c.Plans[g.Rank], Input)
	case Output:
		return r.output[in.call][g.Rank], g.Off + c.base(c.Plans[g.Rank], Output)
	default:
		return r.slot[in.Lane][g.Rank][in.ticket%int64(r.slots[in.Lane])], g.Off
	}
}

// read returns what a region holds, based at 0.
func (r *run) read(me access, in instruction, g Region) ([]span, error) {
	m, lo := r.memoryOf(in, g)
	hi := lo + g.Len
	spans := m.over(lo, hi)
	if from, to, found := gap(spans, lo, hi); found {
		return nil, fmt.Errorf("reads bytes [%d, %d) of %s, which nobody has written", from, to, r.describe(in, g))
	}
	if g.Space == Slot {
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
			s.readers = append(s.readers, me)
		}
	}
	return rebase(spans, lo, 0), nil
}

// write replaces what a region holds.
func (r *run) write(me access, in instruction, g Region, with []span) error {
	m, lo := r.memoryOf(in, g)
	hi := lo + g.Len
	with = rebase(with, 0, lo)
	if g.Space == Slot {
		for _, s := range m.over(lo, hi) {
			for _, reader := range s.readers {
				if reader.rank != me.rank && !r.happened(reader, me.rank) {
					return fmt.Errorf("writes bytes [%d, %d) of %s, which %s may still be reading",
						s.lo, s.hi, r.describe(in, g), r.name(reader))
				}
			}
		}
		for i := range with {
			with[i].ticket, with[i].writer = in.ticket, me
		}
	}
	m.write(lo, hi, with)
	return nil
}

func (r *run) describe(in instruction, g Region) string {
	switch g.Space {
	case Input:
		return "the input"
	case Output:
		return "the output"
	default:
		return fmt.Sprintf("rank %d's slot %d", g.Rank, in.ticket%int64(r.slots[in.Lane]))
	}
}

// stuck returns an error that names ranks which wait for ever.
func (r *run) stuck() error {
	var lines []string
	for rank, next := range r.next {
		if next == len(r.steps[rank]) {
			continue
		}
		in := r.steps[rank][next]
		w := in.Waits[r.waited[rank]]
		lines = append(lines, fmt.Sprintf("%s waits for rank %d's %v of chunk %d", r.name(access{rank, next}), w.Rank, w.Counter, w.Chunk))
	}
	if len(lines) == 0 {
		return nil
	}
	if more := len(lines) - 4; more > 0 {
		lines = append(lines[:4], fmt.Sprintf("and %d ranks more", more))
	}
	return fmt.Errorf("deadlock: %s", strings.Join(lines, "; "))
}

// schedule is an order in which ranks take steps.
type schedule struct {
	name    string
	order   func(size int) []int
	burst   func(place int) int // steps that the rank at that place of the order may take
	restart bool                // begin the order again after a step of any but the first
}

const asFarAsItGoes = 1 << 30

// schedules are one step each in turn; one rank as far ahead as it gets, the others as far behind as that allows, for
// the first, the middle and the last rank; and random ones. Of large groups, fewer: see [CheckSequence] for why one
// would do.
func schedules(size int) []schedule {
	inTurn := func(first int) func(int) []int {
		return func(size int) []int {
			order := make([]int, size)
			for i := range order {
				order[i] = (first + i) % size
			}
			return order
		}
	}
	list := []schedule{{name: "round-robin", order: inTurn(0), burst: func(int) int { return 1 }}}
	ahead, seeds := []int{0, size / 2, size - 1}, uint64(2)
	if size > 16 {
		ahead, seeds = ahead[2:], 1
	}
	for i, first := range ahead {
		if i > 0 && first <= i-1 {
			continue // small groups: already there
		}
		list = append(list, schedule{
			name: fmt.Sprintf("rank %d ahead", first), order: inTurn(first), restart: true,
			burst: func(place int) int {
				if place == 0 {
					return asFarAsItGoes
				}
				return 1
			},
		})
	}
	for seed := range seeds {
		rng := rand.New(rand.NewPCG(seed, uint64(size)))
		list = append(list, schedule{
			name: fmt.Sprintf("random order with seed %d", seed), order: rng.Perm, burst: func(int) int { return 1 + rng.IntN(4) },
		})
	}
	return list
}

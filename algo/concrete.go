package algo

import (
	"iter"

	"sagecomm/internal/coll"
)

// Counter is one of the words that ranks wait for. All only grow.
type Counter uint8

const (
	// Filled: the rank's slot holds the ticket's contribution.
	Filled Counter = iota
	// Reduced: the rank has put the result of its share into the ticket's slots.
	Reduced
	// Consumed: the rank reads no slot of the ticket any more.
	Consumed
	counters
)

var counterNames = [counters]string{"filled", "reduced", "consumed"}

func (c Counter) String() string { return counterNames[c] }

// Wait blocks until Rank's counter has reached a chunk. A negative chunk is a ticket of an earlier collective on the
// lane, counted back from this one's first; before the lane's first ticket there is nothing to wait for.
type Wait struct {
	Rank    int
	Counter Counter
	Chunk   int64
}

// Space is a kind of memory.
type Space uint8

const (
	// Input and Output are this rank's buffers.
	Input Space = iota
	Output
	// Slot is the slot of the step's chunk on the lane of [Region.Rank]; offsets count from its start.
	Slot
)

// Region is a range of bytes in one memory.
type Region struct {
	Space Space
	Rank  int // owner of the slot; this rank for buffers
	Off   uint64
	Len   uint64
}

// Move writes all of To from From: a copy of one region, or with Fold the reduction of equally long regions in that
// order.
type Move struct {
	Fold bool
	To   []Region
	From []Region
}

// Step is one stage applied to one chunk: wait for everything, move, then post.
type Step struct {
	Stage  int
	Action Action
	Chunk  int64
	Waits  []Wait
	Moves  []Move
	Posts  []Counter
}

// Concrete spells out what a plan does for a collective of that many bytes, in the order in which its rank does it.
// For all_gather, bytes is the input's length. Steps share nothing and may be kept.
//
// Waits do not depend on how much there is to move, so that ranks meet, and differences between their calls are found,
// also where shares are empty. Moves of no bytes are left out.
func Concrete(p Plan, bytes uint64) iter.Seq[Step] {
	return concrete(p, bytes, p.Lane.Slots())
}

func concrete(p Plan, bytes uint64, slots int) iter.Seq[Step] {
	if p.Kind == coll.Barrier {
		bytes = 0
	}
	return func(yield func(Step) bool) {
		chunks, lag := int64(p.Chunks(bytes)), p.MaxLag()
		last := p.last()
		for position := int64(0); position < chunks+int64(lag); position++ {
			for i, s := range p.Stages {
				k := position - int64(s.Lag)
				if k < 0 || k >= chunks {
					continue
				}
				step := p.step(s, k, bytes, slots)
				step.Stage = i
				if i == last && s.Action != Local {
					step.Posts = append(step.Posts, Consumed)
				}
				if !yield(step) {
					return
				}
			}
		}
	}
}

// last is the stage after which a chunk is through: the largest lag, and among equals the last in order.
func (p Plan) last() int {
	last := 0
	for i, s := range p.Stages {
		if s.Lag >= p.Stages[last].Lag {
			last = i
		}
	}
	return last
}

func (p Plan) step(s Stage, k int64, bytes uint64, slots int) Step {
	step := Step{Action: s.Action, Chunk: k}
	at := uint64(k) * uint64(p.Chunk)
	n := min(uint64(p.Chunk), bytes-at)
	from, to := uint64(0), n
	if s.Action == Fold && s.Part == Share {
		from, to = share(n, p.Size, p.Rank)
	}
	move := func(m Move) {
		if m.From[0].Len > 0 {
			step.Moves = append(step.Moves, m)
		}
	}
	input := func(lo, hi uint64) Region { return Region{Input, p.Rank, at + lo, hi - lo} }
	slot := func(rank int, lo, hi uint64) Region { return Region{Slot, rank, lo, hi - lo} }
	// output is the chunk's place in the buffer, in the block of owner when there are blocks.
	output := func(owner int, lo, hi uint64) Region {
		block := uint64(0)
		if p.Output == Blocks {
			block = uint64(owner) * bytes
		}
		return Region{Output, p.Rank, block + at + lo, hi - lo}
	}
	copyTo := func(to, from Region) { move(Move{To: []Region{to}, From: []Region{from}}) }

	switch s.Action {
	case Publish:
		step.Waits = p.wait(Others, Consumed, k-int64(slots))
		copyTo(slot(p.Rank, 0, n), input(0, n))
		step.Posts = []Counter{Filled}
	case Fold:
		step.Waits = p.wait(s.From, Filled, k)
		m := Move{Fold: true}
		for _, r := range p.sources(s.From) {
			m.From = append(m.From, slot(r, from, to))
		}
		if s.ToOutput {
			m.To = append(m.To, output(p.Rank, from, to))
		}
		for _, r := range p.sources(s.Back) {
			m.To = append(m.To, slot(r, from, to))
		}
		if s.Back != Nobody {
			step.Posts = []Counter{Reduced}
		}
		if len(m.From) > 0 {
			move(m)
		}
	case Collect:
		step.Waits = p.wait(s.From, Reduced, k)
		for _, r := range p.sources(s.From) {
			lo, hi := share(n, p.Size, r)
			copyTo(output(p.Rank, lo, hi), slot(p.Rank, lo, hi))
		}
	case Read:
		step.Waits = p.wait(s.From, Filled, k)
		for _, r := range p.sources(s.From) {
			copyTo(output(r, 0, n), slot(r, 0, n))
		}
		if s.From == Others {
			copyTo(output(p.Rank, 0, n), input(0, n))
		}
	case Await:
		step.Waits = p.wait(s.From, Filled, k)
	case Local:
		copyTo(output(p.Rank, 0, n), input(0, n))
	}
	return step
}

// sources lists the ranks of a source in the order in which a fold takes them.
func (p Plan) sources(from Source) []int {
	var ranks []int
	for r := range p.Size {
		if from == Everybody || from == Others && r != p.Rank || from == FromRoot && r == p.Root {
			ranks = append(ranks, r)
		}
	}
	return ranks
}

// wait is for the counters of the source's ranks but this one: what a rank does itself is a matter of order.
func (p Plan) wait(from Source, c Counter, chunk int64) []Wait {
	var waits []Wait
	for _, r := range p.sources(from) {
		if r != p.Rank {
			waits = append(waits, Wait{r, c, chunk})
		}
	}
	return waits
}

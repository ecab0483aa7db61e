package plan

import (
	"iter"

	"sagecomm/internal/coll"
)

// Counter is one of the words by which ranks wait for one another. It holds a ticket and only grows.
type Counter uint8

const (
	// Filled has reached a ticket when the rank's slot holds its contribution to it.
	Filled Counter = iota
	// Reduced has reached a ticket when the rank has written the result of its share into the ticket's slots.
	Reduced
	// Consumed has reached a ticket when the rank no longer reads any slot of it.
	Consumed
	// Counters is the number of counters.
	Counters
)

var counterNames = [Counters]string{"filled", "reduced", "consumed"}

func (c Counter) String() string { return counterNames[c] }

// Wait blocks until Rank's counter has reached the ticket of a chunk. A negative chunk is a ticket of an earlier
// collective on the same slots, counted back from the first ticket of this one; there is nothing to wait for before the
// very first ticket.
type Wait struct {
	Rank    int
	Counter Counter
	Chunk   int64
}

// Range is a range of bytes in one memory.
type Range struct {
	Space Space
	Rank  int // owner of the slot; this rank for buffers
	Off   uint64
	Len   uint64
}

// Move writes the same bytes to every range of To: a copy of the one range of From or, with Reduce, the reduction of
// the ranges of From in this order. All ranges of a move are equally long.
type Move struct {
	Reduce bool
	To     []Range
	From   []Range
}

// SlotStep is one stage applied to one chunk: the rank waits for all Waits, carries out the Moves, and then raises the
// counters in Posts to the chunk's ticket.
type SlotStep struct {
	Stage  int
	Action Action
	Slots  Slots
	Chunk  int64 // number of the chunk in its set of slots; heads are chunk 0 of the small slots
	Waits  []Wait
	Moves  []Move
	Posts  []Counter
}

// BlockBytes returns the length of the block that rank from has for rank to.
func (p SlotPlan) BlockBytes(l Lengths, from, to int) uint64 {
	switch {
	case l.Blocks == nil:
		return l.Bytes
	case p.Kind == coll.AllToAll:
		return l.Blocks[from*p.Size+to]
	case p.Input == Blocks:
		return l.Blocks[to]
	default:
		return l.Blocks[from]
	}
}

// InputAt returns the offset in this rank's input of the block for rank to.
func (p SlotPlan) InputAt(l Lengths, to int) (at uint64) {
	switch {
	case p.Input != Blocks:
		return 0
	case l.Blocks == nil:
		return uint64(to) * l.Bytes
	}
	for r := range to {
		at += p.BlockBytes(l, p.Rank, r)
	}
	return at
}

// OutputAt returns the offset in this rank's output of the block of rank from.
func (p SlotPlan) OutputAt(l Lengths, from int) (at uint64) {
	switch {
	case p.Output != Blocks:
		return 0
	case l.Blocks == nil:
		return uint64(from) * l.Bytes
	}
	for r := range from {
		at += p.BlockBytes(l, r, p.Rank)
	}
	return at
}

// Concrete returns the steps of a plan for a collective of that many bytes, in the order in which its rank carries them
// out. Where buffers are blocks, bytes is the length of one block. Steps share no memory, so a caller may keep them.
//
// Waits do not depend on the length, so that ranks meet, and notice that they call different things, even where shares
// are empty. Moves of no bytes are left out.
func Concrete(p SlotPlan, bytes uint64) iter.Seq[SlotStep] {
	return ConcreteLengths(p, Lengths{Bytes: bytes}, [2]int{SmallSlotCount, LargeSlotCount})
}

// ConcreteLengths is [Concrete] for blocks that may differ in length and for given numbers of small and large slots.
// Checkers pass other numbers than this library's to show why these are needed.
func ConcreteLengths(p SlotPlan, l Lengths, slots [2]int) iter.Seq[SlotStep] {
	if p.Kind == coll.Barrier {
		l.Bytes = 0
	}
	return func(yield func(SlotStep) bool) {
		heads := 0
		for heads < len(p.Stages) && p.Stages[heads].Head {
			heads++
		}
		for i, s := range p.Stages[:heads] {
			step := p.step(s, 0, l, slots)
			step.Stage = i
			if i == heads-1 {
				step.Posts = append(step.Posts, Consumed)
			}
			if !yield(step) {
				return
			}
			if i == 0 && p.ahead(l) {
				first := p.step(p.Stages[heads], 0, l, slots)
				first.Stage = heads
				if !yield(first) {
					return
				}
			}
		}
		chunks, lag := int64(p.Chunks(l.Longest())), p.MaxLag()
		last := p.last()
		for position := int64(0); chunks > 0 && position < chunks+int64(lag); position++ {
			for i, s := range p.Stages[heads:] {
				k := position - int64(s.Lag)
				if k < 0 || k >= chunks || i == 0 && k == 0 && heads > 0 && p.ahead(l) {
					continue
				}
				step := p.step(s, k, l, slots)
				step.Stage = heads + i
				if step.Stage == last && p.Size > 1 {
					step.Posts = append(step.Posts, Consumed)
				}
				if !yield(step) {
					return
				}
			}
		}
	}
}

// ahead reports whether this rank publishes its first chunk together with the heads. It does so if one of its own
// blocks is longer than a head: then there is a first chunk, whatever the heads of the others say.
func (p SlotPlan) ahead(l Lengths) bool {
	for to := range p.Size {
		if p.HasHeads() && p.BlockBytes(l, p.Rank, to) > uint64(p.Head) {
			return true
		}
	}
	return false
}

// last returns the stage after which a chunk is finished: the one with the largest lag, and among equals the last.
func (p SlotPlan) last() int {
	last := 0
	for i, s := range p.Stages {
		if s.Lag >= p.Stages[last].Lag {
			last = i
		}
	}
	return last
}

// piece returns the range of a block of n bytes that belongs to chunk k or, in a stage of heads, to the head.
func (p SlotPlan) piece(s Stage, k int64, n uint64) (from, to uint64) {
	if s.Head {
		return 0, min(n, uint64(p.Head))
	}
	from = min(n, uint64(p.Head)+uint64(k)*uint64(p.Chunk))
	return from, min(n, from+uint64(p.Chunk))
}

// slotAt returns the offset, in the slot of rank from, of the bytes for rank to. A rank whose input
// consists of [Blocks] publishes no bytes for itself.
func (p SlotPlan) slotAt(s Stage, from, to int) uint64 {
	if p.Input != Blocks {
		return 0
	}
	stride := p.Chunk
	if s.Head {
		stride = p.Head
	}
	return uint64((to-from-1+p.Size)%p.Size) * uint64(stride)
}

func (p SlotPlan) step(s Stage, k int64, l Lengths, slots [2]int) SlotStep {
	step := SlotStep{Action: s.Action, Slots: p.Slots, Chunk: k}
	if s.Head {
		step.Slots = SmallSlots
	}
	move := func(m Move) {
		if m.From[0].Len > 0 {
			step.Moves = append(step.Moves, m)
		}
	}
	copyTo := func(to, from Range) { move(Move{To: []Range{to}, From: []Range{from}}) }
	// input, slot and output return the range of the chunk that one rank has for another one, in each memory that can
	// hold it.
	input := func(to int) Range {
		lo, hi := p.piece(s, k, p.BlockBytes(l, p.Rank, to))
		return Range{Input, p.Rank, p.InputAt(l, to) + lo, hi - lo}
	}
	slot := func(from, to int) Range {
		lo, hi := p.piece(s, k, p.BlockBytes(l, from, to))
		return Range{Slot, from, p.slotAt(s, from, to), hi - lo}
	}
	output := func(from int) Range {
		lo, hi := p.piece(s, k, p.BlockBytes(l, from, p.Rank))
		return Range{Output, p.Rank, p.OutputAt(l, from) + lo, hi - lo}
	}
	cut := func(r Range, lo, hi uint64) Range { return Range{r.Space, r.Rank, r.Off + lo, hi - lo} }

	switch s.Action {
	case Publish:
		step.Waits = p.wait(Others, Consumed, k-int64(slots[step.Slots]))
		if p.Input == Blocks {
			for _, to := range p.sources(Others) {
				copyTo(slot(p.Rank, to), input(to))
			}
		} else {
			copyTo(slot(p.Rank, p.Rank), input(p.Rank))
		}
		step.Posts = []Counter{Filled}
	case ReduceSlots:
		step.Waits = p.wait(s.From, Filled, k)
		out := output(p.Rank)
		lo, hi := uint64(0), out.Len
		if s.Part == Share {
			lo, hi = share(out.Len, p.Size, p.Rank)
		}
		sources := p.sources(s.From)
		m := Move{Reduce: true, From: make([]Range, 0, len(sources)), To: make([]Range, 0, 1+len(sources))}
		for _, r := range sources {
			from := slot(r, p.Rank)
			if s.Part == Block && r == p.Rank {
				from = input(p.Rank)
			}
			m.From = append(m.From, cut(from, lo, hi))
		}
		if s.ToOutput {
			m.To = append(m.To, cut(out, lo, hi))
		}
		for _, r := range p.sources(s.Back) {
			m.To = append(m.To, cut(slot(r, p.Rank), lo, hi))
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
			lo, hi := share(output(p.Rank).Len, p.Size, r)
			copyTo(cut(output(p.Rank), lo, hi), cut(slot(p.Rank, p.Rank), lo, hi))
		}
	case Read:
		step.Waits = p.wait(s.From, Filled, k)
		for _, r := range p.sources(s.From) {
			copyTo(output(r), slot(r, p.Rank))
		}
		if s.From == Others {
			copyTo(output(p.Rank), input(p.Rank))
		}
	case Await:
		step.Waits = p.wait(s.From, Filled, k)
	case Local:
		copyTo(output(p.Rank), input(p.Rank))
	}
	return step
}

// sources lists the ranks of a source in the order in which a reduction takes them.
func (p SlotPlan) sources(from Source) []int {
	if from == Nobody {
		return nil
	}
	ranks := make([]int, 0, p.Size)
	for r := range p.Size {
		if from == Everybody || from == Others && r != p.Rank || from == FromRoot && r == p.Root {
			ranks = append(ranks, r)
		}
	}
	return ranks
}

// wait returns waits for the counters of the source's ranks. It leaves this rank out, since a rank carries out its own
// steps in order.
func (p SlotPlan) wait(from Source, c Counter, chunk int64) []Wait {
	sources := p.sources(from)
	if len(sources) == 0 {
		return nil
	}
	waits := make([]Wait, 0, len(sources))
	for _, r := range sources {
		if r != p.Rank {
			waits = append(waits, Wait{r, c, chunk})
		}
	}
	return waits
}

// share returns the part of a chunk of n bytes that belongs to a rank.
func share(n uint64, size, rank int) (from, to uint64) {
	piece := (n + uint64(size) - 1) / uint64(size)
	piece = (piece + Align - 1) &^ uint64(Align-1)
	return min(uint64(rank)*piece, n), min(uint64(rank+1)*piece, n)
}

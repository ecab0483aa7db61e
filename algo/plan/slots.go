package plan

import "sagecomm/internal/coll"

// Slots is one of the two sets of slots that a rank has in a group. A chunk takes the next ticket of its set, and
// ticket t uses slot t mod [Slots.Count].
type Slots uint8

const (
	// SmallSlots are many short slots whose payload lies beside the sequence number.
	SmallSlots Slots = iota
	// LargeSlots are few slots of a size that the second-level cache holds.
	LargeSlots
)

// Geometry of the slots. It is the same in every process, because shared blocks are laid out by these numbers and the
// memory of a group is their product.
const (
	// SmallSlotBytes is the largest chunk of the small slots. Up to here one copy in and one read out cost about as much
	// as the flags, so shorter chunks gain nothing.
	SmallSlotBytes = 8 << 10
	// SmallSlotCount lets a rank be seven small collectives ahead before it waits for the slowest reader (instead of a
	// barrier after each), in 64 KiB.
	SmallSlotCount = 8
	// LargeSlotBytes is the largest chunk of the large slots.
	LargeSlotBytes = 256 << 10
	// LargeSlotCount is what the deepest pipeline needs (lag 2: three chunks in flight) and one more, so that a rank
	// which is late by less than a chunk stops nobody. With the default chunk the slots touch 512 KiB, half of the
	// second-level cache of a present server core, and all of it where blocks fill them.
	LargeSlotCount = 4
	// MaxStages and MaxSize bound a plan: the runner's tables have these lengths.
	MaxStages = 6
	MaxSize   = 512
	// Align divides every chunk and share: a cache line, and a multiple of every element's size.
	Align = 64
)

func (s Slots) String() string {
	if s == SmallSlots {
		return "small"
	}
	return "large"
}

// Count returns the number of slots of a rank in the set.
func (s Slots) Count() int {
	if s == SmallSlots {
		return SmallSlotCount
	}
	return LargeSlotCount
}

// Bytes returns the largest chunk of the set.
func (s Slots) Bytes() int {
	if s == SmallSlots {
		return SmallSlotBytes
	}
	return LargeSlotBytes
}

// MaxChunk returns the largest chunk of a kind in a group of size ranks. Where each rank has a block for every other
// rank, a slot holds a chunk of all these blocks.
func (s Slots) MaxChunk(kind coll.Kind, size int) int {
	switch kind {
	case coll.ReduceScatter, coll.AllToAll, coll.Scatter:
		return s.Bytes() / max(1, size-1) &^ (Align - 1)
	}
	return s.Bytes()
}

// HeadBytes returns how many bytes of each block fit into a small slot behind the table of lengths, which has 8 bytes
// for each rank and for the longest block.
func HeadBytes(size int) int {
	table := (8*(size+1) + Align - 1) &^ (Align - 1)
	return max(0, SmallSlotBytes-table) / max(1, size-1) &^ (Align - 1)
}

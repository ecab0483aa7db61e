package plan

import "sagecomm/internal/coll"

// Geometry of the two lanes, the same in every process: a board is laid out by these numbers and the memory of a group
// is their product. Ticket t of a lane uses slot t mod slots.
const (
	// SmallSlot is the most that one chunk of the small lane holds: up to here one copy in and one read out cost about
	// as much as the flags, so splitting them gains nothing.
	SmallSlotBytes = 8 << 10
	// SmallSlots lets a rank be seven small collectives ahead before it waits for the slowest reader (instead of a
	// barrier after each), in 64 KiB.
	SmallSlotCount = 8
	// LargeSlot is the most that a chunk of the large lane may be set to.
	LargeSlotBytes = 256 << 10
	// LargeSlots is what the deepest pipeline needs (lag 2: three chunks in flight) and one more, so that a rank which
	// is late by less than a chunk stops nobody. With the default chunk they touch 512 KiB, half of the second-level
	// cache of a present server core, and all of it where blocks fill them.
	LargeSlotCount = 4
	// MaxStages and MaxSize bound a plan: the runner's tables have these lengths.
	MaxStages = 6
	MaxSize   = 512
	// Align is what chunks and shares are multiples of: a cache line, and a multiple of every element's size.
	Align = 64
)

// Slots is the number of slots of a rank in the lane.
func (l Slots) Count() int {
	if l == SmallSlots {
		return SmallSlotCount
	}
	return LargeSlotCount
}

// SlotBytes is the largest chunk of the lane.
func (l Slots) Bytes() int {
	if l == SmallSlots {
		return SmallSlotBytes
	}
	return LargeSlotBytes
}

// MaxChunk is the largest chunk of a kind in a group of size ranks. Where each rank has a block for every other one, a
// slot holds a chunk of all of them.
func (l Slots) MaxChunk(kind coll.Kind, size int) int {
	switch kind {
	case coll.ReduceScatter, coll.AllToAll, coll.Scatter:
		return l.Bytes() / max(1, size-1) &^ (Align - 1)
	}
	return l.Bytes()
}

// HeadBytes is how much of each block fits into a slot of the small lane behind the table of lengths: 8 bytes for each
// rank and for the longest.
func HeadBytes(size int) int {
	table := (8*(size+1) + Align - 1) &^ (Align - 1)
	return max(0, SmallSlotBytes-table) / max(1, size-1) &^ (Align - 1)
}

func (l Slots) String() string {
	if l == SmallSlots {
		return "small"
	}
	return "large"
}

package plan

import "sagecomm/internal/coll"

// Slots is one of the two sets of slots that a rank has in a group. Each chunk takes the next ticket of its set, and
// ticket t uses slot t mod [Slots.Count].
type Slots uint8

const (
	// SmallSlots are many short slots. The payload of a slot begins in the line of its sequence number.
	SmallSlots Slots = iota
	// LargeSlots are a few slots, short enough for all of them to stay in the second-level cache.
	LargeSlots
)

// Geometry of the slots. All processes of a group must use the same values, because the layout of shared blocks and the
// length of a group's memory follow from them.
const (
	// SmallSlotBytes is the largest chunk of the small slots. Up to this length one copy in and one read out cost about
	// as much as the flags, so shorter chunks gain nothing.
	SmallSlotBytes = 8 << 10
	// SmallSlotCount lets a rank be seven small collectives ahead of the slowest reader before it waits; with one slot
	// it would wait after each collective. The slots of a rank take 64 KiB.
	SmallSlotCount = 8
	// LargeSlotBytes is the largest chunk of the large slots.
	LargeSlotBytes = 256 << 10
	// LargeSlotCount is what the deepest pipeline needs (lag 2: three chunks in flight) and one more, so that nobody
	// waits for a rank which is late by less than a chunk. With the default chunk the slots touch 512 KiB, half of the
	// second-level cache of a present server core, and all of it where blocks fill them.
	LargeSlotCount = 4
	// MaxStages and MaxSize, of the ranks of a host, bound a plan: the runner's tables have these lengths.
	MaxStages = 6
	MaxSize   = 512
	// Align divides the length of every chunk and share. It is a cache line, and a multiple of every element's size.
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
// rank, a slot holds the chunks of all these blocks.
func (s Slots) MaxChunk(kind coll.Kind, size int) int {
	switch kind {
	case coll.ReduceScatter, coll.AllToAll, coll.Scatter:
		return s.Bytes() / max(1, size-1) &^ (Align - 1)
	}
	return s.Bytes()
}

// HeadBytes returns how many bytes of each block fit into a small slot behind the table of lengths. The table has 8
// bytes for each rank and 8 for the longest block.
func HeadBytes(size int) int {
	table := (8*(size+1) + Align - 1) &^ (Align - 1)
	return max(0, SmallSlotBytes-table) / max(1, size-1) &^ (Align - 1)
}

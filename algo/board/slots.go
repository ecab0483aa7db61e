package board

import "sagecomm/internal/coll"

// Geometry of the two lanes, the same in every process: a board is laid out by these numbers and the memory of a group
// is their product. Ticket t of a lane uses slot t mod slots.
const (
	// SmallSlot is the most that one chunk of the small lane holds: up to here one copy in and one read out cost about
	// as much as the flags, so splitting them gains nothing.
	SmallSlot = 8 << 10
	// SmallSlots lets a rank be seven small collectives ahead before it waits for the slowest reader (instead of a
	// barrier after each), in 64 KiB.
	SmallSlots = 8
	// LargeSlot is the most that a chunk of the large lane may be set to.
	LargeSlot = 256 << 10
	// LargeSlots is what the deepest pipeline needs (lag 2: three chunks in flight) and one more, so that a rank which
	// is late by less than a chunk stops nobody. With the default chunk they touch 512 KiB, half of the second-level
	// cache of a present server core, and all of it where blocks fill them.
	LargeSlots = 4
	// MaxStages and MaxSize bound a plan: the runner's tables have these lengths.
	MaxStages = 6
	MaxSize   = 512
	// Align is what chunks and shares are multiples of: a cache line, and a multiple of every element's size.
	Align = 64
)

// Slots is the number of slots of a rank in the lane.
func (l Lane) Slots() int {
	if l == SmallLane {
		return SmallSlots
	}
	return LargeSlots
}

// SlotBytes is the largest chunk of the lane.
func (l Lane) SlotBytes() int {
	if l == SmallLane {
		return SmallSlot
	}
	return LargeSlot
}

// MaxChunk is the largest chunk of a kind in a group of size ranks. Where each rank has a block for every other one, a
// slot holds a chunk of all of them.
func (l Lane) MaxChunk(kind coll.Kind, size int) int {
	switch kind {
	case coll.ReduceScatter, coll.AllToAll, coll.Scatter:
		return l.SlotBytes() / max(1, size-1) &^ (Align - 1)
	}
	return l.SlotBytes()
}

// HeadBytes is how much of each block fits into a slot of the small lane behind the table of lengths: 8 bytes for each
// rank and for the longest.
func HeadBytes(size int) int {
	table := (8*(size+1) + Align - 1) &^ (Align - 1)
	return max(0, SmallSlot-table) / max(1, size-1) &^ (Align - 1)
}

func (l Lane) String() string {
	if l == SmallLane {
		return "small"
	}
	return "large"
}

var actionNames = [...]string{Publish: "publish", Fold: "fold", Collect: "collect", Read: "read", Await: "await",
	Local: "local"}

func (a Action) String() string {
	if int(a) < len(actionNames) {
		return actionNames[a]
	}
	return "unknown action"
}

// Chunks is how many chunks, and so tickets, a collective of that many bytes takes; the longest block counts. No bytes
// are one empty chunk: ranks then still meet, and a rank that calls something else is found out. Ranks that have met
// over the heads of blocks need none.
func (p Plan) Chunks(bytes uint64) uint64 {
	switch {
	case p.heads():
		return (bytes - min(bytes, uint64(p.Head)) + uint64(p.Chunk) - 1) / uint64(p.Chunk)
	case p.Kind == coll.Barrier || bytes == 0:
		return 1
	}
	return (bytes-1)/uint64(p.Chunk) + 1
}

// heads says whether ranks exchange the heads of blocks first.
func (p Plan) heads() bool { return len(p.Stages) > 0 && p.Stages[0].Head }

// share is the part of a chunk of n bytes that belongs to rank.
func share(n uint64, size, rank int) (from, to uint64) {
	piece := (n + uint64(size) - 1) / uint64(size)
	piece = (piece + Align - 1) &^ uint64(Align-1)
	return min(uint64(rank)*piece, n), min(uint64(rank+1)*piece, n)
}

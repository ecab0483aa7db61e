package plan

import "sagecomm/internal/coll"

// Action is what a stage does with one chunk.
type Action uint8

const (
	// Publish waits until every other rank has consumed the ticket that used the slot before, copies the chunk of the
	// input into this rank's slot (scaled, for PREMUL_SUM) and marks the slot filled. Of an input of [Blocks] it copies
	// the chunk of each block but this rank's own, one after the other.
	Publish Action = iota
	// ReduceSlots waits until the slots of all ranks are filled and reduces [Stage.Part] of the chunk, in rank order. It
	// writes the result to the output ([Stage.ToOutput]), to the slots of [Stage.Back], over the operands, or to both.
	// If it has written to slots, it marks this rank's share as reduced.
	ReduceSlots
	// Collect waits until all other ranks have reduced their shares and copies the results to the output. They lie in
	// this rank's own slot, because the other ranks have written them there.
	Collect
	// Read waits until the slots of [Stage.From] are filled and copies the chunk of each, or its part for this rank, to
	// the output. With [Others], which requires an output of [Blocks], it also copies this rank's own chunk from the
	// input to its block. The own slot is left out there: it would cost a second copy, while the direct one is free in
	// place.
	Read
	// Await waits until the slots of all other ranks are filled. It moves nothing.
	Await
	// Local copies this rank's own chunk from the input to the output (scaled, for PREMUL_SUM). It uses no slot.
	Local
)

var actionNames = [...]string{Publish: "publish", ReduceSlots: "reduce", Collect: "collect", Read: "read", Await: "await",
	Local: "local"}

func (a Action) String() string {
	if int(a) < len(actionNames) {
		return actionNames[a]
	}
	return "unknown action"
}

// Part selects the bytes of a chunk that a stage works on.
type Part uint8

const (
	// Whole is the chunk.
	Whole Part = iota
	// Share is this rank's share: the chunk is cut into one range for each rank, all of equal length, a multiple of 64
	// bytes. The last ranges are shorter or empty.
	Share
	// Block is the chunk of this rank's block, where the input is [Blocks]. The rank reads its own contribution from its
	// input, not from a slot.
	Block
)

// Layout describes how the chunks of a collective lie in a buffer.
type Layout uint8

const (
	// Flat is a buffer of N bytes; chunk k is the k-th piece of it.
	Flat Layout = iota
	// Blocks is a buffer of one block for each rank, in rank order; chunk k is the k-th piece of one block, or of each.
	// Blocks may differ in length: a block that is too short for chunk k has an empty one.
	Blocks
)

// Source names ranks whose slots a stage reads.
type Source uint8

const (
	// Nobody reads no slot.
	Nobody Source = iota
	// Everybody is all ranks, this one included, in rank order.
	Everybody
	// Others is all ranks but this one.
	Others
	// FromRoot is the root.
	FromRoot
)

// Stage is one step of the pipeline.
type Stage struct {
	Action   Action
	Lag      int    // chunks behind the newest one of the pipeline
	Part     Part   // for ReduceSlots
	From     Source // for ReduceSlots, Collect, Read, Await: ranks that the stage waits for and reads
	ToOutput bool   // for ReduceSlots: the result goes to the output
	Back     Source // for ReduceSlots: ranks into whose slots the result is written back
	Head     bool   // for Publish, Read: done once, before the first chunk, on the heads of blocks; see [SlotPlan.Head]
}

// SlotPlan is what one rank does for one collective through slots. It is parametric in length: the number of chunks
// follows from the byte count at run time, see [SlotPlan.Chunks]. The plans of all ranks of a group have the same
// algorithm, slots and chunk size, and every rank's tickets advance by one per chunk, whether the rank publishes or
// not. A group of one rank uses no tickets.
//
// # Lags
//
// At position i of the pipeline a rank carries out its stages in order, each on chunk i - Lag. Ranks wait for one
// another's contributions, so a stage that waits has a larger lag than the stage that makes this rank's contribution of
// the same kind: Publish comes before ReduceSlots, Read and Await, and ReduceSlots before Collect. When a rank waits
// for chunk k it has therefore contributed to chunk k+1 already. So flags and cache lines travel while the rank works,
// and no rank waits for something to which it has not contributed itself. A rank that contributes nothing (a reader of
// a broadcast) has lag 0, so ranks with different roles may have different lags.
//
// There must be more slots than the largest lag. A rank refills the slot of chunk k at position k + S, where S is the
// number of slots; this waits until its peers have finished chunk k, at their position k + lag.
type SlotPlan struct {
	Algorithm string    // "one_shot", "two_shot", ...
	Kind      coll.Kind // the collective
	Rank      int
	Size      int
	Root      int // root of a rooted kind; else 0
	Slots     Slots
	Chunk     int // bytes of a full chunk, a multiple of 64; of one block, where the input is blocks
	Input     Layout
	Output    Layout
	// Head is the length of the beginning of each block that ranks exchange before the first chunk: one ticket of the
	// small slots has the lengths of all blocks and then their heads. Where ranks know only the lengths of their own
	// blocks, they learn the number of chunks in this way. The first chunk begins where the heads end. A rank with a
	// longer block publishes its first chunk together with the heads, so that both take one round of flags. Head is a
	// multiple of 64, and 0 where no stage has [Stage.Head].
	Head   int
	Stages []Stage
}

// MaxLag returns the largest lag of the plan: the number of chunks in flight, less one.
func (p SlotPlan) MaxLag() int {
	lag := 0
	for _, s := range p.Stages {
		lag = max(lag, s.Lag)
	}
	return lag
}

// Chunks returns how many chunks, and so tickets, a collective takes whose longest block has that many bytes. Zero
// bytes take one empty chunk, so that ranks meet and a rank that calls something else is noticed. After heads, over
// which ranks have met, they take none.
func (p SlotPlan) Chunks(bytes uint64) uint64 {
	switch {
	case p.HasHeads():
		return (bytes - min(bytes, uint64(p.Head)) + uint64(p.Chunk) - 1) / uint64(p.Chunk)
	case p.Kind == coll.Barrier || bytes == 0:
		return 1
	}
	return (bytes-1)/uint64(p.Chunk) + 1
}

// HasHeads reports whether ranks exchange the heads of blocks before the first chunk.
func (p SlotPlan) HasHeads() bool { return len(p.Stages) > 0 && p.Stages[0].Head }

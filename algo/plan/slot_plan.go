package plan

import "sagecomm/internal/coll"

// Action is what a stage does with one chunk.
type Action uint8

const (
	// Publish waits until every other rank has consumed the ticket that used the slot before, copies the chunk of the
	// input into this rank's slot (scaled, for PREMUL_SUM) and marks the slot filled. Of an input of [Blocks] it copies
	// the chunk of each block but this rank's own, one behind the other.
	Publish Action = iota
	// ReduceSlots waits until the slots of all ranks are filled and reduces [Stage.Part] of the chunk, in rank order,
	// into the output ([Stage.ToOutput]) and back into the slots that it came from ([Stage.Back]). Then it marks this
	// rank's share as reduced.
	ReduceSlots
	// Collect waits until all other ranks have reduced their shares and copies these shares to the output. They lie in
	// this rank's own slot, where the other ranks have written their results.
	Collect
	// Read waits until the slots of [Stage.From] are filled and copies the chunk of each, or its part for this rank, to
	// the output. With [Others], which requires an output of [Blocks], it also copies this rank's own chunk straight
	// from the input to its block: through the own slot the same bytes would be copied twice, and in place there is
	// nothing to do.
	Read
	// Await waits until the slots of all other ranks are filled and moves nothing.
	Await
	// Local copies this rank's own chunk from the input to the output (scaled, for PREMUL_SUM) without any slot.
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
	// Share is this rank's share: the chunk is cut into one piece for each rank, all of equal length, a multiple of 64
	// bytes; the last ones are shorter or empty.
	Share
	// Block is the chunk of this rank's block, of an input of [Blocks]. This rank's own contribution is read straight
	// from its input.
	Block
)

// Layout describes how the chunks of a collective lie in a buffer.
type Layout uint8

const (
	// Flat is a buffer of N bytes; chunk k is the k-th piece of it.
	Flat Layout = iota
	// Blocks is a buffer of one block for each rank, in rank order; chunk k is the k-th piece of one block, or of each.
	// Blocks may differ in length: the chunks that a short block lacks are empty.
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
	Lag      int    // chunks behind the head of the pipeline
	Part     Part   // for ReduceSlots
	From     Source // for ReduceSlots, Collect, Read, Await: ranks whose slots are read
	ToOutput bool   // for ReduceSlots: the result goes to the output
	Back     Source // for ReduceSlots: ranks into whose slots the result is written back
	Head     bool   // for Publish, Read: done once, before the pipeline, on the heads of blocks; see [SlotPlan.Head]
}

// SlotPlan is what one rank does for one collective through slots. It is parametric in length: the number of chunks
// follows from the byte count at run time, see [SlotPlan.Chunks]. All ranks of a group use plans of the same algorithm,
// slots and chunk size, and every rank's tickets advance by one per chunk, whether the rank publishes or not. A rank
// alone needs no tickets.
//
// # Lags
//
// At position i of the pipeline a rank carries out its stages in order, each on chunk i - Lag. A stage that waits for
// peers has a larger lag than the stage with which this rank contributes to what they wait for (Publish comes before
// ReduceSlots, Read and Await; ReduceSlots comes before Collect). By the time a rank waits for chunk k it has already
// contributed to chunk k+1. So a flag and the cache lines behind it travel while the rank works, and no rank waits for
// something to which it has not contributed itself. A rank that contributes nothing (a reader of a broadcast) has lag 0.
// Roles may therefore differ in lags.
//
// There must be more slots than the largest lag: a rank refills the slot of chunk k at position k + S, which waits until
// its peers have finished chunk k at their position k + lag.
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
	// Head is how many bytes of each block go ahead in one ticket of the small slots, behind the lengths of all blocks.
	// Where ranks know only the lengths of their own blocks, they agree on the number of chunks in this way. Chunks
	// count from the end of the heads. A rank with a longer block publishes its first chunk together with the heads, so
	// that both take one round. Head is a multiple of 64, and 0 where no stage has [Stage.Head].
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

// Chunks returns how many chunks, and so tickets, a collective of that many bytes takes; the longest block counts. No
// bytes are one empty chunk, so that ranks meet and a rank that calls something else is noticed. Ranks that have met
// over the heads of blocks need no chunk.
func (p SlotPlan) Chunks(bytes uint64) uint64 {
	switch {
	case p.HasHeads():
		return (bytes - min(bytes, uint64(p.Head)) + uint64(p.Chunk) - 1) / uint64(p.Chunk)
	case p.Kind == coll.Barrier || bytes == 0:
		return 1
	}
	return (bytes-1)/uint64(p.Chunk) + 1
}

// HasHeads reports whether ranks exchange the heads of blocks first.
func (p SlotPlan) HasHeads() bool { return len(p.Stages) > 0 && p.Stages[0].Head }

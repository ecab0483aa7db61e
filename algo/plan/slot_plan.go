// Package board holds plans for ranks that share memory: each has a board of slots that all others read. It is data and
// arithmetic: plans, the proof that they are right, and their price.
//
// A [Plan] is what one rank does for one collective. Buffers are cut into chunks; a plan is a short list of [Stage]s
// that every chunk passes through in order, each stage [Stage.Lag] chunks behind the head of the pipeline. The same
// value is checked symbolically (check.go), priced (cost.go) and compiled to a program of the runner.
//
// Collectives made of messages between pairs of ranks are plans of another type, in the package message beside this
// one; its comment says why. Which of both a group uses is chosen by the package above, algo.
//
// Start reading at [Plan], then one_shot.go and two_shot.go; [Concrete] spells a plan out, [Check] proves it, [Price]
// predicts its time.
package plan

import "sagecomm/internal/coll"

// MaxLag is the largest lag of the plan: how many chunks it has in flight, less one.
func (p SlotPlan) MaxLag() int {
	lag := 0
	for _, s := range p.Stages {
		lag = max(lag, s.Lag)
	}
	return lag
}

// Action is what a stage does with one chunk.
type Action uint8

const (
	// Publish waits until every other rank has consumed the ticket that used the slot before, copies the chunk of the
	// input into this rank's slot (scaled, for PREMUL_SUM) and marks the slot filled. Of an input of [Blocks] it copies
	// the chunk of each block but this rank's own, one behind the other.
	Publish Action = iota
	// Fold waits until the slots of all ranks are filled and reduces [Stage.Part] of the chunk, in rank order, into the
	// output ([Stage.ToOutput]) and back into the slots that it came from ([Stage.Back]), then marks this rank's share as
	// reduced.
	ReduceSlots
	// Collect waits until all other ranks have reduced their shares and copies these from this rank's own slot, where the
	// folds of the others have left them, to the output.
	Collect
	// Read waits until the slots of [Stage.From] are filled and copies the chunk of each, or its part for this rank, to
	// the output. With [Others], which goes with an output of [Blocks], it also copies this rank's own chunk straight
	// from the input to its block: the way through the own slot would be a second copy of the same bytes, and in place
	// there is nothing to do.
	Read
	// Await waits until the slots of all other ranks are filled and moves nothing.
	Await
	// Local copies this rank's own chunk from the input to the output (scaled, for PREMUL_SUM) without any slot.
	Local
)

// Part says which bytes of a chunk a stage works on.
type Part uint8

const (
	// Whole is the chunk.
	Whole Part = iota
	// Share is this rank's share: the chunk cut into size() pieces of equal length, a multiple of 64 bytes, the last
	// ones shorter or empty.
	Share
	// Block is the chunk of this rank's block, of an input of [Blocks]; the own one is read straight from the input.
	Block
)

// Layout says how the chunks of a collective lie in a buffer.
type Layout uint8

const (
	// Flat is a buffer of N bytes; chunk k is the k-th piece of it.
	Flat Layout = iota
	// Blocks is a buffer of size() blocks in rank order; chunk k is the k-th piece of one of them, or of each. Blocks may
	// differ in length: what a short one lacks is empty.
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
	Part     Part   // Fold
	From     Source // Fold, Collect, Read, Await
	ToOutput bool   // Fold
	Back     Source // Fold: ranks whose slots the result goes back into
	Head     bool   // Publish, Read: done once, before the pipeline, on the heads of blocks; see [Plan.Head]
}

// Lane is one of the two sets of slots of a group.
type Slots uint8

const (
	// SmallLane has many short slots whose payload lies beside the sequence number.
	SmallSlots Slots = iota
	// LargeLane has few slots of a size that the second-level cache holds.
	LargeSlots
)

// Plan is what one rank does for one collective. It is parametric in length: how many chunks there are follows from
// the byte count at run time, see [Plan.Chunks]. All ranks of a group use plans of the same algorithm, lane and chunk
// size, and every rank's tickets advance by one per chunk, whether it publishes or not. A rank alone needs no tickets.
//
// # Lags
//
// At position i of the pipeline a rank carries out its stages in order, each on chunk i - Lag. A stage that waits for
// peers has a lag above that of this rank's own contribution to what they wait for (Publish for Fold, Read and Await,
// Fold for Collect): by the time a rank waits for chunk k it has already contributed to chunk k+1, so a flag and the
// lines behind it travel while the rank works, and no rank ever waits for what it has itself not contributed. A rank
// that contributes nothing (broadcast's readers) has nothing to put first: lag 0. Roles may therefore differ in lags.
//
// A lane must have more slots than the largest lag: a rank refills the slot of chunk k at position k + S, which waits
// until its peers are through with chunk k at position k + lag of theirs.
type SlotPlan struct {
	Algorithm string    // "one_shot", "two_shot", ...
	Kind      coll.Kind // the collective it carries out
	Rank      int
	Size      int
	Root      int // of a rooted kind; else 0
	Slots     Slots
	Chunk     int // bytes of a full chunk, a multiple of 64; of one block, where the input is blocks
	Input     Layout
	Output    Layout
	// Head is how many bytes of each block go ahead in one ticket of the small lane, behind the lengths of all blocks:
	// where ranks know only the lengths of their own blocks, this is how they come to the same number of chunks. Chunks
	// count from the end of the heads. A rank with a block that is longer publishes its first chunk together with the
	// heads, so that both take one round. A multiple of 64; 0 as well where no stage is [Stage.Head].
	Head   int
	Stages []Stage
}

var actionNames = [...]string{Publish: "publish", ReduceSlots: "fold", Collect: "collect", Read: "read", Await: "await",
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
func (p SlotPlan) Chunks(bytes uint64) uint64 {
	switch {
	case p.HasHeads():
		return (bytes - min(bytes, uint64(p.Head)) + uint64(p.Chunk) - 1) / uint64(p.Chunk)
	case p.Kind == coll.Barrier || bytes == 0:
		return 1
	}
	return (bytes-1)/uint64(p.Chunk) + 1
}

// heads says whether ranks exchange the heads of blocks first.
func (p SlotPlan) HasHeads() bool { return len(p.Stages) > 0 && p.Stages[0].Head }

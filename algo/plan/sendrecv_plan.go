package plan

import "sagecomm/internal/coll"

// Op is what a step does.
type Op uint8

const (
	// Send puts the bytes of [Step.From], one after the other, into the channel to [Step.Peer] as one message.
	Send Op = iota
	// Recv takes the next message of the channel from [Step.Peer] into [Step.To].
	Recv
	// RecvReduce takes the next message and writes its reduction with [Step.From] to [Step.To]. From is the left
	// operand; with [Step.MessageFirst] the message is. From and To must be the same memory or have no byte in common.
	RecvReduce
	// Reduce writes the reduction of To, as the left operand, and From to To. It uses no channel.
	Reduce
	// Copy copies From to To. It uses no channel. From and To must be the same memory, and then there is nothing to do,
	// or have no byte in common.
	Copy
)

var opNames = [...]string{Send: "send", Recv: "recv", RecvReduce: "recv_reduce", Reduce: "reduce", Copy: "copy"}

func (o Op) String() string {
	if int(o) < len(opNames) {
		return opNames[o]
	}
	return "unknown op"
}

// Space is a kind of memory.
type Space uint8

const (
	// Input and Output are the rank's buffers. In place they are the same memory.
	Input Space = iota
	Output
	// Scratch is memory of sendrecv plans: [SendRecvPlan.Cells] cells of a chunk's length, in [SendRecvPlan.Sets] sets.
	// Chunk k uses set k mod Sets.
	Scratch
	// Slot is memory of slot plans: the slot that the step's chunk has at [Range.Rank]. Offsets count from the start of
	// that slot.
	Slot
)

func (s Space) String() string {
	return [...]string{"input", "output", "scratch", "slot"}[min(s, Slot)]
}

// Region is a range of consecutive pieces of one block's chunk.
type Region struct {
	Space Space
	Cell  int // number of the cell, in Scratch
	// Block is the rank whose block the region belongs to, or 0 where buffers are flat. In Scratch it determines
	// lengths: a cell holds the chunk of this block, with each piece at the same offset as in the block.
	Block        int
	First, Count int // first piece and number of pieces
}

// Step is one step of a plan. A rank carries it out for every chunk.
type Step struct {
	Op           Op
	Lag          int   // chunks behind the newest one of the pipeline
	Peer         int   // other rank of Send, Recv, RecvReduce
	Channel      uint8 // number among the channels between the two ranks
	From, To     []Region
	MessageFirst bool // for RecvReduce: the message is the left operand
	// After lists earlier sends, by index in [SendRecvPlan.Steps], of bytes that this step overwrites. Their messages,
	// of the same chunk, must have been taken before this step writes. [AddDependencies] sets it.
	After []int
}

// SendRecvPlan is what one rank does for one collective by messages between pairs of ranks. The plans of all ranks of a
// group have the same algorithm, chunk and number of pieces.
//
// # Lengths
//
// Plans are parametric in length. A buffer is flat, or has a block for each rank, in rank order. Each block, or the
// flat buffer, is cut into chunks of Chunk bytes, the last one shorter. Every chunk is cut into Pieces pieces: of u =
// ceil(bytes / 64) units the first u mod Pieces pieces get one more than the others, and the last unit may be short. A
// unit of 64 bytes is a cache line and a multiple of every element (1 to 16 bytes). So no piece divides an element, no
// two pieces share a line of an aligned buffer, and a plan need not know the element type. With fewer units than pieces
// the last pieces are empty.
//
// A message of no bytes is sent in chunk 0 and left out of later chunks; both ends know this from the lengths of the
// blocks concerned. So a collective of 0 bytes has one chunk, and ranks meet, and notice that they call different
// things, even where there is nothing to move. Ranks may know the lengths of different blocks (all_to_all with uneven
// splits) and then go through different numbers of chunks.
//
// # Channels
//
// A channel carries messages from one rank to another one, first in, first out. Two ranks may have several channels in
// the same direction, which are numbered. A channel holds at least one message ([SendRecvPlan.Largest] bounds its
// bytes), and a send completes as soon as the channel has room. The channel may copy the bytes or keep reading them
// from the sender's memory. So a step that overwrites them names the send in [Step.After] and waits until the message
// has been taken, that is, until the channel no longer reads the sender's memory: at once where it copies, and at the
// latest when the receiver has the message. A recv waits for the next message.
//
// # Order
//
// At position i of the pipeline a rank carries out each step in turn, on chunk i - Lag. Before position i, the sends
// out of scratch memory of chunk i - [SendRecvPlan.Sets] must have been taken, since chunk i uses the same cells.
// Before the collective is over, all sends must have been taken.
//
// The runner of a plan applies factors: PREMUL_SUM scales the input before the plan, AVG the output after it.
type SendRecvPlan struct {
	Algorithm string
	Kind      coll.Kind
	Rank      int
	Size      int
	Root      int  // root of a rooted kind; else 0
	Chunk     int  // bytes of a full chunk, of one block where there are blocks; a multiple of Unit
	Pieces    int  // number of pieces of every chunk
	Cells     int  // number of cells of Scratch
	Even      bool // blocks must be of equal length
	Steps     []Step
}

// Unit divides the offset of every piece, see [SendRecvPlan].
const Unit = 64

// InputBlocks reports whether the input of a kind has a block for each rank.
func InputBlocks(k coll.Kind) bool {
	return k == coll.ReduceScatter || k == coll.AllToAll || k == coll.Scatter
}

// OutputBlocks reports whether the output of a kind has a block for each rank.
func OutputBlocks(k coll.Kind) bool {
	return k == coll.AllGather || k == coll.AllToAll || k == coll.Gather
}

// IsFlat reports whether a kind has no blocks at all.
func IsFlat(k coll.Kind) bool { return !InputBlocks(k) && !OutputBlocks(k) }

// InputBlocks reports whether the plan's input has a block for each rank.
func (p SendRecvPlan) InputBlocks() bool { return InputBlocks(p.Kind) }

// OutputBlocks reports whether the plan's output has a block for each rank.
func (p SendRecvPlan) OutputBlocks() bool { return OutputBlocks(p.Kind) }

// MaxLag returns the largest lag of the plan.
func (p SendRecvPlan) MaxLag() int {
	lag := 0
	for _, s := range p.Steps {
		lag = max(lag, s.Lag)
	}
	return lag
}

// Sets returns how many chunks have scratch cells of their own: as many as are in flight and one more. Without the
// additional set a rank would wait at once for the message that it has just sent.
func (p SendRecvPlan) Sets() int { return p.MaxLag() + 2 }

// Largest returns the length of the longest message, which one place of a channel must hold. It looks at full chunks
// only, since the pieces of a shorter chunk are no longer.
func (p SendRecvPlan) Largest() int {
	largest := uint64(0)
	for _, s := range p.Steps {
		if s.Op == Send {
			sum := uint64(0)
			for _, r := range s.From {
				_, n := p.piece(r, uint64(p.Chunk))
				sum += n
			}
			largest = max(largest, sum)
		}
	}
	return int(largest)
}

// Channels returns how many channels to the same rank the plan uses.
func (p SendRecvPlan) Channels() int {
	channels := 0
	for _, s := range p.Steps {
		if s.Op == Send {
			channels = max(channels, int(s.Channel)+1)
		}
	}
	return channels
}

// Peers returns the number of ranks with which the plan exchanges messages.
func (p SendRecvPlan) Peers() int {
	peers := map[int]bool{}
	for _, s := range p.Steps {
		if s.Op == Send || s.Op == Recv || s.Op == RecvReduce {
			peers[s.Peer] = true
		}
	}
	return len(peers)
}

// FromScratch reports whether a step reads scratch memory.
func (s *Step) FromScratch() bool {
	for _, r := range s.From {
		if r.Space == Scratch {
			return true
		}
	}
	return false
}

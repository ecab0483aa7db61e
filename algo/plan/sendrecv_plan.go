// The data type: what a message plan consists of.

package plan

import "sagecomm/internal/coll"

// Op is what a step does.
type Op uint8

const (
	// Send puts the bytes of [Step.From], one after the other, into the channel to [Step.Peer] as one message.
	Send Op = iota
	// Recv takes the next message of the channel from [Step.Peer] into [Step.To].
	Recv
	// RecvReduce takes the next message and writes its reduction with [Step.From] to [Step.To]: From is the left
	// operand, or the message with [Step.MessageFirst]. From and To are the same memory or have nothing in common.
	RecvReduce
	// Reduce writes the reduction of To, as the left operand, and From to To, without any channel.
	Reduce
	// Copy copies From to To, without any channel. They are the same memory, where there is nothing to do, or have nothing
	// in common.
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
	// Input and Output are the rank's buffers. They may be the same memory: see [Call.InPlace].
	Input Space = iota
	Output
	// Scratch is for sendrecv plans: [SendRecvPlan.Cells] cells of a chunk's length, in [SendRecvPlan.Sets] sets. Chunk k
	// uses set k mod Sets.
	Scratch
	// Slot is for slot plans: the slot of the step's chunk that belongs to [Range.Rank]. Offsets count from its start.
	Slot
)

func (s Space) String() string {
	return [...]string{"input", "output", "scratch", "slot"}[min(s, Slot)]
}

// Region is consecutive pieces of the chunk of one block.
type Region struct {
	Space Space
	Cell  int // of Scratch
	// Block is the rank whose block it is, 0 where buffers are flat. In Scratch it gives the length: a cell holds the
	// chunk of some block at the places where that has it.
	Block        int
	First, Count int // pieces
}

// Step is one step of a plan, carried out for every chunk.
type Step struct {
	Op           Op
	Lag          int   // chunks behind the head of the pipeline
	Peer         int   // Send, Recv, RecvReduce
	Channel      uint8 // of those between the two ranks
	From, To     []Region
	MessageFirst bool // RecvReduce
	// After holds steps whose messages, of the same chunk, must have been taken before this step writes: earlier sends
	// of bytes that it overwrites.
	After []int
}

// Plan is what one rank does for one collective. All ranks of a group use plans of the same algorithm and geometry.
type SendRecvPlan struct {
	Algorithm string
	Kind      coll.Kind
	Rank      int
	Size      int
	Root      int  // of a rooted kind; else 0
	Chunk     int  // bytes of a full chunk, of one block where there are blocks; a multiple of Unit
	Pieces    int  // of every chunk
	Cells     int  // of Scratch
	Even      bool // blocks must be of equal length
	Steps     []Step
}

// Unit is what pieces are multiples of, see the package comment.
const Unit = 64

// inputBlocks and outputBlocks say whether a buffer is a block for each rank.
func InputBlocks(k coll.Kind) bool {
	return k == coll.ReduceScatter || k == coll.AllToAll || k == coll.Scatter
}

func OutputBlocks(k coll.Kind) bool {
	return k == coll.AllGather || k == coll.AllToAll || k == coll.Gather
}

// flat says whether a kind has no blocks at all.
func IsFlat(k coll.Kind) bool { return !InputBlocks(k) && !OutputBlocks(k) }

// InputBlocks and OutputBlocks say whether a buffer is a block for each rank.
func (p SendRecvPlan) InputBlocks() bool { return InputBlocks(p.Kind) }

func (p SendRecvPlan) OutputBlocks() bool { return OutputBlocks(p.Kind) }

// MaxLag is the largest lag of the plan.
func (p SendRecvPlan) MaxLag() int {
	lag := 0
	for _, s := range p.Steps {
		lag = max(lag, s.Lag)
	}
	return lag
}

// Sets is how many chunks have their own scratch cells: those in flight, and one more, so that a rank does not wait at
// once for the message that it has just sent.
func (p SendRecvPlan) Sets() int { return p.MaxLag() + 2 }

// Largest is the most bytes of a message: what one place of a channel must hold. Pieces of a shorter chunk are no
// longer than those of a full one.
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

// Channels is how many channels the plan's messages to one rank are numbered for.
func (p SendRecvPlan) Channels() int {
	channels := 0
	for _, s := range p.Steps {
		if s.Op == Send {
			channels = max(channels, int(s.Channel)+1)
		}
	}
	return channels
}

func FromScratch(s *Step) bool {
	for _, r := range s.From {
		if r.Space == Scratch {
			return true
		}
	}
	return false
}

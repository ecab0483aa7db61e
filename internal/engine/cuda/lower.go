package cuda

import (
	"fmt"
	"slices"

	"sagecomm/algo"
	"sagecomm/algo/plan"
	"sagecomm/algo/shmplan"
	"sagecomm/internal/coll"
	"sagecomm/internal/device"
)

// SlotBytes is the length of a slot, which holds the longest chunk. A copy engine needs a few microseconds for each command, so slots are as
// long as the memory of a communicator allows. Nothing of this was measured on a device.
const SlotBytes = 2 << 20

const (
	slotCount = plan.LargeSlotCount // plans have a lag of 2 at most
	allSlots  = slotCount * SlotBytes

	// MostRanks is the largest group that the engine serves.
	MostRanks = device.MaxInputs

	alignment = 256 // of the parts of a slot
)

// word is one of the words that a peer writes for this rank.
type word uint8

// The words are those of the counters of plans.
const (
	filled  = word(plan.Filled)   // the peer's slot has a chunk for this rank
	reduced = word(plan.Reduced)  // the peer has written its share into this rank's slot
	left    = word(plan.Consumed) // the peer does not use a chunk of this rank's slots any more
	words   = word(plan.Counters)
)

// A value of a word is the number of operations in which it is written, and the number of the chunk within the operation.
const (
	chunkBits  = 17
	mostChunks = 1<<chunkBits - 2
)

// count is this rank's part of what two ranks count alike.
type count [words][]uint32 // by peer: operations in which the word is written

func newCount(size int) (c count) {
	for w := range c {
		c[w] = make([]uint32, size)
	}
	return c
}

func (c *count) value(w word, peer int, chunk int64) uint32 {
	return c[w][peer]<<chunkBits | uint32(chunk+1)
}

// use is what is in a slot: by rank, the value of left with which a reader has left it; 0: it does not read it.
type use []uint32

// planner knows the plans of a rank's operations.
type planner struct {
	rank, size int
	slotBytes  int
	choose     func(kind coll.Kind, root int, bytes uint64) algo.Class // algo.DeviceChoices.Choose, or a test's
}

// lowering turns operations into commands of one rank's stream. Ranks that lower the same operations in the same order wait for one
// another alike.
type lowering struct {
	planner
	sent     count // words that this rank writes
	received count // words that this rank waits for
	base     int64 // slot of the next operation's first chunk
	slots    [slotCount]use
}

func newLowering(rank, size int, choices *algo.DeviceChoices) *lowering {
	l := &lowering{planner: planner{rank, size, SlotBytes, choices.Choose}, sent: newCount(size), received: newCount(size)}
	for i := range l.slots {
		l.slots[i] = make(use, size)
	}
	return l
}

// command is a command of a stream: a wait for a word of this rank's inbox, the write of a word of a peer's inbox, or a move.
type command struct {
	verb  verb
	word  word
	peer  int
	value uint32    // of a word
	slot  int64     // of a token: see capture.go
	move  plan.Move // offsets of slots are those in all slots of their rank
}

type verb uint8

const (
	await verb = iota
	signal
	move
	take // wait for a token of this rank's inbox, and clear it
	look // wait for such a token, and leave it
	give // set a token of a peer's inbox
)

// planFor returns the plan of an operation, and its lengths. In an all_to_all a rank knows the lengths of its own blocks only.
func (l *planner) planFor(op coll.Op) (plan.SlotPlan, plan.Lengths) {
	at := shmplan.Place{Rank: l.rank, Size: l.size, Root: op.Root, Slots: plan.LargeSlots, Chunk: l.slotBytes}
	lengths := plan.Lengths{Bytes: op.Bytes()}
	parts := func() { at.Chunk = l.slotBytes / max(1, l.size-1) &^ (alignment - 1) }
	if l.size == 1 {
		if op.Kind == coll.AllToAll {
			lengths.Bytes = op.In
		}
		return shmplan.LocalCopy(op.Kind, at), lengths
	}
	switch op.Kind {
	case coll.AllGather:
		lengths.Blocks = op.OutBlocks
	case coll.ReduceScatter:
		lengths.Blocks = op.InBlocks
	case coll.AllToAll: // ranks know the lengths of their own blocks only
		lengths.Blocks = l.exchanged(op)
		parts()
		p := shmplan.OneShotAllToAll(at) // without heads: both ranks of a pair know the length of their block
		p.Head, p.Stages = 0, slices.DeleteFunc(p.Stages, func(s plan.Stage) bool { return s.Head })
		return p, lengths
	}
	class := l.choose(op.Kind, op.Root, lengths.Longest())
	at.Chunk = class.Chunk
	twoShot := class.Algorithm == shmplan.TwoShot
	switch op.Kind {
	case coll.AllReduce:
		if twoShot {
			return shmplan.TwoShotAllReduce(at), lengths
		}
		return shmplan.OneShotAllReduce(at), lengths
	case coll.Reduce:
		if twoShot {
			return shmplan.TwoShotReduce(at), lengths
		}
		return shmplan.OneShotReduce(at), lengths
	case coll.Broadcast:
		return shmplan.OneShotBroadcast(at), lengths
	case coll.AllGather:
		return shmplan.OneShotAllGather(at), lengths
	case coll.Gather:
		return shmplan.OneShotGather(at), lengths
	case coll.Scatter:
		parts()
		return shmplan.OneShotScatter(at), lengths
	case coll.ReduceScatter:
		parts()
		return shmplan.OneShotReduceScatter(at), lengths
	default:
		return shmplan.OneShotBarrier(at), lengths
	}
}

// exchanged returns the blocks of an all_to_all that this rank knows.
func (l *planner) exchanged(op coll.Op) []uint64 {
	blocks := make([]uint64, l.size*l.size)
	for r := range l.size {
		in, out := op.In/uint64(l.size), op.Out/uint64(l.size)
		if op.InBlocks != nil {
			in = op.InBlocks[r]
		}
		if op.OutBlocks != nil {
			out = op.OutBlocks[r]
		}
		blocks[l.rank*l.size+r], blocks[r*l.size+l.rank] = in, out
	}
	return blocks
}

// reads reports whether a rank uses the slots of another one in an operation.
func reads(p *plan.SlotPlan, reader, owner int) bool {
	if reader == owner {
		return false
	}
	switch p.Kind {
	case coll.Broadcast, coll.Scatter:
		return owner == p.Root
	case coll.Gather:
		return reader == p.Root
	case coll.Reduce:
		return reader == p.Root || p.Algorithm == shmplan.TwoShot
	}
	return p.Kind != coll.Barrier
}

// writes reports whether a rank writes a word for another one in an operation.
func writes(p *plan.SlotPlan, w word, from, to int) bool {
	switch w {
	case filled:
		return reads(p, to, from) || p.Kind == coll.Barrier && from != to
	case left:
		return reads(p, from, to)
	default:
		return from != to && p.Algorithm == shmplan.TwoShot && (p.Kind == coll.AllReduce || to == p.Root)
	}
}

// chunksOf returns how many chunks a rank has for another one. Where only these two know how many there are, there is one at least, so that
// both write their words in each operation.
func chunksOf(p *plan.SlotPlan, lengths plan.Lengths) func(from, to int) int64 {
	return func(from, to int) int64 {
		if p.Kind == coll.AllToAll {
			return max(1, int64(p.Chunks(p.BlockBytes(lengths, from, to))))
		}
		return int64(p.Chunks(lengths.Longest()))
	}
}

// bound returns why an operation is too long: a value of a word has no bits for the numbers of its chunks.
func (l *planner) bound(op coll.Op) error {
	if max(op.In, op.Out) <= mostChunks*alignment { // no chunk is shorter
		return nil
	}
	p, lengths := l.planFor(op)
	if chunks := p.Chunks(lengths.Longest()); chunks > mostChunks {
		return fmt.Errorf("%d bytes have %d chunks, expected %d at most; set SAGECOMM_ENGINE=staged on all ranks for so long operations", lengths.Longest(), chunks, mostChunks)
	}
	return nil
}

// lower returns the commands of an operation.
// Requires: bound has returned nil for it.
func (l *lowering) lower(op coll.Op) []command {
	p, lengths := l.planFor(op)
	chunks := chunksOf(&p, lengths)
	for w := range words {
		for peer := range l.size {
			if writes(&p, w, l.rank, peer) {
				l.sent[w][peer]++
			}
			if writes(&p, w, peer, l.rank) {
				l.received[w][peer]++
			}
		}
	}
	var list []command
	for step := range plan.ConcreteLengths(p, lengths, [2]int{slotCount, slotCount}) {
		slot := (l.base + step.Chunk) % slotCount
		if step.Action == plan.Publish {
			list = l.vacate(list, slot)
		} else {
			for _, w := range step.Waits {
				if from := w.Rank; step.Chunk < chunks(from, l.rank) {
					list = append(list, command{verb: await, word: word(w.Counter), peer: from, value: l.received.value(word(w.Counter), from, step.Chunk)})
				}
			}
		}
		for _, m := range step.Moves {
			list = append(list, command{verb: move, move: inSlot(m, slot*int64(l.slotBytes))})
		}
		for _, c := range step.Posts {
			w := word(c)
			for peer := range l.size {
				n := chunks(l.rank, peer)
				if w == left {
					n = chunks(peer, l.rank)
				}
				if step.Chunk < n && writes(&p, w, l.rank, peer) {
					list = append(list, command{verb: signal, word: w, peer: peer, value: l.sent.value(w, peer, step.Chunk)})
				}
			}
		}
		if step.Action == plan.Publish {
			for peer := range l.size {
				if reads(&p, peer, l.rank) && step.Chunk < chunks(l.rank, peer) {
					l.slots[slot][peer] = l.received.value(left, peer, step.Chunk)
				}
			}
		}
	}
	// The ranks of an all_to_all do not know how many chunks the others have.
	if p.Kind == coll.AllToAll {
		l.base++
	} else if p.Kind != coll.Barrier {
		l.base += int64(p.Chunks(lengths.Longest()))
	}
	l.base %= slotCount
	return list
}

// vacate makes the stream wait until nobody uses what a slot has, also if nothing is written to it: values that stay for 2^31 cannot
// be compared. For the same reason it forgets what older waits have answered, in all slots.
func (l *lowering) vacate(list []command, slot int64) []command {
	for peer, value := range l.slots[slot] {
		if value == 0 {
			continue
		}
		list = append(list, command{verb: await, word: left, peer: peer, value: value})
		for i := range l.slots {
			if of := &l.slots[i][peer]; *of != 0 && int32(*of-value) <= 0 {
				*of = 0
			}
		}
	}
	return list
}

// inSlot returns a move whose slots begin at an offset.
func inSlot(m plan.Move, slot int64) plan.Move {
	place := func(list []plan.Range) []plan.Range {
		list = slices.Clone(list)
		for i := range list {
			if list[i].Space == plan.Slot {
				list[i].Off += uint64(slot)
			}
		}
		return list
	}
	m.From, m.To = place(m.From), place(m.To)
	return m
}

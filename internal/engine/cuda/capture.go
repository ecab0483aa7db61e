package cuda

import (
	"sync"
	"sync/atomic"
	"time"

	"sagecomm/algo"
	"sagecomm/algo/plan"
	"sagecomm/internal/coll"
	"sagecomm/internal/device"
	"sagecomm/internal/engine/vendor"
)

// This file turns operations into commands of a graph, which is launched again and again. The values of words cannot rise then, so each
// slot has tokens in place of words: a token is 0 or 1, the stream that waits for it clears it, and a peer's stream sets it again. A
// peer does so only behind what this rank's stream writes after it has cleared the token:
//
//	writer of a slot                      reader of the slot
//	take left: wait until 1, write 0
//	copy into the slot
//	give filled: write 1           ->     take filled: wait until 1, write 0
//	                                      copy out of the slot
//	take left, for the next chunk  <-     give left: write 1
//
// So between a writer and a reader there is one token for each slot, which is in one of the two words or under way. At first it is in
// left. Nothing of it depends on how often a graph was launched, nor on which graph the last operation was a part of.

// capturedSlots are the bytes of the slots of captured operations. They are apart from those of the other operations, which may be under way
// when a graph is launched.
const capturedSlots = allSlots

func newCapturing(rank, size int, choices *algo.DeviceChoices) *planner {
	return &planner{rank, size, SlotBytes, choices.Choose}
}

// pairs reports whether two ranks hand tokens of a rank's slots over in an operation. In a barrier slots are filled without data.
func pairs(p *plan.SlotPlan, reader, owner int) bool {
	return reads(p, reader, owner) || p.Kind == coll.Barrier && reader != owner
}

// capture returns the commands of an operation in a graph, whose first chunk goes through slot base, and the slot of the next
// operation's. Ranks that capture the same operations in the same order hand over the same tokens.
func (l *planner) capture(op coll.Op, base int64) (list []command, next int64) {
	p, lengths := l.planFor(op)
	chunks := chunksOf(&p, lengths)
	for step := range plan.ConcreteLengths(p, lengths, [2]int{slotCount, slotCount}) {
		slot := (base + step.Chunk) % slotCount
		token := func(verb verb, w word, peer int) {
			list = append(list, command{verb: verb, word: w, peer: peer, slot: slot})
		}
		if step.Action == plan.Publish {
			for peer := range l.size {
				switch {
				case peer == l.rank:
				case pairs(&p, peer, l.rank) && step.Chunk < chunks(l.rank, peer):
					token(take, left, peer)
				default: // the peer may still read what an earlier operation has put there
					token(look, left, peer)
				}
			}
		} else {
			for _, w := range step.Waits {
				if step.Chunk < chunks(w.Rank, l.rank) {
					token(take, word(w.Counter), w.Rank)
				}
			}
		}
		for _, m := range step.Moves {
			list = append(list, command{verb: move, move: inSlot(m, allSlots+slot*int64(l.slotBytes))})
		}
		for _, c := range step.Posts {
			for peer := range l.size {
				switch w := word(c); {
				case w == left && pairs(&p, l.rank, peer) && step.Chunk < chunks(peer, l.rank),
					w != left && writes(&p, w, l.rank, peer) && step.Chunk < chunks(l.rank, peer):
					token(give, w, peer)
				}
			}
		}
	}
	if p.Kind == coll.AllToAll || p.Kind == coll.Barrier { // the ranks of an all_to_all do not know how many chunks the others have
		return list, (base + 1) % slotCount
	}
	return list, (base + int64(p.Chunks(lengths.Longest()))) % slotCount
}

// captures is what a member knows of captured operations.
type captures struct {
	*planner
	any    atomic.Bool // a graph may have some
	number uint64      // of the newest capture
	base   int64       // slot of its next operation's first chunk

	released  []atomic.Bool // by rank: nothing waits for its tokens
	releasing atomic.Bool   // that is seen to while there may be graphs
	setting   sync.Mutex    // held while they are set again; guards broken and ended
	broken    bool          // setting them has panicked
	ended     bool          // they are set no more
	asked     time.Time     // when the system was last asked whether peers live; guarded as Member.State is
}

// graphs reports whether graphs may have operations.
func (m *member) graphs() bool { return m.captures.any.Load() && m.hasGraphs() }

// Device implements vendor.Capturer.
func (m *member) Device() device.Capturer { return m.d }

// Capture implements vendor.Capturer. Tokens know no operations, so those of one capture come one after the other. Each capture begins with
// the same slot, so one that some rank has given up leaves no trace. All is queued when Capture returns.
func (m *member) Capture(op coll.Op, b vendor.Buffers, stream device.Stream, number uint64) (begun bool, err error) {
	if m.released.Load() {
		return false, errReleased
	}
	c := &m.captures
	if number != c.number {
		c.number, c.base = number, 0
	}
	list, next := c.capture(op, c.base)
	c.any.Store(true) // before the look: Release sets released, then looks at any
	if m.released.Load() {
		return false, errReleased
	}
	c.base = next
	q := queue{m, op, b, stream}
	return true, q.putAll(list)
}

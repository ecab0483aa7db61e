package modelcheck

import "fmt"

// A fifo of p2p operations between hosts (docs/protocol.md, section 16, A fifo is mirrored). The writer puts frames into its fifo. Its pump
// sends them without WRAP, the reader's pump puts them into the mirror, and the reader takes them out of it. Counts of what the reader has
// taken come back in CREDIT, of which there may be several on the way. The fifo begins at any place. A thread may send a frame, straight out of the
// user's buffer, before it puts it.

// Protections of fifos.
const (
	FifoWithoutRoom  HostSwitch = iota + lastLinkSwitch + 1 // the writer does not wait for room
	WrapNotMirrored                                         // the mirror places frames one behind the other, without WRAP
	WrapNotCounted                                          // the mirror leaves out the bytes of WRAP in its counts
	CreditTooLate                                           // the reader's pump sends CREDIT when the whole fifo is untold
	CreditOfSent                                            // CREDIT has what has come, and not what was read
	PushedAfterFrame                                        // the writer's pump counts a frame as sent after it was sent
	DirectNotSeen                                           // the writer's pump does not know of frames that are sent before they are put
	lastFifoSwitch
)

var fifoMutations = []HostMutation{
	{FifoWithoutRoom, "a writer does not wait for room in its fifo", fifoScenario, FalseAlert},
	{WrapNotMirrored, "frames of a mirror lie one behind the other", fifoScenario, WrongData},
	{WrapNotCounted, "the mirror does not count WRAP", fifoScenario, WrongData},
	{CreditTooLate, "what was read is told when it is the whole fifo", fifoScenario, Deadlock},
	{CreditOfSent, "what has come is told as read", fifoScenario, FalseAlert},
	{PushedAfterFrame, "a frame counts as sent after it was sent", fifoScenario, FalseAlert},
	{DirectNotSeen, "the pump does not know of a frame that was sent before it is put", fifoScenario, FalseAlert},
}

const fifoScenario = "p2p operations: a fifo and its mirror"

// All lengths are in units. A frame has at most 2, so a writer waits for at most 1 + 2; with mostUntold - 1 untold, 6 are free.
const (
	fifoUnits  = 8
	mostUntold = 3
)

// fifoFrames are the lengths of the frames that the writer puts.
var fifoFrames = [...]uint8{2, 1, 2, 2, 2, 1, 2}

const mostOnTheWay = 8

type fifoState struct {
	begun                bool
	put, written, seen   uint8 // the writer's: frames, position, and how far the reader is known to have read
	sending              bool  // PushedAfterFrame: a frame was sent and is not counted yet
	pushed, pushedFrames uint8 // its pump's
	direct, known        uint8 // where the last frame ends that was sent before it was put, and what was put then
	unput                bool  // it is not put yet
	frames               uint8 // sent, and not yet in the mirror; frames are numbered by their order
	credits              [mostOnTheWay]uint8
	nCredits             uint8
	mirrored, mirror     uint8            // the reader's pump's: frames, and the position behind them
	place                [fifoUnits]uint8 // of the mirror: 1 + the number of the frame that begins there
	taken, read, told    uint8            // the reader's
}

// placed returns where a frame goes that is put at a position, and the position behind it.
func placed(at, units uint8) (begins, end uint8) {
	if rest := fifoUnits - at%fifoUnits; rest < units {
		at += rest
	}
	return at, at + units
}

var fifoScenarios = []HostScenario{{Name: fifoScenario, explore: func(off HostSwitch) Result {
	return exploreHosts(world[fifoState]{
		steps:  func(s fifoState) []hostStep[fifoState] { return fifoSteps(s, off) },
		atRest: fifoAtRest,
	})
}}}

func fifoSteps(s fifoState, off HostSwitch) (list []hostStep[fifoState]) {
	step := func(text string, do func(n *fifoState) *violation) {
		n := s
		wrong := do(&n)
		list = append(list, hostStep[fifoState]{n, text, wrong})
	}
	if !s.begun {
		for at := range uint8(fifoUnits) {
			step(fmt.Sprintf("the fifo begins at %d", at), func(n *fifoState) *violation {
				n.begun = true
				n.written, n.seen, n.pushed, n.mirror, n.read, n.told = at, at, at, at, at, at
				return nil
			})
		}
		return list
	}
	if int(s.put) < len(fifoFrames) {
		_, end := placed(s.written, fifoFrames[s.put])
		if s.unput || end-s.seen <= fifoUnits || off == FifoWithoutRoom {
			step(fmt.Sprintf("the writer puts frame %d", s.put), func(n *fifoState) *violation {
				n.put++
				n.written, n.unput = end, false
				return nil
			})
			if !s.unput && !s.sending && s.pushedFrames == s.put {
				step(fmt.Sprintf("the writer sends frame %d straight", s.put), func(n *fifoState) *violation {
					n.frames++
					n.pushedFrames++
					n.pushed, n.direct, n.known, n.unput = end, end, n.written, true
					return nil
				})
			}
		}
	}
	sent := s.pushed == s.written || s.pushed == s.direct && s.known <= s.written && s.written < s.pushed
	count := func(n *fifoState) {
		_, n.pushed = placed(n.pushed, fifoFrames[n.pushedFrames])
		n.pushedFrames++
	}
	switch {
	case s.sending:
		step("the writer's pump counts the frame", func(n *fifoState) *violation { n.sending = false; count(n); return nil })
	case !sent || off == DirectNotSeen && s.pushed != s.written:
		step(fmt.Sprintf("the writer's pump sends frame %d", s.pushedFrames), func(n *fifoState) *violation {
			if n.pushedFrames >= n.put {
				return &violation{FalseAlert, fmt.Sprintf("%d frames are put, and the pump sends frame %d", n.put, n.pushedFrames)}
			}
			n.frames++
			if off == PushedAfterFrame {
				n.sending = true
			} else {
				count(n)
			}
			return nil
		})
	}
	if s.frames > 0 {
		step(fmt.Sprintf("the reader's pump mirrors frame %d", s.mirrored), func(n *fifoState) *violation { return mirror(n, off) })
	}
	if s.taken < s.mirrored {
		step(fmt.Sprintf("the reader takes frame %d", s.taken), func(n *fifoState) *violation {
			begins, end := placed(n.read, fifoFrames[n.taken])
			if n.place[begins%fifoUnits] != 1+n.taken {
				return &violation{WrongData, fmt.Sprintf("frame %d does not begin at %d", n.taken, begins%fifoUnits)}
			}
			n.taken, n.read = n.taken+1, end
			return nil
		})
	}
	limit, value := uint8(mostUntold), s.read
	switch off {
	case CreditTooLate:
		limit = fifoUnits
	case CreditOfSent:
		value = s.mirror
	}
	if value-s.told >= limit && s.nCredits < mostOnTheWay {
		step("the reader's pump sends CREDIT", func(n *fifoState) *violation {
			n.credits[n.nCredits] = value
			n.nCredits++
			n.told = value
			return nil
		})
	}
	if s.nCredits > 0 {
		step("CREDIT comes", func(n *fifoState) *violation {
			read := n.credits[0]
			copy(n.credits[:], n.credits[1:])
			n.nCredits--
			n.credits[n.nCredits] = 0
			if read > n.pushed {
				return &violation{FalseAlert, fmt.Sprintf("%d were read, after %d were sent", read, n.pushed)}
			}
			n.seen = max(n.seen, read)
			return nil
		})
	}
	return list
}

// mirror puts the next frame into the mirror.
func mirror(n *fifoState, off HostSwitch) *violation {
	units := fifoFrames[n.mirrored]
	begins, end := placed(n.mirror, units)
	switch off {
	case WrapNotMirrored:
		begins, end = n.mirror, n.mirror+units
	case WrapNotCounted:
		end = n.mirror + units
	}
	if end-n.read > fifoUnits {
		return &violation{FalseAlert, fmt.Sprintf("frame %d comes when %d are in the mirror and %d are read", n.mirrored, n.mirror, n.read)}
	}
	for at := begins; at != begins+units; at++ {
		n.place[at%fifoUnits] = 0
	}
	n.place[begins%fifoUnits] = 1 + n.mirrored
	n.frames--
	n.mirrored++
	n.mirror = end
	return nil
}

func fifoAtRest(s fifoState) *violation {
	if int(s.taken) < len(fifoFrames) {
		return &violation{Deadlock, fmt.Sprintf("%d frames are taken, and nothing goes on", s.taken)}
	}
	return nil
}

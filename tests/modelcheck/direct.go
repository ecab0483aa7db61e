package modelcheck

import "fmt"

// Payloads that pass between a connection and the buffer of a user without a copy in a channel or fifo (docs/protocol.md, section 16, Without a
// copy). The first scenario has the sender of a channel: its driver, which sends a message straight or puts it into a place, and the pump. The
// second one has the receiver of pieces of two operations, of which one fails: the driver, and who reads the connection.

// Protections of what passes without a copy.
const (
	StraightNotCounted HostSwitch = iota + lastFifoSwitch + 1 // a message that was sent straight does not count as sent
	StraightTooEarly                                          // a message is sent straight although one before it is not sent yet
	StraightOverRest                                          // a message is sent straight behind the beginning of another frame
	RestInBuffer                                              // what the kernel does not take of a message stays in the buffer
	PumpOverRest                                              // the pump sends behind the beginning of another frame
	NotForgotten                                              // an operation fails and its buffer is still expected to be written
	NotDiverted                                               // the payload that is being read is not diverted
	DivertedFirst                                             // the payload is diverted, then the buffers are forgotten
	RestDiverted                                              // only the rest of the payload is diverted
	DivertedMarked                                            // a payload that was diverted is marked as delivered
	lastDirectSwitch
)

var directMutations = []HostMutation{
	{StraightNotCounted, "a message that was sent straight does not count as sent", straightScenario, FalseAlert},
	{StraightTooEarly, "a message is sent straight over one that is not sent yet", straightScenario, FalseAlert},
	{StraightOverRest, "a message is sent straight into another frame", straightScenario, FalseAlert},
	{RestInBuffer, "the rest of a message that was sent straight stays in the buffer", straightScenario, WrongData},
	{PumpOverRest, "the pump sends into another frame", straightScenario, FalseAlert},
	{NotForgotten, "an operation fails before its buffer is forgotten", expectedScenario, LateWrite},
	{NotDiverted, "a payload that is being read is not diverted", expectedScenario, LateWrite},
	{DivertedFirst, "a payload is diverted before buffers are forgotten", expectedScenario, LateWrite},
	{RestDiverted, "what has come of a diverted payload stays where it is", expectedScenario, WrongData},
	{DivertedMarked, "a diverted payload is marked as delivered", expectedScenario, WrongData},
}

const (
	straightScenario = "messages straight out of a buffer"
	expectedScenario = "pieces straight into a buffer, and a failure"
)

var directScenarios = []HostScenario{
	{Name: straightScenario, explore: func(off HostSwitch) Result {
		return exploreHosts(world[straightState]{
			steps:  func(s straightState) []hostStep[straightState] { return straightSteps(s, off) },
			atRest: straightAtRest,
		})
	}},
	{Name: expectedScenario, explore: func(off HostSwitch) Result {
		return exploreHosts(world[expectedState]{
			steps:  func(s expectedState) []hostStep[expectedState] { return expectedSteps(s, off) },
			atRest: expectedAtRest,
		})
	}},
}

const (
	straightMessages = 4
	straightWindow   = 2
	reused           = 0xff // what lies in a buffer that its user has back
)

// straightFrame is a frame of a connection. A part of it may be missing.
type straightFrame struct {
	number, content uint8
	whole           bool
}

type straightState struct {
	published uint8 // messages that the driver has completed
	straight  bool  // message published + 1 was sent straight, and is not published yet
	buffer    uint8 // what lies in the buffer of the message that the driver sends
	place     [straightWindow]uint8
	sent      uint8 // messages that were given to the connection
	taken     uint8 // of these, by the receiver, as the sender knows
	q         [straightWindow]straightFrame
	n         uint8
	came      uint8
}

// give gives a frame to the connection, whole or in part.
func (s *straightState) give(number, content uint8, whole bool) *violation {
	if s.n > 0 && !s.q[s.n-1].whole {
		return &violation{FalseAlert, fmt.Sprintf("message %d begins in the middle of message %d", number, s.q[s.n-1].number)}
	}
	s.q[s.n] = straightFrame{number, content, whole}
	s.n++
	return nil
}

func straightSteps(s straightState, off HostSwitch) (list []hostStep[straightState]) {
	step := func(text string, do func(n *straightState) *violation) {
		n := s
		wrong := do(&n)
		list = append(list, hostStep[straightState]{n, text, wrong})
	}
	rest := s.n > 0 && !s.q[s.n-1].whole
	full := s.n == straightWindow
	next := s.published + 1
	publish := func(n *straightState) { n.published, n.straight, n.buffer = next, false, reused }
	switch {
	case s.straight:
		step(fmt.Sprintf("the driver publishes message %d, which was sent", next), func(n *straightState) *violation { publish(n); return nil })
	case next <= straightMessages && next <= s.taken+straightWindow:
		step(fmt.Sprintf("the driver puts message %d into its place", next), func(n *straightState) *violation {
			n.place[next%straightWindow] = next
			publish(n)
			return nil
		})
		if (s.sent == s.published || off == StraightTooEarly) && (!rest || off == StraightOverRest) && !full {
			for _, whole := range []bool{true, false} {
				step(fmt.Sprintf("the driver sends message %d straight, whole: %v", next, whole), func(n *straightState) *violation {
					n.straight, n.buffer = true, next
					if off != StraightNotCounted {
						n.sent = next
					}
					return n.give(next, next, whole)
				})
			}
		}
	}
	if s.sent < s.published && (!rest || off == PumpOverRest) && !full {
		for _, whole := range []bool{true, false} {
			step(fmt.Sprintf("the pump sends message %d, whole: %v", s.sent+1, whole), func(n *straightState) *violation {
				n.sent++
				return n.give(n.sent, n.place[n.sent%straightWindow], whole)
			})
		}
	}
	if rest {
		step("the rest of a frame goes out", func(n *straightState) *violation {
			f := &n.q[n.n-1]
			f.whole = true
			if off == RestInBuffer {
				f.content = n.buffer
			}
			return nil
		})
	}
	if s.n > 0 && s.q[0].whole {
		step("a message comes, and room is told", func(n *straightState) *violation {
			f := n.q[0]
			copy(n.q[:], n.q[1:])
			n.n--
			n.q[n.n] = straightFrame{}
			switch {
			case f.number != n.came+1:
				return &violation{FalseAlert, fmt.Sprintf("message %d comes behind message %d", f.number, n.came)}
			case f.content != f.number:
				return &violation{WrongData, fmt.Sprintf("message %d has other bytes", f.number)}
			}
			n.came, n.taken = f.number, f.number
			return nil
		})
	}
	return list
}

func straightAtRest(s straightState) *violation {
	if s.came < straightMessages {
		return &violation{Deadlock, fmt.Sprintf("%d messages have come, and nothing goes on", s.came)}
	}
	return nil
}

// Pieces of two operations come in any order, each in two halves. The first operation may fail at any time.
const (
	expectedPieces = 2
	halves         = 2
)

// expectedOp is an operation that receives.
type expectedOp struct {
	granted, expects bool
	read, moved      uint8 // pieces whose header was read; pieces that the driver has taken
	ended            bool
}

// mirrored is a piece in the fifo of the shadow.
type mirrored struct {
	op, there uint8 // 1 + the operation; halves of which the bytes lie in the fifo
	marked    bool
}

type expectedState struct {
	op      [2]expectedOp
	reading uint8 // 1 + the operation whose piece is being read
	half    uint8 // halves of it that were read
	there   uint8 // of these, in the fifo
	buffer  bool  // it goes to the buffer of the operation
	began   bool  // it did when it began
	fifo    [2 * expectedPieces]mirrored
	n       uint8
	giving  uint8 // steps that the driver has done to fail the first operation
}

func expectedSteps(s expectedState, off HostSwitch) (list []hostStep[expectedState]) {
	step := func(text string, do func(n *expectedState) *violation) {
		n := s
		wrong := do(&n)
		list = append(list, hostStep[expectedState]{n, text, wrong})
	}
	for i, op := range s.op {
		if !op.granted && !op.ended {
			step(fmt.Sprintf("the driver grants operation %d", i), func(n *expectedState) *violation { n.op[i].granted = true; return nil })
			if s.giving == 0 {
				step(fmt.Sprintf("the driver expects and grants operation %d", i), func(n *expectedState) *violation {
					n.op[i].granted, n.op[i].expects = true, true
					return nil
				})
			}
		}
		if s.reading == 0 && op.granted && op.read < expectedPieces {
			step(fmt.Sprintf("the header of a piece of operation %d is read", i), func(n *expectedState) *violation {
				n.op[i].read++
				n.reading, n.buffer, n.began, n.half, n.there = uint8(i)+1, op.expects, op.expects, 0, 0
				return nil
			})
		}
	}
	if s.reading != 0 {
		step(fmt.Sprintf("a part of the piece of operation %d comes", s.reading-1), func(n *expectedState) *violation { return expectedCome(n, off) })
	}
	if s.n > 0 {
		step("the driver takes a piece", expectedTake)
	}
	expectedFailure(s, off, step)
	return list
}

// expectedCome reads half of a payload, and with the last half stores the piece.
func expectedCome(n *expectedState, off HostSwitch) *violation {
	op := n.op[n.reading-1]
	if n.buffer && op.ended {
		return &violation{LateWrite, fmt.Sprintf("the buffer of operation %d is written after it has ended", n.reading-1)}
	}
	if !n.buffer {
		n.there++
	}
	if n.half++; n.half == halves {
		n.fifo[n.n] = mirrored{n.reading, n.there, n.buffer || n.began && off == DivertedMarked}
		n.n++
		n.reading, n.half, n.there, n.buffer, n.began = 0, 0, 0, false, false
	}
	return nil
}

// expectedTake takes a piece out of the fifo. That of an operation that has ended is thrown away.
func expectedTake(n *expectedState) *violation {
	p := n.fifo[0]
	copy(n.fifo[:], n.fifo[1:])
	n.n--
	n.fifo[n.n] = mirrored{}
	op := &n.op[p.op-1]
	if op.ended {
		return nil
	}
	if !p.marked && p.there < halves || p.marked && p.there > 0 {
		return &violation{WrongData, fmt.Sprintf("%d of %d parts of a piece of operation %d lie in the fifo, marked: %v", p.there, halves, p.op-1, p.marked)}
	}
	if op.moved++; op.moved == expectedPieces {
		op.ended, op.expects = true, false
	}
	return nil
}

// expectedFailure lets the first operation fail: its buffers are forgotten, then what is being read is diverted, then it ends.
func expectedFailure(s expectedState, off HostSwitch, step func(string, func(*expectedState) *violation)) {
	if s.op[0].ended {
		return
	}
	forget := func(n *expectedState) *violation {
		n.op[0].expects, n.op[1].expects = false, false
		n.giving++
		return nil
	}
	divert := func(n *expectedState) *violation {
		if n.buffer && off != NotDiverted {
			if off != RestDiverted {
				n.there = n.half
			}
			n.buffer = false
		}
		n.giving++
		return nil
	}
	first, second := forget, divert
	if off == DivertedFirst {
		first, second = divert, forget
	}
	switch {
	case s.giving == 0 && off != NotForgotten:
		step("the driver gives up: the first half of forget", first)
	case s.giving == 1:
		step("the second half of forget", second)
	default:
		step("operation 0 fails", func(n *expectedState) *violation { n.op[0].ended = true; return nil })
	}
}

func expectedAtRest(s expectedState) *violation {
	for i, op := range s.op {
		if !op.ended {
			return &violation{Deadlock, fmt.Sprintf("operation %d never ends", i)}
		}
	}
	return nil
}

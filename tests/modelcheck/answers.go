package modelcheck

import "fmt"

// Two processes send frames to each other, of which each is answered on the same connection, as a PROBE is by an ECHO. A pump sends the frames, and
// waits for room. A connection holds one frame in each direction. Who reads it tries to send the answer, and leaves it to another goroutine where
// there is no room.

const answeredFrames = 2

const answersScenario = "two processes answer each other's frames"

// answersSide is one process.
type answersSide struct {
	sent, got, owed, answers uint8
	blocked                  bool // the reader waits in a send, and reads nothing
}

// What a connection holds.
const (
	nothingSent uint8 = iota
	frameSent
	answerSent
)

type answersState struct {
	side [2]answersSide
	held [2]uint8 // on the way from this side
}

var answersScenarios = []HostScenario{{Name: answersScenario, explore: func(off HostSwitch) Result {
	return exploreHosts(world[answersState]{
		steps:  func(s answersState) []hostStep[answersState] { return answersSteps(s, off) },
		atRest: answersAtRest,
	})
}}}

func answersSteps(s answersState, off HostSwitch) (list []hostStep[answersState]) {
	step := func(text string, i int, do func(n *answersState)) {
		n := s
		do(&n)
		list = append(list, hostStep[answersState]{n, fmt.Sprintf(text, i), nil})
	}
	for i := range s.side {
		m := &s.side[i]
		if m.sent < answeredFrames && s.held[i] == nothingSent {
			step("the pump of process %d sends a frame", i, func(n *answersState) {
				n.side[i].sent++
				n.held[i] = frameSent
			})
		}
		if m.owed > 0 && s.held[i] == nothingSent {
			step("process %d sends an answer", i, func(n *answersState) {
				n.side[i].owed--
				n.side[i].blocked = false
				n.held[i] = answerSent
			})
		}
		if s.held[1-i] != nothingSent && !m.blocked {
			step("process %d reads", i, func(n *answersState) {
				m := &n.side[i]
				if n.held[1-i] == frameSent {
					m.got++
					m.owed++
					m.blocked = off == BlockingSend
				} else {
					m.answers++
				}
				n.held[1-i] = nothingSent
			})
		}
	}
	return list
}

func answersAtRest(s answersState) *violation {
	for i := range s.side {
		if m := s.side[i]; m.got < answeredFrames || m.answers < answeredFrames {
			return &violation{Deadlock, fmt.Sprintf("process %d has sent %d frames, got %d and %d answers", i, m.sent, m.got, m.answers)}
		}
	}
	return nil
}

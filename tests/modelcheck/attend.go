package modelcheck

import "fmt"

// Two processes, each with a thread that reads the link and sends frames over it, so that no goroutine reads. A connection holds one frame
// in each direction. Each thread has more to send than its connection holds, and waits for as many frames of the other one.

const attendFrames = 2

// attendSide is one process.
type attendSide struct {
	sent, got uint8
	blocked   bool // in a send that waits for room, and reads nothing
}

type attendState struct {
	side [2]attendSide
	full [2]bool // the connection from this side holds a frame
}

var attendScenarios = []HostScenario{{Name: "two threads read and send", explore: func(off HostSwitch) Result {
	return exploreHosts(world[attendState]{
		steps:  func(s attendState) []hostStep[attendState] { return attendSteps(s, off) },
		atRest: attendAtRest,
	})
}}}

func attendSteps(s attendState, off HostSwitch) (list []hostStep[attendState]) {
	step := func(text string, do func(n *attendState)) {
		n := s
		do(&n)
		list = append(list, hostStep[attendState]{n, text, nil})
	}
	for i := range s.side {
		m := &s.side[i]
		if m.sent < attendFrames && !s.full[i] {
			step(fmt.Sprintf("thread %d sends", i), func(n *attendState) {
				n.side[i].sent++
				n.side[i].blocked = false
				n.full[i] = true
			})
		}
		if m.sent < attendFrames && s.full[i] && !m.blocked && off == BlockingSend {
			step(fmt.Sprintf("thread %d waits for room", i), func(n *attendState) { n.side[i].blocked = true })
		}
		if s.full[1-i] && !m.blocked {
			step(fmt.Sprintf("thread %d reads", i), func(n *attendState) {
				n.full[1-i] = false
				n.side[i].got++
			})
		}
	}
	return list
}

func attendAtRest(s attendState) *violation {
	for i := range s.side {
		if m := s.side[i]; m.sent < attendFrames || m.got < attendFrames {
			return &violation{Deadlock, fmt.Sprintf("thread %d has sent %d frames and got %d", i, m.sent, m.got)}
		}
	}
	return nil
}

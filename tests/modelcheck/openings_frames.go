package modelcheck

import "fmt"

// What frames do in openings.go, and what is required at the end.

// end ends with the memory of the rank when nothing comes or goes any more.
func (e *pairEnd) end() { e.over = e.over || e.closed && e.closes == 3 }

// linkSteps deliver frames to a process, and let a process die.
func (c *openCase) linkSteps(s openState, to int, off HostSwitch, step openStepper) {
	if s.dies && !s.dead[0] && !s.dead[1] {
		step(func(n *openState) *violation {
			n.dead[to], n.dies = true, false
			n.q[1-to], n.n[1-to] = [2][openFrames]openFrame{}, [2]uint8{}
			return nil
		}, "process %d dies", to)
	}
	if s.dead[to] || s.lost[to] || c.late && s.dead[1-to] && !s.link.met[to] { // meetingSteps has what a process does that finds no other one
		return
	}
	if s.dead[1-to] { // what is still on the way may be lost
		step(func(n *openState) *violation {
			n.lost[to] = true
			n.q[1-to], n.n[1-to] = [2][openFrames]openFrame{}, [2]uint8{}
			for i := range c.pairs {
				n.ends[i][to].over = true
			}
			return nil
		}, "process %d notices the loss", to)
	}
	for on := range 2 {
		if s.n[1-to][on] == 0 {
			continue
		}
		f := s.q[1-to][on][0]
		step(func(n *openState) *violation {
			q := &n.q[1-to][on]
			copy(q[:], q[1:])
			n.n[1-to][on]--
			q[n.n[1-to][on]] = openFrame{}
			return c.deliver(n, to, on, f, off)
		}, "process %d gets %s of %d", to, openFrameNames[f.kind], f.of)
	}
}

// deliver lets a process take a frame.
func (c *openCase) deliver(n *openState, to, on int, f openFrame, off HostSwitch) *violation {
	if c.late && !n.link.met[to] {
		if off == FramesMeetNothing {
			return nil
		}
		if wrong := c.meet(n, to, off); wrong != nil {
			return wrong
		}
	}
	if f.kind == leftOf {
		return c.deliverLeft(n, to, int(f.of), off)
	}
	i := int(f.of)
	e, r := &n.ends[i][to], &n.ranks[rankIn(i, to)]
	makes := !r.leaving || off == MadeWhileLeaving
	switch {
	case e.missing:
		return nil
	case e.made:
	case !makes || r.freed, off == OpenMakes && f.kind != openOf:
		return nil // it is dropped
	default:
		e.made, e.byFrame = true, true
	}
	switch {
	case e.silent:
		return &violation{FalseAlert, fmt.Sprintf("%s comes for pair %d behind LEFT without OPEN", openFrameNames[f.kind], i)}
	case e.over:
		return &violation{FalseAlert, fmt.Sprintf("%s comes for pair %d behind its end", openFrameNames[f.kind], i)}
	case r.freed:
		return &violation{GivenBack, fmt.Sprintf("%s of pair %d writes there", openFrameNames[f.kind], i)}
	}
	switch f.kind {
	case messageOf:
		if f.number != e.came+1 {
			return &violation{FalseAlert, fmt.Sprintf("message %d comes for pair %d behind message %d", f.number, i, e.came)}
		}
		e.came++
	case openOf:
		if off == OpenMakesAnew {
			*e = pairEnd{made: true, messages: e.messages, sent: e.sent, said: e.said, ended: e.ended}
		}
		e.open = true
	case goodbyeOf:
		e.byes |= 1 << on
		e.knows = e.byes == 3
	case closeOf:
		e.closes |= 1 << on
		e.end()
	}
	return nil
}

// deliverLeft lets a process take LEFT of a rank.
func (c *openCase) deliverLeft(n *openState, to, rank int, off HostSwitch) *violation {
	pairs, _ := c.of(rank)
	for _, i := range pairs {
		e, r := &n.ends[i][to], &n.ranks[rankIn(i, to)]
		if e.missing || e.over && off != LeftWakesAlways {
			continue
		}
		if r.freed {
			return &violation{GivenBack, fmt.Sprintf("LEFT of rank %d wakes rank %d", rank, rankIn(i, to))}
		}
		if e.open {
			e.knows = e.knows || off == LeftEndsAll
			continue
		}
		e.knows, e.silent = true, true
		if off != SilentCloses {
			e.closes = 3
		}
		e.end()
		if off == LeftForOne {
			break
		}
	}
	return nil
}

// atRest requires that each rank has ended, as what was published allows, and that memory is given back.
func (c *openCase) atRest(s *openState) *violation {
	for rank := range 1 + c.pairs {
		pairs, process := c.of(rank)
		if s.dead[process] {
			continue
		}
		for _, i := range pairs {
			e, need, there := &s.ends[i][process], c.needs[i][process], c.sends[i][1-process]
			switch {
			case need > 0 && e.ended == 0:
				return &violation{Deadlock, fmt.Sprintf("rank %d waits for ever", rank)}
			case e.ended == uint8(failed) && need <= there && !s.dead[1-process] && !s.link.failed:
				return &violation{BadOutcome, fmt.Sprintf("rank %d fails although all it needs was published", rank)}
			case e.ended == uint8(finished) && need > there:
				return &violation{BadOutcome, fmt.Sprintf("rank %d finishes without its last message", rank)}
			}
		}
		if !s.ranks[rank].freed {
			return &violation{Deadlock, fmt.Sprintf("rank %d never gives its memory back", rank)}
		}
	}
	return nil
}

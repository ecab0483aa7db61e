package modelcheck

import "fmt"

// instruction carries out the instruction at which the thread stands.
func (m *machine) instruction(s *state, ti int, log func(string)) *violation {
	t := &s.thread[ti]
	in := &m.threads[ti].code[t.pc]
	next := t.pc + 1
	say := func(format string, args ...any) {
		if log != nil {
			log(fmt.Sprintf("%s: %s", m.who(ti), in.text) + fmt.Sprintf(format, args...))
		}
	}
	switch in.op {
	case load:
		v, ok := t.takeEarly(t.pc)
		if !ok {
			v = s.read(ti, in.word)
		}
		say(": reads %s", m.show(in.word, v))
		on, f := m.test(t, ti, in, v)
		if f != nil {
			return f
		}
		if !on {
			next = in.to
		}
	case store:
		say("")
		switch in.order {
		case seqCst:
			t.push(in.word|releaseBit|seqCstBit, in.value)
		case release:
			t.push(in.word|releaseBit, in.value)
		default:
			t.push(in.word, in.value)
		}
	case wakeBell:
		say("")
		m.wakeBell(s, int(in.value))
	case readBell:
		say("")
		t.rung = 0
	case futexWait:
		if t.rung != 0 && !m.noValueCheck {
			say(": the bell has changed, returns")
			break
		}
		say(": sleeps")
		t.asleep = 1
		return nil
	case claim:
		if s.mem[in.word] == 0 {
			s.mem[in.word] = in.value
			say(": won")
			break
		}
		say(": taken by %d", s.mem[in.word])
		next = in.to
	case change:
		v := s.mem[in.word]
		if v&in.peer != in.want {
			say(": not so, it is %d", v)
			next = in.to
			break
		}
		s.mem[in.word] = v + in.value
		say(": %d becomes %d", v, s.mem[in.word])
	case loadRecord:
		v := s.read(ti, m.records[t.winner-1]+in.value)
		say(": rank %d's: reads %d", t.winner-1, v)
		if f := m.checkRecord(s, t, ti, in, v); f != nil {
			return f
		}
	case fence:
		if in.order == release && t.n > 0 {
			t.push(fenceEntry, 0)
		}
	case skipIfSeen:
		if t.seen[in.peer] >= in.value {
			next = in.to
		}
	case checkNoted:
		if t.noted != 0 {
			return &violation{BadRecord, fmt.Sprintf("%s takes a record for whole that is made of two", m.who(ti))}
		}
	case forget:
		t.noted = 0
	case jump:
		next = in.to
	}
	if next != t.pc+1 {
		t.early = [maxEarly]early{} // the speculation was wrong
	}
	t.pc = next
	return nil
}

// test applies a load's test. on: go on with the next instruction.
func (m *machine) test(t *thread, ti int, in *instr, v uint8) (on bool, f *violation) {
	switch in.test {
	case atLeast:
		return v >= in.value, nil
	case below:
		return v < in.value, nil
	case equals:
		return v == in.value, nil
	case zeroOr:
		return v == 0 || v == in.value, nil
	case sameCall:
		if v == 0 {
			return false, m.wrongData(ti, in, v)
		}
		return v == in.value, nil
	case expect:
		if v != in.value {
			return false, m.wrongData(ti, in, v)
		}
	case sameData:
		if v != 0 && callOf(v) != callOf(in.value) {
			return false, nil
		}
		if v != in.value {
			return false, m.wrongData(ti, in, v)
		}
	case lift:
		t.seen[in.peer] = max(t.seen[in.peer], v)
	case note:
		if v != in.value {
			t.noted = 1
		}
	case winner:
		t.winner = v
	case masked:
		return v&in.peer == in.value, nil
	case arrives:
		return v >= in.value && v != opened, nil
	case queued:
		return v/issuedOne%4 != v/poppedOne%4, nil
	}
	return true, nil
}

// wakeBell adds to the bell and wakes in one step. In between a sleeper would just go on sleeping; and a wake-up that comes
// late, to another sleep, is one for no reason.
func (m *machine) wakeBell(s *state, rank int) {
	t := &s.thread[rank]
	if m.threads[rank].code[t.pc].armed && t.asleep == 0 && !m.wakeWithoutAdd {
		t.rung = 1
	}
	if t.asleep != 0 && !m.wakeWithoutFutex {
		t.asleep = 0
		t.rung = 0
		t.pc++
		m.settle(s, rank, nil)
	}
}

func (m *machine) checkRecord(s *state, t *thread, ti int, in *instr, v uint8) *violation {
	if v == 0 || in.value > 0 && v != t.noted {
		return &violation{BadRecord, fmt.Sprintf("%s reads rank %d's failure record while it is incomplete", m.who(ti), t.winner-1)}
	}
	t.noted = v
	if in.value == 0 {
		return nil
	}
	if s.cause != 0 && s.cause != v {
		return &violation{BadRecord, fmt.Sprintf("%s reports cause %d, another rank has reported cause %d", m.who(ti), v, s.cause)}
	}
	s.cause = v
	return nil
}

// atRest checks a state that nothing can leave: all must have ended, as they should.
func (m *machine) atRest(s *state) *violation {
	for ti := range m.threads {
		in := &m.threads[ti].code[s.thread[ti].pc]
		if in.op != end {
			return &violation{Deadlock, fmt.Sprintf("%s is never woken, or never goes on, at: %s", m.who(ti), in.text)}
		}
	}
	for ti := range m.threads {
		got := outcomes(m.threads[ti].code[s.thread[ti].pc].value)
		if m.want[ti]&got == 0 {
			what := map[outcomes]string{
				failed:     "fails although all it needs was published",
				finished:   "finishes although the ranks have made different calls or one has failed",
				firstOnly:  "has finished its first operation and not its second",
				outOfOrder: "has finished an operation behind one that has failed",
			}[got]
			return &violation{BadOutcome, m.who(ti) + " " + what}
		}
	}
	return nil
}

// Content of a payload word: which call, whether it is a reduced share, which ticket.

func data(call uint8, reduced bool, ticket int) uint8 {
	v := call<<4 | uint8(ticket+1)
	if reduced {
		v |= 8
	}
	return v
}

func callOf(v uint8) uint8 { return v >> 4 }
func ticketOf(v uint8) int { return int(v&7) - 1 }
func showData(v uint8) string {
	if v == 0 {
		return "nothing"
	}
	kind := "the contribution"
	if v&8 != 0 {
		kind = "the reduced share"
	}
	return fmt.Sprintf("%s to ticket %d of call %d", kind, ticketOf(v), callOf(v))
}

package modelcheck

import "fmt"

// The pump of a link sleeps until it is rung. A rank publishes messages, leaves and detaches. It stores each word, then hands it over: the goodbye
// and CLOSE are the pump's, for which it rings. What it publishes it sends itself if it need not wait, that is, if nobody else has the turn and the
// connection is not full. Otherwise it notes that something is unsent, then reads how many threads poll, and rings if none does. A thread that polls
// takes the note back, then sends; when it stops, it subtracts itself from the count, then reads the note.

// Protections of the pump's sleep.
const (
	RingBeforeWord    HostSwitch = iota + lastDirectSwitch + 1 // a rank rings, then stores left, or detached
	RingBeforeMessage                                          // a rank rings, then publishes, and rings no more for what it could not send
	HeardBehindWords                                           // the pump reads the words, then takes what was rung
	LeftNotRung                                                // a rank that leaves does not ring
	DetachedNotRung                                            // a rank that detaches does not ring
	UnsentNotRung                                              // who cannot send its message leaves it to the pump without ringing
	DataBeforeLeft                                             // the pump looks for messages before it reads left
	LeftBeforeDetach                                           // the pump reads left before it reads detached
	CountBeforeNote                                            // who cannot send reads the count of threads that poll, then stores the note
	NoteBeforeCount                                            // a thread that stops reads the note, then subtracts itself
	NoteNotRead                                                // a thread that stops does not read the note
	NoteTakenLate                                              // a thread that polls sends, then takes the note back
	NotNotedAgain                                              // a thread that polls and cannot send does not store the note again
	lastPumpSwitch
)

const (
	pumpScenario = "a pump sleeps until it is rung"
	pumpFailed   = "a pump sleeps until it is rung; the rank detaches at once" // after a failure
	pumpPolled   = "a pump sleeps, and a thread polls"
	pumpPolled2  = "a pump sleeps, and two threads poll"
)

var pumpMutations = []HostMutation{
	{RingBeforeWord, "a rank rings before it stores left or detached", pumpScenario, Deadlock},
	{RingBeforeMessage, "a rank rings before it publishes a message", pumpScenario, Deadlock},
	{HeardBehindWords, "the pump takes what was rung after it has read the words", pumpScenario, Deadlock},
	{LeftNotRung, "a rank that leaves does not ring", pumpScenario, Deadlock},
	{DetachedNotRung, "a rank that detaches does not ring", pumpScenario, Deadlock},
	{UnsentNotRung, "a message that is left to the pump is not rung for", pumpScenario, Deadlock},
	{DataBeforeLeft, "the pump looks for messages before it reads left", pumpFailed, BadOutcome},
	{LeftBeforeDetach, "the pump reads left before it reads detached", pumpFailed, BadOutcome},
	{CountBeforeNote, "the count of threads that poll is read before the note is stored", pumpPolled, Deadlock},
	{NoteBeforeCount, "a thread that stops reads the note before the count falls", pumpPolled, Deadlock},
	{NoteNotRead, "a thread that stops does not read the note", pumpPolled, Deadlock},
	{NotNotedAgain, "a thread that polls and cannot send does not store the note again", pumpPolled, Deadlock},
	{NoteTakenLate, "a thread that polls takes the note back when it has sent", pumpPolled, Deadlock},
}

// What the connection holds is less than what the rank publishes, so it may be full.
const (
	pumpMessages = 2
	pumpRoom     = 1
)

// Steps of a thread that sends what is published: the rank, which begins behind a message, or a thread that polls, which begins at the note.
const (
	senderIdle   uint8 = iota
	senderTries        // it tries to get the turn
	senderSends        // it has the turn
	senderGoesOn       // it has sent all that it has found, and gives the turn back
	senderIsFull       // the connection takes no more, and it gives the turn back
	senderNotes        // it could not send: the first of note and count
	senderCounts       // the second of them
	senderRings
	pollerClears // a mutation: it takes the note back
	pollerStops  // the first of count and note
	pollerStopped
)

// What the pump does next.
const (
	pumpSleeps uint8 = iota
	pumpTries        // it waits for the turn
	pumpBegins       // it looks at the first of the words
	pumpSecond
	pumpThird
	pumpSends
	pumpHears // a mutation: it takes what was rung, then sleeps
)

// Who has the turn; a thread that polls has 2 and more.
const (
	nobodysTurn uint8 = iota
	ranksTurn
	pollersTurn
	pumpsTurn = 9
)

// pumpThread is the rank, or a thread that polls.
type pumpThread struct {
	at      uint8
	polls   bool  // it is counted
	counted bool  // it has read that threads poll
	noted   bool  // it has read the note
	turns   uint8 // how often it may begin to poll
}

// pumpState: the words go from 0 to pumpMessages for messages, then left, then detached.
type pumpState struct {
	stored      uint8 // words so far
	sent        uint8 // messages
	read        uint8 // of these, by the other process
	bye, closed bool  // were sent
	rung        bool
	unsent      bool  // the note
	polling     uint8 // the count
	turn        uint8
	threads     [3]pumpThread // the rank, and those that poll

	pump         uint8
	seenLeft     bool // in this turn
	seenDetached bool
	seen         uint8 // messages
}

const (
	leftAt     = pumpMessages + 1
	detachedAt = pumpMessages + 2
)

var pumpScenarios = []HostScenario{
	pumpWorld(pumpScenario, pumpCase{}), pumpWorld(pumpFailed, pumpCase{failed: true}),
	pumpWorld(pumpPolled, pumpCase{pollers: 1}), pumpWorld(pumpPolled2, pumpCase{pollers: 2}),
}

type pumpCase struct {
	failed  bool
	pollers int
	off     HostSwitch
}

func pumpWorld(name string, c pumpCase) HostScenario {
	return HostScenario{Name: name, Big: c.pollers > 1, explore: func(off HostSwitch) Result {
		c := c
		c.off = off
		start := pumpState{rung: true} // by who has made the pair
		for i := range c.pollers {
			start.threads[1+i].turns = uint8(3 - c.pollers)
		}
		return exploreHosts(world[pumpState]{start: start, steps: c.steps, atRest: pumpAtRest})
	}}
}

type pumpStepper func(do func(n *pumpState) *violation, text string, args ...any)

func (c *pumpCase) steps(s pumpState) (list []hostStep[pumpState]) {
	step := func(do func(n *pumpState) *violation, text string, args ...any) {
		n := s
		wrong := do(&n)
		list = append(list, hostStep[pumpState]{n, fmt.Sprintf(text, args...), wrong})
	}
	if s.read < s.sent {
		step(func(n *pumpState) *violation { n.read++; return nil }, "the other process reads a message")
	}
	c.rankSteps(s, step)
	for i := range c.pollers {
		c.pollerSteps(s, 1+i, step)
	}
	for i := range 1 + c.pollers {
		c.senderSteps(s, i, step)
	}
	switch {
	case s.pump == pumpSleeps && !s.rung, s.pump == pumpTries && s.turn != nobodysTurn:
	case s.pump == pumpSends && s.sent < s.seen && s.sent == s.read+pumpRoom: // it waits where it must
	default:
		step(func(n *pumpState) *violation { return n.goOn(c.off) }, "the pump goes on")
	}
	return list
}

// rankSteps: a rank leaves when its messages were sent, and detaches when the others have left, which wait for its goodbye as well. After a
// failure it waits for nothing.
func (c *pumpCase) rankSteps(s pumpState, step pumpStepper) {
	const stores, rings = senderIdle, senderRings
	rank := s.threads[0].at
	may := c.failed
	switch s.stored {
	case pumpMessages:
		may = may || s.sent == pumpMessages
	case leftAt:
		may = may || s.bye
	default:
		may = s.stored < pumpMessages
	}
	message := s.stored < pumpMessages // the next word is one
	early := message && c.off == RingBeforeMessage || !message && c.off == RingBeforeWord
	publish := func(n *pumpState) {
		n.stored++
		switch {
		case message:
			n.threads[0].at = senderTries
		case early:
			n.threads[0].at = stores
		default:
			n.threads[0].at = rings
		}
	}
	switch {
	case rank == stores && may && early:
		step(func(n *pumpState) *violation { n.rung, n.threads[0].at = true, rings; return nil }, "the rank rings")
	case rank == stores && may:
		step(func(n *pumpState) *violation { publish(n); return nil }, "the rank stores the next word")
	case rank == rings && early:
		step(func(n *pumpState) *violation { publish(n); return nil }, "the rank stores the next word")
	case rank == rings && s.stored > pumpMessages:
		step(func(n *pumpState) *violation {
			n.threads[0].at = stores
			n.rung = n.rung || !(c.off == LeftNotRung && n.stored == leftAt || c.off == DetachedNotRung && n.stored == detachedAt)
			return nil
		}, "the rank rings")
	}
}

// pollerSteps are those of a thread that polls, but for what it has in common with the rank.
func (c *pumpCase) pollerSteps(s pumpState, i int, step pumpStepper) {
	m := &s.threads[i]
	change := func(text string, do func(n *pumpState, m *pumpThread)) {
		step(func(n *pumpState) *violation { do(n, &n.threads[i]); return nil }, text, i)
	}
	takes := func(n *pumpState, m *pumpThread) { // the note, if there is one
		if !n.unsent {
			return
		}
		n.unsent = c.off == NoteTakenLate
		m.at = senderTries
	}
	switch {
	case m.at == senderIdle && !m.polls && m.turns > 0:
		change("thread %d counts itself as one that polls", func(n *pumpState, m *pumpThread) {
			n.polling++
			m.turns--
			m.polls = true
		})
	case m.at == senderIdle && m.polls:
		if s.unsent {
			change("thread %d takes the note", takes)
		}
		change("thread %d is about to stop", func(n *pumpState, m *pumpThread) {
			m.noted = n.unsent && c.off == NoteBeforeCount
			m.at = pollerStops
		})
	case m.at == pollerStops:
		change("thread %d subtracts itself", func(n *pumpState, m *pumpThread) {
			n.polling--
			m.polls = false
			if m.at = pollerStopped; n.polling > 0 || c.off == NoteNotRead { // the others send
				m.at, m.noted = senderIdle, false
			}
		})
	case m.at == pollerStopped:
		change("thread %d reads the note", func(n *pumpState, m *pumpThread) {
			before := m.noted
			m.at, m.noted = senderIdle, false
			if before || c.off != NoteBeforeCount {
				takes(n, m)
			}
		})
	case m.at == pollerClears:
		change("thread %d takes the note back", func(n *pumpState, m *pumpThread) {
			n.unsent = false
			m.at = senderIdle
		})
	}
}

// senderSteps are those of a thread that tries to send what is published.
func (c *pumpCase) senderSteps(s pumpState, i int, step pumpStepper) {
	m := &s.threads[i]
	change := func(text string, do func(n *pumpState, m *pumpThread)) {
		step(func(n *pumpState) *violation { do(n, &n.threads[i]); return nil }, text, i)
	}
	note := func(n *pumpState) { n.unsent = n.unsent || i == 0 || c.off != NotNotedAgain }
	count := func(n *pumpState, m *pumpThread) { m.counted = n.polling > 0 }
	switch m.at {
	case senderTries:
		change("thread %d tries to get the turn", func(n *pumpState, m *pumpThread) {
			if m.at = senderNotes; n.turn == nobodysTurn {
				n.turn, m.at = ranksTurn+uint8(i), senderSends
			}
		})
	case senderSends:
		change("thread %d sends what it finds, if there is room", func(n *pumpState, m *pumpThread) {
			there := min(n.stored, pumpMessages)
			n.sent = max(n.sent, min(there, n.read+pumpRoom))
			if m.at = senderGoesOn; n.sent < there {
				m.at = senderIsFull
			}
		})
	case senderGoesOn:
		change("thread %d gives the turn back", func(n *pumpState, m *pumpThread) {
			n.turn = nobodysTurn
			if m.at = senderIdle; i > 0 && c.off == NoteTakenLate {
				m.at = pollerClears
			}
		})
	case senderIsFull:
		change("thread %d gives the turn back", func(n *pumpState, m *pumpThread) { n.turn, m.at = nobodysTurn, senderNotes })
	case senderNotes:
		change("thread %d does the first of note and count", func(n *pumpState, m *pumpThread) {
			if m.at = senderCounts; c.off == CountBeforeNote {
				count(n, m)
			} else {
				note(n)
			}
		})
	case senderCounts:
		change("thread %d does the second of note and count", func(n *pumpState, m *pumpThread) {
			if c.off == CountBeforeNote {
				note(n)
			} else {
				count(n, m)
			}
			if m.at = senderRings; m.counted || c.off == RingBeforeMessage {
				m.at = senderIdle
			}
			m.counted = false
		})
	case senderRings:
		if i == 0 && (s.stored > pumpMessages || c.off == RingBeforeMessage) {
			return // rankSteps has it
		}
		change("thread %d rings", func(n *pumpState, m *pumpThread) {
			n.rung = n.rung || c.off != UnsentNotRung
			m.at = senderIdle
		})
	}
}

// goOn is the next step of the pump.
func (s *pumpState) goOn(off HostSwitch) *violation {
	detached := func() { s.seenDetached = s.stored >= detachedAt }
	left := func() { s.seenLeft = s.stored >= leftAt }
	messages := func() { s.seen = min(s.stored, pumpMessages) }
	order := [3]func(){detached, left, messages}
	switch off {
	case DataBeforeLeft:
		order = [3]func(){detached, messages, left}
	case LeftBeforeDetach:
		order = [3]func(){left, detached, messages}
	}
	switch s.pump {
	case pumpSleeps:
		s.pump = pumpTries
		if off != HeardBehindWords {
			s.rung = false
		}
	case pumpTries:
		s.turn, s.pump = pumpsTurn, pumpBegins
	case pumpBegins, pumpSecond, pumpThird:
		order[s.pump-pumpBegins]()
		s.pump++
	case pumpSends:
		moved := s.seen > s.sent
		s.sent = max(s.sent, min(s.seen, s.read+pumpRoom))
		if s.sent < s.seen {
			return nil
		}
		if s.seenLeft && !s.bye {
			s.bye, moved = true, true
			if s.sent < pumpMessages {
				return &violation{BadOutcome, "the goodbye is sent before a message that was published before it"}
			}
		}
		if s.seenDetached && !s.closed {
			s.closed, moved = true, true
			if !s.bye {
				return &violation{BadOutcome, "CLOSE is sent before the goodbye"}
			}
		}
		s.seenLeft, s.seenDetached, s.seen = false, false, 0
		s.turn = nobodysTurn
		switch {
		case moved:
			s.pump = pumpTries
		case off == HeardBehindWords:
			s.pump = pumpHears
		default:
			s.pump = pumpSleeps
		}
	case pumpHears:
		s.rung, s.pump = false, pumpSleeps
	}
	return nil
}

func pumpAtRest(s pumpState) *violation {
	switch {
	case s.sent < pumpMessages:
		return &violation{Deadlock, "a message is never sent"}
	case !s.bye:
		return &violation{Deadlock, "the goodbye is never sent"}
	case !s.closed:
		return &violation{Deadlock, "CLOSE is never sent"}
	}
	return nil
}

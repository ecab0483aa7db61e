package modelcheck

// The pump of a link sleeps until it is rung. A rank publishes messages, leaves and detaches. It stores each word, then rings. What it publishes it
// sends itself if the pump has no turn; the goodbye and CLOSE are the pump's.

// Protections of the pump's sleep.
const (
	RingBeforeWord   HostSwitch = iota + lastDirectSwitch + 1 // a rank rings, then stores the word
	HeardBehindWords                                          // the pump reads the words, then takes what was rung
	LeftNotRung                                               // a rank that leaves does not ring
	DetachedNotRung                                           // a rank that detaches does not ring
	UnsentNotRung                                             // who finds that the pump has the turn leaves its message to it without ringing
	DataBeforeLeft                                            // the pump looks for messages before it reads left
	LeftBeforeDetach                                          // the pump reads left before it reads detached
	lastPumpSwitch
)

const (
	pumpScenario = "a pump sleeps until it is rung"
	pumpFailed   = "a pump sleeps until it is rung; the rank detaches at once" // after a failure
)

var pumpMutations = []HostMutation{
	{RingBeforeWord, "a rank rings before it stores the word", pumpScenario, Deadlock},
	{HeardBehindWords, "the pump takes what was rung after it has read the words", pumpScenario, Deadlock},
	{LeftNotRung, "a rank that leaves does not ring", pumpScenario, Deadlock},
	{DetachedNotRung, "a rank that detaches does not ring", pumpScenario, Deadlock},
	{UnsentNotRung, "a message that is left to the pump is not rung for", pumpScenario, Deadlock},
	{DataBeforeLeft, "the pump looks for messages before it reads left", pumpFailed, BadOutcome},
	{LeftBeforeDetach, "the pump reads left before it reads detached", pumpFailed, BadOutcome},
}

const pumpMessages = 2

// What the rank does next.
const (
	rankStores uint8 = iota
	rankSends
	rankRings
)

// What the pump does next.
const (
	pumpSleeps uint8 = iota
	pumpBegins       // it looks at the first of the words
	pumpSecond
	pumpThird
	pumpSends
	pumpHears // a mutation: it takes what was rung, then sleeps
)

// pumpState: the words go from 0 to pumpMessages for messages, then left, then detached.
type pumpState struct {
	stored       uint8 // words so far
	rank         uint8
	sent         uint8 // messages
	bye, closed  bool  // were sent
	rung         bool
	pump         uint8
	seenLeft     bool // in this turn
	seenDetached bool
	seen         uint8 // messages
}

const (
	leftAt     = pumpMessages + 1
	detachedAt = pumpMessages + 2
)

var pumpScenarios = []HostScenario{pumpWorld(pumpScenario, false), pumpWorld(pumpFailed, true)}

func pumpWorld(name string, failed bool) HostScenario {
	return HostScenario{Name: name, explore: func(off HostSwitch) Result {
		return exploreHosts(world[pumpState]{
			start:  pumpState{rung: true}, // by who has made the pair
			steps:  func(s pumpState) []hostStep[pumpState] { return pumpSteps(s, failed, off) },
			atRest: pumpAtRest,
		})
	}}
}

// pumpSteps: a rank leaves when its messages were sent, and detaches when the others have left, which wait for its goodbye as well. After a
// failure it waits for nothing.
func pumpSteps(s pumpState, failed bool, off HostSwitch) (list []hostStep[pumpState]) {
	step := func(text string, do func(n *pumpState) *violation) {
		n := s
		wrong := do(&n)
		list = append(list, hostStep[pumpState]{n, text, wrong})
	}
	may := failed
	switch s.stored {
	case pumpMessages:
		may = may || s.sent == pumpMessages
	case leftAt:
		may = may || s.bye
	default:
		may = s.stored < pumpMessages
	}
	stores := s.rank == rankStores && may
	switch {
	case stores && off != RingBeforeWord:
		step("the rank stores the next word", func(n *pumpState) *violation {
			n.stored++
			n.rank = rankRings
			if n.stored < leftAt {
				n.rank = rankSends
			}
			return nil
		})
	case stores:
		step("the rank rings", func(n *pumpState) *violation { n.rung, n.rank = true, rankRings; return nil })
	case s.rank == rankSends && s.pump == pumpSleeps:
		step("the rank sends its messages", func(n *pumpState) *violation { n.sent, n.rank = n.stored, rankStores; return nil })
	case s.rank == rankSends:
		step("the pump has the turn", func(n *pumpState) *violation { n.rank = rankRings; return nil })
	case s.rank == rankRings && off == RingBeforeWord:
		step("the rank stores the next word", func(n *pumpState) *violation { n.stored++; n.rank = rankStores; return nil })
	case s.rank == rankRings:
		step("the rank rings", func(n *pumpState) *violation {
			n.rank = rankStores
			silent := off == LeftNotRung && n.stored == leftAt || off == DetachedNotRung && n.stored == detachedAt || off == UnsentNotRung && n.stored < leftAt
			n.rung = n.rung || !silent
			return nil
		})
	}
	if s.pump == pumpSleeps && !s.rung {
		return list
	}
	step("the pump goes on", func(n *pumpState) *violation { return n.goOn(off) })
	return list
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
		s.pump = pumpBegins
		if off != HeardBehindWords {
			s.rung = false
		}
	case pumpBegins, pumpSecond, pumpThird:
		order[s.pump-pumpBegins]()
		s.pump++
	case pumpSends:
		moved := s.seen > s.sent
		s.sent = max(s.sent, s.seen)
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
		switch {
		case moved:
			s.pump = pumpBegins
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

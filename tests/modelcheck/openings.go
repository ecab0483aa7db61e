package modelcheck

import "fmt"

// Pairs of ranks are made at first need (docs/protocol.md, section 16, Pairs at first need). A process with one rank has a link to one with one
// or two. Each end of a pair is made by the first thing that its rank sends, or by the first frame that comes for it; each end says OPEN once, on the
// control connection. A rank that leaves makes no end from then on, and says LEFT once, behind OPEN of its ends. Frames of a connection stay in
// order, frames of different connections do not.

// Protections of pairs at first need.
const (
	OpenMakes        HostSwitch = iota + lastCalmSwitch + 1 // only OPEN makes an end; what comes before it is dropped
	OpenMakesAnew                                           // OPEN makes an end where there is one
	OpenOnData                                              // OPEN goes on the data connection
	OpenNotAnswered                                         // an end that a frame has made does not say OPEN
	LeftBeforeOpen                                          // LEFT is said before OPEN of some ends
	LeftEndsAll                                             // LEFT counts for pairs with OPEN, too
	LeftForOne                                              // LEFT counts for one rank of the process
	LeftNotSaid                                             // who leaves says goodbye to its pairs only
	MadeWhileLeaving                                        // a frame makes an end of a rank that leaves
	DetachedOfEnds                                          // a rank that detaches says so to the ends that are there
	SilentCloses                                            // who gets LEFT for a pair without OPEN waits for CLOSE
	GivenBackAtClose                                        // memory is given back when the own CLOSE was said
	GivenBackUnsaid                                         // memory without pairs is given back before LEFT was said
	LeftWakesAlways                                         // LEFT wakes a rank whose memory was given back
	LossTellsPairs                                          // the loss of a link is told to ranks with a pair
	lastOpeningSwitch
)

// GivenBack is what an access to memory is that was given back.
const GivenBack Kind = "memory used that was given back"

const (
	openBoth   = "pairs: both ends open at once"
	openTwo    = "pairs: one rank has a pair, one has none"
	openNone   = "pairs: two ranks wait for one that leaves without a pair"
	openLeaver = "pairs: a rank leaves before its peer opens"
	openDeath  = "pairs: a process dies"
	openDeath2 = "pairs: a process dies, and a rank without a pair waits"
)

var openingMutations = []HostMutation{
	{OpenMakes, "only OPEN makes an end", openBoth, FalseAlert},
	{OpenMakesAnew, "OPEN makes an end anew", openBoth, FalseAlert},
	{OpenOnData, "OPEN goes on the data connection", openTwo, FalseAlert},
	{OpenNotAnswered, "an end that a frame has made does not say OPEN", openTwo, FalseAlert},
	{LeftBeforeOpen, "LEFT is said before OPEN", openTwo, FalseAlert},
	{LeftEndsAll, "LEFT counts for pairs with OPEN", openTwo, BadOutcome},
	{LeftForOne, "LEFT counts for one rank of a process", openNone, Deadlock},
	{LeftNotSaid, "a rank that leaves says goodbye to its pairs only", openNone, Deadlock},
	{MadeWhileLeaving, "a frame makes an end of a rank that leaves", openLeaver, FalseAlert},
	{DetachedOfEnds, "a rank that detaches says so to the ends that are there", openLeaver, Deadlock},
	{SilentCloses, "who gets LEFT for a pair without OPEN waits for CLOSE", openLeaver, Deadlock},
	{GivenBackAtClose, "memory is given back at the own CLOSE", openBoth, GivenBack},
	{GivenBackUnsaid, "memory without pairs is given back before LEFT is said", openNone, GivenBack},
	{LeftWakesAlways, "LEFT wakes a rank whose memory was given back", openTwo, GivenBack},
	{LossTellsPairs, "a lost link is told to ranks with a pair", openDeath2, Deadlock},
}

// gaveUpWaiting is the end of a wait that the rank has not waited for.
const gaveUpWaiting = 99

const openFrames = 9 // that a connection carries at most

const (
	messageOf uint8 = iota + 1
	openOf
	goodbyeOf
	leftOf
	closeOf
)

var openFrameNames = [...]string{"", "message", "OPEN", "GOODBYE", "LEFT", "CLOSE"}

// openFrame is a frame of a pair, LEFT of a rank.
type openFrame struct{ kind, of, number uint8 }

// pairEnd is one end of a pair.
type pairEnd struct {
	wanted  bool // there is no link yet, on which it is to be made
	owed    bool // and something was published for it
	missing bool // a mutation: it is not on the link
	made    bool
	byFrame bool // which has made it
	said    bool // OPEN
	open    bool // OPEN has come
	silent  bool // LEFT has come, and OPEN had not
	tells   bool // a mutation: it was there when its rank detached
	bye     bool // GOODBYE was sent
	closed  bool // CLOSE was sent
	over    bool // nothing touches the memory of the rank for the pair any more
	knows   bool // left of the other rank
	messages, sent, came,
	byes, closes uint8
	ended uint8 // of the wait of the rank
}

// openRank is a rank. The second process has ranks 1 and 2.
type openRank struct{ left, leaving, told, detached, freed bool }

type openState struct {
	ranks [3]openRank
	ends  [2][2]pairEnd // by pair and process
	q     [2][2][openFrames]openFrame
	n     [2][2]uint8 // by sending process and connection: data, control
	dies  bool        // a process may die
	dead  [2]bool
	lost  [2]bool // the process has noticed
	link  meeting
}

// openCase is a scenario: by pair and process, how many messages its rank sends and waits for.
type openCase struct {
	name  string
	pairs int
	sends [2][2]uint8
	needs [2][2]uint8
	dies  bool

	// Of meetings.go:
	late    bool // there is no link at the beginning
	lazy    bool // who waits wants no link, as in a recv from any rank
	noWay   bool // none can be made
	givesUp bool // a rank may leave without what it waits for
}

var openCases = []openCase{
	{name: openBoth, pairs: 1, sends: [2][2]uint8{{2, 1}}, needs: [2][2]uint8{{1, 2}}},
	{name: openTwo, pairs: 2, sends: [2][2]uint8{{1, 0}}, needs: [2][2]uint8{{0, 1}, {0, 1}}},
	{name: openNone, pairs: 2, needs: [2][2]uint8{{0, 1}, {0, 1}}},
	{name: openLeaver, pairs: 1, sends: [2][2]uint8{{0, 2}}, needs: [2][2]uint8{{0, 1}}},
	{name: openDeath, pairs: 1, sends: [2][2]uint8{{2, 1}}, needs: [2][2]uint8{{1, 2}}, dies: true},
	{name: openDeath2, pairs: 2, sends: [2][2]uint8{{1, 0}}, needs: [2][2]uint8{{0, 1}, {0, 1}}, dies: true},
}

var openingScenarios = openScenarios(openCases)

func openScenarios(cases []openCase) (list []HostScenario) {
	for _, c := range cases {
		list = append(list, HostScenario{Name: c.name, explore: func(off HostSwitch) Result {
			return exploreHosts(world[openState]{
				start:  openState{dies: c.dies},
				steps:  func(s openState) []hostStep[openState] { return c.steps(s, off) },
				atRest: func(s openState) *violation { return c.atRest(&s) },
			})
		}})
	}
	return list
}

// rank returns the rank of a process in a pair.
func rankIn(pair, process int) int { return process * (1 + pair) }

// of returns the pairs of a rank, and its process.
func (c *openCase) of(rank int) (pairs []int, process int) {
	if rank > 0 {
		return []int{rank - 1}, 1
	}
	for i := range c.pairs {
		pairs = append(pairs, i)
	}
	return pairs, 0
}

func (s *openState) send(from int, control bool, kind uint8, of int, number uint8) {
	if s.dead[1-from] {
		return
	}
	on := 0
	if control {
		on = 1
	}
	s.q[from][on][s.n[from][on]] = openFrame{kind, uint8(of), number}
	s.n[from][on]++
}

type openStepper func(do func(n *openState) *violation, text string, args ...any)

func (c *openCase) steps(s openState, off HostSwitch) (list []hostStep[openState]) {
	step := func(do func(n *openState) *violation, text string, args ...any) {
		n := s
		wrong := do(&n)
		list = append(list, hostStep[openState]{n, fmt.Sprintf(text, args...), wrong})
	}
	for rank := range 1 + c.pairs {
		pairs, process := c.of(rank)
		if s.dead[process] {
			continue
		}
		c.rankSteps(s, rank, pairs, process, off, step)
		if !s.lost[process] && (!c.late || s.link.met[process]) {
			c.pumpSteps(s, rank, pairs, process, off, step)
		}
	}
	for to := range 2 {
		c.linkSteps(s, to, off, step)
		c.meetingSteps(s, to, off, step)
	}
	return list
}

// rankSteps are those of a rank: it sends, waits, leaves, detaches, and gives its memory back.
func (c *openCase) rankSteps(s openState, rank int, pairs []int, process int, off HostSwitch, step openStepper) {
	r := &s.ranks[rank]
	busy, over := false, true
	for _, i := range pairs {
		e := &s.ends[i][process]
		sends := e.messages < c.sends[i][process] && !s.lost[process] && !s.link.failed
		waits := c.needs[i][process] > 0 && e.ended == 0
		busy = busy || sends || waits
		done := e.over || off == GivenBackAtClose && e.closed || off == GivenBackUnsaid && !e.made || off == UnlinkedGivenBack && !e.made && !e.wanted
		over = over && done
		if sends && !r.left {
			step(func(n *openState) *violation {
				c.want(n, i, process, true)
				n.ends[i][process].messages++
				return nil
			}, "rank %d publishes a message of pair %d", rank, i)
		}
		if waits && c.late && !c.lazy && !e.wanted && !e.made && !s.link.failed {
			step(func(n *openState) *violation { c.want(n, i, process, false); return nil }, "rank %d waits for pair %d", rank, i)
		}
		if waits && c.givesUp {
			step(func(n *openState) *violation { n.ends[i][process].ended = gaveUpWaiting; return nil }, "rank %d gives up its wait for pair %d", rank, i)
		}
		switch {
		case !waits:
		case e.came >= c.needs[i][process]:
			step(func(n *openState) *violation { n.ends[i][process].ended = uint8(finished); return nil }, "rank %d has what it needs of pair %d", rank, i)
		case s.link.failed && off != UnreachableSilently:
			step(func(n *openState) *violation { n.ends[i][process].ended = uint8(failed); return nil }, "rank %d fails without a link", rank)
		case e.knows || s.lost[process] && (off != LossTellsPairs || e.made):
			step(func(n *openState) *violation { n.ends[i][process].ended = uint8(failed); return nil }, "rank %d fails", rank)
		}
	}
	switch {
	case !busy && !r.left:
		step(func(n *openState) *violation { n.ranks[rank].left = true; return nil }, "rank %d leaves", rank)
	case r.left && !r.detached:
		step(func(n *openState) *violation {
			n.ranks[rank].detached = true
			for _, i := range pairs {
				n.ends[i][process].tells = n.ends[i][process].made
			}
			return nil
		}, "rank %d detaches", rank)
	case r.detached && over && !r.freed && (!c.late || r.told || s.lost[process] || off == UnlinkedGivenBack):
		step(func(n *openState) *violation { n.ranks[rank].freed = true; return nil }, "rank %d gives its memory back", rank)
	}
}

// pumpSteps are what a pump does for a rank. A message may also be sent by a thread that has published it.
func (c *openCase) pumpSteps(s openState, rank int, pairs []int, process int, off HostSwitch, step openStepper) {
	r := &s.ranks[rank]
	said, missing := true, true // OPEN of all ends; all of them
	for _, i := range pairs {
		e := &s.ends[i][process]
		missing = missing && e.missing
		quiet := off == OpenNotAnswered && e.byFrame
		said = said && (!e.made || e.said || quiet)
		change := func(text string, do func(n *openState, e *pairEnd)) {
			step(func(n *openState) *violation {
				if n.ranks[rank].freed {
					return &violation{GivenBack, fmt.Sprintf("the pump reads memory of rank %d", rank)}
				}
				do(n, &n.ends[i][process])
				return nil
			}, text, rank, i)
		}
		if e.made && !e.said && !quiet {
			change("rank %d says OPEN of pair %d", func(n *openState, e *pairEnd) {
				e.said = true
				n.send(process, off != OpenOnData, openOf, i, 0)
			})
		}
		if e.sent < e.messages && !e.bye {
			change("a message of rank %d is sent for pair %d", func(n *openState, e *pairEnd) {
				e.sent++
				n.send(process, false, messageOf, i, e.sent)
			})
		}
		if r.leaving && e.made && (e.said || quiet) && e.sent == e.messages && !e.bye {
			change("rank %d says goodbye to pair %d", func(n *openState, e *pairEnd) {
				e.bye = true
				n.send(process, true, goodbyeOf, i, 0)
				n.send(process, false, goodbyeOf, i, 0)
			})
		}
		if r.detached && e.bye && !e.closed && (off != DetachedOfEnds || e.tells) {
			change("rank %d closes pair %d", func(n *openState, e *pairEnd) {
				e.closed = true
				n.send(process, true, closeOf, i, 0)
				n.send(process, false, closeOf, i, 0)
				e.end()
			})
		}
	}
	if r.left && !r.leaving {
		step(func(n *openState) *violation {
			if n.ranks[rank].freed {
				return &violation{GivenBack, fmt.Sprintf("the pump reads left of rank %d", rank)}
			}
			n.ranks[rank].leaving = true
			return nil
		}, "the pump sees that rank %d has left", rank)
	}
	if r.leaving && !r.told && (said || off == LeftBeforeOpen) {
		step(func(n *openState) *violation {
			n.ranks[rank].told = true
			for _, i := range pairs {
				if e := &n.ends[i][process]; !e.made {
					e.over = true
				}
			}
			if off != LeftNotSaid && !missing {
				n.send(process, true, leftOf, rank, 0)
			}
			return nil
		}, "rank %d says LEFT", rank)
	}
}

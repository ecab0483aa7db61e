package modelcheck

import "fmt"

// Links between two processes, the writer and the reader. The writer's ranks send messages through channels and leave. Frames of a
// connection stay in order; a connection may be lost at any moment with what is on the way; each side notices that by itself. Which thread reads a
// connection is the subject of calm.go.

// Protections of links.
const (
	NoCredit            HostSwitch = iota + lastVerdictSwitch + 1 // the sender does not wait for room
	RoomTooEarly                                                  // room is told when a message has come, not when it was read
	RoomNotTold                                                   // room is told with messages of the opposite channel only
	PumpBlocks                                                    // in the place of credits, the pump waits until the place is free
	TwoConnections                                                // messages of a channel go over several connections
	GoodbyeOnControl                                              // GOODBYE is sent on the control connection only
	GoodbyeCountsAtOnce                                           // the first GOODBYE of all connections counts
	NoLookAfterGoodbye                                            // a rank that sees left does not look at the flag again
	ConnectionMadeAgain                                           // a lost connection is replaced, and frames go on
	LossNotFailure                                                // a lost link wakes nobody
	LeavesUnsent                                                  // a driver leaves without pumping what it has published
	NoLookAfterUnlock                                             // who has pumped does not look again after it has released the lock
	EndOfOneEndsLink                                              // the end of one connection closes the others unread
	ExitWithoutDrain                                              // a process that exits closes connections with frames unread
	ExitWithoutFlush                                              // a process exits when its ranks have left, whatever its pump has sent
	BlockingSend                                                  // who reads a connection waits in a send
	lastLinkSwitch
)

var linkMutations = []HostMutation{
	{NoCredit, "a sender does not wait for room", "messages, window 1", FalseAlert},
	{RoomTooEarly, "room is told when a message has come", "messages, window 1", FalseAlert},
	{RoomNotTold, "room is told in messages of the opposite channel only", "messages, window 1", Deadlock},
	{PumpBlocks, "the pump waits for a free place, in the place of credits", "2 x 2: two channels on one connection", Deadlock},
	{TwoConnections, "messages of a channel go over two connections", "messages, window 2", FalseAlert},
	{GoodbyeOnControl, "a goodbye is sent on the control connection only", "goodbye behind messages", BadOutcome},
	{GoodbyeCountsAtOnce, "the first goodbye of all connections counts", "goodbye behind messages", BadOutcome},
	{NoLookAfterGoodbye, "a rank does not look at the flag again after it has seen left", "goodbye behind messages", BadOutcome},
	{ConnectionMadeAgain, "a lost connection is replaced, and frames go on", "a connection is lost", Deadlock},
	{LossNotFailure, "a lost link wakes nobody", "a process dies", Deadlock},
	{LeavesUnsent, "a driver leaves without pumping", "messages, window 2", Deadlock},
	{NoLookAfterUnlock, "no look after the lock of a connection is released", "2 x 2: two threads send on one connection", Deadlock},
	{EndOfOneEndsLink, "the end of one connection closes the others", "a rank exits after its goodbye", BadOutcome},
	{ExitWithoutDrain, "a process exits with frames unread", "a rank exits after its goodbye", BadOutcome},
	{ExitWithoutFlush, "a process exits before its pump has sent the goodbye", "a rank exits after its goodbye", BadOutcome},
	{BlockingSend, "who reads a connection waits in a send", answersScenario, Deadlock},
}

// Connections, by index.
const (
	dataConnection = iota
	otherConnection
	controlConnection
	connections
)

const maxFrames = 5

const (
	messageFrame uint8 = iota + 1
	goodbyeFrame
)

type linkFrame struct{ kind, channel, number uint8 }

// What the writer's rank of a channel does.
type sender struct {
	published uint8 // messages that lie in the channel
	pumped    uint8 // of these, given to the connection
	room      uint8 // messages that the reader is known to have read
	left      bool
	ended     uint8
}

// The reader's side of a channel.
type receiver struct {
	filled uint8 // messages that have come
	taken  uint8 // messages that the rank has read
	told   uint8 // as the writer has been told
	ended  uint8
}

type linkState struct {
	out      [2]sender
	in       [2]receiver
	q        [connections]([maxFrames]linkFrame)
	n        [connections]uint8
	said     bool              // the writer's pump has sent GOODBYE
	byes     [connections]bool // GOODBYE has come
	left     bool              // in the shadow
	lossLeft uint8
	lost     bool              // nothing is carried any more
	exited   bool              // the writer's process has exited; its kernel delivers what it had sent, and then the end
	atEnd    [connections]bool // the reader has seen the end
	lostAt   [2]bool
	dead     bool

	lock  uint8 // of the direction of a connection: 1 + its holder
	holds [2]uint8
}

// linkCase is a scenario.
type linkCase struct {
	messages, window uint8
	channels         int
	needs            uint8 // messages for which the reader waits; 0: messages
	goodbye, exits   bool
	losses, deaths   bool
	crossed          bool // the reader of channel 0 reads only after that of channel 1
	locked           bool // the two channels' threads pump under the lock
}

var linkCases = []struct {
	name string
	c    linkCase
}{
	{"messages, window 1", linkCase{messages: 3, window: 1, channels: 1}},
	{"messages, window 2", linkCase{messages: 4, window: 2, channels: 1}},
	{"goodbye behind messages", linkCase{messages: 2, window: 2, channels: 1, goodbye: true}},
	{"goodbye of a rank that is needed", linkCase{messages: 2, window: 2, channels: 1, needs: 3, goodbye: true}},
	{"a rank exits after its goodbye", linkCase{messages: 2, window: 2, channels: 1, goodbye: true, exits: true}},
	{"a connection is lost", linkCase{messages: 3, window: 2, channels: 1, goodbye: true, losses: true}},
	{"a process dies", linkCase{messages: 3, window: 1, channels: 1, goodbye: true, deaths: true}},
	{"2 x 2: two channels on one connection", linkCase{messages: 2, window: 1, channels: 2, crossed: true}},
	{"2 x 2: two threads send on one connection", linkCase{messages: 1, window: 1, channels: 2, locked: true}},
	{"2 x 2: goodbyes, and a process dies", linkCase{messages: 2, window: 1, channels: 2, goodbye: true, deaths: true}},
}

var linkScenarios = func() (list []HostScenario) {
	for _, v := range linkCases {
		list = append(list, HostScenario{Name: v.name, explore: func(off HostSwitch) Result {
			start := linkState{}
			if v.c.losses || v.c.deaths {
				start.lossLeft = 1
			}
			return exploreHosts(world[linkState]{
				start:  start,
				steps:  func(s linkState) []hostStep[linkState] { return v.c.steps(s, off) },
				atRest: func(s linkState) *violation { return v.c.atRest(s, off) },
			})
		}})
	}
	return list
}()

func (c *linkCase) wanted() uint8 { return max(c.needs, c.messages) }

func (s *linkState) push(on int, f linkFrame) {
	if s.lost {
		return
	}
	if s.n[on] == maxFrames {
		panic("the queue of the model is too short")
	}
	s.q[on][s.n[on]] = f
	s.n[on]++
}

func (s *linkState) pop(on int) linkFrame {
	f := s.q[on][0]
	copy(s.q[on][:], s.q[on][1:])
	s.n[on]--
	s.q[on][s.n[on]] = linkFrame{}
	return f
}

// pump gives what a channel holds to its connection.
func (c *linkCase) pump(s *linkState, i int, off HostSwitch) {
	w := &s.out[i]
	for w.pumped < w.published {
		w.pumped++
		on := dataConnection
		if off == TwoConnections {
			on += int(w.pumped % 2)
		}
		s.push(on, linkFrame{messageFrame, uint8(i), w.pumped})
	}
}

// deliver lets the reader's pump take a frame.
func (c *linkCase) deliver(s *linkState, on int, off HostSwitch) *violation {
	f := s.pop(on)
	if f.kind == goodbyeFrame {
		s.byes[on] = true
		all := s.byes[controlConnection] && s.byes[dataConnection]
		s.left = all || off == GoodbyeOnControl && s.byes[controlConnection] || off == GoodbyeCountsAtOnce
		return nil
	}
	r := &s.in[f.channel]
	if f.number != r.filled+1 || f.number > r.taken+c.window {
		return &violation{FalseAlert, fmt.Sprintf("message %d of channel %d comes after message %d, when %d are read", f.number, f.channel, r.filled, r.taken)}
	}
	r.filled = f.number
	if off == RoomTooEarly {
		s.out[f.channel].room = max(s.out[f.channel].room, r.filled)
	}
	return nil
}

// steps returns what may happen next.
func (c *linkCase) steps(s linkState, off HostSwitch) (list []hostStep[linkState]) {
	step := func(text string, do func(n *linkState) *violation) {
		n := s
		wrong := do(&n)
		list = append(list, hostStep[linkState]{n, text, wrong})
	}
	c.writerSteps(s, off, step)
	c.lossSteps(s, off, step)
	for on := range connections {
		if s.n[on] == 0 || s.lostAt[1] {
			continue
		}
		if f := s.q[on][0]; off == PumpBlocks && f.kind == messageFrame && f.number > s.in[f.channel].taken+c.window {
			continue
		}
		step(fmt.Sprintf("the reader's pump takes the next frame of connection %d", on), func(n *linkState) *violation { return c.deliver(n, on, off) })
	}
	for i := range c.channels {
		c.readerSteps(s, i, off, step)
	}
	return list
}

type hostStepper func(text string, do func(n *linkState) *violation)

func (c *linkCase) writerSteps(s linkState, off HostSwitch, step hostStepper) {
	if s.dead || s.exited {
		return
	}
	gone := s.out[0].left && (c.channels == 1 || s.out[1].left)
	if c.exits && gone && (s.said || off == ExitWithoutFlush) {
		step("the writer's process exits", func(n *linkState) *violation {
			n.exited = true
			if off == ExitWithoutDrain { // frames of the reader that it has not read make its kernel reset the connection
				n.q[dataConnection], n.n[dataConnection] = [maxFrames]linkFrame{}, 0
			}
			return nil
		})
	}
	for i := range c.channels {
		w := &s.out[i]
		room := w.published < w.room+c.window || off == NoCredit || off == PumpBlocks
		if s.lostAt[0] {
			if w.ended == 0 {
				step(fmt.Sprintf("the writer of channel %d ends", i), func(n *linkState) *violation { n.out[i].ended = 1; return nil })
			}
			continue
		}
		if w.published < c.messages && room {
			step(fmt.Sprintf("the writer publishes message %d of channel %d", w.published+1, i), func(n *linkState) *violation {
				n.out[i].published++
				return nil
			})
		}
		switch {
		case c.locked:
			c.lockSteps(s, i, off, step)
		case w.pumped < w.published && (off != LeavesUnsent || w.published < c.messages):
			step(fmt.Sprintf("the writer pumps channel %d", i), func(n *linkState) *violation { c.pump(n, i, off); return nil })
		}
		if c.goodbye && !w.left && w.published == c.messages {
			step(fmt.Sprintf("the rank of channel %d leaves", i), func(n *linkState) *violation { n.out[i].left = true; return nil })
		}
	}
	sent := s.out[0].pumped == s.out[0].published && s.out[1].pumped == s.out[1].published
	if gone && sent && !s.said && !s.lostAt[0] {
		step("the writer's pump says goodbye", func(n *linkState) *violation {
			n.said = true
			n.push(controlConnection, linkFrame{kind: goodbyeFrame})
			if off != GoodbyeOnControl {
				n.push(dataConnection, linkFrame{kind: goodbyeFrame})
			}
			return nil
		})
	}
}

// lockSteps are those of a thread that pumps a connection which another thread may be pumping.
func (c *linkCase) lockSteps(s linkState, i int, off HostSwitch, step hostStepper) {
	pending := func(s *linkState) bool {
		return s.out[0].pumped < s.out[0].published || s.out[1].pumped < s.out[1].published
	}
	const (
		mayPump = iota
		pumps
		empty
		released
		done
	)
	switch {
	case s.holds[i] == mayPump && s.out[i].published > 0:
		step(fmt.Sprintf("thread %d tries the lock of the connection", i), func(n *linkState) *violation {
			if n.lock != 0 {
				n.holds[i] = done
				return nil
			}
			n.lock, n.holds[i] = uint8(1+i), pumps
			return nil
		})
	case s.holds[i] == pumps && pending(&s):
		step(fmt.Sprintf("thread %d pumps", i), func(n *linkState) *violation {
			c.pump(n, 0, off)
			c.pump(n, 1, off)
			return nil
		})
	case s.holds[i] == pumps:
		step(fmt.Sprintf("thread %d finds nothing more to send", i), func(n *linkState) *violation { n.holds[i] = empty; return nil })
	case s.holds[i] == empty:
		step(fmt.Sprintf("thread %d releases the lock", i), func(n *linkState) *violation {
			n.lock, n.holds[i] = 0, released
			return nil
		})
	case s.holds[i] == released:
		step(fmt.Sprintf("thread %d looks again", i), func(n *linkState) *violation {
			n.holds[i] = done
			if pending(n) && off != NoLookAfterUnlock {
				n.holds[i] = mayPump
			}
			return nil
		})
	}
}

func (c *linkCase) lossSteps(s linkState, off HostSwitch, step hostStepper) {
	for on := range connections {
		if !s.exited || on == otherConnection || s.n[on] > 0 || s.atEnd[on] || s.lostAt[1] {
			continue
		}
		step(fmt.Sprintf("the reader sees the end of connection %d", on), func(n *linkState) *violation {
			n.atEnd[on] = true
			if off == EndOfOneEndsLink || n.atEnd[dataConnection] && n.atEnd[controlConnection] {
				n.lostAt[1] = true
				n.q, n.n = [connections]([maxFrames]linkFrame){}, [connections]uint8{}
			}
			return nil
		})
	}
	if s.lossLeft > 0 && c.losses {
		for on := range connections {
			if on == otherConnection {
				continue
			}
			step(fmt.Sprintf("connection %d is lost", on), func(n *linkState) *violation {
				n.lossLeft--
				if off == ConnectionMadeAgain {
					n.q[on], n.n[on] = [maxFrames]linkFrame{}, 0
					return nil
				}
				n.lost = true
				return nil
			})
		}
	}
	if s.lossLeft > 0 && c.deaths {
		step("the writer's process dies", func(n *linkState) *violation {
			n.lossLeft--
			n.dead, n.lost = true, true
			return nil
		})
	}
	if !s.lost {
		return
	}
	if !s.dead && !s.lostAt[0] {
		step("the writer notices the loss", func(n *linkState) *violation { n.lostAt[0] = true; return nil })
	}
	if !s.lostAt[1] && off != LossNotFailure {
		step("the reader notices the loss", func(n *linkState) *violation {
			n.lostAt[1] = true
			n.q, n.n = [connections]([maxFrames]linkFrame){}, [connections]uint8{}
			return nil
		})
	}
}

// readerSteps are those of the rank that reads a channel.
func (c *linkCase) readerSteps(s linkState, i int, off HostSwitch, step hostStepper) {
	r := &s.in[i]
	if r.told < r.taken && off != RoomNotTold && off != RoomTooEarly && !s.lostAt[0] && !s.lost {
		step(fmt.Sprintf("the writer hears of room in channel %d", i), func(n *linkState) *violation {
			n.in[i].told = n.in[i].taken
			n.out[i].room = n.in[i].taken
			return nil
		})
	}
	if r.ended != 0 {
		return
	}
	if c.crossed && i == 0 && s.in[1].ended == 0 {
		return
	}
	switch {
	case r.taken < r.filled:
		step(fmt.Sprintf("the rank of channel %d reads message %d", i, r.taken+1), func(n *linkState) *violation {
			r := &n.in[i]
			r.taken++
			if r.taken == c.wanted() {
				r.ended = uint8(finished)
			}
			return nil
		})
	case s.lostAt[1] || s.left:
		step(fmt.Sprintf("the rank of channel %d fails", i), func(n *linkState) *violation { n.in[i].ended = uint8(failed); return nil })
	}
	if off == NoLookAfterGoodbye && r.taken < r.filled && s.left {
		step(fmt.Sprintf("the rank of channel %d fails", i), func(n *linkState) *violation { n.in[i].ended = uint8(failed); return nil })
	}
}

// atRest requires that every reader has ended, with success where all that it needs was published and is said to be all.
func (c *linkCase) atRest(s linkState, off HostSwitch) *violation {
	for i := range c.channels {
		r := &s.in[i]
		switch {
		case r.ended == 0:
			return &violation{Deadlock, fmt.Sprintf("the reader of channel %d is never woken, or never goes on", i)}
		case r.ended == uint8(failed) && c.wanted() == c.messages && !s.lost:
			return &violation{BadOutcome, fmt.Sprintf("the reader of channel %d fails although all it needs was published", i)}
		case r.ended == uint8(finished) && c.wanted() > c.messages:
			return &violation{BadOutcome, fmt.Sprintf("the reader of channel %d finishes without its last message", i)}
		}
		if w := &s.out[i]; !s.lost && w.pumped < c.messages {
			return &violation{Deadlock, fmt.Sprintf("the writer of channel %d never goes on", i)}
		}
	}
	return nil
}

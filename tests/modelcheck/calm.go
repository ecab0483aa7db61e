package modelcheck

import "fmt"

// Threads of a process poll a connection, beside its goroutine. While some of them do, the low-water mark of the socket (SO_RCVLOWAT) is raised, and
// the kernel wakes the goroutine only when so much is unread. Whoever finds the lock of the receiving direction taken leaves the work to its holder;
// only the goroutine waits for the lock.

// Protections of what a raised mark leaves unread.
const (
	MarkStays         HostSwitch = iota + lastPumpSwitch + 1 // the last thread that polls does not lower the mark
	MarkLoweredLate                                          // it lowers the mark when it has slept
	MarkOfWhoRaised                                          // only the thread that has raised the mark lowers it
	MarkAboveBuffer                                          // the mark is more than the buffer of the socket holds
	NoLookBehindMark                                         // the kernel does not look at what is unread when the mark is lowered
	EndBelowMark                                             // the end of a connection wakes nobody while less than the mark is unread
	ReaderOnlyTries                                          // the goroutine goes back to sleep where somebody else has the lock
	ReaderWakesNobody                                        // who reads a frame does not wake the thread that waits for it
	lastCalmSwitch
)

const (
	calmOne    = "a thread polls, and sleeps"
	calmTwo    = "two threads poll a connection, each for its group"
	calmSilent = "a thread polls without raising the mark"
	calmSlow   = "a thread that has polled is busy, and the sender needs room"
	calmDeath  = "a thread polls, and the sender's process dies"
)

var calmMutations = []HostMutation{
	{MarkStays, "the last thread that polls does not lower the mark", calmOne, Deadlock},
	{MarkLoweredLate, "a thread lowers the mark when it has slept", calmOne, Deadlock},
	{NoLookBehindMark, "the kernel does not look when the mark is lowered", calmOne, Deadlock},
	{ReaderWakesNobody, "who reads a frame wakes nobody", calmOne, Deadlock},
	{MarkOfWhoRaised, "only the thread that has raised the mark lowers it", calmTwo, Deadlock},
	{ReaderOnlyTries, "the goroutine does not wait for the lock", calmSilent, Deadlock},
	{MarkAboveBuffer, "the mark is above what the buffer holds", calmSlow, Deadlock},
	{EndBelowMark, "the end of a connection counts as no bytes", calmDeath, Deadlock},
}

// In frames.
const (
	calmBuffer = 3 // what the socket holds
	calmMark   = 2 // when it is raised
)

// What a thread of the reader's process does.
const (
	threadAwake uint8 = iota
	threadBusy        // in a local part of its run
	threadReads       // it has the lock, and a frame
	threadSleeps
)

// What the goroutine of the connection does.
const (
	inNetpoll uint8 = iota
	goroutineUp
	goroutineReads // it has the lock, and a frame
)

type calmThread struct {
	at, taken uint8
	polls     bool // it is counted
	raised    bool // it was the first one
	turns     uint8
	wasBusy   bool
}

type calmState struct {
	sent   [2]uint8 // frames, by group
	unread [calmBuffer]uint8
	n      uint8
	filled [2]uint8 // frames that were read
	inHand uint8    // the group of the frame of who has the lock
	locked bool
	count  uint8 // threads that poll
	high   bool  // the mark is raised
	ready  bool  // the kernel has told netpoll
	goro   uint8
	end    bool // the sender's process is dead
	lost   bool // that was read
	thread [2]calmThread
}

// calmCase is a scenario. Thread i waits for the frames of group i, and the next one is sent when it has answered the one before.
type calmCase struct {
	name    string
	threads int
	frames  uint8 // of each group
	turns   uint8 // how often a thread may begin to poll
	burst   bool  // frames are sent without waiting for answers
	silent  bool  // a thread polls without being counted
	slow    bool  // once a thread is busy until everything was sent
	deaths  bool
}

var calmScenarios = func() (list []HostScenario) {
	for _, c := range []calmCase{
		{name: calmOne, threads: 1, frames: 3, turns: 2},
		{name: calmTwo, threads: 2, frames: 2, turns: 2},
		{name: calmSilent, threads: 1, frames: 3, burst: true, silent: true},
		{name: calmSlow, threads: 1, frames: 2 * calmBuffer, turns: 1, burst: true, slow: true},
		{name: calmDeath, threads: 1, frames: 2, turns: 2, deaths: true},
	} {
		list = append(list, HostScenario{Name: c.name, explore: func(off HostSwitch) Result {
			start := calmState{}
			for i := range c.threads {
				start.thread[i].turns = c.turns
			}
			return exploreHosts(world[calmState]{
				start:  start,
				steps:  func(s calmState) []hostStep[calmState] { return c.steps(s, off) },
				atRest: c.atRest,
			})
		}})
	}
	return list
}()

// isReady reports whether the kernel wakes who sleeps until the connection is readable.
func (s *calmState) isReady(off HostSwitch) bool {
	mark := uint8(1)
	switch {
	case s.high && off == MarkAboveBuffer:
		mark = calmBuffer + 1
	case s.high:
		mark = calmMark
	}
	return s.n >= mark || s.end && off != EndBelowMark
}

// lower lowers the mark. The kernel looks whether that makes the connection readable.
func (s *calmState) lower(off HostSwitch) {
	s.high = false
	s.ready = s.ready || s.isReady(off) && off != NoLookBehindMark
}

// read is a system call: it takes a frame, or finds the end. It reports whether it has taken one.
func (s *calmState) read() bool {
	if s.n == 0 {
		if s.end {
			s.lost = true
			for i := range s.thread {
				s.thread[i].at = threadAwake
			}
		}
		return false
	}
	s.inHand, s.locked = s.unread[0], true
	copy(s.unread[:], s.unread[1:])
	s.n--
	s.unread[s.n] = 0
	return true
}

// deliver stores the word of the frame that was read, wakes who waits for it, and releases the lock.
func (s *calmState) deliver(off HostSwitch) {
	s.filled[s.inHand]++
	if m := &s.thread[s.inHand]; m.at == threadSleeps && off != ReaderWakesNobody {
		m.at = threadAwake
		if off == MarkLoweredLate && m.polls {
			s.stops(int(s.inHand), off)
		}
	}
	s.inHand, s.locked = 0, false
}

// stops is a thread that does not poll any more.
func (s *calmState) stops(i int, off HostSwitch) {
	m := &s.thread[i]
	s.count--
	if s.count == 0 && off != MarkStays && (off != MarkOfWhoRaised || m.raised) {
		s.lower(off)
	}
	m.polls, m.raised = false, false
}

func (c *calmCase) steps(s calmState, off HostSwitch) (list []hostStep[calmState]) {
	if s.lost {
		return nil
	}
	step := func(do func(n *calmState), text string, args ...any) {
		n := s
		do(&n)
		list = append(list, hostStep[calmState]{n, fmt.Sprintf(text, args...), nil})
	}
	for g := range c.threads {
		answered := c.burst || s.sent[g] == s.thread[g].taken
		if s.sent[g] < c.frames && answered && s.n < calmBuffer && !s.end {
			step(func(n *calmState) {
				n.sent[g]++
				n.unread[n.n] = uint8(g)
				n.n++
				n.ready = n.ready || n.isReady(off)
			}, "frame %d of group %d comes", s.sent[g]+1, g)
		}
	}
	if c.deaths && !s.end {
		step(func(n *calmState) {
			n.end = true
			n.ready = n.ready || n.isReady(off)
		}, "the sender's process dies")
	}
	for i := range c.threads {
		c.threadSteps(s, i, off, step)
	}
	switch {
	case s.goro == inNetpoll && s.ready:
		step(func(n *calmState) {
			n.ready = false
			if n.isReady(off) { // the kernel looks again when it is asked
				n.goro = goroutineUp
			}
		}, "netpoll asks what is ready")
	case s.goro == goroutineUp && s.locked && off == ReaderOnlyTries:
		step(func(n *calmState) { n.goro = inNetpoll }, "the goroutine finds the lock taken")
	case s.goro == goroutineUp && !s.locked:
		step(func(n *calmState) {
			if n.goro = inNetpoll; n.read() {
				n.goro = goroutineReads
			}
		}, "the goroutine reads")
	case s.goro == goroutineReads:
		step(func(n *calmState) {
			n.deliver(off)
			n.goro = goroutineUp
		}, "the goroutine stores the word of the frame")
	}
	return list
}

// threadSteps are those of a thread of the reader's process. It sleeps when it has seen that its frame is not there.
func (c *calmCase) threadSteps(s calmState, i int, off HostSwitch, step func(do func(n *calmState), text string, args ...any)) {
	m := &s.thread[i]
	waits := m.taken == s.filled[i] && m.taken < c.frames
	switch m.at {
	case threadReads:
		step(func(n *calmState) {
			n.thread[i].at = threadAwake
			n.deliver(off)
		}, "thread %d stores the word of the frame", i)
		return
	case threadBusy:
		if s.sent[i] == c.frames {
			step(func(n *calmState) { n.thread[i].at = threadAwake }, "thread %d goes on", i)
		}
		return
	case threadSleeps:
		return
	}
	if m.taken < s.filled[i] {
		step(func(n *calmState) { n.thread[i].taken++ }, "thread %d finds frame %d, and answers", i, m.taken+1)
	}
	if waits && !m.polls && m.turns > 0 {
		step(func(n *calmState) {
			m := &n.thread[i]
			m.turns--
			m.polls, m.raised = true, n.count == 0
			n.count++
			n.high = true
		}, "thread %d begins to poll", i)
	}
	if waits && (m.polls || c.silent) && !s.locked && (s.n > 0 || s.end) {
		step(func(n *calmState) {
			if n.read() {
				n.thread[i].at = threadReads
			}
		}, "thread %d polls", i)
	}
	if m.polls && c.slow && !m.wasBusy {
		step(func(n *calmState) { n.thread[i].at, n.thread[i].wasBusy = threadBusy, true }, "thread %d is busy", i)
	}
	if m.polls && off != MarkLoweredLate {
		step(func(n *calmState) { n.stops(i, off) }, "thread %d ends to poll", i)
	}
	if waits && (!m.polls || off == MarkLoweredLate) {
		step(func(n *calmState) { n.thread[i].at = threadSleeps }, "thread %d sleeps", i)
	}
}

// atRest requires that every frame was sent, read and answered, unless the end was read.
func (c *calmCase) atRest(s calmState) *violation {
	for g := range c.threads {
		switch {
		case s.lost:
		case s.n > 0:
			return &violation{Deadlock, fmt.Sprintf("%d frames lie unread, and nobody is woken for them", s.n)}
		case s.end:
			return &violation{Deadlock, "nobody sees the end of the connection"}
		case s.sent[g] < c.frames || s.thread[g].taken < c.frames:
			return &violation{Deadlock, fmt.Sprintf("of %d frames of group %d %d were sent, and %d answered", c.frames, g, s.sent[g], s.thread[g].taken)}
		}
	}
	return nil
}

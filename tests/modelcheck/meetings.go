package modelcheck

import "fmt"

// Links at first need (docs/protocol.md, section 16): the processes of openings.go without a link at the beginning. A rank that publishes something, or
// waits, wants a link. When it is there, each process meets the group on it: because a rank there wants that, or by the first frame of the group. Then
// all pairs of ranks that have not left are on the link, those that are wanted are made, and LEFT is said for ranks that have left before.

// Protections of links at first need.
const (
	DepartedUnsaid      HostSwitch = iota + lastOpeningSwitch + 1 // nothing is said of a rank that left before the process met the group
	DepartedLate                                                  // its farewell is kept in another step than that which takes its pairs out
	LeftOfWanted                                                  // LEFT is said at the meeting for a rank that has left with a wanted pair, too
	FramesMeetNothing                                             // a process meets the group only where a rank wants that
	MeetsWanted                                                   // only pairs that are wanted are put on the link
	PublishedUnseen                                               // what was published before the meeting is not looked at
	WantedEndsAtLeave                                             // a rank that leaves ends pairs for which it has published something
	UnlinkedKept                                                  // a rank that leaves keeps pairs until there is a link
	UnlinkedGivenBack                                             // memory is given back before the farewell is kept
	UnreachableSilently                                           // that no link can be made is told to nobody
	UnreachableKeeps                                              // it ends no pair
	lastMeetingSwitch
)

const (
	meetBoth   = "links: both ends want one"
	meetTwo    = "links: one rank wants one, one of the same process leaves"
	meetLeaver = "links: a rank leaves before another one wants its link"
	meetSender = "links: a rank leaves behind a message for which there is no link"
	meetWaiter = "links: a rank leaves behind a wait for which there is no link"
	meetNobody = "links: nobody wants one"
	meetDeath  = "links: a process dies"
	meetNoWay  = "links: none can be made"
)

var meetingMutations = []HostMutation{
	{DepartedUnsaid, "at the meeting nothing is said of ranks that have left", meetLeaver, Deadlock},
	{DepartedLate, "a farewell is kept behind the end of the pairs", meetLeaver, Deadlock},
	{LeftOfWanted, "LEFT is said at the meeting for ranks with a wanted pair", meetSender, FalseAlert},
	{FramesMeetNothing, "a process meets the group where a rank wants that only", meetSender, Deadlock},
	{MeetsWanted, "only pairs that are wanted are put on the link", meetTwo, Deadlock},
	{PublishedUnseen, "what was published before the meeting is not looked at", meetSender, BadOutcome},
	{WantedEndsAtLeave, "a rank that leaves ends pairs for which it has published something", meetSender, Deadlock},
	{UnlinkedKept, "a rank that leaves keeps pairs without a link", meetNobody, Deadlock},
	{UnlinkedGivenBack, "memory without a link is given back before the farewell is kept", meetNobody, GivenBack},
	{UnreachableSilently, "nobody is told that no link can be made", meetNoWay, Deadlock},
	{UnreachableKeeps, "a pair to which no link can be made does not end", meetNoWay, Deadlock},
}

var meetingCases = []openCase{
	{name: meetBoth, pairs: 1, sends: [2][2]uint8{{2, 1}}, needs: [2][2]uint8{{1, 2}}, late: true},
	{name: meetTwo, pairs: 2, sends: [2][2]uint8{{0, 1}}, needs: [2][2]uint8{{}, {1, 0}}, lazy: true, late: true},
	{name: meetLeaver, pairs: 1, needs: [2][2]uint8{{0, 1}}, late: true},
	{name: meetSender, pairs: 1, sends: [2][2]uint8{{0, 1}}, needs: [2][2]uint8{{1, 0}}, lazy: true, late: true},
	{name: meetWaiter, pairs: 1, sends: [2][2]uint8{{1, 1}}, needs: [2][2]uint8{{1, 1}}, givesUp: true, late: true},
	{name: meetNobody, pairs: 2, late: true},
	{name: meetDeath, pairs: 1, sends: [2][2]uint8{{1, 1}}, needs: [2][2]uint8{{1, 1}}, dies: true, late: true},
	{name: meetNoWay, pairs: 1, sends: [2][2]uint8{{1, 0}}, needs: [2][2]uint8{{0, 1}}, late: true, noWay: true},
}

var meetingScenarios = openScenarios(meetingCases)

// meeting is what openState has of the link.
type meeting struct {
	there, failed bool
	met           [2]bool // by process
	kept          [3]bool // by rank: its farewell
}

// want lets a rank want a pair, which is made at once where its process has met the group. owes: it has published something for it.
func (c *openCase) want(n *openState, i, process int, owes bool) {
	if e := &n.ends[i][process]; c.late && !n.link.met[process] {
		e.wanted, e.owed = true, e.owed || owes
	} else {
		e.made = true
	}
}

// wants reports whether a rank of a process wants a link.
func (c *openCase) wants(s *openState, process int) bool {
	for i := range c.pairs {
		if s.ends[i][process].wanted {
			return true
		}
	}
	return false
}

// meet lets the link carry the group at a process.
func (c *openCase) meet(n *openState, process int, off HostSwitch) *violation {
	n.link.met[process] = true
	for rank := range 1 + c.pairs {
		pairs, of := c.of(rank)
		if of != process {
			continue
		}
		r := &n.ranks[rank]
		for _, i := range pairs {
			e := &n.ends[i][process]
			switch {
			case e.wanted && r.freed:
				return &violation{GivenBack, fmt.Sprintf("a pair of rank %d is made", rank)}
			case e.wanted:
				e.made, e.wanted, e.owed = true, false, false
				if off == PublishedUnseen {
					e.sent = e.messages
				}
			case off == MeetsWanted:
				e.missing = true
			}
			if off == LeftOfWanted && e.made && r.left {
				n.send(process, true, leftOf, rank, 0)
			}
		}
		if n.link.kept[rank] && off != DepartedUnsaid {
			n.send(process, true, leftOf, rank, 0)
		}
	}
	return nil
}

// meetingSteps are what happens at a process before it has met the group.
func (c *openCase) meetingSteps(s openState, process int, off HostSwitch, step openStepper) {
	if !c.late || s.dead[process] || s.link.met[process] {
		return
	}
	wants, none := c.wants(&s, process), c.noWay || s.dead[1-process]
	switch {
	case wants && none && s.link.failed && off == UnreachableKeeps: // for ever
	case wants && none:
		step(func(n *openState) *violation {
			n.link.failed = true
			for i := range c.pairs {
				if e := &n.ends[i][process]; e.wanted && off != UnreachableKeeps {
					e.wanted, e.owed, e.over = false, false, true
				}
			}
			return nil
		}, "process %d can make no link", process)
	case wants && !s.link.there:
		step(func(n *openState) *violation { n.link.there = true; return nil }, "process %d makes the link", process)
	case wants:
		step(func(n *openState) *violation { return c.meet(n, process, off) }, "process %d meets the group", process)
	}
	for rank := range 1 + c.pairs {
		pairs, of := c.of(rank)
		r := &s.ranks[rank]
		if of != process || !r.left {
			continue
		}
		awaits := off == UnlinkedKept
		for _, i := range pairs {
			awaits = awaits || s.ends[i][process].owed && off != WantedEndsAtLeave
		}
		if !r.told && !awaits {
			step(func(n *openState) *violation {
				r := &n.ranks[rank]
				if r.freed {
					return &violation{GivenBack, fmt.Sprintf("left of rank %d is read", rank)}
				}
				r.leaving, r.told = true, true
				n.link.kept[rank] = off != DepartedLate
				for _, i := range pairs {
					e := &n.ends[i][process]
					e.wanted, e.owed, e.over = false, false, true
				}
				return nil
			}, "process %d sees that rank %d has left", process, rank)
		}
		if r.told && !s.link.kept[rank] {
			step(func(n *openState) *violation { n.link.kept[rank] = true; return nil }, "process %d keeps the farewell of rank %d", process, rank)
		}
	}
}

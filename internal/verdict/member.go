// Package verdict decides which failure of a group over several hosts is the first one, the same for all survivors (docs/protocol.md,
// section 16, The verdict).
//
// [Member] is the state of one member of the group, which is a process. It has no clock, no goroutine and no connection: its owner tells it
// what has happened, and does what [Member.Next] returns. It is not safe for use by several threads. Start reading at Member.act; routes.go
// knows which members are lost, and sparse.go has what differs where not all members watch each other.
package verdict

// Next is what the owner of a member has to do, in this order.
type Next struct {
	Verdict string // if not empty: the verdict is there. Store it, wake sleepers, and raise it
	Send    []Sent
	Claim   string // if not empty: compare and swap it into the store, and call Answer or StoreLost
	Wanted  []int  // members that want a link to this one
}

// storeBallot is that of verdicts of the store. The ballot of member i is 1 + i.
const storeBallot = 0

// Member is one member of a group.
type Member struct {
	routes
	next Next
	news bool // of routes, which settle has not seen to yet

	declared string // the first record that it knows of
	verdict  string
	promised int  // it takes no verdict of a lower ballot any more; with a verdict: its ballot
	claimed  bool // it has asked the store
	noStore  bool
	told     int // 1 + the member to which it has sent DECLARE
	asked    int // ballot of a COLLECT that it answers when it has asked the store
	asks     bool
	waiting  map[int]bool // members that have not answered COLLECT
	reported string       // a verdict that one of them has

	answered set // with a verdict, where all watch each other: members that it has told because they have asked
	reports  int // with a verdict: the highest ballot whose COLLECT it has answered
	decided  int // the highest ballot of CAUSE that it has seen: the owner of that ballot has decided

	// Of a group in which not all members watch each other:
	passed int  // 1 + the highest ballot of CAUSE that it has passed on
	alert  bool // somebody decides without the store, or may, and waits for members that are not lost
}

// New returns a member of a group. watched reports whether two members watch each other, nil: all do.
func New(self, members int, watched func(i, j int) bool) *Member {
	return &Member{routes: newRoutes(self, members, watched), answered: newSet(members)}
}

// Next returns what has to be done since it was called last. Links and members that are lost between two calls cost as much as one.
func (m *Member) Next() Next {
	m.settle()
	n := m.next
	m.next = Next{}
	return n
}

// Sends returns the frames that Next would return by now, so that they do not pile up where thousands of links are lost between two calls of it.
func (m *Member) Sends() []Sent {
	list := m.next.Send
	m.next.Send = nil
	return list
}

// Verdict returns the first cause, or "" if there is none yet.
func (m *Member) Verdict() string { return m.verdict }

// Pending reports whether this member knows of a failure and has no verdict.
func (m *Member) Pending() bool { return m.verdict == "" && m.declared != "" }

// Unsettled reports whether it matters that a member leaves: this one waits for a verdict, or members that are not lost have lost the link to each
// other, so that one of them does not see the farewell of the other one. Where not all watch each other, only few see a farewell: they tell the others
// once one may wait for that.
func (m *Member) Unsettled() bool {
	m.settle()
	if m.Pending() || m.alert {
		return true
	}
	if m.sparse {
		return false
	}
	for j := range m.members {
		if !m.lost(j) && m.parted(j) {
			return true
		}
	}
	return false
}

// Declare takes a failure of this member's own. The first record counts.
func (m *Member) Declare(record string) {
	if m.verdict == "" && m.declared == "" {
		m.declared = record
	}
	m.mind(m.noStore)
	m.settle()
	m.act()
}

// Answer takes what the store has after the claim.
func (m *Member) Answer(record string) {
	m.settle()
	if m.verdict == "" && m.promised == storeBallot {
		m.decide(storeBallot, record)
	}
}

// StoreLost takes note that the store cannot be reached, or does not answer. Answer takes what comes later all the same.
func (m *Member) StoreLost() {
	m.settle()
	m.noStore = true
	waits := m.Pending()
	if m.verdict == "" && m.asked != 0 {
		m.promise(m.asked)
	}
	m.act()
	m.mind(waits)
}

// LinkLost takes note that the link to a member is lost. Where not all watch each other, the end of a link to one that has left is news only once
// somebody waits for it: each process that ends would cost frames of all others.
func (m *Member) LinkLost(to int) {
	if m.sparse && m.left.has(to) && !m.alert {
		m.broken.add(to)
		return
	}
	m.learn(m.self, to)
}

// Take takes a frame that has come over the link to a member. An error says what no member sends: the link is to be ended. What comes over a
// link that is lost is dropped: others may have decided without the member at its end.
func (m *Member) Take(f Frame, over int) error {
	if err := f.Check(m.members); err != nil {
		return err
	}
	m.mind(m.linked(over) && (f.Kind == Declare || f.Kind == Collect || f.Kind == Promise || f.Kind == Cause && f.Ballot != storeBallot))
	switch {
	case !m.linked(over):
	case f.Kind == Lost && f.From == f.Ends[0]:
		m.learn(f.Ends[0], f.Ends[1])
	case f.Kind == Lost:
		m.learn(f.Ends[1], f.Ends[0])
	case f.To != m.self:
		m.settle() // what this one tells of farewells comes before what it passes on
		if f.Hops > 1 && (f.Kind != Want || m.wantable(f.To)) {
			f.Hops--
			m.route(f)
		}
	case f.Kind == Want:
		m.next.Wanted = append(m.next.Wanted, f.From)
	default:
		m.handle(f, over)
	}
	return nil
}

func (m *Member) handle(f Frame, over int) {
	if f.Kind == Cause && m.sparse {
		from := m.self
		if f.From == over { // else that member may have passed on an answer for this one that it has not taken itself
			from = over
		}
		m.pass(f.Ballot, f.Record, from)
	}
	if f.Kind == Cause && f.Ballot >= m.decided {
		m.decided = f.Ballot
		if m.reports == f.Ballot {
			m.reports = 0
		}
	}
	if f.Kind == Cause && m.verdict != "" { // such frames come with links that are lost
		return
	}
	m.settle()
	switch {
	case f.Kind == Collect:
		m.collected(f)
	case f.Kind == Cause:
		if m.verdict == "" && f.Ballot >= m.promised {
			m.decide(f.Ballot, f.Record)
		} else if m.verdict == "" && m.lost(m.promised-1) {
			m.told = 0 // nobody else will decide: who is lowest now is to say it again
			m.act()
		}
	case f.Kind == Promise && f.Record != "" && m.verdict != "": // its sender has the verdict
	case m.verdict != "": // the sender holds all below this member as lost
		m.answer(f.From)
	case f.Kind == Declare:
		if m.declared == "" {
			m.declared = f.Record
		}
		m.act()
	case f.Kind == Promise && m.asks && f.Ballot == m.promised:
		if f.Record != "" {
			m.reported = f.Record
		}
		delete(m.waiting, f.From)
		m.goOn()
	}
}

// collected takes COLLECT. A ballot below that which this member has promised is of an owner that is lost. While this member reaches the
// store, the store decides.
func (m *Member) collected(f Frame) {
	if m.verdict != "" {
		if f.Ballot != m.decided { // else the owner waits for nobody
			m.promise(f.Ballot)
		}
		return
	}
	if f.Ballot < m.promised {
		return
	}
	if m.declared == "" {
		m.declared = f.Record // if the owner is lost, this member goes on with it
	}
	if m.noStore {
		m.promise(f.Ballot)
		m.act() // the owner may be lost already
		return
	}
	m.asked = max(m.asked, f.Ballot)
	m.act()
}

// promise answers COLLECT of a ballot.
func (m *Member) promise(ballot int) {
	if m.verdict == "" {
		m.promised = ballot
	} else {
		m.reports = max(m.reports, ballot)
	}
	m.asked = 0
	m.send(Frame{Kind: Promise, To: ballot - 1, Ballot: ballot, Record: m.verdict})
}

// act does what a member that needs a verdict can do for it.
func (m *Member) act() {
	switch {
	case m.verdict != "" || m.declared == "" || m.asks:
	case m.promised == storeBallot && !m.noStore:
		if !m.claimed {
			m.claimed = true
			m.next.Claim = m.declared
		}
	case m.promised != storeBallot && !m.lost(m.promised-1):
		// Its owner will decide.
	case m.lowest() == m.self:
		m.takeOver()
	case m.told != 1+m.lowest():
		m.told = 1 + m.lowest()
		m.send(Frame{Kind: Declare, To: m.lowest(), Record: m.declared})
	}
}

// takeOver begins the ballot of this member.
func (m *Member) takeOver() {
	m.promised, m.asks, m.waiting = 1+m.self, true, map[int]bool{}
	for j := range m.members {
		if j != m.self && !m.lost(j) {
			m.waiting[j] = true
			m.send(Frame{Kind: Collect, To: j, Ballot: m.promised, Record: m.declared})
		}
	}
	m.goOn()
}

// goOn decides when every member that is not lost has answered.
func (m *Member) goOn() {
	switch {
	case len(m.waiting) > 0:
	case m.reported != "":
		m.decide(m.promised, m.reported)
	default:
		m.decide(m.promised, m.declared)
	}
}

// decide takes the verdict of a ballot, and passes it on.
func (m *Member) decide(ballot int, record string) {
	m.verdict, m.promised, m.asks = record, ballot, false
	m.next.Verdict, m.next.Claim = record, ""
	if m.asked != 0 && m.asked != m.decided { // else the owner waits for nobody
		m.promise(m.asked)
	}
	m.asked = 0
	if m.sparse {
		m.pass(ballot, record, m.self)
		return
	}
	for j := range m.members {
		if j != m.self && !m.lost(j) {
			m.send(Frame{Kind: Cause, To: j, Ballot: ballot, Record: record})
		}
	}
}

// settle sees to links that were lost, and members that have left, since it was called last.
func (m *Member) settle() {
	if !m.news {
		return
	}
	m.news = false
	m.fresh()
	for j := range m.members {
		if m.left.has(j) && (m.alert || !m.sparse && m.parted(j)) && m.forgo(m.self, j) { // who has no link there does not see the farewell
			m.announce(m.self, j)
		}
	}
	m.changed() // no link of a member that has left is a part of a path, so the paths are fresh yet
}

// changed goes on after a link was lost, or a member has left. What was on the way over it, from this member or from another one that passed it
// on, is sent again; frames to a member to which there is a link have gone over that link.
func (m *Member) changed() {
	switch {
	case m.verdict != "":
		for j := range m.members {
			switch {
			case m.sparse || m.lost(j) || m.linked(j): // where not all watch each other, each passes CAUSE on to all that it watches
			case m.answered.has(j):
				m.answer(j)
			default:
				m.send(Frame{Kind: Cause, To: j, Ballot: m.promised, Record: m.verdict})
			}
		}
		if m.reports != 0 && !m.lost(m.reports-1) && !m.linked(m.reports-1) { // the owner has promised, and may not take that CAUSE
			m.send(Frame{Kind: Promise, To: m.reports - 1, Ballot: m.reports, Record: m.verdict})
		}
	case m.asks:
		for j := range m.members {
			switch {
			case !m.waiting[j]:
			case m.lost(j):
				delete(m.waiting, j)
			case !m.linked(j):
				m.send(Frame{Kind: Collect, To: j, Ballot: m.promised, Record: m.declared})
			}
		}
		m.goOn()
	case m.promised != storeBallot && !m.lost(m.promised-1):
		if !m.linked(m.promised - 1) {
			m.send(Frame{Kind: Promise, To: m.promised - 1, Ballot: m.promised})
		}
	default:
		if m.told != 0 && !m.linked(m.told-1) {
			m.told = 0
		}
		m.act()
	}
}

func (m *Member) send(f Frame) {
	f.From, f.Hops = m.self, m.members
	m.route(f)
}

// route sends a frame over the first link of a shortest path. Where there is none, its sender will hear of that.
func (m *Member) route(f Frame) {
	if over, ok := m.hop(f.To); ok {
		m.next.Send = append(m.next.Send, Sent{over, f})
	}
}

// learn takes note of a link that is lost, which one end of it has noticed. That end tells all members to which it has a link. Who learns of it
// passes it on to the others: to those that have no link to that end, now or later. So all members learn of it to which a path leads, and no
// member is told by more than one unless it has lost links itself.
func (m *Member) learn(end, other int) {
	if !m.cut(end, other) {
		return
	}
	m.news = true
	m.announce(end, other)
}

// announce tells of a lost link what learn says.
func (m *Member) announce(end, other int) {
	for j := range m.members {
		if end == m.self || m.gone[end].has(j) {
			m.tell(j, end, other)
		}
	}
	for _, pair := range [2][2]int{{end, other}, {other, end}} { // what one of them has noticed before may not have come to the other one
		for _, lost := range m.noticed[pair[0]] {
			if lost != pair[1] {
				m.tell(pair[1], pair[0], lost)
			}
		}
	}
}

// tell tells a member to which there is a link of the loss of another one. One that has left reads nothing.
func (m *Member) tell(to, end, other int) {
	if to != m.self && to != end && m.linked(to) && !m.left.has(to) {
		m.next.Send = append(m.next.Send, Sent{to, Frame{Kind: Lost, From: end, To: to, Ends: [2]int{end, other}}})
	}
}

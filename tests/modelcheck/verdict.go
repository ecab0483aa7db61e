package modelcheck

import (
	"fmt"
	"math/bits"
)

// The verdict: how processes that share no memory come to one first cause, although some of them die, stop, or cannot reach
// others. A record is named by the member that has declared it, from 1.

const (
	maxMembers = 4
	maxQueue   = 5 // frames on one connection in one direction
)

const (
	declareFrame uint8 = iota + 1
	collectFrame
	promiseFrame
	proposeFrame
	acceptFrame
	refuseFrame
	causeFrame
)

type verdictFrame struct{ kind, ballot, accepted, record, counted uint8 }

const (
	idle uint8 = iota
	collecting
	proposing
)

// member is one process of the group. Sets of members are masks.
type member struct {
	dead, stopped bool
	promised      uint8
	accepted      uint8 // ballot of record
	record        uint8 // that it has accepted; 0: none
	verdict       uint8
	counted       uint8 // members that the owner of the verdict did not hold as lost
	declared      uint8 // the first record that it knows of
	told          uint8 // 1 + the member to which it has sent DECLARE last
	phase         uint8
	waiting       uint8 // for answers of these
	best, value   uint8 // the highest ballot among the answers, its record
	lost, silent  uint8
	owed          uint8 // members to which it owes the verdict
	blocked       uint8 // members that have refused it
}

type verdictState struct {
	m    [maxMembers]member
	cut  [maxMembers]uint8                              // links that carry nothing any more
	q    [maxMembers][maxMembers][maxQueue]verdictFrame // by sender and receiver
	n    [maxMembers][maxMembers]uint8
	left uint8 // of the scenario's faults
}

// Protections of the verdict.
const (
	verdictIntact       HostSwitch = iota
	CauseAtOnce                    // the owner of a ballot decides without asking
	NotAllAccept                   // one that has accepted is enough
	TakeOverBlindly                // a member that takes over does not collect
	CollectsFirstAnswer            // it takes its own record, whatever members have accepted
	OldBallotAccepted              // a member accepts a record of a ballot below the one it has promised
	NobodyTakesOver                // members wait for the owner of the ballot for ever
	VerdictNotPassedOn             // a member does not pass the verdict on to those it has refused
	SilenceNotNoticed              // a stopped member is waited for
	OwnStopNotNoticed              // a member that was stopped takes its own stop for the silence of others
	AcceptedForgotten              // a member that has accepted a record leaves the verdict to those that have declared one
	lastVerdictSwitch
)

var verdictMutations = []HostMutation{
	{CauseAtOnce, "the owner of a ballot decides without asking", "verdict, 2 x 1, a process dies", TwoCauses},
	{NotAllAccept, "one member that accepts is enough", "verdict, 3 x 1, a process is cut off", TwoCauses},
	{TakeOverBlindly, "a member that takes over does not ask what was accepted", "verdict, 3 x 1, one connection is cut", TwoCauses},
	{CollectsFirstAnswer, "a member that takes over prefers its own record", "verdict, 3 x 1, one connection is cut", TwoCauses},
	{OldBallotAccepted, "a member accepts a record of a ballot below the one that it has promised", "verdict, 3 x 1, one connection is cut", TwoCauses},
	{NobodyTakesOver, "nobody takes over when the owner of the ballot is lost", "verdict, 2 x 1, a process dies", Deadlock},
	{VerdictNotPassedOn, "the verdict is not passed on to members that were refused", "verdict, 3 x 1, one connection is cut", Deadlock},
	{SilenceNotNoticed, "a stopped process is waited for", "verdict, 2 x 1, a process is stopped", Deadlock},
	{OwnStopNotNoticed, "a process takes its own stop for the silence of others", "verdict, 2 x 1, a process is stopped and goes on", TwoCauses},
	{AcceptedForgotten, "a member that has accepted a record does not care when the owner is lost", "verdict, 3 x 1, an owner that has left is lost", Deadlock},
}

// verdictCase is a scenario: who declares, and what may happen.
type verdictCase struct {
	members  int
	declares uint8     // mask
	deaths   uint8     // members that may die, at most one of them
	cuts     [][]uint8 // each: pairs of masks whose links may be cut, all at once
	stops    uint8     // members that may stop, at most one of them
	resumes  bool
	quiet    uint8 // members whose loss is no failure, because they have left
}

var verdictCases = []struct {
	name string
	big  bool
	c    verdictCase
}{
	{"verdict, 2 x 1, two declare", false, verdictCase{members: 2, declares: 3}},
	{"verdict, 2 x 1, a process dies", false, verdictCase{members: 2, declares: 3, deaths: 3}},
	{"verdict, 2 x 1, partition", false, verdictCase{members: 2, declares: 3, cuts: [][]uint8{{1, 2}}}},
	{"verdict, 2 x 1, a process is stopped", false, verdictCase{members: 2, declares: 3, stops: 3}},
	{"verdict, 2 x 1, a process is stopped and goes on", false, verdictCase{members: 2, declares: 3, stops: 3, resumes: true}},
	{"verdict, 3 x 1, one connection is cut", false, verdictCase{members: 3, declares: 2, cuts: [][]uint8{{1, 2}, {1, 4}, {2, 4}}}},
	{"verdict, 3 x 1, a process is cut off", false, verdictCase{members: 3, declares: 3, cuts: [][]uint8{{4, 3}, {1, 6}, {2, 5}}}},
	{"verdict, 3 x 1, a process is stopped and goes on", false, verdictCase{members: 3, declares: 2, stops: 7, resumes: true}},
	{"verdict, 3 x 1, an owner that has left is lost", false, verdictCase{members: 3, declares: 2, deaths: 1 | 2, quiet: 1 | 2}},
	{"verdict, 3 x 1, a process dies", false, verdictCase{members: 3, declares: 2, deaths: 7}},
	{"verdict, 2 x 2, one declares and a process dies", true, verdictCase{members: 4, declares: 8, deaths: 15}},
	{"verdict, 2 x 2, two declare and a process is stopped", true, verdictCase{members: 4, declares: 9, stops: 15, resumes: true}},
	{"verdict, 2 x 2, partition", true, verdictCase{members: 4, declares: 2, cuts: [][]uint8{{3, 12}}}},
}

var verdictScenarios = func() (list []HostScenario) {
	for _, v := range verdictCases {
		list = append(list, HostScenario{Name: v.name, Big: v.big, explore: func(off HostSwitch) Result {
			return exploreHosts(world[verdictState]{
				start:  verdictState{left: 1},
				steps:  func(s verdictState) []hostStep[verdictState] { return v.c.steps(s, off) },
				atRest: v.c.atRest,
			})
		}})
	}
	return list
}()

// turn is one step under construction.
type turn struct {
	c   *verdictCase
	s   verdictState
	off HostSwitch
}

func bit(i int) uint8 { return 1 << i }

func (c *verdictCase) all() uint8 { return bit(c.members) - 1 }

// up returns the members that count for member i.
func (t *turn) up(i int) uint8 { return t.c.all() &^ (t.s.m[i].lost | t.s.m[i].silent) }

func (t *turn) owner(ballot uint8) int { return int(ballot) % t.c.members }

func (t *turn) send(from, to int, f verdictFrame) {
	if t.s.cut[from]&bit(to) != 0 || t.s.m[from].lost&bit(to) != 0 {
		return
	}
	n := &t.s.n[from][to]
	if *n == maxQueue {
		panic("the queue of the model is too short")
	}
	t.s.q[from][to][*n] = f
	*n++
}

func (t *turn) sendAll(from int, to uint8, f verdictFrame) {
	for j := range t.c.members {
		if to&bit(j) != 0 && j != from {
			t.send(from, j, f)
		}
	}
}

// act lets a member that needs a verdict do something for it.
func (t *turn) act(i int) {
	m := &t.s.m[i]
	if m.verdict != 0 || m.phase != idle || m.blocked&t.up(i) != 0 {
		return
	}
	if m.declared == 0 {
		if m.record == 0 || t.off == AcceptedForgotten {
			return
		}
		m.declared = m.record
	}
	to := t.owner(m.promised)
	switch {
	case to == i && m.promised == 0:
		t.propose(i, m.declared)
		return
	case to != i && t.up(i)&bit(to) != 0:
	case t.off == NobodyTakesOver:
		return
	default:
		if to = bits.TrailingZeros8(t.up(i)); to == i {
			t.takeOver(i)
			return
		}
	}
	if m.told != uint8(1+to) {
		m.told = uint8(1 + to)
		t.send(i, to, verdictFrame{kind: declareFrame, record: m.declared})
	}
}

func (t *turn) takeOver(i int) {
	m := &t.s.m[i]
	for m.promised++; t.owner(m.promised) != i; m.promised++ {
	}
	m.phase, m.best, m.value, m.waiting = collecting, m.accepted, m.record, t.up(i)&^bit(i)
	if t.off == TakeOverBlindly {
		m.value, m.waiting = 0, 0
	} else {
		t.sendAll(i, m.waiting, verdictFrame{kind: collectFrame, ballot: m.promised})
	}
	t.goOn(i)
}

func (t *turn) propose(i int, record uint8) {
	m := &t.s.m[i]
	m.phase, m.accepted, m.record, m.value, m.waiting = proposing, m.promised, record, record, t.up(i)&^bit(i)
	t.sendAll(i, m.waiting, verdictFrame{kind: proposeFrame, ballot: m.promised, record: record})
	if t.off == CauseAtOnce {
		m.waiting = 0
	}
	t.goOn(i)
}

// goOn goes to the next phase when nobody is waited for any more.
func (t *turn) goOn(i int) {
	m := &t.s.m[i]
	if m.waiting != 0 && !(t.off == NotAllAccept && m.phase == proposing && bits.OnesCount8(m.waiting) < bits.OnesCount8(t.up(i))-1) {
		return
	}
	switch m.phase {
	case collecting:
		if m.value == 0 || t.off == CollectsFirstAnswer {
			m.value = m.declared
		}
		t.propose(i, m.value)
	case proposing:
		t.decide(i, m.value, t.up(i))
	}
}

func (t *turn) decide(i int, record, counted uint8) {
	m := &t.s.m[i]
	to := m.owed
	if m.phase == proposing {
		to |= t.c.all() &^ m.lost // also to those that were not waited for
	}
	m.verdict, m.counted = record, counted
	// What belongs to the way to the verdict has no meaning any more.
	m.phase, m.waiting, m.best, m.value, m.blocked, m.told, m.declared, m.owed = idle, 0, 0, 0, 0, 0, 0, 0
	if t.off == VerdictNotPassedOn && to == 0 {
		return
	}
	if t.off == VerdictNotPassedOn {
		to &= t.up(i)
	}
	t.sendAll(i, to, verdictFrame{kind: causeFrame, record: record, counted: counted})
}

// take lets member i handle a frame of member from.
func (t *turn) take(i, from int, f verdictFrame) {
	m := &t.s.m[i]
	m.silent &^= bit(from)
	if f.kind == causeFrame {
		if m.verdict == 0 {
			if t.off == VerdictNotPassedOn {
				m.owed = 0
			}
			m.phase = idle
			t.decide(i, f.record, f.counted)
		}
		return
	}
	if m.verdict != 0 {
		if f.kind == declareFrame || f.kind == collectFrame || f.kind == proposeFrame {
			t.send(i, from, verdictFrame{kind: causeFrame, record: m.verdict, counted: m.counted})
		}
		return
	}
	switch f.kind {
	case declareFrame:
		if m.declared == 0 {
			m.declared = f.record
		}
		m.owed |= bit(from)
		m.blocked &^= bit(from)
		t.act(i)
	case collectFrame, proposeFrame:
		if f.ballot < m.promised && !(t.off == OldBallotAccepted && f.kind == proposeFrame) {
			m.owed |= bit(from)
			t.send(i, from, verdictFrame{kind: refuseFrame, ballot: m.promised})
			return
		}
		if f.ballot > m.promised {
			m.promised, m.phase, m.waiting, m.best, m.value = f.ballot, idle, 0, 0, 0
		}
		if f.kind == collectFrame {
			t.send(i, from, verdictFrame{kind: promiseFrame, ballot: f.ballot, accepted: m.accepted, record: m.record})
			return
		}
		m.accepted, m.record = f.ballot, f.record
		t.send(i, from, verdictFrame{kind: acceptFrame, ballot: f.ballot})
	case promiseFrame:
		if m.phase != collecting || f.ballot != m.promised {
			return
		}
		if f.record != 0 && (m.value == 0 || f.accepted >= m.best) {
			m.best, m.value = f.accepted, f.record
		}
		m.waiting &^= bit(from)
		t.goOn(i)
	case acceptFrame:
		if m.phase == proposing && f.ballot == m.promised {
			m.waiting &^= bit(from)
			t.goOn(i)
		}
	case refuseFrame:
		if f.ballot > m.promised {
			m.promised, m.phase, m.waiting, m.best, m.value = f.ballot, idle, 0, 0, 0
			m.blocked |= bit(from)
		}
	}
}

// without lets member i go on without another one.
func (t *turn) without(i, j int) {
	m := &t.s.m[i]
	m.waiting &^= bit(j)
	m.blocked &^= bit(j)
	m.owed &^= bit(j)
	if m.verdict != 0 {
		return
	}
	if m.phase != idle {
		t.goOn(i)
	} else {
		t.act(i)
	}
}

// steps returns what may happen next.
func (c *verdictCase) steps(s verdictState, off HostSwitch) (list []hostStep[verdictState]) {
	step := func(text string, do func(t *turn)) {
		t := turn{c: c, s: s, off: off}
		do(&t)
		list = append(list, hostStep[verdictState]{t.s, text, c.wrong(&t.s)})
	}
	for i := range c.members {
		m := &s.m[i]
		if s.left > 0 && !m.dead && c.deaths&bit(i) != 0 {
			step(fmt.Sprintf("process %d dies", i), func(t *turn) {
				t.s.m[i] = member{dead: true, verdict: m.verdict, counted: m.counted}
				t.s.left--
				for j := range c.members {
					t.s.cut[i] |= bit(j)
					t.s.cut[j] |= bit(i)
				}
				t.s.q[i], t.s.n[i] = s.q[i], s.n[i]
			})
		}
		if s.left > 0 && !m.stopped && c.stops&bit(i) != 0 {
			step(fmt.Sprintf("process %d is stopped", i), func(t *turn) {
				t.s.m[i].stopped = true
				t.s.left--
			})
		}
		if m.stopped && c.resumes {
			step(fmt.Sprintf("process %d goes on", i), func(t *turn) {
				t.s.m[i].stopped = false
				if off == OwnStopNotNoticed {
					t.s.m[i].silent = c.all() &^ bit(i)
					for j := range c.members {
						if j != i {
							t.without(i, j)
						}
					}
				}
			})
		}
		if m.dead || m.stopped {
			continue
		}
		if c.declares&bit(i) != 0 && m.verdict == 0 && m.declared == 0 && m.record == 0 {
			step(fmt.Sprintf("process %d declares", i), func(t *turn) {
				t.s.m[i].declared = uint8(1 + i)
				t.act(i)
			})
		}
		for j := range c.members {
			if j == i {
				continue
			}
			if s.n[j][i] > 0 && m.lost&bit(j) == 0 {
				f := s.q[j][i][0]
				step(fmt.Sprintf("process %d gets %s of ballot %d, record %d, from process %d", i, frameNames[f.kind], f.ballot, f.record, j), func(t *turn) {
					copy(t.s.q[j][i][:], s.q[j][i][1:])
					t.s.n[j][i]--
					t.s.q[j][i][t.s.n[j][i]] = verdictFrame{}
					t.take(i, j, f)
				})
			}
			if s.cut[i]&bit(j) != 0 && m.lost&bit(j) == 0 {
				step(fmt.Sprintf("process %d notices that process %d is lost", i, j), func(t *turn) {
					t.s.q[j][i], t.s.n[j][i] = [maxQueue]verdictFrame{}, 0
					t.s.cut[j] |= bit(i)
					t.s.m[i].lost |= bit(j)
					if m := &t.s.m[i]; m.verdict == 0 && m.declared == 0 && c.quiet&bit(j) == 0 {
						m.declared = uint8(1 + i)
					}
					t.without(i, j)
				})
			}
			owns := m.phase == idle && m.record != 0 && int(m.promised)%c.members == j
			waits := m.waiting&bit(j) != 0 || m.blocked&bit(j) != 0 || m.verdict == 0 && (m.told == uint8(1+j) || owns)
			if s.m[j].stopped && m.silent&bit(j) == 0 && waits && off != SilenceNotNoticed {
				step(fmt.Sprintf("process %d has waited for process %d too long", i, j), func(t *turn) {
					t.s.m[i].silent |= bit(j)
					t.without(i, j)
				})
			}
		}
	}
	if s.left > 0 {
		for _, pair := range c.cuts {
			step(fmt.Sprintf("the network between processes %b and %b is cut", pair[0], pair[1]), func(t *turn) {
				t.s.left--
				for i := range c.members {
					switch {
					case pair[0]&bit(i) != 0:
						t.s.cut[i] |= pair[1]
					case pair[1]&bit(i) != 0:
						t.s.cut[i] |= pair[0]
					}
				}
			})
		}
	}
	return list
}

var frameNames = [...]string{"", "DECLARE", "COLLECT", "PROMISE", "PROPOSE", "ACCEPT", "REFUSE", "CAUSE"}

// wrong returns what is wrong with a state: two verdicts, although a member has counted for both.
func (c *verdictCase) wrong(s *verdictState) *violation {
	for i := range c.members {
		for j := range i {
			a, b := &s.m[i], &s.m[j]
			if a.verdict != 0 && b.verdict != 0 && a.verdict != b.verdict && (a.counted&b.counted != 0 || c.deaths|c.stops != 0) {
				return &violation{TwoCauses, fmt.Sprintf("process %d reports record %d, process %d record %d", i, a.verdict, j, b.verdict)}
			}
		}
	}
	return nil
}

// atRest requires that all who live have a verdict, unless nobody has ever declared anything.
func (c *verdictCase) atRest(s verdictState) *violation {
	any := false
	for i := range c.members {
		any = any || s.m[i].verdict != 0 || s.m[i].declared != 0 || s.m[i].record != 0
	}
	for i := range c.members {
		if m := &s.m[i]; any && !m.dead && !m.stopped && m.verdict == 0 {
			return &violation{Deadlock, fmt.Sprintf("process %d never gets a verdict", i)}
		}
	}
	return nil
}

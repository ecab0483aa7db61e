package modelcheck

import (
	"fmt"
	"math/bits"
)

// The verdict: how hosts that share no memory come to one first cause, although some of them die, stop, or cannot reach others. The
// arbiter is the store: a compare-and-swap decides. Only when a member cannot reach the store, members decide without it: the lowest one
// that is not lost asks all others. A record is named by the member that has declared it, from 1.
//
// The frames between two members are one queue, whatever way they take: a member that has lost a link repeats its last frame over a path
// of other links. So a queue carries on as long as there is a path.

const (
	maxMembers = 4
	maxQueue   = 5 // frames on the way from one member to another
)

const (
	declareFrame uint8 = iota + 1
	collectFrame
	promiseFrame
	causeFrame
)

// ballot: that of the store is 0, that of member i is 1 + i.
type verdictFrame struct{ kind, ballot, record uint8 }

// member is one host of the group. Sets of members are masks.
type member struct {
	dead, stopped bool
	claimed       bool  // it has asked the store
	noStore       bool  // it holds the store as lost
	asks          bool  // it waits for answers to COLLECT
	promised      uint8 // it takes no verdict of a lower ballot any more
	verdict       uint8
	declared      uint8 // the first record that it knows of
	value         uint8 // a verdict that one of those has reported that it asks
	waiting       uint8 // these have not answered yet
	told          uint8 // 1 + the member to which it has sent DECLARE last
	asked         uint8 // ballot of a COLLECT that it answers when it has asked the store
	lost          uint8
}

type verdictState struct {
	m      [maxMembers]member
	cut    [maxMembers]uint8                              // links that carry nothing any more
	q      [maxMembers][maxMembers][maxQueue]verdictFrame // by sender and receiver
	n      [maxMembers][maxMembers]uint8
	cause  uint8             // in the store
	claim  [maxMembers]uint8 // on the way to the store
	answer [maxMembers]uint8 // on the way back
	// The store answers nobody any more. What it has answered before may still come.
	storeDead bool
	storeCut  uint8
	left      uint8 // faults of the scenario that are still to come
}

// Protections of the verdict.
const (
	verdictIntact      HostSwitch = iota
	OwnRecordTaken                // a member takes its own record for the verdict
	StoreOverwritten              // the store is set, not compared and swapped
	StoreAwaited                  // a store that does not answer is waited for
	TakesOverBlindly              // a member that decides without the store asks nobody
	NotAllAsked                   // it waits for one answer only
	VerdictNotReported            // PROMISE does not say which verdict its sender has
	AnswerAfterPromise            // a member that has promised takes what the store answers
	OldCauseTaken                 // a member that has promised takes CAUSE of a lower ballot
	NobodyTakesOver               // members wait for the owner of the ballot for ever
	LostStillAwaited              // a member that is lost is waited for
	CauseNotPassedOn              // a member does not pass the verdict on
	LinkIsMember                  // a member counts as lost when the link to it is lost
	FramesNotRepeated             // frames on a lost link are not repeated over other links
	PromiseWithStore              // a member promises although it reaches the store
	AskedOnce                     // a member that does not take CAUSE, and waits for nobody, does not ask again
	lastVerdictSwitch
)

var verdictMutations = []HostMutation{
	{OwnRecordTaken, "a member takes its own record for the verdict", "verdict, 2 x 1, two declare", TwoCauses},
	{StoreOverwritten, "the store is set, not compared and swapped", "verdict, 2 x 1, two declare", TwoCauses},
	{StoreAwaited, "a store that does not answer is waited for", "verdict, 2 x 1, the store dies", Deadlock},
	{TakesOverBlindly, "a member decides without the store and asks nobody", "verdict, 2 x 1, the store dies", TwoCauses},
	{NotAllAsked, "one answer is enough", "verdict, 3 x 1, the store dies", TwoCauses},
	{VerdictNotReported, "PROMISE does not report a verdict", "verdict, 2 x 1, the store dies", TwoCauses},
	{AnswerAfterPromise, "a member that has promised takes an answer of the store", "verdict, 2 x 1, the store dies", TwoCauses},
	{OldCauseTaken, "a member that has promised takes CAUSE of a lower ballot", "verdict, 3 x 1, two faults, with the store", TwoCauses},
	{NobodyTakesOver, "nobody takes over when the owner of the ballot is lost", "verdict, 3 x 1, two faults, with the store", Deadlock},
	{LostStillAwaited, "an answer of a lost member is waited for", "verdict, 2 x 1, two faults", Deadlock},
	{CauseNotPassedOn, "the verdict is not passed on", "verdict, 3 x 1, who has left is lost", Deadlock},
	{LinkIsMember, "a member counts as lost when the link to it is lost", "verdict, 4 x 1, three links and the store", TwoCauses},
	{PromiseWithStore, "a member that reaches the store promises without asking it", "verdict, 3 x 1, two faults, links", TwoCauses},
	{AskedOnce, "a member that does not take CAUSE does not ask again", "verdict, 3 x 1, two faults, with the store", Deadlock},
	{FramesNotRepeated, "frames on a lost link are not repeated over other links", "verdict, 3 x 1, two faults, links", Deadlock},
}

// verdictCase is a scenario: who declares, and what may happen.
type verdictCase struct {
	members   int
	declares  uint8 // mask
	faults    uint8 // how many, of those that follow; 0: one
	deaths    uint8 // members that may die
	storeDies bool
	storeAt   uint8     // 1 + the member whose process has the store
	storeCuts uint8     // members whose way to the store may be cut
	cuts      [][]uint8 // each: pairs of masks whose links may be cut, all at once
	stops     uint8     // members that may stop
	resumes   bool
	quiet     uint8 // members whose loss is no failure, because they have left
}

// links of three members, one by one, and all of one member.
var (
	eachLink  = [][]uint8{{1, 2}, {1, 4}, {2, 4}}
	eachHost  = [][]uint8{{1, 6}, {2, 5}, {4, 3}}
	threeCuts = [][]uint8{{1, 10, 2, 4}} // links 0-1, 0-3 and 1-2: the way from 0 to 1 leads over 2 and 3
)

var verdictCases = []struct {
	name string
	big  bool
	c    verdictCase
}{
	{"verdict, 2 x 1, two declare", false, verdictCase{members: 2, declares: 3}},
	{"verdict, 2 x 1, a process dies", false, verdictCase{members: 2, declares: 3, deaths: 3}},
	{"verdict, 2 x 1, a process dies with the store", false, verdictCase{members: 2, declares: 3, deaths: 3, storeAt: 1}},
	{"verdict, 2 x 1, partition", false, verdictCase{members: 2, declares: 3, cuts: [][]uint8{{1, 2}}}},
	{"verdict, 2 x 1, the store dies", false, verdictCase{members: 2, declares: 3, storeDies: true}},
	{"verdict, 2 x 1, a process is stopped", false, verdictCase{members: 2, declares: 3, stops: 3}},
	{"verdict, 2 x 1, two faults", false, verdictCase{members: 2, declares: 3, faults: 2, deaths: 3, storeDies: true, storeCuts: 3, cuts: [][]uint8{{1, 2}}, stops: 3, resumes: true}},
	{"verdict, 2 x 1, two faults, the store with a process", false, verdictCase{members: 2, declares: 3, faults: 2, deaths: 3, storeAt: 1, storeCuts: 2, cuts: [][]uint8{{1, 2}}, stops: 3, resumes: true}},
	{"verdict, 3 x 1, the store dies", false, verdictCase{members: 3, declares: 3, storeDies: true}},
	{"verdict, 3 x 1, who has left is lost", false, verdictCase{members: 3, declares: 2, deaths: 2, quiet: 2}},
	{"verdict, 3 x 1, two faults, with the store", true, verdictCase{members: 3, declares: 6, faults: 2, deaths: 7, storeDies: true, storeCuts: 7}},
	{"verdict, 3 x 1, two faults, links", true, verdictCase{members: 3, declares: 2, faults: 2, storeDies: true, storeCuts: 1, cuts: append(eachLink, eachHost...)}},
	{"verdict, 3 x 1, two faults, the store with a process", true, verdictCase{members: 3, declares: 4, faults: 2, deaths: 7, storeAt: 1, cuts: eachHost, stops: 7, resumes: true}},
	{"verdict, 4 x 1, three links and the store", true, verdictCase{members: 4, declares: 3, faults: 2, storeDies: true, cuts: threeCuts, quiet: 15}},
	{"verdict, 2 x 2, partition and a death", true, verdictCase{members: 4, declares: 2, faults: 2, deaths: 1, cuts: [][]uint8{{3, 12}}}},
}

var verdictScenarios = func() (list []HostScenario) {
	for _, v := range verdictCases {
		list = append(list, HostScenario{Name: v.name, Big: v.big, explore: func(off HostSwitch) Result {
			return exploreHosts(world[verdictState]{
				start:  verdictState{left: max(v.c.faults, 1)},
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

// reached returns the members to which a path of links leads from member i, itself included.
func (c *verdictCase) reached(s *verdictState, i int) uint8 {
	to := bit(i)
	for {
		more := to
		for k := range c.members {
			if to&bit(k) != 0 {
				more |= c.all() &^ s.cut[k]
			}
		}
		if more == to {
			return to
		}
		to = more
	}
}

// up returns the members that are not lost for member i.
func (t *turn) up(i int) uint8 { return t.c.all() &^ t.s.m[i].lost }

func (t *turn) send(from, to int, f verdictFrame) {
	if t.c.reached(&t.s, from)&bit(to) == 0 || t.s.m[from].lost&bit(to) != 0 {
		return
	}
	if t.idle(to, f.kind) {
		return
	}
	n := &t.s.n[from][to]
	if *n == maxQueue {
		panic("the queue of the model is too short")
	}
	t.s.q[from][to][*n] = f
	*n++
}

// idle reports whether a frame does nothing at a member, so that its way there need not be explored.
func (t *turn) idle(to int, kind uint8) bool {
	return t.s.m[to].verdict != 0 && (kind == causeFrame || kind == promiseFrame)
}

// clean takes frames out that do nothing at member i any more.
func (t *turn) clean(i int) {
	for j := range t.c.members {
		old, n := t.s.q[j][i], t.s.n[j][i]
		t.s.q[j][i], t.s.n[j][i] = [maxQueue]verdictFrame{}, 0
		for _, f := range old[:n] {
			if !t.idle(i, f.kind) {
				t.s.q[j][i][t.s.n[j][i]] = f
				t.s.n[j][i]++
			}
		}
	}
}

func (t *turn) sendAll(from int, f verdictFrame) {
	for j := range t.c.members {
		if j != from {
			t.send(from, j, f)
		}
	}
}

// act lets a member that needs a verdict do something for it.
func (t *turn) act(i int) {
	m := &t.s.m[i]
	if m.verdict != 0 || m.declared == 0 || m.asks {
		return
	}
	if t.off == OwnRecordTaken {
		t.decide(i, 0, m.declared)
		return
	}
	if m.promised == 0 && !m.noStore {
		if !m.claimed {
			m.claimed = true
			t.s.claim[i] = m.declared
		}
		return
	}
	if m.promised != 0 && (t.up(i)&bit(t.owner(m.promised)) != 0 || t.off == NobodyTakesOver) {
		return // its owner will decide
	}
	to := bits.TrailingZeros8(t.up(i))
	if to == i {
		t.takeOver(i)
	} else if m.told != uint8(1+to) {
		m.told = uint8(1 + to)
		t.send(i, to, verdictFrame{kind: declareFrame, record: m.declared})
	}
}

// takeOver begins the ballot of member i.
func (t *turn) takeOver(i int) {
	m := &t.s.m[i]
	m.promised, m.asks, m.waiting = uint8(1+i), true, t.up(i)&^bit(i)
	if t.off == TakesOverBlindly {
		m.waiting = 0
	} else {
		t.sendAll(i, verdictFrame{kind: collectFrame, ballot: m.promised, record: m.declared})
	}
	t.goOn(i)
}

// goOn decides when nobody is waited for any more.
func (t *turn) goOn(i int) {
	m := &t.s.m[i]
	if m.waiting != 0 && !(t.off == NotAllAsked && m.waiting != t.up(i)&^bit(i)) {
		return
	}
	if m.value == 0 {
		m.value = m.declared
	}
	t.decide(i, m.promised, m.value)
}

// decide gives member i the verdict of a ballot, which it passes on.
func (t *turn) decide(i int, ballot, record uint8) {
	if asked := t.s.m[i].asked; asked != 0 {
		t.promise(i, asked, record)
	}
	t.settle(i, ballot, record)
	t.sendAll(i, verdictFrame{kind: causeFrame, ballot: ballot, record: record})
}

// settle stores the verdict. What belongs to the way to it has no meaning any more.
func (t *turn) settle(i int, ballot, record uint8) {
	m := &t.s.m[i]
	m.verdict, m.promised = record, ballot
	m.declared, m.told, m.asked, m.asks, m.waiting, m.value = 0, 0, 0, false, 0, 0
	t.s.answer[i] = 0
	t.clean(i)
}

// take lets member i handle a frame of member from.
func (t *turn) take(i, from int, f verdictFrame) {
	m := &t.s.m[i]
	switch f.kind {
	case causeFrame:
		if m.verdict != 0 {
			return
		}
		if f.ballot < m.promised && t.off != OldCauseTaken {
			if t.up(i)&bit(t.owner(m.promised)) == 0 && t.off != AskedOnce { // nobody else will decide: the sender, or who is lowest, is to say it again
				m.told = 0
				t.act(i)
			}
			return
		}
		if t.off == CauseNotPassedOn {
			t.settle(i, f.ballot, f.record)
			return
		}
		t.decide(i, f.ballot, f.record)
	case declareFrame:
		if m.verdict != 0 {
			// The sender holds all members below this one as lost, so it takes this ballot.
			t.send(i, from, verdictFrame{kind: causeFrame, ballot: max(m.promised, uint8(1+i)), record: m.verdict})
			return
		}
		if m.declared == 0 {
			m.declared = f.record
		}
		t.act(i)
	case collectFrame:
		if f.ballot < m.promised && m.verdict == 0 {
			return // its owner is lost
		}
		if m.verdict == 0 && m.declared == 0 {
			m.declared = f.record // if the owner is lost, this member goes on with it
		}
		if m.verdict == 0 && !m.noStore && t.off != PromiseWithStore {
			m.asked = max(m.asked, f.ballot)
			t.act(i)
			return
		}
		t.promise(i, f.ballot, m.verdict)
		t.act(i) // the owner may be lost already
	case promiseFrame:
		if !m.asks || f.ballot != m.promised {
			return
		}
		if f.record != 0 {
			m.value = f.record
		}
		m.waiting &^= bit(from)
		t.goOn(i)
	}
}

func (t *turn) owner(ballot uint8) int { return int(ballot) - 1 }

// promise answers COLLECT of a ballot.
func (t *turn) promise(i int, ballot, verdict uint8) {
	m := &t.s.m[i]
	if verdict == 0 {
		m.promised, m.asked = ballot, 0
	} else if t.off == VerdictNotReported {
		verdict = 0
	}
	t.send(i, t.owner(ballot), verdictFrame{kind: promiseFrame, ballot: ballot, record: verdict})
}

// without lets member i go on without another one, or without the store.
func (t *turn) without(i int, lost uint8) {
	m := &t.s.m[i]
	switch {
	case m.verdict != 0:
	case !m.asks:
		t.act(i)
	case t.off != LostStillAwaited && m.waiting&lost != 0:
		m.waiting &^= lost
		t.goOn(i)
	}
}

type verdictStepper func(text string, do func(t *turn))

// steps returns what may happen next.
func (c *verdictCase) steps(s verdictState, off HostSwitch) (list []hostStep[verdictState]) {
	step := func(text string, do func(t *turn)) {
		t := turn{c: c, s: s, off: off}
		do(&t)
		list = append(list, hostStep[verdictState]{t.s, text, c.wrong(&t.s)})
	}
	if s.left > 0 {
		c.faultSteps(s, step)
	}
	for i := range c.members {
		if rec := s.claim[i]; rec != 0 && !s.storeDead {
			step(fmt.Sprintf("the store gets record %d", rec), func(t *turn) {
				t.s.claim[i] = 0
				if t.s.cause == 0 || off == StoreOverwritten {
					t.s.cause = rec
				}
				if m := &t.s.m[i]; t.s.storeCut&bit(i) == 0 && !m.dead && m.verdict == 0 {
					t.s.answer[i] = t.s.cause
				}
			})
		}
		m := &s.m[i]
		if m.stopped && c.resumes {
			step(fmt.Sprintf("process %d goes on", i), func(t *turn) { t.s.m[i].stopped = false })
		}
		if m.dead || m.stopped {
			continue
		}
		if c.declares&bit(i) != 0 && m.verdict == 0 && m.declared == 0 && m.promised == 0 {
			step(fmt.Sprintf("process %d declares", i), func(t *turn) {
				t.s.m[i].declared = uint8(1 + i)
				t.act(i)
			})
		}
		if rec := s.answer[i]; rec != 0 {
			step(fmt.Sprintf("process %d gets record %d from the store", i, rec), func(t *turn) {
				t.s.answer[i] = 0
				if m := &t.s.m[i]; m.verdict == 0 && (m.promised == 0 || off == AnswerAfterPromise && !m.asks) {
					t.decide(i, 0, rec)
				}
			})
		}
		if (s.storeDead || s.storeCut&bit(i) != 0) && !m.noStore && off != StoreAwaited {
			step(fmt.Sprintf("process %d notices that the store does not answer", i), func(t *turn) {
				m := &t.s.m[i]
				m.noStore = true
				if m.verdict == 0 && m.asked != 0 {
					t.promise(i, m.asked, 0)
				}
				t.without(i, 0)
			})
		}
		c.linkSteps(s, i, off, step)
	}
	return list
}

// linkSteps are those of member i that has links to others.
func (c *verdictCase) linkSteps(s verdictState, i int, off HostSwitch, step verdictStepper) {
	m := &s.m[i]
	reached := c.reached(&s, i)
	for j := range c.members {
		if j == i || m.lost&bit(j) != 0 {
			continue
		}
		if s.n[j][i] > 0 {
			f := s.q[j][i][0]
			step(fmt.Sprintf("process %d gets %s of ballot %d, record %d, from process %d", i, frameNames[f.kind], f.ballot, f.record, j), func(t *turn) {
				copy(t.s.q[j][i][:], s.q[j][i][1:])
				t.s.n[j][i]--
				t.s.q[j][i][t.s.n[j][i]] = verdictFrame{}
				t.take(i, j, f)
			})
		}
		switch {
		case reached&bit(j) == 0, off == LinkIsMember && s.cut[i]&bit(j) != 0:
			step(fmt.Sprintf("process %d notices that process %d is lost", i, j), func(t *turn) {
				t.s.q[j][i], t.s.n[j][i] = [maxQueue]verdictFrame{}, 0
				m := &t.s.m[i]
				m.lost |= bit(j)
				c.failed(m, i, j)
				t.without(i, bit(j))
			})
		case s.cut[i]&bit(j) != 0 && m.verdict == 0 && m.declared == 0 && c.quiet&bit(j) == 0:
			step(fmt.Sprintf("process %d notices that its link to process %d is lost", i, j), func(t *turn) {
				c.failed(&t.s.m[i], i, j)
				t.act(i)
			})
		}
	}
}

// failed gives member i a failure to declare, because its link to member j is lost.
func (c *verdictCase) failed(m *member, i, j int) {
	if m.verdict == 0 && m.declared == 0 && c.quiet&bit(j) == 0 {
		m.declared = uint8(1 + i)
	}
}

func (c *verdictCase) faultSteps(s verdictState, step verdictStepper) {
	fault := func(text string, do func(t *turn)) {
		step(text, func(t *turn) {
			t.s.left--
			do(t)
		})
	}
	if c.storeDies && !s.storeDead {
		fault("the store dies", func(t *turn) { t.s.storeDead = true })
	}
	for i := range c.members {
		m := &s.m[i]
		if !m.dead && c.deaths&bit(i) != 0 {
			fault(fmt.Sprintf("process %d dies", i), func(t *turn) {
				t.s.m[i] = member{dead: true}
				t.s.answer[i] = 0
				t.s.storeDead = t.s.storeDead || c.storeAt == uint8(1+i)
				for j := range c.members {
					if j != i {
						t.s.cut[i] |= bit(j)
						t.s.cut[j] |= bit(i)
					}
				}
			})
		}
		if !m.dead && !m.stopped && c.stops&bit(i) != 0 {
			fault(fmt.Sprintf("process %d is stopped", i), func(t *turn) {
				t.s.m[i].stopped = true
				t.s.storeDead = t.s.storeDead || c.storeAt == uint8(1+i) // a store that is silent counts as gone
			})
		}
		if !m.dead && c.storeCuts&bit(i) != 0 && s.storeCut&bit(i) == 0 {
			fault(fmt.Sprintf("the way of process %d to the store is cut", i), func(t *turn) {
				t.s.storeCut |= bit(i)
				t.s.claim[i] = 0
			})
		}
	}
	for _, list := range c.cuts {
		fault(fmt.Sprintf("the network is cut between processes %b", list), func(t *turn) {
			for ; len(list) > 0; list = list[2:] {
				for i := range c.members {
					switch {
					case list[0]&bit(i) != 0:
						t.cut(i, list[1])
					case list[1]&bit(i) != 0:
						t.cut(i, list[0])
					}
				}
			}
		})
	}
}

// cut cuts the links of member i to others. A process that has lost its host's network has lost the store of another host as well.
func (t *turn) cut(i int, from uint8) {
	t.s.cut[i] |= from
	if t.off == FramesNotRepeated {
		for j := range t.c.members {
			if from&bit(j) != 0 {
				t.s.q[i][j], t.s.n[i][j] = [maxQueue]verdictFrame{}, 0
			}
		}
	}
	if at := t.c.storeAt; at != 0 && from&bit(int(at)-1) != 0 {
		t.s.storeCut |= bit(i)
		t.s.claim[i] = 0
	}
}

var frameNames = [...]string{"", "DECLARE", "COLLECT", "PROMISE", "CAUSE"}

// wrong looks for what the failure contract excludes: "every survivor's unfinished and later ops, futures and getError give the same first
// cause". Survivors are the processes that live, stopped ones included. Two of them that reach neither each other, over whatever links,
// nor one store cannot know of each other, and are the only exception.
func (c *verdictCase) wrong(s *verdictState) *violation {
	for i := range c.members {
		for j := range i {
			a, b := &s.m[i], &s.m[j]
			if a.verdict != 0 && b.verdict != 0 && a.verdict != b.verdict && c.together(s, i, j) {
				return &violation{TwoCauses, fmt.Sprintf("process %d reports record %d, process %d record %d", i, a.verdict, j, b.verdict)}
			}
		}
	}
	return nil
}

// together reports whether a way leads from one member to another, over links and the store.
func (c *verdictCase) together(s *verdictState, i, j int) bool {
	a, b := c.reached(s, i), c.reached(s, j)
	return a == b || !s.storeDead && a&^s.storeCut != 0 && b&^s.storeCut != 0
}

// atRest requires that all who live have a verdict, unless none of them knows of a failure. A member that is stopped for good may hold the
// others up only when they cannot reach the store.
func (c *verdictCase) atRest(s verdictState) *violation {
	known, stopped := false, false
	for i := range c.members {
		m := &s.m[i]
		known = known || !m.dead && (m.verdict != 0 || m.declared != 0)
		stopped = stopped || m.stopped
	}
	for i := range c.members {
		if m := &s.m[i]; known && !m.dead && !m.stopped && m.verdict == 0 && !(stopped && s.storeDead) {
			return &violation{Deadlock, fmt.Sprintf("process %d never gets a verdict", i)}
		}
	}
	return nil
}

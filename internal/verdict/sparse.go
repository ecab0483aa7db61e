package verdict

// This file has what members do in a group in which not all of them watch each other (docs/protocol.md, section 16, The verdict).

// AllWatch is the largest number of members of which every two watch each other.
const AllWatch = 64

// Watched reports whether two of that many members watch each other, by a link over which losses, frames of the verdict and requests for links
// go. Up to `all` members, every two do. Of more, those whose distance on the circle of all is a power of 4: few of the others are far, and the
// deaths of many leave the rest joined.
func Watched(i, j, members, all int) bool {
	if i == j {
		return false
	}
	if members <= all {
		return true
	}
	ahead := (j - i + members) % members
	for step := 1; step < members; step *= 4 {
		if ahead == step || ahead == members-step {
			return true
		}
	}
	return false
}

// mind takes note that somebody decides without the store, or may. From then on farewells are told where not all members see them.
func (m *Member) mind(of bool) {
	if of && m.sparse && !m.alert {
		m.alert, m.news = true, true
	}
}

// Want asks a member to make a link to this one. The frame may be lost on its way. A member that has left is not asked: those that it watched
// would pass the request to each other until its hops are used up.
func (m *Member) Want(to int) {
	if m.wantable(to) {
		m.send(Frame{Kind: Want, To: to})
	}
}

func (m *Member) wantable(to int) bool {
	m.settle()
	return !m.lost(to)
}

// Left takes note that a member has left the group: its ranks have said goodbye on all lanes. It may live on, with its links, and answers
// nothing any more. What it has sent before may come later, and is taken.
func (m *Member) Left(j int) {
	if j != m.self && m.leave(j) {
		m.news = true
	}
}

// pass passes CAUSE on to all members that this one watches, where not all watch each other: also if this one does not take it, or has a verdict,
// since a member behind it may wait for that ballot. So all hear of the highest ballot to which a path leads, whatever is lost on the way. CAUSE of a
// lower ballot would not be taken where that of a higher one is.
func (m *Member) pass(ballot int, record string, from int) {
	if ballot < m.passed {
		return
	}
	m.passed = 1 + ballot
	for j := range m.members {
		if j != m.self && j != from && m.linked(j) && !m.left.has(j) {
			m.next.Send = append(m.next.Send, Sent{j, Frame{Kind: Cause, From: m.self, To: j, Hops: 1, Ballot: ballot, Record: record}})
		}
	}
}

// answer tells a member the verdict by CAUSE of a ballot that is not below any which that member can have promised. Where not all watch each other,
// CAUSE of each ballot goes to all, once, however many have asked: by this member, or by the one that it has it from.
func (m *Member) answer(to int) {
	ballot := max(m.promised, 1+m.self)
	if m.sparse {
		m.pass(ballot, m.verdict, m.self)
		return
	}
	m.answered.add(to)
	m.send(Frame{Kind: Cause, To: to, Ballot: ballot, Record: m.verdict})
}

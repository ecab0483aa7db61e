package verdict

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// Whatever is lost, dies, leaves or stops, in whatever order, survivors that are joined have one cause, and all that know of a failure have one.
func TestOneCause(t *testing.T) {
	worlds := uint64(60_000)
	if testing.Short() {
		worlds = 500
	}
	for seed := range worlds {
		n := newNet(t, seed, 2+int(seed%4), nil)
		n.play(seed)
	}
}

// A member learns of each lost link of the members to which a path of links leads, whatever link is lost next, and when. If one of them has no
// link to a member that has left, it learns of that, too.
func TestEveryMemberLearnsOfLostLinks(t *testing.T) {
	worlds := uint64(30_000)
	if testing.Short() {
		worlds = 1000
	}
	for seed := range worlds {
		n := newNet(t, seed, 3+int(seed%6), nil)
		n.quiet = true
		for cuts := n.r.IntN(2 * len(n.m)); ; {
			list := n.steps()
			if cuts > 0 && (len(list) == 0 || n.r.IntN(6) == 0) {
				cuts--
				i, j := n.r.IntN(len(n.m)), n.r.IntN(len(n.m))
				if n.r.IntN(5) == 0 && !n.left[i] {
					n.leave(i)
					continue
				}
				n.note("link %d-%d is cut", i, j)
				n.lose(i, j)
				continue
			}
			if len(list) == 0 {
				break
			}
			list[n.r.IntN(len(list))]()
		}
		for i, m := range n.m {
			if n.left[i] {
				continue
			}
			for j := range n.reached(i) {
				for k := range n.m {
					if n.left[k] {
						require.True(t, !n.cut[j][k] || m.lost(k), "seed %d: member %d, %d has left\n%v", seed, i, k, n.log)
						continue
					}
					require.Equal(t, n.cut[j][k], m.gone[j].has(k), "seed %d: member %d, the link %d-%d\n%v", seed, i, j, k, n.log)
				}
			}
		}
	}
}

// A member that dies costs frames in proportion to the square of the number of members, or to that of the links.
func TestFramesOfADeath(t *testing.T) {
	for members, all := range map[int]int{4: AllWatch, 16: AllWatch, 70: 70, 65: AllWatch, 100: AllWatch, 12: 4} {
		degree := 0
		watched := func(i, j int) bool { return Watched(i, j, members, all) }
		for j := range members {
			if watched(0, j) {
				degree++
			}
		}
		n := newNet(t, 1, members, watched)
		n.dead[0], n.quiet = true, true
		for k := range n.m {
			n.lose(0, k)
		}
		for list := n.steps(); len(list) > 0; list = n.steps() {
			list[n.r.IntN(len(list))]()
		}
		t.Logf("%d members with %d links each: %d frames", members, degree, n.sent)
		require.LessOrEqual(t, n.sent, min(2*members, degree*degree)*members)
		for _, m := range n.m[1:] {
			require.True(t, m.lost(0))
		}
	}
}

// Without faults, a failure costs one claim, and CAUSE from each member to each other one.
func TestFramesOfAFailure(t *testing.T) {
	const members = 4
	n := newNet(t, 1, members, nil)
	n.m[2].Declare("x")
	n.do(2)
	require.Equal(t, "x", n.claim[2])
	require.Zero(t, n.sent)
	for list := n.steps(); len(list) > 0; list = n.steps() {
		list[n.r.IntN(len(list))]()
	}
	for i := range n.m {
		require.Equal(t, "x", n.verdict[i])
		require.Equal(t, i == 2, n.m[i].claimed)
		n.m[i].Declare("too late")
		require.Empty(t, n.m[i].Next().Claim)
	}
	require.Equal(t, members*(members-1), n.sent)
}

// What no member sends is refused, and does nothing.
func TestFramesOfNoMember(t *testing.T) {
	for name, f := range map[string]Frame{
		"kind":                {Kind: 9, From: 1, Hops: 1},
		"no kind":             {From: 1, Hops: 1},
		"sender":              {Kind: Declare, From: 3, Hops: 1, Record: "x"},
		"sender below":        {Kind: Declare, From: -1, Hops: 1, Record: "x"},
		"receiver":            {Kind: Declare, From: 1, To: 3, Hops: 1, Record: "x"},
		"to itself":           {Kind: Declare, From: 1, To: 1, Hops: 1, Record: "x"},
		"no hops":             {Kind: Declare, From: 1, Record: "x"},
		"too many hops":       {Kind: Declare, From: 1, Hops: 4, Record: "x"},
		"no record":           {Kind: Cause, From: 1, Hops: 1},
		"ballot of DECLARE":   {Kind: Declare, From: 1, Hops: 1, Ballot: 1, Record: "x"},
		"ballot of the store": {Kind: Collect, From: 1, Hops: 1, Record: "x"},
		"no owner":            {Kind: Collect, From: 1, Hops: 1, Ballot: 4, Record: "x"},
		"ballot below":        {Kind: Cause, From: 1, Hops: 1, Ballot: -1, Record: "x"},
		"promise to nobody":   {Kind: Promise, From: 1, Hops: 1},
		"no such end":         {Kind: Lost, From: 1, Ends: [2]int{1, 3}},
		"one end":             {Kind: Lost, From: 1, Ends: [2]int{1, 1}},
		"of no end":           {Kind: Lost, From: 1, Ends: [2]int{0, 2}},
		"LOST with a record":  {Kind: Lost, From: 1, Ends: [2]int{1, 2}, Record: "x"},
	} {
		m := New(0, 3, nil)
		require.Error(t, m.Take(f, 1), name)
		require.Zero(t, m.Next(), name)
	}
}

// What comes over a link that is lost is dropped, because others may have decided without the member at its end.
func TestFramesOfALostLink(t *testing.T) {
	m := New(0, 3, nil)
	require.NoError(t, m.Take(Frame{Kind: Lost, From: 1, Ends: [2]int{0, 1}}, 2))
	require.NoError(t, m.Take(Frame{Kind: Cause, From: 1, Hops: 3, Record: "x"}, 1))
	require.Empty(t, m.Verdict())
	require.NoError(t, m.Take(Frame{Kind: Cause, From: 1, Hops: 2, Record: "x"}, 2))
	require.Equal(t, "x", m.Verdict())
}

// A frame finds its way around lost links, and goes no farther than its hops.
func TestRoutes(t *testing.T) {
	m := New(0, 4, nil)
	m.LinkLost(1)
	m.LinkLost(3)
	require.NoError(t, m.Take(Frame{Kind: Lost, From: 3, Ends: [2]int{1, 3}}, 2))
	m.Next()
	require.False(t, m.lost(1))
	m.send(Frame{Kind: Collect, To: 1})
	require.Equal(t, 2, m.Next().Send[0].Over)
	require.NoError(t, m.Take(Frame{Kind: Collect, From: 2, To: 1, Hops: 1, Ballot: 1, Record: "x"}, 2))
	require.Empty(t, m.Next().Send)
	require.NoError(t, m.Take(Frame{Kind: Lost, From: 2, Ends: [2]int{1, 2}}, 2))
	m.Next()
	require.True(t, m.lost(1))
	require.False(t, m.lost(3))
	require.Equal(t, 0, m.lowest())
}

// Who sees a farewell tells members that have no link to the one that has left, whichever comes first. Where no link is lost, or nobody reaches the
// member at its other end, it tells nobody.
func TestFarewells(t *testing.T) {
	lost := func(end, other int) Frame { return Frame{Kind: Lost, From: end, Ends: [2]int{end, other}} }
	said := Frame{Kind: Lost, From: 1, To: 0, Ends: [2]int{1, 2}}
	m := New(1, 4, nil)
	require.NoError(t, m.Take(lost(0, 2), 0))
	m.Next()
	require.True(t, m.Unsettled(), "so that it looks")
	m.Left(2)
	sent := m.Next().Send
	require.Contains(t, sent, Sent{0, said})
	require.False(t, m.Unsettled())
	require.NoError(t, m.Take(Frame{Kind: Cause, From: 2, To: 1, Hops: 4, Record: "x"}, 2))
	require.Equal(t, "x", m.Verdict(), "what was sent before the farewell counts")

	m = New(1, 4, nil)
	m.Left(2)
	require.Empty(t, m.Next().Send)
	require.NoError(t, m.Take(lost(0, 2), 0))
	require.Contains(t, m.Next().Send, Sent{0, said})

	m = New(1, 4, nil)
	m.LinkLost(0)
	require.NoError(t, m.Take(lost(2, 0), 2))
	require.NoError(t, m.Take(lost(3, 0), 3))
	m.Next()
	require.False(t, m.Unsettled())
	m.Left(2)
	require.Empty(t, m.Next().Send, "member 0 has died")
}

// A member that has left reads nothing.
func TestNothingIsSentToWhoHasLeft(t *testing.T) {
	m := New(0, 4, nil)
	m.Left(2)
	m.LinkLost(1)
	for _, s := range m.Next().Send {
		require.NotEqual(t, 2, s.Over)
	}
}

// COLLECT may be passed on, and come, when its owner is lost already. The member goes on with the record.
func TestCollectOfAnOwnerThatIsLost(t *testing.T) {
	m := New(2, 3, nil)
	m.StoreLost()
	m.LinkLost(0)
	require.NoError(t, m.Take(Frame{Kind: Lost, From: 0, Ends: [2]int{0, 2}}, 1))
	m.Left(1) // member 0 cannot be reached any more
	require.Empty(t, m.Verdict())
	require.NoError(t, m.Take(Frame{Kind: Collect, From: 0, To: 2, Hops: 2, Ballot: 1, Record: "x"}, 1))
	require.Equal(t, "x", m.Verdict())
}

// However many links are lost, paths are sought once and what others wait for is sent again once, unless a frame comes in between that is taken by
// what is known then.
func TestManyLostLinksAtOnce(t *testing.T) {
	const members = 64
	m := New(0, members, nil)
	m.noStore = true
	m.Declare("x")
	for j := 1; j < members; j++ {
		require.NoError(t, m.Take(Frame{Kind: Promise, From: j, Hops: members, Ballot: 1}, j))
	}
	require.Equal(t, "x", m.Next().Verdict)
	before := &m.via[0]
	m.LinkLost(members - 1)
	for i := 2; i < members; i++ { // only member 1 keeps its link to the last one
		for _, other := range []int{members - 1, i - 1} {
			require.NoError(t, m.Take(Frame{Kind: Lost, From: i, Ends: [2]int{i, other}}, 1+(i-2)%(members-3)))
			require.NoError(t, m.Take(Frame{Kind: Cause, From: 1, Hops: members, Record: "x"}, 1))
		}
		if i == members-2 {
			break
		}
	}
	require.Same(t, before, &m.via[0])
	causes := 0
	for _, s := range m.Next().Send {
		if s.Kind == Cause {
			require.Equal(t, members-1, s.To)
			require.Equal(t, 1, s.Over)
			causes++
		}
	}
	require.Equal(t, 1, causes)
	require.NotSame(t, before, &m.via[0])
}

// Who watches for members that leave: who waits for a verdict, and who has one that others pass on for it.
func TestUnsettled(t *testing.T) {
	m := New(0, 3, nil)
	require.False(t, m.Unsettled())
	m.StoreLost()
	m.Declare("x")
	require.True(t, m.Pending())
	require.True(t, m.Unsettled())
	require.NoError(t, m.Take(Frame{Kind: Promise, From: 1, Hops: 3, Ballot: 1}, 1))
	require.NoError(t, m.Take(Frame{Kind: Promise, From: 2, Hops: 3, Ballot: 1}, 2))
	require.Equal(t, "x", m.Verdict())
	require.False(t, m.Pending())
	require.False(t, m.Unsettled())
	m.LinkLost(2)
	require.True(t, m.Unsettled(), "member 1 passes it on")
	m.Left(1)
	require.False(t, m.Unsettled(), "nobody does")
}

// The loss of the lowest member and that of the store may come between two looks, in that order: the ballot that this member begins then is not
// taken back for one that it was asked about before.
func TestStoreLostBehindATakeover(t *testing.T) {
	m := New(1, 3, nil)
	m.Declare("own")
	require.Equal(t, "own", m.Next().Claim)
	require.NoError(t, m.Take(Frame{Kind: Collect, From: 0, To: 1, Hops: 3, Ballot: 1, Record: "other"}, 0))
	m.Next()
	m.LinkLost(0)
	require.NoError(t, m.Take(Frame{Kind: Lost, From: 2, To: 1, Ends: [2]int{2, 0}}, 2))
	m.StoreLost()
	m.Next()
	require.NoError(t, m.Take(Frame{Kind: Promise, From: 2, To: 1, Hops: 3, Ballot: 2}, 2))
	require.NotEmpty(t, m.Next().Verdict)
}

// A member that has told its verdict to one that has asked tells it again over another path. Where not all watch each other, CAUSE has gone over all
// paths by then.
func TestAnswersAreRepeated(t *testing.T) {
	circle := func(i, j int) bool { return Watched(i, j, 5, 0) }
	for _, watched := range []func(i, j int) bool{circle, nil} {
		for _, asks := range []Frame{{Kind: Declare, From: 0, To: 2, Hops: 4, Record: "y"}, {Kind: Collect, From: 0, To: 2, Hops: 4, Ballot: 1, Record: "y"}} {
			if watched != nil && asks.Kind == Declare {
				continue // TestAnswersOverFewLinks
			}
			m := New(2, 5, watched)
			m.LinkLost(0)
			require.NoError(t, m.Take(Frame{Kind: Cause, From: 1, To: 2, Hops: 1, Record: "x"}, 1))
			m.Next()
			require.NoError(t, m.Take(asks, 1))
			sent := m.Next().Send
			require.Len(t, sent, 1)
			answer := sent[0]
			require.Equal(t, Sent{1, Frame{Kind: answer.Kind, From: 2, To: 0, Hops: 5, Ballot: answer.Ballot, Record: "x"}}, answer)
			require.NoError(t, m.Take(Frame{Kind: Lost, From: 1, To: 2, Ends: [2]int{1, 0}}, 1))
			answer.Over = 3
			require.Contains(t, m.Next().Send, answer)
		}
	}
}

// Who hears of the decision of the owner that has asked it does not answer that one any more: it waits for nobody.
func TestDecisionOfTheOwnerThatAsks(t *testing.T) {
	m := New(1, 3, nil)
	m.Declare("x")
	require.NoError(t, m.Take(Frame{Kind: Collect, From: 0, To: 1, Hops: 3, Ballot: 1, Record: "y"}, 0))
	m.Next()
	require.NoError(t, m.Take(Frame{Kind: Cause, From: 0, To: 1, Hops: 3, Ballot: 1, Record: "y"}, 0))
	next := m.Next()
	require.Equal(t, "y", next.Verdict)
	for _, s := range next.Send {
		require.Equal(t, Cause, s.Kind)
	}
	m.LinkLost(0)
	for _, s := range m.Next().Send {
		require.NotEqual(t, Promise, s.Kind)
	}
}

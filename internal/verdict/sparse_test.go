package verdict

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
)

// few returns a graph in which paths join all members, and not all have a link: that of large groups, or a circle with some more links.
func (n *net) few(members int) func(i, j int) bool {
	if n.r.IntN(2) == 0 {
		return func(i, j int) bool { return Watched(i, j, members, 0) }
	}
	more := map[[2]int]bool{}
	for range n.r.IntN(members) {
		i, j := n.r.IntN(members), n.r.IntN(members)
		more[[2]int{min(i, j), max(i, j)}] = true
	}
	return func(i, j int) bool {
		ahead := (j - i + members) % members
		return ahead == 1 || ahead == members-1 || more[[2]int{min(i, j), max(i, j)}]
	}
}

// So they do where only few of them watch each other.
func TestOneCauseOverFewLinks(t *testing.T) {
	worlds := uint64(40_000)
	if testing.Short() {
		worlds = 500
	}
	for seed := range worlds {
		members := 4 + int(seed%6)
		draw := newNet(t, seed, 0, nil)
		newNet(t, seed, members, draw.few(members)).play(seed)
	}
}

// The watch graph of large groups has few links, short paths, and joins the survivors when a quarter of the hosts, of 8 members each, die at once.
func TestWatchGraph(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 1))
	for _, members := range []int{65, 100, 256, 500, 1024} {
		watched := func(i, j int) bool { return Watched(i, j, members, AllWatch) }
		degree, far := 0, 0
		for j := range members {
			require.Equal(t, watched(0, j), watched(j, 0))
			require.Equal(t, watched(0, j), watched(7, (j+7)%members))
			if watched(0, j) {
				degree++
			}
		}
		at := map[int]int{0: 0}
		for list := []int{0}; len(list) > 0; list = list[1:] {
			for j := range members {
				if _, found := at[j]; !found && watched(list[0], j) {
					at[j] = at[list[0]] + 1
					far = max(far, at[j])
					list = append(list, j)
				}
			}
		}
		require.Len(t, at, members)
		cutOff := 0
		for range 20 {
			m := New(0, members, watched)
			for host := range (members + 7) / 8 {
				for i := 8 * host; host > 0 && i < 8*host+8 && i < members; i++ {
					if i%8 > 0 && m.left.has(8*host) || i%8 == 0 && r.IntN(4) == 0 {
						m.left.add(i)
					}
				}
			}
			m.find()
			for j := range members {
				if m.lost(j) && !m.left.has(j) {
					cutOff++
				}
			}
		}
		t.Logf("%d members: %d links each, %d steps at most, %d survivors cut off", members, degree, far, cutOff)
		require.LessOrEqual(t, degree, 10)
		require.LessOrEqual(t, far, 8)
		require.Zero(t, cutOff)
	}
	require.True(t, Watched(0, 33, 64, AllWatch))
	require.False(t, Watched(0, 0, 64, AllWatch))
	require.False(t, Watched(0, 33, 65, AllWatch))
}

// A member passes a request for a link on, and tells its owner of one for itself.
func TestWants(t *testing.T) {
	circle := func(i, j int) bool { return Watched(i, j, 5, 0) }
	m := New(0, 5, circle)
	m.Want(2)
	sent := m.Next().Send
	require.Equal(t, []Sent{{1, Frame{Kind: Want, To: 2, Hops: 5}}}, sent)
	m = New(1, 5, circle)
	require.NoError(t, m.Take(sent[0].Frame, 0))
	sent = m.Next().Send
	require.Equal(t, []Sent{{2, Frame{Kind: Want, To: 2, Hops: 4}}}, sent)
	m = New(2, 5, circle)
	require.NoError(t, m.Take(sent[0].Frame, 1))
	next := m.Next()
	require.Equal(t, []int{0}, next.Wanted)
	require.Empty(t, next.Send)
	require.False(t, m.Unsettled())
	require.Error(t, m.Take(Frame{Kind: Want, From: 1, To: 2, Hops: 1, Record: "x"}, 1))
}

// Nobody asks a member that has left, nor passes such a request on.
func TestWantsOfWhoHasLeft(t *testing.T) {
	for self, over := range map[int]int{1: 0, 3: 4} {
		m := New(self, 5, func(i, j int) bool { return Watched(i, j, 5, 0) })
		m.Left(2)
		m.LinkLost(2)
		m.Next()
		m.Want(2)
		require.Empty(t, m.Next().Send)
		require.NoError(t, m.Take(Frame{Kind: Want, From: 0, To: 2, Hops: 4}, over))
		require.Empty(t, m.Next().Send)
	}
}

// CAUSE of one ballot crosses each link of a large group at most twice.
func TestFramesOfAFailureOverFewLinks(t *testing.T) {
	for _, members := range []int{65, 100} {
		links := 0
		watched := func(i, j int) bool { return Watched(i, j, members, AllWatch) }
		for i := range members {
			for j := range i {
				if watched(i, j) {
					links++
				}
			}
		}
		n := newNet(t, 1, members, watched)
		n.m[2].Declare("x")
		n.do(2)
		for list := n.steps(); len(list) > 0; list = n.steps() {
			list[n.r.IntN(len(list))]()
		}
		for i := range n.m {
			require.Equal(t, "x", n.verdict[i])
		}
		t.Logf("%d members with %d links: %d frames", members, links, n.sent)
		require.LessOrEqual(t, n.sent, 2*links)
	}
}

// In a group with few links a farewell costs nothing as long as the store decides. Once somebody decides without it, who sees one tells the others.
func TestFarewellsOverFewLinks(t *testing.T) {
	circle := func(i, j int) bool { return Watched(i, j, 6, 0) }
	m := New(0, 6, circle)
	m.Left(1)
	m.LinkLost(1)
	require.Empty(t, m.Next().Send)
	require.False(t, m.Unsettled())
	require.NoError(t, m.Take(Frame{Kind: Cause, From: 5, Hops: 6, Record: "x"}, 5))
	require.NotContains(t, fmt.Sprint(m.Next().Send), "LOST")
	require.False(t, m.Unsettled())
	require.NoError(t, m.Take(Frame{Kind: Collect, From: 4, Hops: 6, Ballot: 5, Record: "y"}, 5))
	require.Contains(t, m.Next().Send, Sent{5, Frame{Kind: Lost, From: 0, To: 5, Ends: [2]int{0, 1}}})
	require.True(t, m.Unsettled())
}

// A member passes CAUSE of each higher ballot on to those that it watches, whether it takes it or not: who is behind it may wait for it.
func TestCauseIsPassedOn(t *testing.T) {
	circle := func(i, j int) bool { return Watched(i, j, 5, 0) }
	cause := func(ballot int) Frame {
		return Frame{Kind: Cause, From: 0, To: 1, Hops: 1, Ballot: ballot, Record: "x"}
	}
	passed := func(ballot int) Sent {
		return Sent{2, Frame{Kind: Cause, From: 1, To: 2, Hops: 1, Ballot: ballot, Record: "x"}}
	}
	m := New(1, 5, circle)
	m.StoreLost()
	require.NoError(t, m.Take(Frame{Kind: Collect, From: 3, To: 1, Hops: 2, Ballot: 4, Record: "y"}, 2))
	m.Next()
	require.NoError(t, m.Take(cause(1), 0))
	require.Equal(t, []Sent{passed(1)}, m.Next().Send)
	require.Empty(t, m.Verdict(), "it has promised a higher ballot")
	require.NoError(t, m.Take(cause(1), 0))
	require.NoError(t, m.Take(cause(0), 0))
	require.Empty(t, m.Next().Send)
	require.NoError(t, m.Take(cause(4), 0))
	require.Equal(t, []Sent{passed(4)}, m.Next().Send)
	require.Equal(t, "x", m.Verdict())
	require.NoError(t, m.Take(cause(5), 0))
	require.Equal(t, []Sent{passed(5)}, m.Next().Send, "it has the verdict")
}

// Behind a verdict that was found without the store, a member that leaves costs a bounded number of frames: those that watch it tell of their links
// there, and each of the others passes that on. Nothing is told again to the member that has decided.
func TestFramesOfMembersThatLeave(t *testing.T) {
	const members = 65
	watched := func(i, j int) bool { return Watched(i, j, members, AllWatch) }
	n := newNet(t, 1, members, watched)
	degree := 0
	for j := range members {
		if watched(0, j) {
			degree++
		}
	}
	n.storeCut[0], n.quiet = true, true
	n.m[0].Declare("x")
	n.m[2].Declare("y")
	n.do(0)
	n.do(2)
	rest := func() {
		for list := n.steps(); len(list) > 0; list = n.steps() {
			list[n.r.IntN(len(list))]()
		}
	}
	rest()
	for i := range n.m {
		require.NotEmpty(t, n.verdict[i])
	}
	before, lost, leavers := n.sent, n.lost, members/3
	for _, i := range n.r.Perm(members)[:leavers] {
		n.leave(i)
		rest()
	}
	lost = n.lost - lost
	others := n.sent - before - lost
	t.Logf("%d members with %d links each: %d frames for the verdict; for %d members that leave %d LOST and %d others", members, degree, before, leavers, lost, others)
	require.LessOrEqual(t, lost, leavers*members*degree*degree)
	require.LessOrEqual(t, others, 10)
}

// However many ask for a verdict that is there, CAUSE of the ballot that they can take goes to all that the member watches, once, and lost links repeat
// nothing.
func TestAnswersOverFewLinks(t *testing.T) {
	const members = 65
	m := New(2, members, func(i, j int) bool { return Watched(i, j, members, AllWatch) })
	require.NoError(t, m.Take(Frame{Kind: Cause, From: 1, To: 2, Hops: 1, Record: "x"}, 1))
	m.Next()
	told := map[int]bool{}
	causes := func() (n int) {
		for _, s := range m.Next().Send {
			if s.Kind == Cause {
				require.Equal(t, Frame{Kind: Cause, From: 2, To: s.Over, Hops: 1, Ballot: 3, Record: "x"}, s.Frame)
				told[s.Over] = true
				n++
			}
		}
		return n
	}
	n := 0
	for j := range members {
		if j != 2 {
			require.NoError(t, m.Take(Frame{Kind: Declare, From: j, To: 2, Hops: members, Record: "y"}, 3))
			n += causes()
		}
	}
	for j := range members {
		require.Equal(t, j != 2 && m.linked(j), told[j], j)
	}
	require.Len(t, told, n)
	for j := 4; j < members; j++ {
		require.NoError(t, m.Take(Frame{Kind: Lost, From: j, To: 2, Ends: [2]int{j, (j + 1) % members}}, 3))
		require.Zero(t, causes())
	}
}

package pgbackend

import (
	"context"
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"sagecomm/internal/bootstrap"
	"sagecomm/internal/coll"
	"sagecomm/internal/handshake"
	"sagecomm/internal/transport/tcp"
	"sagecomm/internal/verdict"
	"sagecomm/tests/quick"
)

// In these tests groups are large where more than four processes make one, so that few links are there from the
// beginning.

const twelve = "0123456789ab"

// large lets groups of more than four processes have few links.
func large(t *testing.T) {
	t.Helper()
	real, name, number := allWatch, networkName, largeWorlds.Add(1)
	allWatch = 4
	networkName = func(g *Group) string { return fmt.Sprint(name(g), " large ", number) } // no links of other groups are left
	t.Cleanup(func() { allWatch, networkName = real, name })
}

// newLargeWorld makes a group with few links.
func newLargeWorld(t *testing.T, hosts string) *world {
	t.Helper()
	large(t)
	return newHostsWorld(t, hosts)
}

// largeWorlds counts them.
var largeWorlds atomic.Int64

// hasLink reports whether the process of a rank has a link to that of another one.
func (g *Group) hasLink(process int) bool {
	return g.links.network.node.Await(context.Background(), tcp.Identity(g.links.processes[process].at.ID), 0) != nil
}

// farthest returns a rank that rank 0 does not watch.
func farthest(t *testing.T, w *world) int {
	t.Helper()
	for rank := range w.groups {
		if rank != 0 && !verdict.Watched(0, rank, len(w.groups), 4) && !w.groups[0].hasLink(rank) {
			return rank
		}
	}
	require.Fail(t, "all ranks are watched")
	return 0
}

// shortWait lets a process give up early where it is refused.
func shortWait(t *testing.T) {
	t.Helper()
	real := neededWait.Swap(int64(otherWay))
	t.Cleanup(func() { neededWait.Store(real) })
}

// A large group begins with the links of the watch graph. Those that its operations need come then, and no others,
// however few are dialed at once.
func TestLargeGroupsMakeLinksAtNeed(t *testing.T) {
	defer func(real int) { mostDials = real }(mostDials)
	mostDials = 1
	w := newLargeWorld(t, twelve)
	n := len(twelve)
	require.Less(t, 0, farthest(t, w))
	for i, g := range w.groups {
		for j := range n {
			require.True(t, i == j || g.hasLink(j) == verdict.Watched(i, j, n, 4), "%d %d", i, j)
		}
	}
	w.each(func(g *Group) error { return asError(sum(g, 1000)) })
	for i, g := range w.groups {
		needed := map[int]bool{}
		for _, rank := range g.met() {
			needed[rank] = true
		}
		for j := range n {
			require.True(t, i == j || g.hasLink(j) == (needed[j] || verdict.Watched(i, j, n, 4)), "%d %d", i, j)
		}
	}
	for kind := range coll.KindCount {
		if kind.Collective() {
			for i, length := range []int{0, 1, 1000, 40_000} {
				w.each(func(g *Group) error { return g.try(transfer{kind, i % n, i, equalLength(length)}, coll.Op{}) })
			}
		}
	}
	w.each(func(g *Group) error { return exchanged(g, topicFusion, 0, func(int) int { return 9 }) })
	w.destroy()
	requireNoNetworks(t)
}

// A process that dies while a large group is made, behind the round of addresses, costs the others a moment, also those
// that do not watch it.
func TestDeathsWhileALargeGroupMeets(t *testing.T) {
	real := othersHear
	othersHear = firstHears
	rest := networkRest.Swap(int64(time.Millisecond)) // the processes of ranks that give up end
	defer func() {
		othersHear = real
		networkRest.Store(rest)
	}()
	eachAProcess(t)
	large(t)
	for _, c := range []struct {
		round string
		dying int
	}{{attachedRound, 6}, {linkedRound, 6}, {joinedRound, 6}, {linkedRound, 0}} {
		t.Run(fmt.Sprint(c.round, c.dying), func(t *testing.T) {
			if c.round != linkedRound || c.dying == 0 {
				quick.Skip(t, "each takes a second")
			}
			n := len(twelve)
			require.False(t, c.dying > 0 && verdict.Watched(0, c.dying, n, 4))
			require.False(t, verdict.Watched(6, 0, n, 4))
			suffix := fmt.Sprint(" ", c.dying, " large ", largeWorlds.Load())
			dying := &dyingStore{MemStore: bootstrap.NewMemStore(), round: c.round, die: func() { closeNodes(suffix) }}
			for rank, err := range dying.rankDies(t, twelve, c.dying) {
				if rank == c.dying {
					require.ErrorContains(t, err, errDead.Error())
					continue
				}
				f := CreateFailure("g", err)
				require.NoError(t, expect(f, coll.PeerFailure, fmt.Sprintf("rank %d (host", c.dying)), rank)
				require.Equal(t, c.dying, f.Rank)
			}
		})
	}
	requireNoNetworks(t)
}

// message sends or receives bytes.
func message(g *Group, kind coll.Kind, peer, n int) *coll.Failure {
	b := one(make([]byte, n))
	op := coll.Op{Kind: kind, Type: coll.Uint8, Root: peer}
	if kind == coll.Send {
		_, f := g.Issue(op, b, nil)
		return f
	}
	_, f := g.Issue(op, nil, b)
	return f
}

// What a rank sends before it leaves comes, although there was no link when it left.
func TestSendAndLeaveWithoutALink(t *testing.T) {
	for range 5 {
		w := newLargeWorld(t, "012345")
		far := farthest(t, w)
		require.NoError(t, asError(message(w.groups[0], coll.Send, far, 100)))
		require.NoError(t, w.groups[0].Destroy())
		require.NoError(t, asError(message(w.groups[far], coll.Recv, 0, 100)))
		w.destroy()
	}
	requireNoNetworks(t)
}

// Who needs a rank that has left is told so, though there was no link between them.
func TestGoodbyeWithoutALink(t *testing.T) {
	w := newLargeWorld(t, twelve)
	far := farthest(t, w)
	require.NoError(t, w.groups[far].Destroy())
	require.Eventually(t, func() bool {
		Get().sweep()
		return w.groups[far].life.now() == freed
	}, opTimeout, time.Millisecond, "no link is awaited")
	require.NoError(t, expect(message(w.groups[0], coll.Recv, far, 8), coll.PeerFailure, "has left the group"))
}

// A death among ranks that have few links is one cause for all.
func TestDeathInALargeGroup(t *testing.T) {
	w := newLargeWorld(t, "012345678")
	cutLast(t, w, 1000)
	w.destroy()
	require.Eventually(t, func() bool {
		Get().sweep()
		for _, g := range w.groups[:8] {
			if g.life.now() != freed {
				return false
			}
		}
		return true
	}, opTimeout, time.Millisecond, "memory is given back")
}

// So is an abort.
func TestAbortInALargeGroup(t *testing.T) {
	w := newLargeWorld(t, twelve)
	causes := make(chan *coll.Failure, 11)
	for rank := range 11 {
		go func() { causes <- sum(w.groups[rank], 1000) }()
	}
	w.groups[11].Abort("enough")
	for range 11 {
		require.NoError(t, expect(<-causes, coll.Aborted, "rank 11", "enough"))
	}
}

// A timeout names the rank that did not come, though few ranks have a link to it.
func TestTimeoutInALargeGroup(t *testing.T) {
	patient(t, time.Second)
	w := newLargeWorld(t, "0123456")
	w.each(func(g *Group) error { return asError(sum(g, 10)) })
	late := farthest(t, w)
	require.NoError(t, w.groups[0].SetTimeout(300*time.Millisecond))
	f := message(w.groups[0], coll.Recv, late, 8)
	require.NoError(t, expect(f, coll.Timeout, "rank 0 timed out", w.groups[0].who(late)))
	require.Equal(t, late, f.Rank)
}

// Only the process at the other end can dial: it is asked to.
func TestLinkFromTheOtherSide(t *testing.T) {
	w := newLargeWorld(t, "012345")
	far := farthest(t, w)
	nowhere(t, w.groups[0], far)
	received := make(chan *coll.Failure, 1)
	go func() { received <- message(w.groups[0], coll.Recv, far, 100) }()
	require.Eventually(t, func() bool { return w.groups[0].hasLink(far) }, opTimeout, time.Millisecond, "rank %d has nothing to send yet", far)
	require.NoError(t, asError(message(w.groups[far], coll.Send, 0, 100)))
	require.NoError(t, asError(<-received))
}

// asked counts the requests for links that come to a group.
type asked struct {
	servedGroup
	n atomic.Int64
}

func (a *asked) linkWanted(member int) {
	a.n.Add(1)
	a.servedGroup.linkWanted(member)
}

// Who wants a link asks for it once a second until it is there. Who is asked does not ask back.
func TestRequestsForLinksEnd(t *testing.T) {
	w := newLargeWorld(t, "012345")
	far := farthest(t, w)
	counts := map[int]*asked{}
	for _, rank := range []int{0, far} {
		g := w.groups[rank]
		counts[rank] = &asked{servedGroup: g}
		a := g.arbiter
		a.mu.Lock()
		a.groups[slices.Index(a.groups, servedGroup(g))] = counts[rank]
		a.mu.Unlock()
	}
	began := time.Now()
	for range 200 {
		require.NoError(t, asError(message(w.groups[0], coll.Send, far, 100)))
		require.NoError(t, asError(message(w.groups[far], coll.Recv, 0, 100)))
		w.groups[0].linkWanted(far) // as if a late request had come
	}
	require.LessOrEqual(t, counts[far].n.Load()+counts[0].n.Load(), 2+2*int64(time.Since(began)/wantEvery))
	for rank, c := range counts {
		a := w.groups[rank].arbiter
		a.mu.Lock()
		a.groups[slices.Index(a.groups, servedGroup(c))] = w.groups[rank]
		a.mu.Unlock()
	}
	w.destroy()
	requireNoNetworks(t)
}

// A network keeps the keys of the last groups that have ended, each once, whatever the number of ranks here that were
// in it.
func TestKeysOfGroupsThatHaveEnded(t *testing.T) {
	l, _, _ := dialerTo(t)
	n := l.network
	leave := func(group uint64) {
		space := handshake.Space{}
		binary.LittleEndian.PutUint64(space[:], group+1)
		for range 2 { // ranks
			require.NoError(t, n.node.AddKey(space, handshake.Key{1}))
		}
		for range 2 {
			n.keepKey(space)
		}
	}
	admitted := func(group uint64) bool {
		space := handshake.Space{}
		binary.LittleEndian.PutUint64(space[:], group+1)
		if err := n.node.AddKey(space, handshake.Key{2}); err != nil {
			return true
		}
		n.node.RemoveKey(space)
		return false
	}
	for group := range uint64(mostKeys) {
		leave(group)
	}
	require.True(t, admitted(0))
	leave(mostKeys)
	require.False(t, admitted(0))
	require.True(t, admitted(1))
	require.Len(t, n.kept, mostKeys)
}

// Where neither can, the group fails, and names the rank.
func TestNoLinkAtNeed(t *testing.T) {
	shortWait(t)
	w := newLargeWorld(t, "012345")
	far := farthest(t, w)
	nowhere(t, w.groups[0], far)
	nowhere(t, w.groups[far], 0)
	require.NoError(t, expect(message(w.groups[0], coll.Recv, far, 100), coll.PeerFailure, w.groups[0].who(far)))
	w.destroy()
	requireNoNetworks(t)
}

// Memory of a rank that has left is given back also where a link that it wanted cannot be made, and who began to make
// it was the other end.
func TestNoLinkBehindAGoodbye(t *testing.T) {
	shortWait(t)
	w := newLargeWorld(t, "012345")
	far := farthest(t, w)
	nowhere(t, w.groups[0], far)
	nowhere(t, w.groups[far], 0)
	w.groups[0].linkWanted(far)
	require.NoError(t, asError(message(w.groups[0], coll.Send, far, 100)))
	require.NoError(t, w.groups[0].Destroy())
	require.Eventually(t, func() bool {
		Get().sweep()
		return w.groups[0].life.now() == freed
	}, opTimeout, time.Millisecond)
	w.destroy()
	requireNoNetworks(t)
}

// nowhere lets a rank dial another one where nobody listens.
func nowhere(t *testing.T, g *Group, far int) {
	t.Helper()
	g.links.processes[far].at.At = []netip.AddrPort{netip.MustParseAddrPort("127.0.0.1:1")}
}

// Ranks of one process share its links. One that has left is known to ranks that need the process later.
func TestRanksOfOneProcessInALargeGroup(t *testing.T) {
	large(t)
	const hosts = "001122334455"
	w, errs := tryWorld(t, len(hosts), opTimeout, onHosts(hosts))
	for _, err := range errs {
		require.NoError(t, err)
	}
	require.Len(t, w.groups[0].links.processes, 6)
	require.False(t, w.groups[0].hasLink(3))
	require.NoError(t, w.groups[7].Destroy())
	sent := make(chan *coll.Failure, 1)
	go func() { sent <- message(w.groups[6], coll.Send, 1, 100_000) }()
	require.NoError(t, asError(message(w.groups[1], coll.Recv, 6, 100_000)))
	require.NoError(t, asError(<-sent))
	for _, rank := range []int{0, 1} {
		require.Eventually(t, func() bool {
			_, left := w.groups[rank].run.LastCall(7)
			return left
		}, opTimeout, time.Millisecond, "its farewell comes with the link")
	}
	w.destroy()
	requireNoNetworks(t)
}

// More processes than all watch each other, as the library counts.
func TestGroupOfManyProcesses(t *testing.T) {
	if testing.Short() || raceDetector {
		t.Skip("many processes, with more goroutines than the race detector takes")
	}
	hosts := ""
	for i := range 36 {
		hosts += strings.Repeat(string("0123456789abcdefghijklmnopqrstuvwxyz"[i]), 2)
	}
	w := newHostsWorld(t, hosts)
	for j := 1; j < len(hosts); j++ {
		require.Equal(t, verdict.Watched(0, j, len(hosts), verdict.AllWatch), w.groups[0].hasLink(j), j)
	}
	require.False(t, w.groups[0].hasLink(2))
	w.each(func(g *Group) error { return asError(sum(g, 1000)) })
	cutLast(t, w, 1000)
	w.destroy()
}

// A group that is made after a link was lost has other links, and works.
func TestLargeGroupAgain(t *testing.T) {
	large(t)
	for range 2 {
		w := newHostsWorld(t, "0123456")
		cutLast(t, w, 1000)
		w.destroy()
	}
	w := newHostsWorld(t, "0123456")
	w.each(func(g *Group) error { return asError(sum(g, 1000)) })
	w.destroy()
	requireNoNetworks(t)
}

// Groups end while links are made that nobody waits for.
func TestDestroyLargeGroupsAtOnce(t *testing.T) {
	large(t)
	for range 10 {
		w := newHostsWorld(t, "0123456")
		far := farthest(t, w)
		for rank := range 2 {
			_, f := w.groups[far].Issue(coll.Op{Kind: coll.Send, Type: coll.Uint8, Root: rank}, one(make([]byte, 100)), nil)
			require.NoError(t, asError(f))
		}
		w.destroy()
		require.Eventually(t, func() bool {
			Get().sweep()
			return !slices.ContainsFunc(w.groups, func(g *Group) bool { return g.life.now() != freed })
		}, opTimeout, time.Millisecond)
	}
	requireNoNetworks(t)
}

package shadow

import (
	"context"
	"net/netip"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"sagecomm/internal/handshake"
	"sagecomm/internal/runner"
	"sagecomm/internal/transport/tcp"
)

// apart are two processes without a link.
type apart struct {
	*testing.T
	a, b   *end
	needed [2]atomic.Int32 // calls of Need
}

func newApart(t *testing.T) *apart {
	w := &apart{T: t, a: newEnd(t, 0), b: newEnd(t, 1)}
	for rank, e := range []*end{w.a, w.b} {
		other := []*end{w.b, w.a}[rank]
		c := Config{Peer: other.id, Group: 5, Rank: rank, To: 1 - rank, Size: 2, Geometry: runner.Short, Own: e.own, Memory: newMemory(t),
			Need: func() { w.needed[rank].Add(1) }, Lost: func(error) { e.told.Add(1) }}
		var err error
		e.pair, err = e.Add(c)
		require.NoError(t, err)
		_, err = e.Add(c)
		require.Error(t, err, "twice")
	}
	return w
}

// link makes the link, and returns both ends of it.
func (w *apart) link() (a, b *tcp.Link) {
	ctx, cancel := context.WithTimeout(context.Background(), soon)
	defer cancel()
	a, err := w.a.node.Link(ctx, w.b.id, []netip.AddrPort{w.b.at}, handshake.Space{})
	require.NoError(w, err)
	return a, w.b.node.Await(ctx, w.a.id, soon)
}

// wants reports whether rank 0 waits for a link.
func (w *apart) wants() bool {
	wanted, waits := w.a.Wants(5, w.b.id, 0)
	require.Equal(w, wanted, waits)
	return waits
}

func (w *apart) eventually(f func() bool, why ...any) {
	w.Helper()
	require.Eventually(w, f, soon, time.Millisecond, why...)
}

// hasCome reports whether a message of channel 0 has come.
func (e *end) hasCome(n uint64) bool {
	return e.pair.made.Load() && runner.Short.PlaceOf(e.pair.lanes[runner.HostLane].channels[0].in, n).Filled.Load() == n
}

// What a rank publishes before there is a link goes out when there is one, and the other end is made by the first frame. A link is needed once.
func TestPublishedBeforeTheLink(t *testing.T) {
	w := newApart(t)
	require.False(t, w.a.pair.Open())
	require.False(t, w.a.pair.Open())
	w.a.publish(1)
	w.a.pair.Push()
	require.EqualValues(t, 1, w.needed[0].Load())
	require.Zero(t, w.needed[1].Load())
	require.False(t, w.a.pair.Poll())
	l, _ := w.link()
	require.False(t, w.a.pair.made.Load(), "the link carries the group of nobody yet")
	w.a.Meet(l, 5, 1)
	w.eventually(w.a.pair.hasOpened)
	w.eventually(func() bool { return w.b.hasCome(1) })
	w.a.publish(2)
	w.a.pair.Push()
	w.eventually(func() bool { return w.b.hasCome(2) })
	w.a.leave()
	w.eventually(func() bool { return w.b.remoteLeft() == 9 })
	w.a.pair.Detach()
	w.b.leave()
	w.b.pair.Detach()
	w.eventually(w.a.ended)
	w.eventually(w.b.ended)
}

// A thread that waits for a rank wants a link to it, once.
func TestPollBeforeTheLink(t *testing.T) {
	w := newApart(t)
	for range 3 {
		require.False(t, w.a.pair.Poll())
	}
	require.EqualValues(t, 1, w.needed[0].Load())
	l, _ := w.link()
	w.a.Meet(l, 5, 1)
	w.eventually(w.a.pair.hasOpened)
}

// A link that nobody wants carries no group.
func TestMeetWithoutNeed(t *testing.T) {
	w := newApart(t)
	l, _ := w.link()
	w.a.Meet(l, 5, 1)
	require.False(t, w.a.pair.linked.Load())
	require.False(t, w.wants())
	require.False(t, w.a.Needs(l))
	require.False(t, w.a.pair.Open())
	require.True(t, w.wants())
	w.a.Meet(l, 5, 1)
	require.True(t, w.a.pair.made.Load())
	require.True(t, w.a.Needs(l))
	w.eventually(w.a.pair.hasOpened)
}

// A rank that leaves gives its memory back without a link, and who wants one later is told that it has left, with the state that it had.
func TestGoodbyeBeforeTheLink(t *testing.T) {
	w := newApart(t)
	require.True(t, runner.PutState(w.b.pair.side.own, w.b.pair.Rank, stateOf()))
	w.b.leave()
	w.eventually(w.b.ended)
	require.True(t, w.b.Flush(soon))
	require.False(t, w.b.pair.Open(), "it has left")
	require.Zero(t, w.needed[1].Load())
	require.False(t, w.a.pair.Open())
	w.a.publish(1)
	l, _ := w.link()
	w.a.Meet(l, 5, 1)
	w.eventually(func() bool { return w.a.remoteLeft() == 9 })
	w.a.leave()
	w.a.pair.Detach()
	w.eventually(w.a.ended)
	for range 3 { // frames of a pair that has ended meet nothing, and LEFT is said once
		h := w.a.pair.header(tcp.Ask)
		require.NoError(t, l.Send(0, &h))
	}
	w.eventually(func() bool { return w.b.asks.Load() == 3 })
	require.NoError(t, l.Err())
}

// What a rank has published goes out behind its goodbye, as soon as there is a link, and its memory stays until then.
func TestGoodbyeWhileTheLinkIsMade(t *testing.T) {
	w := newApart(t)
	require.False(t, w.a.pair.Open())
	w.a.publish(1)
	w.a.leave()
	w.a.pair.Detach()
	require.False(t, w.a.Flush(10*w.a.sleep/1000), "the message was not sent")
	require.False(t, w.a.ended())
	l, _ := w.link()
	w.a.Meet(l, 5, 1)
	w.eventually(func() bool { return w.b.remoteLeft() == 9 })
	require.True(t, w.b.hasCome(1), "the message comes before the goodbye")
	require.True(t, w.a.Flush(soon))
	w.b.leave()
	w.b.pair.Detach()
	w.eventually(w.a.ended)
	w.eventually(w.b.ended)
}

// Both ends leave, and one of them has published something: the other one drops it, and says that it has left.
func TestBothLeaveWhileTheLinkIsMade(t *testing.T) {
	w := newApart(t)
	require.False(t, w.a.pair.Open())
	w.a.publish(1)
	for _, e := range []*end{w.a, w.b} {
		e.leave()
		e.pair.Detach()
	}
	w.eventually(w.b.ended)
	l, _ := w.link()
	w.a.Meet(l, 5, 1)
	w.eventually(w.a.ended)
	require.NoError(t, l.Err())
}

// Where no link can be made, a pair that is wanted is lost, and another one is not. One may be wanted again.
func TestUnreachable(t *testing.T) {
	w := newApart(t)
	w.a.Unreachable(5, w.b.id, 0, tcp.ErrDrop)
	require.Zero(t, w.a.told.Load())
	require.False(t, w.a.pair.Open())
	w.a.Unreachable(5, w.b.id, 1, tcp.ErrDrop)
	w.a.Unreachable(6, w.b.id, 0, tcp.ErrDrop)
	require.Zero(t, w.a.told.Load(), "another rank, another group")
	w.a.Unreachable(5, w.b.id, 0, tcp.ErrDrop)
	require.EqualValues(t, 1, w.a.told.Load())
	require.False(t, w.a.pair.Open())
	require.EqualValues(t, 1, w.needed[0].Load())
	w.a.leave()
	w.eventually(w.a.ended)
}

// A link that is made after all, for the other end, tells that end when a rank leaves whose pairs have been lost.
func TestMeetingBehindUnreachable(t *testing.T) {
	w := newApart(t)
	require.False(t, w.a.pair.Open())
	w.a.Unreachable(5, w.b.id, 0, tcp.ErrDrop)
	require.False(t, w.b.pair.Open())
	_, l := w.link()
	w.b.Meet(l, 5, 0)
	w.eventually(func() bool {
		x := w.a.pair.side
		x.mu.Lock()
		defer x.mu.Unlock()
		return x.link != nil
	})
	w.a.leave()
	w.a.pair.Wake()
	w.eventually(w.a.pair.HasLeft)
	w.eventually(func() bool { return w.b.remoteLeft() == 9 })
	w.b.leave()
	w.b.pair.Detach()
	w.eventually(w.a.ended)
	w.eventually(w.b.ended)
}

// A rank that has left, and to whose peer no link can be made, gives its memory back.
func TestUnreachableBehindAGoodbye(t *testing.T) {
	w := newApart(t)
	require.False(t, w.a.pair.Open())
	w.a.leave()
	w.a.pair.Wake()
	require.False(t, w.a.Flush(time.Millisecond))
	wanted, waits := w.a.Wants(5, w.b.id, 0)
	require.True(t, wanted)
	require.False(t, waits, "nobody tries again for one that has left")
	w.a.Unreachable(5, w.b.id, 0, tcp.ErrDrop)
	w.eventually(w.a.ended)
	require.True(t, w.a.Flush(soon))
}

// What a rank asks before there is a link is answered behind that.
func TestQuestionBeforeTheLink(t *testing.T) {
	w := newApart(t)
	var stated atomic.Bool
	w.a.pair.Stated = func() { stated.Store(true) }
	begun := 0
	w.a.Ask(w.a.pair, func(begins bool) {
		require.Equal(t, begun == 0, begins)
		begun++
	})
	w.a.Ask(w.a.pair, func(begins bool) { require.False(t, begins) })
	taken, err := w.a.pair.SendEntry(tcp.Header{Number: 1})
	require.NoError(t, err)
	require.False(t, taken)
	l, _ := w.link()
	w.a.Meet(l, 5, 1)
	w.eventually(stated.Load)
}

// A thread that begins to poll before there is a link, and ends behind that, takes no mark of another one back.
func TestAttendAcrossTheLink(t *testing.T) {
	w := newApart(t)
	require.False(t, w.a.pair.Open())
	w.a.pair.Attend(true)
	l, _ := w.link()
	w.a.Meet(l, 5, 1)
	w.a.pair.Attend(true)
	require.EqualValues(t, 1, w.a.pair.calmed.Load())
	w.a.pair.Attend(false)
	w.a.pair.Attend(false)
	require.Zero(t, w.a.pair.calmed.Load())
	require.Zero(t, w.a.pair.polling.Load())
	w.eventually(w.a.pair.hasOpened)
}

// A pair of a group that is not made is removed without a link, and what comes for it is dropped.
func TestRemoveBeforeTheLink(t *testing.T) {
	w := newApart(t)
	w.b.Remove(w.b.pair)
	require.False(t, w.b.pair.Open())
	require.Zero(t, w.needed[1].Load())
	require.False(t, w.a.pair.Open())
	l, _ := w.link()
	w.a.Meet(l, 5, 1)
	w.eventually(func() bool {
		w.b.mu.Lock()
		defer w.b.mu.Unlock()
		return len(w.b.unlinked) == 0
	})
	require.NoError(t, l.Err())
}

// The end of a process ends pairs that have no link.
func TestCloseBeforeTheLink(t *testing.T) {
	w := newApart(t)
	require.False(t, w.a.pair.Open())
	w.a.node.Close()
	w.a.Set.Close()
	require.True(t, w.a.pair.HasLeft())
	require.False(t, w.a.pair.hasOpened())
}

// The farewells of a bounded number of groups are kept.
func TestFarewellsAreForgotten(t *testing.T) {
	s := NewSet()
	carried := group{nil, 3} // a link carries it for another rank here, so it is not made to carry it a second time
	s.sides[carried] = []*side{{group: carried.number}}
	for n := range uint64(mostDeparted + 10) {
		s.noteMet(group{nil, n})
		s.depart(n, farewell{rank: 1, number: 7})
		s.depart(n, farewell{rank: 2, number: 7})
		s.depart(n, farewell{rank: 1, number: 8})
	}
	require.Len(t, s.departed, mostDeparted)
	require.Len(t, s.oldest, mostDeparted)
	require.Len(t, s.met, 1+mostDeparted)
	require.True(t, s.met[carried.number][nil])
	s.dropSide(s.sides[carried][0])
	require.Len(t, s.met, mostDeparted)
	require.Len(t, s.sides, 0)
	require.Equal(t, []farewell{{rank: 1, number: 7}, {rank: 2, number: 7}}, s.departed[mostDeparted])
	require.Empty(t, s.departed[9])
}

// Of a group that was not made nothing is kept, also where its link lives on.
func TestRemovedGroupsAreForgotten(t *testing.T) {
	w := newApart(t)
	l, _ := w.link()
	c := w.a.pair.Config
	c.Link, c.Group = l, 6
	p, err := w.a.Add(c)
	require.NoError(t, err)
	known := func() int {
		w.a.mu.Lock()
		defer w.a.mu.Unlock()
		return len(w.a.met)
	}
	require.Equal(t, 1, known())
	w.a.Remove(p)
	w.eventually(func() bool { return known() == 0 })
}

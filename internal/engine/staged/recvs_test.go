package staged

import (
	"testing"

	"github.com/stretchr/testify/require"

	"sagecomm/internal/coll"
	"sagecomm/internal/device"
)

// All groups of a process have no more streams of recvs than the device has queues for, at a time.
func TestRecvsHaveQueuesOfTheirOwn(t *testing.T) {
	c, on, pool := newCounting(), place{coll.Device{Type: coll.CUDA}, "counting"}, NewPool()
	var list []*streams
	for range 3 {
		s, claimed := pool.claimRecvs(on, 3)
		require.True(t, claimed)
		require.Nil(t, s)
		s, err := pool.makeRecvs(c, on)
		require.NoError(t, err)
		list = append(list, s)
	}
	_, claimed := pool.claimRecvs(on, 3)
	require.False(t, claimed)
	pool.giveStreams(on, list[1])
	s, claimed := pool.claimRecvs(on, 3)
	require.True(t, claimed)
	require.Same(t, list[1], s)
	_, claimed = pool.claimRecvs(on, 3)
	require.False(t, claimed)
}

// framed is a device in streams of a framework.
type framed struct{ *counting }

func (f framed) alone() device.Access { return unordered{deferring(f)} }
func (f framed) recvQueues() int      { return 2 }

// Of two senders that have streams of recvs, the one that uses none of them leaves them to a third. A thread that had chosen them finds that out.
func TestStreamsOfASenderThatIsDone(t *testing.T) {
	c := framed{newCounting()}
	on := place{coll.Device{Type: coll.CUDA}, "counting"}
	e := New(nil, nil, 0, 5, NewPool(), nil)
	recv := func(sender int) (access, *block) {
		l := layout{stride: 1, in: side{moved: true, units: 1, blocks: 1}, out: side{moved: true, units: 1, blocks: 1}}
		by := e.accessFor(c, coll.Op{Kind: coll.Recv, Device: on.device, Root: sender}, &l)
		if by.from.sender < 0 {
			return by, nil
		}
		if by.s == nil {
			var err error
			by.s, err = e.makeP2P(by, by.from, sender)
			require.NoError(t, err)
		}
		return by, c.operation(t, e, by.from.place, by.s, 1, false)
	}
	first, one := recv(1)
	_, two := recv(2)
	none, _ := recv(3)
	require.Equal(t, -1, none.from.sender)
	require.Equal(t, "deferring", none.Name())
	run(two)
	third, three := recv(3)
	require.Equal(t, 3, third.from.sender)
	require.NotSame(t, first.s, third.s)
	for _, b := range []*block{one, three} {
		run(b)
	}

	l := layout{stride: 1, in: side{moved: true, units: 1, blocks: 1}, out: side{moved: true, units: 1, blocks: 1}}
	for _, taken := range []bool{false, true} {
		chosen := e.accessFor(c, coll.Op{Kind: coll.Recv, Device: on.device, Root: 1}, &l)
		require.Same(t, first.s, chosen.s)
		if taken {
			for sender := range 2 {
				require.Equal(t, sender+4, e.accessFor(c, coll.Op{Kind: coll.Recv, Device: on.device, Root: sender + 4}, &l).from.sender)
			}
		}
		b, err := e.pool.acquire(c, source{coll.CUDA, "counting"}, l.bytes)
		require.NoError(t, err)
		require.Equal(t, !taken, e.hasRoom(chosen, e.queueFor(c, on, chosen.s, b, &l)))
		e.issuing.Unlock()
	}
}

// Streams of recvs that have filled up since a recv chose them have no room for it: there are no others.
func TestRecvsThatFillTheirStreams(t *testing.T) {
	c := framed{newCounting()}
	on := place{coll.Device{Type: coll.CUDA}, "counting"}
	e := New(nil, nil, 0, 2, NewPool(), nil)
	l := layout{stride: 1, in: side{moved: true, units: 1, blocks: 1}, out: side{moved: true, units: 1, blocks: 1}}
	choose := func() access {
		return e.accessFor(c, coll.Op{Kind: coll.Recv, Device: on.device, Root: 1}, &l)
	}
	chosen := choose()
	var err error
	chosen.s, err = e.makeP2P(c, chosen.from, 1)
	require.NoError(t, err)
	for again := choose(); again.from.sender == 1; again = choose() { // by other threads
		require.Same(t, chosen.s, again.s)
		require.Less(t, c.queued[again.s.out], room)
		c.operation(t, e, on, again.s, 1, false)
	}
	b, err := e.pool.acquire(c, source{coll.CUDA, "counting"}, l.bytes)
	require.NoError(t, err)
	q := e.queueFor(c, on, chosen.s, b, &l)
	defer e.issuing.Unlock()
	require.False(t, e.hasRoom(chosen, q))
	require.Empty(t, q.spare)
	require.LessOrEqual(t, c.queued[chosen.s.out], mostQueued)
}

// Streams of recvs that others leave while some are to be made are not counted twice.
func TestRecvsThatAreLeftMeanwhile(t *testing.T) {
	c, on, pool := newCounting(), place{coll.Device{Type: coll.CUDA}, "counting"}, NewPool()
	claim := func() *streams {
		s, claimed := pool.claimRecvs(on, 2)
		require.True(t, claimed)
		return s
	}
	require.Nil(t, claim())
	first, err := pool.makeRecvs(c, on)
	require.NoError(t, err)
	for range 4 {
		require.Nil(t, claim())
		pool.giveStreams(on, first) // another group ends
		again, err := pool.makeRecvs(c, on)
		require.NoError(t, err)
		require.Same(t, first, again)
	}
	require.Nil(t, claim(), "there is a queue for another one")
	_, claimed := pool.claimRecvs(on, 2)
	require.False(t, claimed)
}

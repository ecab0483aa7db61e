package staged

import (
	"testing"

	"github.com/stretchr/testify/require"

	"sagecomm/internal/coll"
	"sagecomm/internal/device"
	"sagecomm/internal/runner"
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

// A sender keeps its streams when its recvs have ended: the caller of the library may have queued more there.
func TestStreamsOfASenderThatIsDone(t *testing.T) {
	c := framed{newCounting()}
	on := place{coll.Device{Type: coll.CUDA}, "counting"}
	e := New(nil, nil, 0, 5, NewPool(), nil)
	l := oneUnit()
	choose := func(sender int) access {
		return e.accessFor(c, coll.Op{Kind: coll.Recv, Device: on.device, Root: sender}, &l)
	}
	for sender := range 2 {
		by := choose(sender + 1)
		require.Equal(t, sender+1, by.from.sender)
		s, err := e.makeP2P(by, by.from)
		require.NoError(t, err)
		run(c.operation(t, e, by.from.place, s, 1, false))
	}
	require.Equal(t, -1, choose(3).from.sender)
	require.Equal(t, "deferring", choose(3).Name())
	require.Equal(t, 2, choose(2).from.sender)
}

// Streams of recvs that have filled up since a recv chose them have no room for it: there are no others.
func TestRecvsThatFillTheirStreams(t *testing.T) {
	c := framed{newCounting()}
	on := place{coll.Device{Type: coll.CUDA}, "counting"}
	e := New(nil, nil, 0, 2, NewPool(), nil)
	l := oneUnit()
	choose := func() access {
		return e.accessFor(c, coll.Op{Kind: coll.Recv, Device: on.device, Root: 1}, &l)
	}
	chosen := choose()
	var err error
	chosen.s, err = e.makeP2P(c, chosen.from)
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
	require.True(t, q.full)
	require.Empty(t, q.spare)
	require.LessOrEqual(t, c.queued[chosen.s.out], mostQueued)
}

// A recv whose streams fill up while its pinned memory is made is posted once, and no stream waits for it.
func TestARecvThatFindsNoRoom(t *testing.T) {
	c := framed{newCounting()}
	on := place{coll.Device{Type: coll.CUDA}, "counting"}
	e := New(nil, nil, 0, 2, NewPool(), nil)
	op, posted := coll.Op{Kind: coll.Recv, Device: on.device, Root: 1}, 0
	recv := func() {
		l := oneUnit()
		require.NoError(t, e.issueInRoom(c, op, &l, func(runner.Gate) error { posted++; return nil }))
	}
	recv()
	s := e.p2p[origin{on, 0, 1}]
	require.NotNil(t, s)
	c.pins = func() { // other threads are faster
		c.pins = nil
		for l := oneUnit(); e.pool.fits(s, l.commands(true)); {
			require.Less(t, c.queued[s.out], room)
			c.operation(t, e, on, s, 1, false)
		}
	}
	recv()
	require.Nil(t, c.pins)
	require.Equal(t, 2, posted)
	require.LessOrEqual(t, c.queued[s.out], mostQueued)
	alone := e.p2p[origin{place{on.device, "deferring"}, 0, -1}]
	require.NotNil(t, alone)
	require.NotZero(t, c.queued[alone.in])
	require.Zero(t, c.queued[alone.out])
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

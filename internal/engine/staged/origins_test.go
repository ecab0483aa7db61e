package staged

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"sagecomm/internal/coll"
	"sagecomm/internal/device"
	"sagecomm/internal/runner"
)

// callers are streams of callers that issue p2p operations of an engine.
type callers struct {
	*testing.T
	rt device.Access
	c  *counting
	e  *Engine
}

func newCallers(t *testing.T, rt device.Access, c *counting) *callers {
	return &callers{t, rt, c, New(nil, nil, 0, 9, NewPool(), nil)}
}

// op is one of a stream of the caller with a peer.
func (*callers) op(stream uintptr, peer int) coll.Op {
	return coll.Op{Kind: coll.Recv, Device: coll.Device{Type: coll.CUDA}, Stream: stream, Root: peer}
}

// choose returns the streams that an operation would have, made if need be.
func (of *callers) choose(stream uintptr, peer int) *streams {
	by := of.e.accessBy(of.rt, of.op(stream, peer))
	var err error
	if by.s == nil {
		by.s, err = of.e.makeP2P(by, by.from)
	}
	require.NoError(of, err)
	return by.s
}

// issue issues an operation, and returns its streams and the block that it has.
func (of *callers) issue(stream uintptr) (*streams, *block) {
	s := of.choose(stream, 0)
	of.e.leave(s)
	l := oneUnit()
	require.NoError(of, of.e.issueP2P(of.op(stream, 0), of.e.accessBy(of.rt, of.op(stream, 0)), &l, func(runner.Gate) error { return nil }))
	return s, s.under[len(s.under)-1].block
}

// A stream of the caller that is new takes over the streams of one of which all operations have ended, before others are made or shared. The
// stream that has lost them takes over others, also if its handle has come back for another stream.
func TestStreamsOfACallerThatIsIdleAreTakenOver(t *testing.T) {
	c := newCounting()
	of := newCallers(t, c, c)
	var owned []*streams
	var blocks []*block
	for stream := range uintptr(mostOrigins) {
		s, b := of.issue(stream)
		require.NotContains(t, owned, s)
		owned, blocks = append(owned, s), append(blocks, b)
	}
	made := c.next.Load()
	for i, stream := range []uintptr{100, 1, 101} { // 1 has lost its streams by then
		idle := 1 + i
		run(blocks[idle])
		s, _ := of.issue(stream)
		require.Same(t, owned[idle], s)
	}
	require.Equal(t, made, c.next.Load(), "no stream is made")
	require.Len(t, of.e.p2p, mostOrigins)
	require.Empty(t, of.e.chosen)
}

// Streams that an operation has chosen and is not queued in yet are idle, and nobody takes them over; an operation that was given up has left
// them.
func TestStreamsThatAreChosenStay(t *testing.T) {
	c := newCounting()
	of := newCallers(t, deferring{c}, c)
	var list []*streams
	for stream := range uintptr(mostOrigins) {
		list = append(list, of.choose(stream, 0))
	}
	s := of.choose(100, 0)
	require.Contains(t, list, s, "they are shared")
	require.Len(t, of.e.p2p, mostOrigins)
	for _, s := range list {
		of.e.leave(s)
	}
	of.e.leave(s)
	require.Empty(t, of.e.chosen)

	refused := errors.New("no memory")
	rt := refusing{deferring{c}, refused}
	require.ErrorIs(t, of.e.issueP2P(of.op(0, 0), of.e.accessBy(rt, of.op(0, 0)), &layout{}, nil), refused)
	require.Empty(t, of.e.chosen)
	require.Contains(t, list, of.choose(100, 0))
	require.NotContains(t, of.e.p2p, origin{place{coll.Device{Type: coll.CUDA}, "deferring"}, 0, -1})
}

// refusing is a device that has no pinned memory.
type refusing struct {
	deferring
	why error
}

func (r refusing) Pin(uint64) (device.Pinned, error) { return nil, r.why }

// Where the caller of the library queues the copies of a recv that has ended, one that is behind it may end first: its streams stay.
func TestStreamsOfARecvThatHasNotEndedStay(t *testing.T) {
	c := newCounting()
	of := newCallers(t, deferring{c}, c)
	for stream := range uintptr(mostOrigins) - 1 {
		of.issue(stream + 1)
	}
	first, pending := of.issue(0)
	_, later := of.issue(0)
	run(later)
	s, _ := of.issue(100)
	require.NotSame(t, first, s)
	run(pending)
	s, _ = of.issue(101)
	require.Same(t, first, s)
}

// Callers whose streams have no streams of their own, because all are in use, share those of the same other one for each peer.
func TestSharedStreamsFollowFromThePeer(t *testing.T) {
	c := newCounting()
	for _, rt := range []device.Access{c, framed{c}, deferring{c}} {
		of := newCallers(t, rt, c)
		known := map[*streams]bool{}
		for stream := range uintptr(mostOrigins) {
			s, _ := of.issue(stream)
			known[s] = true
		}
		require.Len(t, known, mostOrigins)
		chosen := map[*streams]bool{}
		for peer := coll.AnySource; peer < mostOrigins-1; peer++ {
			first := of.choose(100, peer)
			require.True(t, known[first])
			chosen[first] = true
			require.Same(t, first, of.choose(101, peer))
		}
		require.Len(t, chosen, mostOrigins)
	}
}

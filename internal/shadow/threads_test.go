package shadow

import (
	"context"
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"

	"sagecomm/internal/handshake"
	"sagecomm/internal/runner"
	"sagecomm/tests/quick"
)

// In these tests threads push, poll and attend as drivers do, while the pair or its link ends. The race detector looks on.

// talker is a thread of a rank: it sends messages over a channel of its own, and takes those that come over it.
type talker struct {
	pair     *Pair
	own      runner.Peer
	k        int
	sent     uint64
	taken    uint64
	progress atomic.Int64 // messages sent and taken
}

const messageBytes = 1000

// newTalker opens the channel.
func newTalker(p *Pair, own runner.Peer, k int) *talker {
	x := &talker{pair: p, own: own, k: k}
	p.lanes[runner.HostLane].own.Channel(p.To, k).Store(x.offset())
	return x
}

func (x *talker) offset() uint64 {
	return uint64(2*page+sharedBlocks(runner.Lanes)) + uint64(x.k)*uint64(runner.Short.ChannelBytes())
}

// step does what can be done now.
func (x *talker) step() {
	c := &x.pair.lanes[runner.HostLane].channels[x.k]
	if next := x.sent + 1; next <= c.room.Load()+runner.ChannelPlaces {
		place := runner.Short.PlaceOf(unsafe.Add(x.own.Arena, x.offset()), next)
		*place.Bytes = messageBytes
		place.Filled.Store(next)
		x.sent = next
		x.progress.Add(1)
		x.pair.Push()
	}
	if next := x.taken + 1; runner.Short.PlaceOf(c.in, next).Filled.Load() == next {
		c.taken.Store(next)
		x.taken = next
		x.progress.Add(1)
		x.pair.Push() // room
	}
}

// polls runs until stop is set, and attends the link for a while again and again.
func (x *talker) polls(stop *atomic.Bool) {
	for !stop.Load() {
		x.pair.Attend(true)
		for range 20 {
			x.step()
			x.pair.Poll()
		}
		x.pair.Attend(false)
	}
}

// waits runs until stop is set, and never polls: others read for it.
func (x *talker) waits(stop *atomic.Bool) {
	for !stop.Load() {
		x.step()
		time.Sleep(10 * time.Microsecond)
	}
}

// threads run talkers.
type threads struct {
	stop    atomic.Bool
	running sync.WaitGroup
	all     []*talker
}

func (s *threads) add(run func(*talker, *atomic.Bool), all ...*talker) {
	s.all = append(s.all, all...)
	for _, x := range all {
		s.running.Go(func() { run(x, &s.stop) })
	}
}

func (s *threads) end() {
	s.stop.Store(true)
	s.running.Wait()
}

// goOn waits until each talker has come on by some messages.
func (s *threads) goOn(t *testing.T) {
	t.Helper()
	for i, x := range s.all {
		from := x.progress.Load()
		require.Eventually(t, func() bool { return x.progress.Load() >= from+10 }, soon, time.Millisecond, "talker %d, channel %d, stands at %d", i, x.k, from)
	}
}

// secondGroup adds a pair of another group to the link of two ends.
func secondGroup(t *testing.T, a, b *end) (pairs [2]*Pair, own [2]runner.Peer) {
	t.Helper()
	for rank, e := range []*end{a, b} {
		var free func()
		own[rank], free = newOwn(t, rank)
		var err error
		pairs[rank], err = e.Add(Config{Link: e.pair.Link, Group: 6, Rank: rank, To: 1 - rank, Size: 2, Geometry: runner.Short, Memory: newMemory(t), Own: own[rank], Lost: func(error) {}})
		require.NoError(t, err)
		t.Cleanup(func() { // before the nodes are closed
			e.goOn()
			e.node.Close()
			e.Close()
			pairs[rank].Free()
			free()
		})
	}
	for _, p := range pairs {
		require.True(t, p.Open())
	}
	return pairs, own
}

// Threads that push and poll see the end of a link, however it comes, and hold nothing up. Their pair is freed when they have ended.
func TestThreadsBesideTheEndOfALink(t *testing.T) {
	for name, endIt := range map[string]func(a, b *end){
		"the other process ends": func(_, b *end) { b.node.Close() },
		"it breaks":              func(a, _ *end) { a.pair.Link.Break(errRemoved) },
		"this process ends":      func(a, _ *end) { a.node.Close() },
	} {
		t.Run(name, func(t *testing.T) {
			a, b := pairOfEnds(t)
			var here, there threads
			here.add((*talker).polls, newTalker(a.pair, a.own, 0), newTalker(a.pair, a.own, 1))
			there.add((*talker).polls, newTalker(b.pair, b.own, 0), newTalker(b.pair, b.own, 1))
			here.goOn(t)
			there.goOn(t)
			endIt(a, b)
			require.Eventually(t, func() bool { return a.pair.Link.Err() != nil && b.pair.Link.Err() != nil }, soon, time.Millisecond)
			a.node.Close() // when it returns, the loss was told
			b.node.Close()
			a.Close()
			b.Close()
			here.end()
			there.end()
			for _, e := range []*end{a, b} {
				require.Zero(t, e.pair.polling.Load())
				e.pair.Free()
				require.False(t, e.late.Load())
			}
			a.pair, b.pair = nil, nil
		})
	}
}

// Of two groups on one link the threads of one poll, and those of the other one never do. Both come on, also when nobody polls any more, and when
// the group that polled is removed and freed at one end while the other end still sends for it.
func TestTwoGroupsOnOneLinkOfWhichOnePolls(t *testing.T) {
	a, b := pairOfEnds(t)
	pairs, own := secondGroup(t, a, b)
	var polling, peer, waiting threads
	waiting.add((*talker).waits, newTalker(pairs[0], own[0], 0), newTalker(pairs[1], own[1], 0))
	polling.add((*talker).polls, newTalker(a.pair, a.own, 0), newTalker(a.pair, a.own, 1))
	peer.add((*talker).polls, newTalker(b.pair, b.own, 0), newTalker(b.pair, b.own, 1))
	defer func() {
		for _, each := range []*threads{&polling, &peer, &waiting} {
			each.end()
		}
	}()
	for range 3 {
		polling.goOn(t)
		waiting.goOn(t)
	}
	polling.end()
	a.Remove(a.pair)
	a.pair.Free() // the other end still sends
	a.pair = nil
	waiting.goOn(t)
	peer.end()
	waiting.goOn(t)
	require.NoError(t, pairs[0].Link.Err())
}

// A group is removed and freed while threads of another one poll the link of both, again and again.
func TestPairsEndBesideThreadsThatPoll(t *testing.T) {
	a, b := pairOfEnds(t)
	var polling threads
	polling.add((*talker).polls, newTalker(a.pair, a.own, 0), newTalker(b.pair, b.own, 0))
	defer polling.end()
	ctx, cancel := context.WithTimeout(context.Background(), soon)
	defer cancel()
	rounds := uint64(10)
	if quick.Only() {
		rounds = 3
	}
	for n := range rounds {
		var pairs [2]*Pair
		var frees [2]func()
		var both threads
		var talkers []*talker
		for rank, e := range []*end{a, b} {
			own, free := newOwn(t, rank)
			frees[rank] = free
			l, err := e.node.Link(ctx, []*end{b, a}[rank].id, []netip.AddrPort{}, handshake.Space{})
			require.NoError(t, err)
			pairs[rank], err = e.Add(Config{Link: l, Group: 10 + n, Rank: rank, To: 1 - rank, Size: 2, Geometry: runner.Short, Memory: newMemory(t), Own: own, Lost: func(error) {}})
			require.NoError(t, err)
		}
		for _, p := range pairs {
			require.True(t, p.Open())
			talkers = append(talkers, newTalker(p, p.Own, 0))
		}
		both.add((*talker).polls, talkers...)
		both.goOn(t)
		both.end()
		for rank, e := range []*end{a, b} {
			e.Remove(pairs[rank])
			pairs[rank].Free()
			frees[rank]()
		}
		polling.goOn(t)
		require.NoError(t, a.pair.Link.Err(), "group %d", n)
	}
}

package pgbackend

import (
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"

	"sagecomm/algo/sendrecv"
	"sagecomm/internal/coll"
	"sagecomm/internal/runner"
	"sagecomm/internal/transport/tcp"
)

// apartInControl returns a group of ranks on two hosts whose control exchanges cross as well.
func apartInControl(t *testing.T, size int) (*hosts, *world) {
	t.Helper()
	h, w := apart(t, size)
	for rank, g := range w.groups {
		g.remotes = make([]*remoteControl, size)
		for to := range size {
			if h.on(to) == h.on(rank) {
				continue
			}
			own := (*controlArea)(unsafe.Add(g.maps[rank].Base(), g.members[rank].Control))
			g.remotes[to] = &remoteControl{set: h.sets[rank], pair: h.pair(rank, to), own: own, rounds: &g.control}
			h.control(rank, to).Store(g.remotes[to])
		}
	}
	return h, w
}

func TestControlExchangeBetweenHosts(t *testing.T) {
	for _, size := range []int{2, 4} {
		t.Run(fmt.Sprintf("2 x %d", size/2), func(t *testing.T) {
			_, w := apartInControl(t, size)
			for round, of := range []func(rank int) int{
				func(int) int { return 0 },
				func(int) int { return 1 },
				func(int) int { return controlPart },
				func(int) int { return controlPart + 1 },
				func(rank int) int { return rank * 1000 },
				func(rank int) int { return []int{0, 3*controlPart + 5, 7}[(rank+1)%3] },
				func(rank int) int { return max(0, 200_000-rank*70_000) },
			} {
				w.each(func(g *Group) error { return exchanged(g, topicIPC, round, of) })
			}
			w.each(func(g *Group) error { return asError(sum(g, 10)) })
		})
	}
}

// Entries are made for the topics that ranks exchange, and for no others. A diagnosis that looks for an exchange makes
// none.
func TestControlEntriesAreMadeAtNeed(t *testing.T) {
	w := newHostsWorld(t, "01")
	made := func() (list []topic) {
		for at := range topicCount {
			if w.groups[0].remotes[1].made[at].Load() != nil {
				list = append(list, at)
			}
		}
		return list
	}
	w.each(func(g *Group) error { return asError(sum(g, 10)) })
	require.Empty(t, w.groups[0].awaitsExchange(1))
	require.Empty(t, made())
	w.each(func(g *Group) error { return exchanged(g, topicFusion, 0, func(int) int { return 9 }) })
	require.Empty(t, w.groups[0].awaitsExchange(1))
	require.Equal(t, []topic{topicFusion}, made())
}

// Exchanges of all topics at once, in which everybody is late at times.
func TestControlExchangesOfAllTopicsBetweenHosts(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	_, w := apartInControl(t, 4)
	w.each(func(g *Group) error {
		ended := make(chan error)
		for topic := range topicCount {
			go func() {
				mine := rand.New(rand.NewPCG(seed, uint64(100*int(topic)+g.rank)))
				for round := range 20 {
					if err := exchanged(g, topic, round, func(rank int) int { return (rank*5000 + round*900) % 9000 }); err != nil {
						ended <- err
						return
					}
					if mine.IntN(3) == 0 {
						time.Sleep(time.Duration(mine.IntN(2000)) * time.Microsecond)
					}
				}
				ended <- nil
			}()
		}
		var first error
		for range topicCount {
			if err := <-ended; err != nil && first == nil {
				first = err
			}
		}
		return first
	})
}

// Ranks on different hosts that make different exchanges fail, with the names of both.
func TestDifferentExchangesBetweenHosts(t *testing.T) {
	_, w := apartInControl(t, 2)
	list := w.eachFailure(func(g *Group) *coll.Failure {
		if g.rank == 1 {
			_, f := g.exchange(topicEngine, "handles", nil, opTimeout)
			return f
		}
		_, f := g.exchange(topicEngine, "unique id", nil, opTimeout)
		return f
	})
	for rank, f := range list {
		require.NoError(t, expect(f, coll.Mismatch, `rank 0 exchanges "unique id"`, `rank 1 exchanges "handles"`), rank)
	}
}

// An exchange with a rank that leaves ends.
func TestExchangeWithARankOfAnotherHostThatLeaves(t *testing.T) {
	_, w := apartInControl(t, 2)
	failed := make(chan *coll.Failure)
	go func() {
		_, f := w.groups[0].exchange(topicEngine, "test", make([]byte, 3*controlPart), opTimeout)
		failed <- f
	}()
	require.Eventually(t, func() bool { return topicEngine.entry(w.groups[1], 0).posted.Load() == 1 }, opTimeout, time.Millisecond)
	require.NoError(t, w.groups[1].Destroy())
	require.NoError(t, expect(<-failed, coll.PeerFailure, "rank 1", "has left the group"))
}

// So does one with a rank that does not come.
func TestExchangeWithoutARankOfAnotherHost(t *testing.T) {
	patient(t, opTimeout)
	_, w := apartInControl(t, 2)
	_, f := w.groups[0].exchange(topicEngine, "test", nil, 50*time.Millisecond)
	require.NoError(t, expect(f, coll.Timeout, "rank 1", "not arrived", "has called no collective yet; every rank must come to it"))
}

// A rank that has done its part and left, with its process, before this one has begun, is not waited for.
func TestExchangeWithARankOfAnotherHostThatHasGone(t *testing.T) {
	h, w := apartInControl(t, 2)
	ended := make(chan *coll.Failure)
	go func() {
		_, f := w.groups[1].exchange(topicEngine, "test", []byte("its part"), opTimeout)
		ended <- f
	}()
	require.Eventually(t, func() bool { return topicEngine.entry(w.groups[0], 1).posted.Load() == 1 }, opTimeout, time.Millisecond)
	require.NoError(t, w.groups[1].Destroy())
	require.NotNil(t, <-ended)
	require.Eventually(t, func() bool { _, left := w.groups[0].run.LastCall(1); return left }, opTimeout, time.Millisecond)
	h.nodes[1].Close()
	require.Eventually(t, func() bool { return h.pair(0, 1).Link.Err() != nil }, opTimeout, time.Millisecond)
	all, f := w.groups[0].exchange(topicEngine, "test", []byte("mine"), hangAfter)
	require.Nil(t, f)
	require.Equal(t, "its part", string(all[1]))
}

// A stray store into the entry of this rank, which its peers map, does not make frames of the other one wrong, nor the
// link end.
func TestScribbledEntryBetweenHosts(t *testing.T) {
	h, w := apartInControl(t, 2)
	own := topicEngine.entry(w.groups[0], 0)
	scribbles := []func(){
		func() { own.taken.Store(0) },
		func() { own.posted.Store(0) },
		func() {},
	}
	for round, scribble := range scribbles {
		w.each(func(g *Group) error { return exchanged(g, topicEngine, round, func(int) int { return 10 }) })
		scribble()
	}
	h.fillControl()
	list := make(chan *coll.Failure, 2)
	for _, g := range w.groups {
		go func() {
			_, f := g.exchange(topicEngine, "test", nil, opTimeout)
			list <- f
		}()
	}
	require.Eventually(t, func() bool { return own.posted.Load() == 4 }, opTimeout, time.Millisecond)
	own.named.Store(1 << 40)
	h.unblock()
	for range 2 {
		require.Nil(t, <-list)
	}
	require.NoError(t, h.pair(0, 1).Link.Err())
}

// fillControl fills the control connection from rank 0 to rank 1, until unblock.
func (h *hosts) fillControl() {
	h.block(1)
	refused := 0
	require.Eventually(h.t, func() bool {
		for range 1000 {
			hd := tcp.Header{Kind: tcp.Declare, Group: 1}
			if taken, err := h.pair(0, 1).Link.TrySend(0, &hd, make([]byte, 4096)); err == nil && !taken {
				refused++
				return refused > 20
			}
			refused = 0
		}
		return false
	}, opTimeout, 5*time.Millisecond)
}

// A connection that takes nothing does not keep an exchange from ending with the group.
func TestAbortOfAnExchangeThatCannotBeSent(t *testing.T) {
	h, w := apartInControl(t, 2)
	h.fillControl()
	failed := make(chan *coll.Failure)
	go func() {
		_, f := w.groups[0].exchange(topicEngine, "test", nil, opTimeout)
		failed <- f
	}()
	require.Eventually(t, func() bool { return topicEngine.entry(w.groups[0], 0).posted.Load() == 1 }, opTimeout, time.Millisecond)
	w.groups[0].Abort("enough")
	select {
	case f := <-failed:
		require.NoError(t, expect(f, coll.Aborted, "enough"))
	case <-time.After(hangAfter):
		require.Fail(t, "the exchange does not end")
	}
	h.unblock()
}

// What no rank sends in an exchange is refused and not stored.
func TestForgedEntries(t *testing.T) {
	for name, c := range map[string]struct {
		h       tcp.Header
		payload int
		refused string
	}{
		"topic":                  {tcp.Header{Channel: uint8(topicCount), Number: 4}, 0, "topic 6"},
		"a round too early":      {tcp.Header{Number: 5, Taken: 2}, 0, "round 5 after round 3"},
		"the same round":         {tcp.Header{Number: 3, Taken: 2}, 0, "round 3 after round 3"},
		"taken of no round":      {tcp.Header{Number: 4, Taken: 4}, 0, "round 4 was taken, after round 2, and this rank has posted 3"},
		"taken falls":            {tcp.Header{Taken: 1}, 0, "round 1 was taken, after round 2"},
		"no round with a name":   {tcp.Header{Taken: 2, Block: 1}, 0, "no round, with fields of one"},
		"a name of no length":    {tcp.Header{Number: 4, Taken: 2, Tag: -1}, 10, "a purpose of -1 bytes"},
		"a name of all and more": {tcp.Header{Number: 4, Taken: 2, Tag: 11}, 10, "a purpose of 11 bytes in 10"},
		"a long name":            {tcp.Header{Number: 4, Taken: 2, Tag: 153}, 200, "a purpose of 153 bytes"},
		"long data":              {tcp.Header{Number: 4, Taken: 2, Tag: 3}, 3 + controlPart + 1, "a purpose of 3 bytes in 4100"},
		"the next round":         {tcp.Header{Number: 4, Taken: 2, Tag: 3}, 3 + controlPart, ""},
		"taken":                  {tcp.Header{Taken: 3}, 0, ""},
	} {
		r := &remoteControl{own: new(controlArea), rounds: new([topicCount]controlTopic)}
		r.rounds[0].posted.Store(3)
		r.rounds[0].taken.Store(3)
		r.entry(0).posted.Store(3)
		r.entry(0).taken.Store(2)
		c.h.Bytes = uint32(c.payload)
		err := r.take(&c.h, make([]byte, c.payload))
		if c.refused == "" {
			require.NoError(t, err, name)
			continue
		}
		require.ErrorContains(t, err, c.refused, name)
		require.EqualValues(t, 3, r.entry(0).posted.Load(), name)
		require.EqualValues(t, 2, r.entry(0).taken.Load(), name)
	}
	r := &remoteControl{own: new(controlArea), rounds: new([topicCount]controlTopic)} // this rank has not taken the round before
	r.entry(0).posted.Store(1)
	require.ErrorContains(t, r.take(&tcp.Header{Number: 2}, nil), "round 2 after round 1, when this rank has taken 0")
}

// The state of a rank of another host, which has been asked for, says what it has called and for whom it waits.
func TestStateBetweenHosts(t *testing.T) {
	h := newHosts(t, 2, twoHosts(2))
	w := worldBy(t, 2, coll.AllReduce, sendrecv.Algorithms(coll.AllReduce)[0], 0, nil)
	works := make([]runner.Work, 2)
	var f *coll.Failure
	works[1], f = sumAsync(w.groups[1], 1000)
	require.Nil(t, f)
	run := w.groups[0].run
	last, _ := run.LastCall(1)
	require.Zero(t, last, "nothing of it crosses by itself")
	require.Equal(t, -1, run.Awaits(1))
	require.Eventually(t, func() bool {
		before := h.stated.Load()
		h.sets[0].Ask(h.pair(0, 1), nil)
		require.Eventually(t, func() bool { return h.stated.Load() > before }, opTimeout, time.Millisecond)
		return run.Awaits(1) == 0 // it is awake at times
	}, opTimeout, time.Millisecond)
	last, left := run.LastCall(1)
	require.EqualValues(t, 1, last)
	require.False(t, left)
	call, known := run.Announced(1, 1)
	require.True(t, known)
	require.Equal(t, "all_reduce 4000", fmt.Sprintf("%v %d", call.Op.Kind, call.Op.In))
	works[0], f = sumAsync(w.groups[0], 1000)
	require.Nil(t, f)
	for _, work := range works {
		require.Nil(t, finish(work))
	}
}

// control returns where the control area of a remote rank is kept for the frames that come.
func (h *hosts) control(rank, to int) *atomic.Pointer[remoteControl] {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.controls[[2]int{rank, to}]
}

// blocker is the receiver of a node whose frames can be kept waiting.
type blocker struct {
	tcp.Receiver
	held atomic.Bool
	free chan struct{}
}

func (b *blocker) Place(from *tcp.Link, on int, h *tcp.Header) ([][]byte, error) {
	if b.held.Load() {
		<-b.free
	}
	return b.Receiver.Place(from, on, h)
}

// block keeps all frames to a rank waiting until unblock.
func (h *hosts) block(rank int) { h.receivers[rank].held.Store(true) }

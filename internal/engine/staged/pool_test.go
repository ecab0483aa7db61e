package staged

import (
	"errors"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"sagecomm/internal/coll"
	"sagecomm/internal/device"
)

// pinnedWords is pinned memory of the host. Its device does nothing.
type pinnedWords []uint64

func (p pinnedWords) Address() unsafe.Pointer { return unsafe.Pointer(unsafe.SliceData(p)) }

// pinning makes pinned memory, and streams until one of a role fails.
type pinning struct {
	device.Runtime
	pins  int
	made  [2]int // streams by role
	fails error  // of streams for outputs
}

func (p *pinning) NewStream(role device.Role) (device.Stream, error) {
	if role == device.Outputs && p.fails != nil {
		return device.Stream{}, p.fails
	}
	p.made[role]++
	return device.Stream{Number: uint64(1 + p.made[role])}, nil
}

func (p *pinning) Pin(bytes uint64) (device.Pinned, error) {
	p.pins++
	return pinnedWords(make([]uint64, bytes/8+32)), nil
}

// A block is idle again when an operation is given up before the device got a command, also if an earlier one had used it.
func TestBlockOfAnOperationWithoutCommands(t *testing.T) {
	pool, rt, owner := NewPool(), &pinning{}, source{coll.PrivateUse1, "test"}
	for round := range 4 {
		b, err := pool.acquire(rt, owner, 100)
		require.NoError(t, err)
		if round == 0 { // the only one that uses it
			b.inputs.Store(1)
			b.outputs.Store(1)
			*b.words.InputReady(), *b.words.OutputTaken() = 1, 1
		}
		b.words.Open()
		pool.release(b)
	}
	if rt.pins != 1 {
		t.Errorf("%d blocks for operations that came one after the other", rt.pins)
	}
}

// A stream is used by a later group if there was an error when the other one of its pair was made.
func TestStreamWhosePairFailed(t *testing.T) {
	pool, of := NewPool(), place{coll.Device{Type: coll.PrivateUse1}, "test"}
	rt := &pinning{fails: errors.New("out of streams")}
	for range 3 {
		if _, _, err := pool.takeStreams(rt, of, device.Outputs); !errors.Is(err, rt.fails) {
			t.Fatalf("%v, expected %v", err, rt.fails)
		}
	}
	rt.fails = nil
	for pairs := 1; pairs <= 2; pairs++ {
		if _, _, err := pool.takeStreams(rt, of, device.Outputs); err != nil {
			t.Fatal(err)
		}
		if rt.made != [2]int{pairs, pairs} {
			t.Errorf("%d streams for inputs and %d for outputs were made, for %d pairs", rt.made[0], rt.made[1], pairs)
		}
	}
}

// A later group does not come behind a stream that hangs. It gets the streams when they have gone on.
func TestStreamsThatHang(t *testing.T) {
	pool, rt, of, owner := NewPool(), &pinning{}, place{coll.Device{Type: coll.PrivateUse1}, "test"}, source{coll.PrivateUse1, "test"}
	b, err := pool.acquire(rt, owner, 100)
	require.NoError(t, err)
	hanging, _, err := pool.takeStreams(rt, of, device.Outputs)
	require.NoError(t, err)
	hanging.add(part{use: b.used()})
	b.inputs.Store(1)
	b.outputs.Store(1)
	pool.giveStreams(of, hanging)
	pool.release(b)

	others, _, err := pool.takeStreams(rt, of, device.Outputs)
	require.NoError(t, err)
	require.NotSame(t, hanging, others)

	*b.words.InputReady(), *b.words.OutputTaken() = 1, 1
	again, _, err := pool.takeStreams(rt, of, device.Outputs)
	require.NoError(t, err)
	require.Same(t, hanging, again)
	require.Equal(t, [2]int{2, 2}, rt.made)
}

// Pinned memory is never given back. Where much is idle, an operation takes a block that is much longer than it needs.
func TestIdleBlocks(t *testing.T) {
	pool, rt, owner := NewPool(), &pinning{}, source{coll.PrivateUse1, "test"}
	idle := func(room uint64) *block {
		b, err := pool.acquire(rt, owner, room)
		require.NoError(t, err)
		b.words.Open()
		pool.release(b)
		return b
	}
	first := idle(idleBytes / 2)
	require.False(t, first == idle(idleBytes/16), "a block of its own")
	second := idle(idleBytes)
	require.False(t, first == second)
	require.True(t, first == idle(idleBytes/10), "the shorter one of two long blocks")
	require.True(t, second == idle(idleBytes), "it is kept")
	short := idle(100)
	require.EqualValues(t, leastBlock, short.room+blockHeader, "it may be under way for a long time")
	require.Less(t, second.room, uint64(idleBytes+idleBytes/4))
}

// No operation of another group waits while pinned memory or a stream is made.
func TestNobodyWaitsForTheDeviceOfAnother(t *testing.T) {
	pool, owner, of := NewPool(), source{coll.PrivateUse1, "test"}, place{coll.Device{Type: coll.PrivateUse1}, "test"}
	used, err := pool.acquire(&pinning{}, owner, 100)
	require.NoError(t, err)
	used.words.Open()
	pool.release(used)
	given, _, err := pool.takeStreams(&pinning{}, of, device.Outputs)
	require.NoError(t, err)
	rt := &slow{during: func() {
		pool.giveStreams(of, given)
		s, _, err := pool.takeStreams(&pinning{}, of, device.Outputs)
		require.NoError(t, err)
		require.Same(t, given, s)
		b, err := pool.acquire(&pinning{}, owner, 100)
		require.NoError(t, err)
		pool.release(b)
	}}
	_, _, err = pool.takeStreams(rt, of, device.Outputs)
	require.NoError(t, err)
	_, err = pool.acquire(rt, owner, 1<<20)
	require.NoError(t, err)
	require.Equal(t, 3, rt.calls)
}

// slow is a device in whose calls something else happens.
type slow struct {
	pinning
	during func()
	calls  int
}

func (s *slow) NewStream(role device.Role) (device.Stream, error) {
	s.calls++
	s.during()
	return s.pinning.NewStream(role)
}

func (s *slow) Pin(bytes uint64) (device.Pinned, error) {
	s.calls++
	s.during()
	return s.pinning.Pin(bytes)
}

// Of two threads that make streams for one use at the same time, both get those of the first one, and the others are for a later use.
func TestStreamsThatTwoThreadsMake(t *testing.T) {
	on := place{coll.Device{Type: coll.PrivateUse1}, "test"}
	pool := NewPool()
	e := &Engine{pool: pool, streams: map[place]*streams{}, p2p: map[origin]*streams{}}
	var faster *streams
	rt := &slow{}
	rt.during = func() {
		rt.during = func() {}
		s, err := e.streamsOn(&pinning{}, on) // it does not wait for the first thread
		require.NoError(t, err)
		faster = s
	}
	s, err := e.streamsOn(rt, on)
	require.NoError(t, err)
	require.Same(t, faster, s)
	spare, _, err := pool.takeStreams(rt, on, device.Outputs)
	require.NoError(t, err)
	require.Equal(t, 2, rt.calls, "the streams that nobody got are used")
	require.NotSame(t, faster, spare)

	from := origin{on, 1, -1}
	first, second := &streams{role: device.Outputs}, &streams{role: device.Outputs}
	require.Same(t, first, e.keepP2P(from, first))
	require.Same(t, first, e.keepP2P(from, second))
	given, _, err := pool.takeStreams(rt, on, device.Outputs)
	require.NoError(t, err)
	require.Same(t, second, given)
}

// A stream waits for a peer from the first command of an operation until its gate is open. An operation that got no command, or failed,
// waits for nobody.
func TestOperationsThatWait(t *testing.T) {
	pool, rt, owner := NewPool(), &pinning{}, source{coll.PrivateUse1, "test"}
	acquired := func() *block {
		b, err := pool.acquire(rt, owner, 100)
		require.NoError(t, err)
		return b
	}
	b := acquired()
	require.False(t, pool.waits())
	s, l := &streams{role: device.Outputs}, &layout{}
	l.in.units, l.out.units = 1, 1
	require.ErrorIs(t, enqueueAll(refusesToFork{}, nil, b, l, &queue{streams: s, pool: pool}), errNoFork)
	require.False(t, pool.waits())
	pool.release(b)
	b = acquired()
	require.Equal(t, 1, rt.pins, "a block without commands is used again")

	require.ErrorIs(t, enqueueAll(forks{}, refusesToWait{}, b, l, &queue{streams: s, pool: pool}), errNoFork)
	require.True(t, pool.waits(), "while it is issued")
	pool.release(b)
	require.True(t, pool.waits())
	b.words.Open()
	require.False(t, pool.waits())
	acquired()
	require.Equal(t, 2, rt.pins, "commands may use the block")
	require.False(t, s.forget())
}

// ordered is a device whose streams may wait for others.
type ordered struct{ device.Launcher }

func (ordered) Name() string                                 { return "ordered" }
func (ordered) NewStream(device.Role) (device.Stream, error) { return device.Stream{}, nil }
func (ordered) Order(_, _ device.Stream) error               { return nil }

// A stream that waits for that of another engine is left to a later group when an operation behind the wait has ended. If that one was refused,
// nothing tells how long the stream waits.
func TestStreamsBehindAnotherEngine(t *testing.T) {
	pool, rt, owner := NewPool(), &pinning{}, source{coll.PrivateUse1, "test"}
	on := coll.Device{Type: coll.CUDA}
	for _, refused := range []bool{true, false} {
		e := New(nil, nil, 0, 2, pool, nil)
		require.NoError(t, e.ComeBehind(ordered{}, on, device.Stream{}))
		if !refused {
			b, err := pool.acquire(rt, owner, 100)
			require.NoError(t, err)
			e.streams[place{on, "ordered"}].begin(b, &layout{}, true)
		}
		e.Close()
		s := pool.givenStreams(place{on, "ordered"}, device.Outputs)
		require.Equal(t, refused, s == nil)
	}
}

var errNoFork = errors.New("refused")

type refusesToFork struct{ device.Ordering }

func (refusesToFork) Fork(device.Stream) error { return errNoFork }

type forks struct{}

func (forks) Fork(device.Stream) error { return nil }
func (forks) Join(device.Stream) error { return nil }

type refusesToWait struct{ device.Waiter }

func (refusesToWait) WriteValue(device.Stream, *uint32, uint32) error { return errNoFork }
func (refusesToWait) WaitValue(device.Stream, *uint32, uint32) error  { return errNoFork }

// A block is nobody else's while its operation is issued.
func TestBlockThatIsIssued(t *testing.T) {
	pool, rt, owner := NewPool(), &pinning{}, source{coll.PrivateUse1, "test"}
	first, err := pool.acquire(rt, owner, 100)
	require.NoError(t, err)
	second, err := pool.acquire(rt, owner, 100)
	require.NoError(t, err)
	require.False(t, first == second) // NotSame would print the memory
	pool.release(first)
	third, err := pool.acquire(rt, owner, 100)
	require.NoError(t, err)
	require.Same(t, first, third)
	fourth, err := pool.acquire(rt, owner, 100)
	require.NoError(t, err)
	require.False(t, third == fourth)
}

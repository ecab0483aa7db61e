package vendor

import (
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"

	"sagecomm/internal/device"
	"sagecomm/internal/engine/staged"
	"sagecomm/internal/runner"
)

// memories is a device that allocates nothing but numbers.
type memories struct {
	device.Launcher
	t       *testing.T
	next    uintptr
	mu      sync.Mutex
	bytes   map[uintptr]uint64
	pinning []byte
}

func newMemories(t *testing.T) *memories {
	m := &memories{t: t, next: 1, bytes: map[uintptr]uint64{}}
	t.Cleanup(func() {
		if m.pinning != nil {
			require.NoError(t, syscall.Munmap(m.pinning))
		}
	})
	return m
}

type memory struct {
	of *memories
	at uintptr
}

func (m memory) Address() uintptr { return m.at }
func (m memory) Release() {
	m.of.mu.Lock()
	defer m.of.mu.Unlock()
	delete(m.of.bytes, m.at)
}

// has reports whether memory is allocated.
func (m *memories) has(at uintptr) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	_, has := m.bytes[at]
	return has
}

func (m *memories) Allocate(bytes uint64, _ bool) (device.Memory, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.next++
	m.bytes[m.next] = bytes
	return memory{m, m.next}, nil
}

func (m *memories) Pin(bytes uint64) (p device.Pinned, err error) {
	require.Nil(m.t, m.pinning, "the gates of one slab must do")
	m.pinning, err = syscall.Mmap(-1, 0, int(bytes), syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_ANON|syscall.MAP_PRIVATE)
	return slab(m.pinning), err
}

type slab []byte

func (s slab) Address() unsafe.Pointer { return unsafe.Pointer(unsafe.SliceData(s)) }

// carryOut does what a device and a run do with a gate.
func carryOut(u use) {
	atomic.StoreUint32(u.InputReady(), 1)
	atomic.StoreUint32(u.OutputTaken(), 1)
	u.Open()
}

// An operation whose gate another one has is done.
func TestUsesOfGates(t *testing.T) {
	p, rt := NewPool(), newMemories(t)
	first, err := p.takeGate(rt, source{})
	require.NoError(t, err)
	require.False(t, first.done())
	carryOut(first)
	require.True(t, first.done())
	for {
		u, err := p.takeGate(rt, source{})
		require.NoError(t, err)
		if u.gate == first.gate {
			require.False(t, u.done())
			require.True(t, first.done())
			break
		}
		carryOut(u)
	}
}

// A run that has failed ends before its stream, which then still writes both words of the gate.
func TestGatesOfRunsThatHaveFailed(t *testing.T) {
	p, rt := NewPool(), newMemories(t)
	var last use
	for range slabBytes / runner.GateBytes {
		var err error
		last, err = p.takeGate(rt, source{})
		require.NoError(t, err)
		last.Open()
	}
	idle := func() bool {
		_, ok := p.idleGate(source{}, nil)
		return ok
	}
	require.False(t, idle())
	atomic.StoreUint32(last.InputReady(), 1)
	require.False(t, idle())
	atomic.StoreUint32(last.OutputTaken(), 1)
	require.True(t, idle())
	require.False(t, idle())
}

// A gate that no run has had is free at once.
func TestGateThatIsGivenBack(t *testing.T) {
	p, rt := NewPool(), newMemories(t)
	for range 2 * slabBytes {
		u, err := p.takeGate(rt, source{})
		require.NoError(t, err)
		p.giveGate(source{}, u)
	}
	for range 3 { // it has one user then, and later ones: the third comes to what was put behind the idle ones
		var list []use
		users := map[*gate]bool{}
		for range slabBytes / runner.GateBytes {
			u, err := p.takeGate(rt, source{})
			require.NoError(t, err)
			require.False(t, users[u.gate], "another operation has it")
			users[u.gate] = true
			list = append(list, u)
		}
		for _, u := range list {
			carryOut(u)
		}
	}
}

func TestScratch(t *testing.T) {
	p, rt := NewPool(), newMemories(t)
	var s scratch
	take := func(bytes uint64) (uintptr, use) {
		u, err := p.takeGate(rt, source{})
		require.NoError(t, err)
		at, err := s.take(rt, bytes, true, u)
		require.NoError(t, err)
		return at, u
	}
	small, one := take(100)
	again, two := take(leastScratch)
	require.Equal(t, small, again)
	carryOut(one)
	carryOut(two)
	larger, three := take(leastScratch + 1)
	require.NotEqual(t, small, larger)
	long, four := take(mostKept + 1)
	released := func(at uintptr) {
		require.Eventually(t, func() bool { return !rt.has(at) }, time.Minute, time.Millisecond)
	}
	require.Empty(t, s.settled(), "operations that are under way may use all of it")
	carryOut(three)
	s.sweep(alone.Go)
	released(small)
	require.True(t, rt.has(long))
	carryOut(four)
	s.sweep(alone.Go)
	released(long)
	kept, _ := take(2 * leastScratch)
	require.Equal(t, larger, kept)
	s.release()
	require.False(t, rt.has(kept))
}

// The end of the process waits for communicators that are being ended.
func TestPoolWaits(t *testing.T) {
	p := NewPool()
	ended := make(chan struct{})
	c := &communicator{engine: &Engine{pool: p, group: alone}, ended: ended, current: func(f func() error) error { return f() }}
	c.end(func() bool { time.Sleep(time.Millisecond); return true })
	c.end(func() bool { t.Error("it was ended twice"); return true })
	p.Wait()
	select {
	case <-ended:
	default:
		t.Error("it has not ended")
	}
	require.ErrorIs(t, c.with(func() error { return nil }), errEnding)
}

// Where a library cannot end kernels, the end is over, and what the kernels use is left to them.
func TestKernelsThatStay(t *testing.T) {
	p := NewPool()
	c := &communicator{engine: &Engine{pool: p, group: alone}, ended: make(chan struct{}), current: func(f func() error) error { return f() }}
	c.end(func() bool { return false })
	p.Wait()
	require.False(t, c.awaitWhole())
}

// Where a command of the library may come into the stream until the process ends, no goroutine waits for that, and nobody gets the stream.
func TestAStreamThatIsKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := NewPool()
		c := &communicator{engine: &Engine{pool: p, group: alone}, joined: freed{}, ended: make(chan struct{}), stop: make(chan struct{}),
			current: func(f func() error) error { return f() }}
		u, err := p.takeGate(newMemories(t), source{})
		require.NoError(t, err)
		c.last.Store(&u) // the device never writes its words
		c.kept.Store(true)
		c.close()
		<-c.ended
		require.Empty(t, p.streams)
	}) // all goroutines have ended
}

// Nobody gets the stream of a communicator before the stream has come past the last operation.
func TestAStreamThatIsGivenBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := NewPool()
		c := &communicator{engine: &Engine{pool: p, group: alone}, joined: ends{ended: make(chan struct{})}, ended: make(chan struct{}),
			stop: make(chan struct{}), stream: device.Stream{Handle: 7}, current: func(f func() error) error { return f() }}
		u, err := p.takeGate(newMemories(t), source{})
		require.NoError(t, err)
		c.last.Store(&u)
		c.close()
		<-c.ended
		time.Sleep(time.Minute)
		_, given := p.givenStream(place{})
		require.False(t, given)
		carryOut(u)
		time.Sleep(time.Minute)
		s, given := p.givenStream(place{})
		require.True(t, given)
		require.EqualValues(t, 7, s.Handle)
	})
}

// slowDevice is a device in whose calls something else happens.
type slowDevice struct {
	*memories
	during func()
	calls  int
}

func (s *slowDevice) Pin(bytes uint64) (device.Pinned, error) {
	s.calls++
	s.during()
	return s.memories.Pin(bytes)
}

func (s *slowDevice) NewStream(device.Role) (device.Stream, error) {
	s.calls++
	s.during()
	return device.Stream{Handle: 9}, nil
}

// A device that lets a call wait keeps nobody from a gate or a stream of another one.
func TestNobodyWaitsForAnotherDevice(t *testing.T) {
	p := NewPool()
	slow := &slowDevice{memories: newMemories(t), during: func() {
		_, err := p.takeGate(newMemories(t), source{runtime: "other"})
		require.NoError(t, err)
		p.giveStream(place{}, device.Stream{Handle: 7})
		s, err := p.takeStream(nil, place{})
		require.NoError(t, err)
		require.EqualValues(t, 7, s.Handle)
	}}
	_, err := p.takeGate(slow, source{runtime: "slow"})
	require.NoError(t, err)
	s, err := p.takeStream(slow, place{})
	require.NoError(t, err)
	require.EqualValues(t, 9, s.Handle)
	require.Equal(t, 2, slow.calls)
}

// ends is a member that notes when it ends.
type ends struct {
	Member
	ended chan struct{}
}

func (e ends) Destroy()            { close(e.ended) }
func (e ends) Abort() bool         { close(e.ended); return true }
func (e ends) Release(func() bool) {}
func (e ends) Free(func(func()))   {}

// The communicator of a library ends when no operation of any group waits for a peer, or after a bound, also that of a join that has failed.
// That of another method ends at once.
func TestEndThatWaitsForQuiet(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, rt := NewPool(), newMemories(t)
		ending := func(m Method) chan struct{} {
			others := staged.New(nil, nil, 0, 2, staged.NewPool(), nil)
			c := &communicator{engine: New(m, alone, others, others, p, nil), joined: ends{ended: make(chan struct{})}}
			go c.destroy()
			synctest.Wait()
			return c.joined.(ends).ended
		}
		over := func(ended chan struct{}) bool {
			select {
			case <-ended:
				return true
			default:
				return false
			}
		}
		u, err := p.takeGate(rt, source{})
		require.NoError(t, err)
		require.True(t, over(ending(nil)))
		ended := ending(Calls(nil))
		require.False(t, over(ended))
		u.Open() // the run has ended, whether the device has gone on or not
		<-ended
		require.True(t, over(ending(Calls(nil))))

		_, err = p.takeGate(rt, source{})
		require.NoError(t, err)
		began := time.Now()
		<-ending(Calls(nil))
		require.InDelta(t, quietBound, time.Since(began), float64(quietBound)/10)

		others := staged.New(nil, nil, 0, 2, staged.NewPool(), nil)
		c := &communicator{engine: New(Calls(nil), alone, others, others, p, nil), joined: ends{ended: make(chan struct{})}, ended: make(chan struct{}),
			current: func(f func() error) error { return f() }}
		forsaken := c.joined.(ends).ended
		began = time.Now()
		c.forsake()
		<-forsaken
		require.InDelta(t, quietBound, time.Since(began), float64(quietBound)/10)
	})
}

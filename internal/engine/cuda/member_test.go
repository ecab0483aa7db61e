package cuda

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"sagecomm/algo"
	"sagecomm/internal/coll"
	"sagecomm/internal/device"
	"sagecomm/internal/engine/vendor"
	"sagecomm/internal/shmem"
)

// fakeDriver has the host's memory for a device. It notes what is queued, and releases.
type fakeDriver struct {
	driver
	list           []string
	released       atomic.Int32
	shared, opened atomic.Int32

	apart uintptr // its addresses of host memory are as far from those of the host

	refuses, refusesToOpen map[device.Sharing]error
	noKernels              error

	addresses, noAddress int          // calls of AddressOf, and which of them fails, from 1
	handles              atomic.Int32 // that were opened, which the process keeps
}

type fakeMemory struct {
	of *fakeDriver
	at uintptr
}

func (m fakeMemory) Address() uintptr { return m.at }
func (m fakeMemory) Release()         { m.of.released.Add(1) }

// Identity is that of a device that no other driver has: what one test leaves to later groups is not for another test.
func (d *fakeDriver) Identity() (string, error) { return fmt.Sprintf("%p", d), nil }

func (d *fakeDriver) LoadKernels() error { return d.noKernels }

func (d *fakeDriver) Share(bytes uint64, how device.Sharing) (device.Memory, device.Shared, error) {
	if err := d.refuses[how]; err != nil {
		return nil, device.Shared{}, err
	}
	s := device.Shared{Bytes: bytes}
	if n := byte(d.shared.Add(1)); how == device.ByHandle {
		s.Handle = []byte{n} // another process has the same
	}
	if how == device.ByFile {
		fd, err := unix.MemfdCreate("slots", unix.MFD_CLOEXEC)
		if err != nil {
			return nil, s, err
		}
		s.File = fd
	}
	return fakeMemory{d, 0x1000}, s, nil
}

func (d *fakeDriver) OpenShared(s device.Shared, how device.Sharing) (device.Memory, error) {
	if err := d.refusesToOpen[how]; err != nil {
		return nil, err
	}
	if how == device.ByFile {
		name, err := os.Readlink(fmt.Sprint("/proc/self/fd/", s.File))
		if err != nil || !strings.Contains(name, "slots") {
			return nil, fmt.Errorf("%s is not the file of slots: %w", name, err)
		}
	}
	if d.opened.Add(1); how == device.ByHandle {
		d.handles.Add(1)
	}
	return fakeMemory{d, 0x2000}, nil
}

func (d *fakeDriver) Register([]byte) error { return nil }

func (d *fakeDriver) AddressOf(memory []byte) (uintptr, error) {
	if d.addresses++; d.addresses == d.noAddress {
		return 0, errors.New("no address")
	}
	return uintptr(unsafe.Pointer(unsafe.SliceData(memory))) + d.apart, nil
}

func (d *fakeDriver) CopyWithin(device.Stream, uintptr, uintptr, uint64) error {
	d.list = append(d.list, "copy")
	return nil
}

func (d *fakeDriver) Signal(device.Stream, uintptr, uint32) error {
	d.list = append(d.list, "signal")
	return nil
}

func (d *fakeDriver) Await(device.Stream, uintptr, uint32) error {
	d.list = append(d.list, "await")
	return nil
}

// sameDevice returns the choices of ranks that share a device.
func sameDevice(size int) *algo.DeviceChoices {
	return algo.NewDeviceChoices(size, SlotBytes, algo.LinkDevices(size, func(int, int) algo.DeviceLink { return algo.DeviceLink{Class: algo.SameDevice} }, algo.DefaultParams()))
}

// of returns a rank of a group of two, which has nothing else.
func of(rank int) vendor.Group {
	return vendor.Group{Rank: rank, Size: 2, Guard: func(f func()) { f() }}
}

// here is what Free gets of a communicator with no stream.
func here(f func()) { f() }

// pair returns both ranks of a communicator, which are in this process.
func pair(t *testing.T) (members [2]*member, drivers [2]*fakeDriver) {
	drivers = [2]*fakeDriver{{}, {}}
	return pairOn(t, drivers), drivers
}

func pairOn(t *testing.T, drivers [2]*fakeDriver) (members [2]*member) {
	methods := []shmem.Method{shmem.Proc}
	offers := make([]offer, 2)
	for rank := range members {
		var err error
		members[rank], offers[rank], err = newMember(drivers[rank], of(rank), methods, sameDevice(2))
		require.NoError(t, err)
	}
	for rank, why := range joined(members, offers) {
		require.NoErrorf(t, why, "rank %d", rank)
	}
	return members
}

// joined lets members join, and returns why they cannot.
func joined(members [2]*member, offers []offer) (why [2]error) {
	var to [2]chan []byte
	for rank := range to {
		to[rank] = make(chan []byte, 1)
	}
	done := make(chan struct{})
	for rank, m := range members {
		go func() {
			var j vendor.Joining
			j.Exchange = func(_ string, mine []byte) ([][]byte, error) {
				to[1-rank] <- mine
				all := [][]byte{mine, mine}
				all[1-rank] = <-to[rank]
				return all, nil
			}
			var err error
			if why[rank], err = m.joinSlots(j, m.connect(offers)); err != nil {
				why[rank] = err
			}
			done <- struct{}{}
		}()
	}
	<-done
	<-done
	return why
}

// Ranks share slots by handles if any of them cannot share or open one by a file. What they had opened is closed first.
func TestWaysToShareSlots(t *testing.T) {
	refused, methods := errors.New("refused"), []shmem.Method{shmem.Proc}
	first, second := map[device.Sharing]error{device.ByFile: refused}, map[device.Sharing]error{device.ByHandle: refused}
	both := map[device.Sharing]error{device.ByHandle: refused, device.ByFile: refused}
	for name, c := range map[string]struct {
		share, open map[device.Sharing]error // that rank 0 refuses
		released    int32                    // by the other rank: what it has shared and opened in vain
		why         string
	}{
		"all can":              {},
		"cannot share":         {share: first, released: 1},
		"cannot open":          {open: first, released: 2},
		"has no handles":       {share: second},
		"cannot share at all":  {share: both, why: "refused; refused"},
		"cannot open in a way": {share: second, open: first, why: "memory of rank 1 (pid"},
	} {
		t.Run(name, func(t *testing.T) {
			drivers := [2]*fakeDriver{{refuses: c.share, refusesToOpen: c.open}, {}}
			var members [2]*member
			offers := make([]offer, 2)
			for rank := range members {
				var err error
				members[rank], offers[rank], err = newMember(drivers[rank], of(rank), methods, sameDevice(2))
				require.NoError(t, err)
			}
			why := joined(members, offers)
			if c.why != "" {
				require.ErrorContains(t, why[0], c.why)
				require.ErrorIs(t, why[1], errPeer)
				return
			}
			require.NoError(t, why[0])
			require.NoError(t, why[1])
			require.Equal(t, c.released, drivers[1].released.Load())
			for rank, m := range members {
				require.EqualValues(t, 0x1000, m.peers[rank].slots)
				require.EqualValues(t, 0x2000, m.peers[1-rank].slots)
			}
		})
	}
}

var gathering = coll.Op{Kind: coll.AllGather, Type: coll.Uint8, In: 8, Out: 16}

func TestCommandsOfAnOperation(t *testing.T) {
	m, d := pair(t)
	for range slotCount + 1 {
		require.NoError(t, m[0].Do(gathering, vendor.Buffers{In: 0x100, Out: 0x200}, 1))
	}
	once := []string{"copy", "signal", "await", "copy", "copy", "signal"}
	require.Equal(t, once, d[0].list[:6])
	require.Equal(t, append([]string{"await"}, once...), d[0].list[slotCount*6:], "the slot of the first operation is written again")
	d[0].list = nil
	require.NoError(t, m[0].Do(gathering, vendor.Buffers{In: 0x200, Out: 0x200}, 1))
	require.Equal(t, []string{"await", "copy", "signal", "await", "copy", "signal"}, d[0].list, "in place, the own block stays")
}

// A rank that ends its waits voids what its peers do, and stores values beyond all that its stream waits for until the stream ends. Later
// operations are not queued.
func TestRelease(t *testing.T) {
	m, d := pair(t)
	require.NoError(t, m[0].Do(gathering, vendor.Buffers{In: 0x100, Out: 0x200}, 1))
	_, err := m[1].State()
	require.NoError(t, err)
	var ended atomic.Bool
	m[0].Release(ended.Load)
	_, err = m[1].State()
	require.ErrorContains(t, err, "rank 0 has ended operations that were under way")
	require.NotZero(t, *m[1].Void())
	require.Zero(t, *m[0].Void())
	waitsFor := m[0].lowering.received.value(filled, 1, 0)
	released := func() bool { return int32(m[0].own.load(filled, 1)-waitsFor) >= 0 }
	require.True(t, released())
	m[0].own.store(filled, 1, waitsFor-1) // a late write of the peer's stream
	require.Eventually(t, released, 10*time.Second, time.Millisecond)
	queued := len(d[0].list)
	require.ErrorIs(t, m[0].Do(gathering, vendor.Buffers{In: 0x100, Out: 0x200}, 1), errReleased)
	require.Len(t, d[0].list, queued)
	ended.Store(true)
	require.True(t, m[0].Abort())
	m[1].Release(func() bool { return true })
	require.Zero(t, *m[0].Void(), "nothing was under way")
	require.True(t, m[1].Abort())
}

// captureOn captures an operation on a rank, in the capture of a number.
func captureOn(t *testing.T, m *member, number uint64) {
	t.Helper()
	begun, err := m.Capture(gathering, vendor.Buffers{In: 0x100, Out: 0x200}, device.Stream{Handle: 1}, number)
	require.NoError(t, err)
	require.True(t, begun)
}

// Operations of one capture go through other slots. Each capture begins with the same one.
func TestCommandsInACapture(t *testing.T) {
	m, d := pair(t)
	once := []string{"await", "signal", "copy", "signal", "await", "signal", "copy", "copy", "signal"}
	for _, number := range []uint64{7, 8} {
		d[0].list = nil
		captureOn(t, m[0], number)
		require.Equal(t, once, d[0].list)
		require.EqualValues(t, 1, m[0].captures.base)
		captureOn(t, m[0], number)
		require.Equal(t, append(once, once...), d[0].list)
		require.EqualValues(t, 2, m[0].captures.base)
	}
	require.True(t, m[0].allLeft(), "nothing runs")
}

// Graphs that may run when a communicator ends go on, and so do those that are launched later. They keep the memory.
func TestReleaseOfGraphs(t *testing.T) {
	m, d := pair(t)
	captureOn(t, m[0], 1)
	m[0].Release(func() bool { return true })
	require.NotZero(t, *m[1].Void(), "a graph may write what it has not computed")
	for range 3 {
		set := func() bool {
			return m[0].own.load(tokenOf(filled, 2), 1) != 0 && m[0].own.load(tokenOf(left, 0), 1) != 0
		}
		require.Eventually(t, set, 10*time.Second, time.Millisecond)
		m[0].own.store(tokenOf(filled, 2), 1, 0) // its stream clears them
		m[0].own.store(tokenOf(left, 0), 1, 0)
	}
	require.True(t, m[0].Abort())
	_, err := m[0].Capture(gathering, vendor.Buffers{}, device.Stream{}, 1)
	require.ErrorIs(t, err, errReleased)
	m[0].Free(here)
	require.Zero(t, d[0].released.Load())
}

// Memory that graphs have used comes back when they are gone, and nothing sets tokens in it any more.
func TestFreeWhenGraphsAreGone(t *testing.T) {
	m, d := pair(t)
	var gone atomic.Bool
	for _, one := range m {
		one.hasGraphs = func() bool { return !gone.Load() }
		captureOn(t, one, 1)
		one.Release(func() bool { return true })
		require.Contains(t, released.members, one)
	}
	m[0].Free(here)
	require.Zero(t, d[0].released.Load())
	gone.Store(true)
	var both sync.WaitGroup
	for _, one := range m {
		both.Go(func() { one.Free(here) })
	}
	both.Wait()
	for rank, one := range m {
		require.EqualValues(t, 2, d[rank].released.Load())
		require.NotContains(t, released.members, one)
		changed, whole := released.set(one)
		require.False(t, changed)
		require.True(t, whole)
	}
	again, _ := pair(t)
	again[0].hasGraphs = func() bool { return false }
	captureOn(t, again[0], 1)
	again[0].Release(func() bool { return true })
	require.Zero(t, again[0].own.load(tokenOf(filled, 0), 1), "no graph waits")
}

// The goroutine that sets tokens is there while there is a member, and begins again with the next one.
func TestTokensAreSetForSomebody(t *testing.T) {
	var members [3]*member
	for i := range members {
		m, _ := pair(t)
		members[i] = m[0]
		members[i].captures.released[1].Store(true)
	}
	synctest.Test(t, func(t *testing.T) {
		s := tokenSetter{more: make(chan struct{}, 1)}
		runs := func() bool {
			s.mu.Lock()
			defer s.mu.Unlock()
			return s.runs
		}
		for _, m := range members {
			s.add(m)
			for range 2 {
				m.own.store(tokenOf(filled, 0), 1, 0) // its stream takes it
				time.Sleep(2 * idleTokens)
				synctest.Wait()
				require.EqualValues(t, beyond, m.own.load(tokenOf(filled, 0), 1))
				require.True(t, runs())
			}
			s.remove(m)
			time.Sleep(2 * idleTokens)
			synctest.Wait()
			require.False(t, runs())
		}
	})
}

// Peers are told that what a rank's graph does may be void before its waits end, so no output of theirs that follows from it counts. Here
// the words of the peer are out of reach, and nothing has been released by then. The goroutine that sets tokens is one for all members.
func TestPeersAreToldBeforeTokensAreReleased(t *testing.T) {
	m, _ := pair(t)
	captureOn(t, m[0], 1)
	memory := m[0].peers[1].inbox.memory
	m[0].peers[1].inbox.memory = nil
	release := func() { m[0].Release(func() bool { return false }) }
	require.Panics(t, release)
	require.Zero(t, m[0].own.load(tokenOf(filled, 0), 1))
	m[0].peers[1].inbox.memory = memory
	captureOn(t, m[1], 1)
	setters := len(released.members)
	for _, one := range m {
		one.Release(func() bool { return true })
	}
	require.NotZero(t, m[0].own.load(tokenOf(filled, 0), 1))
	require.Len(t, released.members, setters+2)
	for _, one := range m {
		one.own.store(tokenOf(filled, 2), 1-one.rank, 0) // its stream takes it
		require.Eventually(t, func() bool { return one.own.load(tokenOf(filled, 2), 1-one.rank) != 0 }, 10*time.Second, time.Millisecond)
	}
}

// A rank whose group is destroyed gives no tokens. Its peers' graphs go on without it.
func TestAPeerThatHasDeparted(t *testing.T) {
	m, _ := pair(t)
	_, err := m[0].State()
	require.NoError(t, err)
	captureOn(t, m[0], 1)
	captureOn(t, m[1], 1)
	done := make(chan struct{})
	m[1].own.store(tokenOf(left, 3), 0, 0) // rank 0 reads slot 3 of rank 1
	go func() { m[1].Destroy(); close(done) }()
	require.False(t, m[1].allLeft())
	_, err = m[0].State()
	require.NoError(t, err)
	require.Zero(t, m[0].own.load(tokenOf(filled, 0), 1))
	m[1].own.store(tokenOf(left, 3), 0, 1)
	<-done
	_, err = m[0].State()
	require.NoError(t, err)
	require.NotZero(t, m[0].own.load(tokenOf(filled, 0), 1))
	require.NotZero(t, m[1].own.load(tokenOf(filled, 0), 0))
}

// A rank gives its memory back when its peers have closed it.
func TestFree(t *testing.T) {
	m, d := pair(t)
	done := make(chan int, 2)
	go func() { m[0].Free(here); done <- 0 }()
	require.Eventually(t, func() bool { return d[0].released.Load() == 1 }, 10*time.Second, time.Millisecond, "what it has of the peer")
	select {
	case <-done:
		t.Fatal("the peer has its memory open")
	default:
	}
	go func() { m[1].Free(here); done <- 1 }()
	<-done
	<-done
	require.EqualValues(t, 2, d[0].released.Load())
	require.EqualValues(t, 2, d[1].released.Load())
	for _, each := range m { // the next group has the inboxes
		require.Contains(t, homes.free[each.lodging.place.Len], each.lodging)
	}
	later, _ := pair(t)
	require.Contains(t, []lodging{m[0].lodging, m[1].lodging}, later[0].lodging)
	require.EqualValues(t, 1, later[0].own.load(tokenOf(left, 0), 1))
}

// A peer with graphs closes the memory of this rank when they are gone, however late that is. For a peer of a group
// that has captured nothing a rank waits for a time. It holds no thread for the device while it waits.
func TestMemoryThatAPeerKeeps(t *testing.T) {
	for _, captures := range []bool{false, true} {
		m, d := pair(t)
		m[0].hasGraphs = func() bool { return false }
		if captures {
			captureOn(t, m[0], 1)
		}
		synctest.Test(t, func(t *testing.T) {
			var within atomic.Int64
			freed := make(chan struct{})
			go func() {
				m[0].Free(func(f func()) { within.Add(1); f(); within.Add(-1) })
				close(freed)
			}()
			time.Sleep(closeBound - longestPause)
			synctest.Wait()
			require.EqualValues(t, 1, d[0].released.Load(), "what it has of the peer")
			require.Zero(t, within.Load())
			time.Sleep(10 * closeBound)
			synctest.Wait()
			select {
			case <-freed:
				require.False(t, captures)
			default:
				require.True(t, captures)
			}
			m[0].own.store(closed, 1, 1)
			<-freed
			require.Equal(t, captures, d[0].released.Load() == 2)
			require.Equal(t, captures, slices.Contains(homes.free[m[0].lodging.place.Len], m[0].lodging))
		})
	}
}

// What the stream of a peer has queued that died without a word may still use the inbox and the slots, so no later group has them.
func TestMemoryOfAPeerThatDied(t *testing.T) {
	refused := map[device.Sharing]error{device.ByFile: errors.New("refused")}
	for _, said := range []bool{true, false} {
		drivers := [2]*fakeDriver{{refuses: refused}, {refuses: refused}}
		m := pairOn(t, drivers)
		on, err := drivers[0].Identity()
		require.NoError(t, err)
		m[0].peers[1].process.StartTime++ // another process has the number by now
		require.True(t, m[0].gone(1))
		if said {
			m[0].own.store(closed, 1, 1)
		}
		m[0].Free(here)
		require.Equal(t, said, len(handles.idle[on]) > 0)
		if place := m[0].lodging; said {
			require.Contains(t, homes.free[place.place.Len], place)
		} else {
			require.NotContains(t, homes.free[place.place.Len], place)
		}
	}
}

// Inboxes lie beside each other, and memory is registered once for all of them.
func TestLodgings(t *testing.T) {
	page := int64(os.Getpagesize())
	d := &fakeDriver{}
	var list []lodging
	for range 3 {
		l, err := lodge(page + 1)
		require.NoError(t, err)
		require.EqualValues(t, 2*page, l.place.Len)
		address, err := registered(d, l.home.arena.Mapping(), l.place)
		require.NoError(t, err)
		require.Equal(t, uintptr(unsafe.Pointer(unsafe.SliceData(l.memory()))), address)
		for _, other := range list {
			require.True(t, other.home != l.home || other.place.End() <= l.place.Off || l.place.End() <= other.place.Off)
		}
		list = append(list, l)
	}
	list[1].leave()
	again, err := lodge(2 * page)
	require.NoError(t, err)
	require.Equal(t, list[1], again)
	long, err := lodge(homeBytes + 1)
	require.NoError(t, err)
	require.EqualValues(t, homeBytes+page, long.place.Len)
}

// A rank waits until its peers have read its slots before its process may end.
func TestDestroyWaitsForReaders(t *testing.T) {
	m, _ := pair(t)
	require.NoError(t, m[0].Do(gathering, vendor.Buffers{In: 0x100, Out: 0x200}, 1))
	done := make(chan struct{})
	go func() { m[0].Destroy(); close(done) }()
	require.False(t, m[0].allLeft())
	m[0].own.store(left, 1, m[0].lowering.received.value(left, 1, 0))
	<-done
	require.True(t, m[0].allLeft())
}

func TestCompare(t *testing.T) {
	seat := func(id, process string, reaches ...string) vendor.Seat {
		return vendor.Seat{Device: id, Place: "cuda of " + id, Process: process, Reaches: reaches}
	}
	m := New(nil, Links{})
	require.Equal(t, []string{"", ""}, m.Compare([]vendor.Seat{seat("a", "1", "a"), seat("a", "2", "a")}))
	require.Equal(t, []string{"", "cuda of b cannot use the memory of cuda of a, the device of rank 0"},
		m.Compare([]vendor.Seat{seat("a", "1", "a", "b"), seat("b", "2", "b")}))
	require.Equal(t, []string{"", "rank 0 is in the same process"}, m.Compare([]vendor.Seat{seat("a", "1", "a"), seat("a", "1", "a")}))
	for _, why := range m.Compare(make([]vendor.Seat, MostRanks+1)) {
		require.Equal(t, "the group has 65 ranks, the most are 64", why)
	}
}

func TestGarbageFromAPeer(t *testing.T) {
	methods := []shmem.Method{shmem.Proc}
	m, o, err := newMember(&fakeDriver{}, of(0), methods, sameDevice(2))
	require.NoError(t, err)
	for _, place := range []shmem.Range{{Off: 0, Len: 4096}, {Off: 4097, Len: 4096}, {Off: 1 << 40, Len: 4096}, {Off: 4096, Len: 64}, {Off: 4096, Len: 1 << 62}} {
		_, err := openInbox(t.Context(), m.d, o.Inbox, place, 2, methods)
		require.ErrorContains(t, err, "an inbox of", "%v", place)
	}
	_, err = openInbox(t.Context(), m.d, shmem.Descriptor{}, o.Place, 2, methods)
	require.ErrorContains(t, err, "not a descriptor")
	o.Inbox.Size = 1 << 40
	_, err = openInbox(t.Context(), m.d, o.Inbox, o.Place, 2, methods)
	require.ErrorContains(t, err, "inboxes in an arena of 1099511627776 bytes")
	m.lodging.leave()
}

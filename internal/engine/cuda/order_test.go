package cuda

import (
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"sagecomm/algo"
	"sagecomm/internal/coll"
	"sagecomm/internal/device"
	"sagecomm/internal/engine/vendor"
	"sagecomm/internal/shmem"
)

// asking is a driver that looks at something at each wait that is queued.
type asking struct {
	*fakeDriver
	look func()
}

func (a asking) Await(s device.Stream, at uintptr, value uint32) error {
	a.look()
	return a.fakeDriver.Await(s, at, value)
}

// What ends all waits is beyond those of an operation that is being queued, however many came before.
func TestValuesAreKnownBeforeWaits(t *testing.T) {
	m, d := pair(t)
	waits := 0
	m[0].d = asking{d[0], func() {
		waits++
		m[0].releaseOnce()
		if ahead := int32(m[0].own.load(filled, 1) - m[0].lowering.received.value(filled, 1, 0)); ahead < 0 {
			t.Fatalf("after %d waits the stream waits for %d more", waits, -ahead)
		}
	}}
	for range beyond>>chunkBits + 2 {
		d[0].list = nil
		require.NoError(t, m[0].Do(gathering, vendor.Buffers{In: 0x100, Out: 0x200}, 1))
	}
	require.Greater(t, waits, beyond>>chunkBits)
}

// Peers are told that what a rank does may be void before its waits end, also without graphs. Here the words of the peer are out of reach, and
// nothing has been released by then.
func TestPeersAreToldBeforeWaitsAreReleased(t *testing.T) {
	m, _ := pair(t)
	require.NoError(t, m[0].Do(gathering, vendor.Buffers{In: 0x100, Out: 0x200}, 1))
	m[0].peers[1].inbox.memory = nil
	require.Panics(t, func() { m[0].Release(func() bool { return false }) })
	require.Zero(t, m[0].own.load(filled, 1))
}

// An operation that is captured while the waits of its communicator are ended is refused, or its tokens are set.
func TestCapturesBesideARelease(t *testing.T) {
	m, d := pair(t)
	choose := m[0].captures.choose
	m[0].captures.planner.choose = func(kind coll.Kind, root int, bytes uint64) algo.Class {
		m[0].Release(func() bool { return true })
		return choose(kind, root, bytes)
	}
	_, err := m[0].Capture(gathering, vendor.Buffers{In: 0x100, Out: 0x200}, device.Stream{Handle: 1}, 1)
	require.ErrorIs(t, err, errReleased)
	require.Empty(t, d[0].list)
}

// A rank says that it has departed when its peers have read its slots, and not before: its tokens are released then.
func TestARankDepartsBehindItsReaders(t *testing.T) {
	m, _ := pair(t)
	captureOn(t, m[0], 1)
	captureOn(t, m[1], 1)
	m[1].hasGraphs = func() bool { return false } // they are gone, and no goroutine sets tokens for them
	synctest.Test(t, func(t *testing.T) {
		m[1].own.store(tokenOf(left, 3), 0, 0) // rank 0 reads slot 3 of rank 1
		done := make(chan struct{})
		go func() { m[1].Destroy(); close(done) }()
		time.Sleep(leaveBound / 2)
		synctest.Wait()
		require.Zero(t, m[0].own.load(departed, 1))
		m[1].own.store(tokenOf(left, 3), 0, 1)
		<-done
		require.EqualValues(t, 1, m[0].own.load(departed, 1))
	})
}

// noting is memory that tells when it is given back.
type noting struct {
	device.Memory
	release func()
}

func (n noting) Release() { n.release(); n.Memory.Release() }

// A rank tells its peers that it uses nothing of theirs when it has closed all of it.
func TestARankSaysThatItHasClosed(t *testing.T) {
	m, _ := pair(t)
	closes := 0
	p := &m[0].peers[1]
	require.NotNil(t, p.imported)
	p.imported = noting{p.imported, func() {
		closes++
		require.Zero(t, m[1].own.load(closed, 0), "the peer gives it to others")
	}}
	m[0].closePeers()
	require.Equal(t, 1, closes)
	require.EqualValues(t, 1, m[1].own.load(closed, 0))
}

// Where ranks go on to another way to share slots, each closes what it has opened before it posts the next exchange, and gives its own slots back
// behind that.
func TestTheNextWayComesBehindTheLast(t *testing.T) {
	drivers := [2]*fakeDriver{{refusesToOpen: map[device.Sharing]error{device.ByFile: errors.New("refused")}}, {}}
	var before [2]atomic.Int32 // what has been released when the rank posts its slots again
	members, offers := [2]*member{}, make([]offer, 2)
	var posted [2]chan []byte
	for rank := range members {
		posted[rank] = make(chan []byte, 1)
		var err error
		members[rank], offers[rank], err = newMember(drivers[rank], of(rank), []shmem.Method{shmem.Proc}, sameDevice(2))
		require.NoError(t, err)
	}
	var both sync.WaitGroup
	for rank, m := range members {
		both.Go(func() {
			var purposes []string
			j := vendor.Joining{}
			j.Exchange = func(purpose string, mine []byte) ([][]byte, error) {
				if slices.Contains(purposes, purpose) && purpose == "slots of cuda" {
					before[rank].Store(drivers[rank].released.Load())
				}
				purposes = append(purposes, purpose)
				posted[1-rank] <- mine
				all := [][]byte{mine, mine}
				all[1-rank] = <-posted[rank]
				return all, nil
			}
			why, err := m.joinSlots(j, m.connect(offers))
			require.NoError(t, err)
			require.NoError(t, why)
		})
	}
	both.Wait()
	require.Zero(t, before[0].Load(), "the peer has these slots open")
	require.EqualValues(t, 1, before[1].Load(), "what it had opened of the peer")
	require.EqualValues(t, 1, drivers[0].released.Load())
	require.EqualValues(t, 2, drivers[1].released.Load())
}

// A rank that gives a join up posts the end of the join when it has closed what it has of its peers, and gives its own memory back behind that: a
// peer may have it open until then.
func TestTheEndOfAJoinIsBetween(t *testing.T) {
	m, d := pair(t)
	var j vendor.Joining
	exchanges := 0
	j.Exchange = func(_ string, mine []byte) ([][]byte, error) {
		exchanges++
		require.Nil(t, m[0].peers[1].inbox.mapping)
		require.Nil(t, m[0].peers[1].imported)
		require.NotNil(t, m[0].slots.memory)
		require.EqualValues(t, 1, d[0].released.Load(), "what it has of the peer")
		require.NotContains(t, homes.free[m[0].lodging.place.Len], m[0].lodging)
		return [][]byte{mine, mine}, nil
	}
	require.NoError(t, m[0].giveUp(j))
	require.Equal(t, 1, exchanges)
	require.EqualValues(t, 2, d[0].released.Load())
	require.Contains(t, homes.free[m[0].lodging.place.Len], m[0].lodging)
}

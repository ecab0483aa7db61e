package cuda

import (
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"sagecomm/internal/device"
	"sagecomm/internal/engine/vendor"
	"sagecomm/internal/shmem"
)

// several returns ranks of one communicator, which are in this process.
func several(t *testing.T, size int) (members []*member, drivers []*fakeDriver) {
	t.Helper()
	posted := make([][]chan []byte, size) // by sender and receiver
	offers := make([]offer, size)
	for rank := range size {
		g, d := of(rank), &fakeDriver{}
		g.Size = size
		m, o, err := newMember(d, g, []shmem.Method{shmem.Proc}, sameDevice(size))
		require.NoError(t, err)
		members, drivers, offers[rank] = append(members, m), append(drivers, d), o
		for range size {
			posted[rank] = append(posted[rank], make(chan []byte, 1))
		}
	}
	var all sync.WaitGroup
	why, failed := make([]error, size), make([]error, size)
	for rank, m := range members {
		all.Go(func() {
			var j vendor.Joining
			j.Exchange = func(_ string, mine []byte) ([][]byte, error) {
				list := make([][]byte, size)
				for peer := range size {
					posted[rank][peer] <- mine
				}
				for peer := range size {
					list[peer] = <-posted[peer][rank]
				}
				return list, nil
			}
			why[rank], failed[rank] = m.joinSlots(j, m.connect(offers))
		})
	}
	all.Wait()
	for rank := range size {
		require.NoError(t, failed[rank])
		require.NoError(t, why[rank])
	}
	return members, drivers
}

// gathers makes a rank issue an all_gather.
func (m *member) gathers(t *testing.T) {
	t.Helper()
	op := gathering
	op.Out = uint64(m.size) * op.In
	require.NoError(t, m.Do(op, vendor.Buffers{In: 0x100, Out: 0x200}, 1))
}

// capturesOne makes a rank capture an all_gather.
func (m *member) capturesOne(t *testing.T) {
	t.Helper()
	op := gathering
	op.Out = uint64(m.size) * op.In
	begun, err := m.Capture(op, vendor.Buffers{In: 0x100, Out: 0x200}, device.Stream{Handle: 1}, 1)
	require.NoError(t, err)
	require.True(t, begun)
}

const aFew = 4 // ranks: one has peers in front of it and behind it

// A rank that ends its waits tells each peer, and ends the waits for each word and token of each.
func TestWaitsForEachPeerEnd(t *testing.T) {
	for _, captures := range []bool{false, true} {
		for rank := range aFew {
			list, _ := several(t, aFew)
			m := list[rank]
			for range 3 {
				m.gathers(t)
			}
			if captures {
				m.capturesOne(t)
				defer released.remove(m)
			}
			var through atomic.Bool
			m.Release(through.Load)
			for peer, p := range list {
				require.Equal(t, peer != rank, *p.Void() == uint32(rank)+1, "rank %d tells rank %d", rank, peer)
				for w := range words {
					require.GreaterOrEqual(t, int32(m.own.load(w, peer)-m.lowering.received.value(w, peer, mostChunks)), int32(0))
					for slot := range int64(slotCount) {
						set := m.own.load(tokenOf(w, slot), peer) == beyond
						require.Equal(t, captures && peer != rank, set, "token %d of slot %d for rank %d", w, slot, peer)
					}
				}
			}
			for peer := range aFew { // a late write of its stream
				m.own.store(filled, peer, 0)
			}
			require.Eventually(t, func() bool {
				for peer := range aFew {
					if int32(m.own.load(filled, peer)-m.lowering.received.value(filled, peer, mostChunks)) < 0 {
						return false
					}
				}
				return true
			}, 10*time.Second, time.Millisecond)
			through.Store(true)
			require.True(t, m.Abort())
		}
	}
}

// A rank leaves when each peer has read each of its slots, those of graphs too, and tells each of them then.
func TestARankLeavesBehindEachPeer(t *testing.T) {
	for late := range aFew {
		for _, captures := range []bool{false, true} {
			list, _ := several(t, aFew)
			m := list[(late+1)%aFew]
			for range slotCount + late { // another slot is the last
				m.gathers(t)
			}
			last := func(peer int) uint32 { return m.lowering.received.value(left, peer, 0) }
			leaves := func(peer int) { m.own.store(left, peer, last(peer)) }
			if captures {
				m.capturesOne(t)
				m.hasGraphs = func() bool { return false }
			}
			synctest.Test(t, func(t *testing.T) {
				for peer := range aFew {
					if peer != m.rank && (peer != late || captures) {
						leaves(peer)
					}
				}
				if captures {
					m.own.store(tokenOf(left, int64(late)%slotCount), late, 0)
				} else {
					m.own.store(left, late, last(late)-1<<chunkBits) // the operation before
				}
				done := make(chan struct{})
				go func() { m.Destroy(); close(done) }()
				time.Sleep(leaveBound / 2)
				synctest.Wait()
				for peer, p := range list {
					require.Zero(t, p.own.load(departed, m.rank), "rank %d", peer)
				}
				leaves(late)
				m.own.store(tokenOf(left, int64(late)%slotCount), late, 1)
				<-done
				for peer, p := range list {
					require.Equal(t, peer != m.rank, p.own.load(departed, m.rank) == 1)
				}
			})
		}
	}
}

// A graph goes on without the peer that has departed, and with all others.
func TestTokensOfThePeerThatHasDeparted(t *testing.T) {
	for gone := range aFew {
		list, _ := several(t, aFew)
		m := list[(gone+1)%aFew]
		m.capturesOne(t)
		defer released.remove(m)
		m.own.store(departed, gone, 1)
		_, err := m.State()
		require.NoError(t, err)
		for peer := range aFew {
			for slot := range int64(slotCount) {
				for w := range words {
					require.Equal(t, peer == gone, m.own.load(tokenOf(w, slot), peer) == beyond, "token %d of slot %d for rank %d", w, slot, peer)
				}
			}
		}
	}
}

// A rank closes what it has of each peer, and tells it. It gives its own memory back when each of them has told so.
func TestMemoryThatEachPeerHasClosed(t *testing.T) {
	for late := range aFew {
		list, drivers := several(t, aFew)
		m := allHaveClosedBut(late, list)
		synctest.Test(t, func(t *testing.T) {
			done := make(chan struct{})
			go func() { m.Free(here); close(done) }()
			time.Sleep(closeBound / 2)
			synctest.Wait()
			require.EqualValues(t, aFew-1, drivers[m.rank].released.Load(), "what it has of its peers")
			for peer, p := range list {
				require.Equal(t, peer != m.rank, p.own.load(closed, m.rank) == 1)
				require.Nil(t, m.peers[peer].imported)
				require.Nil(t, m.peers[peer].inbox.mapping)
			}
			require.NotContains(t, freePlaces(m.lodging.place.Len), m.lodging)
			m.own.store(closed, late, 1)
			<-done
			require.EqualValues(t, aFew, drivers[m.rank].released.Load())
			require.Contains(t, freePlaces(m.lodging.place.Len), m.lodging)
		})
	}
}

// allHaveClosedBut returns a rank whose other peers use its memory no more.
func allHaveClosedBut(one int, list []*member) *member {
	m := list[(one+1)%len(list)]
	for peer := range list {
		if peer != one && peer != m.rank {
			m.own.store(closed, peer, 1)
		}
	}
	return m
}

// freePlaces returns the places of inboxes of a length that no group has.
func freePlaces(bytes int64) []lodging {
	homes.mu.Lock()
	defer homes.mu.Unlock()
	return slices.Clone(homes.free[bytes])
}

// Memory of a group of which one peer has died without a word serves no other group, whichever peer it is.
func TestMemoryOfWhicheverPeerHasDied(t *testing.T) {
	for dead := range aFew {
		list, _ := several(t, aFew)
		m := allHaveClosedBut(dead, list)
		m.peers[dead].process.StartTime++ // another process has the number by now
		require.True(t, m.allClosed())
		require.False(t, m.allSaid())
		m.Free(here)
		require.NotContains(t, freePlaces(m.lodging.place.Len), m.lodging)
	}
}

// An operation that is captured while a rank that ends its waits looks for graphs is refused: nobody would end its waits.
func TestCapturesBesideTheLookForGraphs(t *testing.T) {
	m, d := pair(t)
	captureOn(t, m[0], 1)
	d[0].list = nil
	looks := 0
	m[0].hasGraphs = func() bool {
		looks++
		_, err := m[0].Capture(gathering, vendor.Buffers{In: 0x100, Out: 0x200}, device.Stream{Handle: 1}, 2)
		require.ErrorIs(t, err, errReleased)
		return false
	}
	m[0].Release(func() bool { return true })
	require.NotZero(t, looks)
	require.Empty(t, d[0].list)
}

// The inbox of a later group has nothing of an earlier one, whose words would end its waits.
func TestTheInboxOfALaterGroupIsEmpty(t *testing.T) {
	m, d := pair(t)
	for i := range m[0].own.memory {
		m[0].own.memory[i] = 0x7f
	}
	m[0].lodging.leave()
	b, at, _, err := makeInbox(d[0], 2, []shmem.Method{shmem.Proc})
	require.NoError(t, err)
	defer at.home.joined()
	require.Equal(t, m[0].lodging, at)
	var full []uintptr
	for i := uintptr(0); i < uintptr(inboxBytes(2)); i += 4 {
		if *b.line(i) != 0 {
			full = append(full, i)
		}
	}
	var want []uintptr
	for peer := range 2 {
		for slot := range int64(slotCount) {
			want = append(want, offset(tokenOf(left, slot), peer))
		}
	}
	slices.Sort(want)
	require.Equal(t, want, full)
}

// No token is set in an inbox any more when a rank begins to give memory back: another group may have it then.
func TestTokensAreSetNoMoreWhenMemoryIsGivenBack(t *testing.T) {
	m, _ := pair(t)
	var gone atomic.Bool
	m[0].hasGraphs = func() bool { return !gone.Load() }
	captureOn(t, m[0], 1)
	m[0].Release(func() bool { return true })
	require.Contains(t, released.members, m[0])
	gone.Store(true)
	m[0].own.store(closed, 1, 1)
	calls := 0
	m[0].Free(func(f func()) {
		calls++
		require.NotContains(t, released.members, m[0])
		m[0].own.store(tokenOf(filled, 0), 1, 0)
		changed, _ := released.set(m[0])
		require.False(t, changed)
		f()
	})
	require.Equal(t, 2, calls)
}

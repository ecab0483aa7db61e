package cuda

import (
	"net"
	"os/exec"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"sagecomm/internal/device"
	"sagecomm/internal/procwatch"
	"sagecomm/internal/shmem"
)

// The socket over which peers map inboxes is there while ranks join, and not afterwards.
func TestInboxesAreReachableInJoins(t *testing.T) {
	arena, err := shmem.NewArena(shmem.Memfd, homeBytes, "")
	require.NoError(t, err)
	defer func() { require.NoError(t, arena.Close()) }()
	h := &home{arena: arena}
	reachable := func(socket string) bool {
		c, err := net.Dial("unix", "@"+socket)
		if err == nil {
			err = c.Close()
		}
		return err == nil
	}
	for range 2 {
		var socket string
		for range 2 { // two groups join at the same time
			o, err := h.publish([]shmem.Method{shmem.SCM})
			require.NoError(t, err)
			socket = o.Socket
		}
		h.joined()
		require.True(t, reachable(socket))
		h.joined()
		require.False(t, reachable(socket))
	}
}

// Each device may have an address of its own for registered memory.
func TestAddressesOfAnInbox(t *testing.T) {
	here, there := &fakeDriver{}, &fakeDriver{apart: 1 << 40}
	l, err := lodge(inboxBytes(2))
	require.NoError(t, err)
	defer l.leave()
	a, err := registered(here, l.home.arena.Mapping(), l.place)
	require.NoError(t, err)
	b, err := registered(there, l.home.arena.Mapping(), l.place)
	require.NoError(t, err)
	require.EqualValues(t, 1<<40, b-a)
}

// To give back memory that has a handle, or to close it, waits for the device. Later groups have it.
func TestSlotsWithHandlesAreKept(t *testing.T) {
	drivers := [2]*fakeDriver{}
	for rank := range drivers {
		drivers[rank] = &fakeDriver{refuses: map[device.Sharing]error{device.ByFile: errReleased}}
	}
	for range 3 {
		var members [2]*member
		offers := make([]offer, 2)
		for rank := range members {
			var err error
			members[rank], offers[rank], err = newMember(drivers[rank], of(rank), []shmem.Method{shmem.Proc}, sameDevice(2))
			require.NoError(t, err)
		}
		why := joined(members, offers)
		require.NoError(t, why[0])
		require.NoError(t, why[1])
		var freed sync.WaitGroup
		for _, m := range members {
			freed.Go(func() { m.Free(here) })
		}
		freed.Wait()
	}
	for _, d := range drivers {
		require.Zero(t, d.released.Load())
		require.EqualValues(t, 1, d.shared.Load())
		require.EqualValues(t, 1, d.opened.Load())
	}
}

// Memory of a peer is opened once, and another peer's is another one, also if its handle has the same number.
func TestHandlesOfPeers(t *testing.T) {
	d := &fakeDriver{}
	m := &member{d: d}
	first, second := &peer{}, &peer{}
	first.process.Nonce, second.process.Nonce = shmem.Nonce{1}, shmem.Nonce{2}
	for n, of := range []struct {
		p      *peer
		number byte
		offset uint64
	}{{first, 1, 0}, {second, 1, 0}, {first, 2, 0}, {first, 1, 512}} {
		for range 2 {
			_, err := m.openHandle(of.p, device.Shared{Handle: []byte{of.number}, Offset: of.offset})
			require.NoError(t, err)
			require.EqualValues(t, n+1, d.opened.Load())
		}
	}
}

// Behind a capture a rank waits for a peer however long, and no longer than that lives. A peer that died said nothing, so no later group
// has the inbox.
func TestMemoryThatAPeerKeepsUntilItDies(t *testing.T) {
	peer := exec.Command("sleep", "600")
	require.NoError(t, peer.Start())
	alive := true
	end := func() {
		if alive {
			alive = false
			_ = peer.Process.Kill()
			_ = peer.Wait()
		}
	}
	t.Cleanup(end)
	m, d := pair(t)
	m[0].hasGraphs = func() bool { return false }
	captureOn(t, m[0], 1)
	process := &m[0].peers[1].process
	process.PID = peer.Process.Pid
	var err error
	process.StartTime, err = procwatch.StartTime(process.PID)
	require.NoError(t, err)
	synctest.Test(t, func(t *testing.T) {
		freed := make(chan struct{})
		go func() { m[0].Free(here); close(freed) }()
		time.Sleep(10 * closeBound)
		synctest.Wait()
		select {
		case <-freed:
			t.Fatal("the peer has its memory open")
		default:
			require.EqualValues(t, 1, d[0].released.Load(), "what it has of the peer")
		}
		end()
		time.Sleep(2 * longestPause)
		<-freed
	})
	require.EqualValues(t, 2, d[0].released.Load(), "what it has of the peer, and its slots")
	require.NotContains(t, homes.free[m[0].lodging.place.Len], m[0].lodging)
}

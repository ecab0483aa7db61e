package cuda

import (
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"sagecomm/algo"
	"sagecomm/internal/device"
	"sagecomm/internal/engine/vendor"
	"sagecomm/internal/shmem"
)

var errExchange = errors.New("the group has failed")

// joinBoth lets two ranks join, and returns their members, why they cannot join, and the errors of exchanges. The exchange for the purpose that
// fails is one.
func joinBoth(drivers [2]*fakeDriver, fails string) (members [2]vendor.Member, why, failed [2]error) {
	var to [2]chan []byte
	for rank := range to {
		to[rank] = make(chan []byte, 1)
	}
	done := make(chan struct{}, 2)
	for rank, d := range drivers {
		m := New([]shmem.Method{shmem.Proc}, Links{Choose: func(seats []vendor.Seat, _ int) *algo.DeviceChoices { return sameDevice(len(seats)) }})
		m.open = func(int) (driver, error) { return d, nil }
		j := vendor.Joining{Group: of(rank), Seats: make([]vendor.Seat, 2)}
		j.Exchange = func(purpose string, mine []byte) ([][]byte, error) {
			if purpose == fails {
				return nil, errExchange
			}
			to[1-rank] <- mine
			all := [][]byte{mine, mine}
			all[1-rank] = <-to[rank]
			return all, nil
		}
		go func() {
			members[rank], why[rank], failed[rank] = m.Join(j)
			done <- struct{}{}
		}()
	}
	for range drivers {
		<-done
	}
	return members, why, failed
}

// lodged returns the bytes of the inboxes that groups have.
func lodged() (bytes int64) {
	homes.mu.Lock()
	defer homes.mu.Unlock()
	for _, h := range homes.list {
		bytes += h.left.Off
	}
	for length, list := range homes.free {
		bytes -= length * int64(len(list))
	}
	return bytes
}

// joins returns how many joins have arenas whose peers may map them.
func joins() (n int) {
	homes.mu.Lock()
	defer homes.mu.Unlock()
	for _, h := range homes.list {
		h.publishing.Lock()
		n += h.joins
		h.publishing.Unlock()
	}
	return n
}

// forLater returns how many slots of a driver are kept for later groups.
func (d *fakeDriver) forLater(t *testing.T) int32 {
	on, err := d.Identity()
	require.NoError(t, err)
	handles.mu.Lock()
	defer handles.mu.Unlock()
	return int32(len(handles.idle[on]))
}

// A join that fails leaves nothing behind: all ranks have their inboxes and slots back when it returns, those too that could have joined.
// None waits for a peer that has mapped nothing and so cannot say that it has closed it.
func TestWhatAFailedJoinGivesBack(t *testing.T) {
	refused := errors.New("refused")
	for name, c := range map[string]struct {
		second *fakeDriver
		why    string
	}{
		"no inbox":                {second: &fakeDriver{noKernels: refused}, why: "refused"},
		"no way to map an inbox":  {second: &fakeDriver{noAddress: 2}, why: "no address"},
		"no slots in either way":  {second: &fakeDriver{refuses: map[device.Sharing]error{device.ByFile: refused, device.ByHandle: refused}}, why: "refused; refused"},
		"slots that it can't use": {second: &fakeDriver{refusesToOpen: map[device.Sharing]error{device.ByFile: refused, device.ByHandle: refused}}, why: "memory of rank 0"},
	} {
		t.Run(name, func(t *testing.T) {
			first := &fakeDriver{}
			drivers := [2]*fakeDriver{first, c.second}
			one, err := lodge(inboxBytes(2)) // so that an arena is there
			require.NoError(t, err)
			one.leave()
			before := lodged()
			members, why, failed := joinBoth(drivers, "")
			require.Equal(t, [2]error{}, failed)
			require.Equal(t, [2]vendor.Member{}, members)
			require.NoError(t, why[0])
			require.ErrorContains(t, why[1], c.why)
			require.Equal(t, before, lodged(), "inboxes")
			for rank, d := range drivers {
				require.Equal(t, d.shared.Load()+d.opened.Load(), d.released.Load()+d.forLater(t)+d.handles.Load(), "slots of rank %d", rank)
			}
		})
	}
}

// Where the group fails during a join, each rank has its memory back when its peers have closed it, and withdraws its socket then.
func TestWhatAJoinGivesBackWhenTheGroupFails(t *testing.T) {
	refused := errors.New("refused")
	for purpose, second := range map[string]*fakeDriver{
		"opening of slots":      {},
		"end of a join of cuda": {refusesToOpen: map[device.Sharing]error{device.ByFile: refused, device.ByHandle: refused}},
	} {
		t.Run(purpose, func(t *testing.T) {
			drivers := [2]*fakeDriver{{}, second}
			one, err := lodge(inboxBytes(2)) // so that an arena is there
			require.NoError(t, err)
			one.leave()
			before, underWay := lodged(), joins()
			members, _, failed := joinBoth(drivers, purpose)
			require.Equal(t, [2]vendor.Member{}, members)
			require.Equal(t, [2]error{errExchange, errExchange}, failed)
			require.Eventually(t, func() bool { return lodged() == before }, 10*time.Second, time.Millisecond, "inboxes")
			require.Eventually(t, func() bool { return joins() == underWay }, 10*time.Second, time.Millisecond, "joins")
			for rank, d := range drivers {
				back := func() bool {
					return d.shared.Load()+d.opened.Load() == d.released.Load()+d.forLater(t)+d.handles.Load()
				}
				require.Eventually(t, back, 10*time.Second, time.Millisecond, "slots of rank %d", rank)
			}
		})
	}
}

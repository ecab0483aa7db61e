package cuda

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"sagecomm/algo"
	"sagecomm/internal/device"
	"sagecomm/internal/engine/vendor"
	"sagecomm/internal/shmem"
)

// joinBoth lets two ranks join, and returns their members and why they cannot join.
func joinBoth(t *testing.T, drivers [2]*fakeDriver) (members [2]vendor.Member, why [2]error) {
	t.Helper()
	var to [2]chan []byte
	for rank := range to {
		to[rank] = make(chan []byte, 1)
	}
	done := make(chan error, 2)
	for rank, d := range drivers {
		m := New([]shmem.Method{shmem.Proc}, Links{Choose: func(seats []vendor.Seat, _ int) *algo.DeviceChoices { return sameDevice(len(seats)) }})
		m.open = func(int) (driver, error) { return d, nil }
		j := vendor.Joining{Group: of(rank), Seats: make([]vendor.Seat, 2)}
		j.Exchange = func(_ string, mine []byte) ([][]byte, error) {
			to[1-rank] <- mine
			all := [][]byte{mine, mine}
			all[1-rank] = <-to[rank]
			return all, nil
		}
		go func() {
			var err error
			members[rank], why[rank], err = m.Join(j)
			done <- err
		}()
	}
	for range drivers {
		require.NoError(t, <-done)
	}
	return members, why
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
			members, why := joinBoth(t, drivers)
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

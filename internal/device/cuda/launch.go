//go:build cuda

package cuda

import (
	"errors"

	"gorgonia.org/cu"

	"sagecomm/internal/device"
)

var _ device.Launcher = (*Driver)(nil)

// Identity implements device.Launcher.
func (d *Driver) Identity() (string, error) {
	var id string
	err := d.do("cannot ask for the UUID of the device", func() error {
		of, err := cu.GetDevice(d.index)
		if err == nil {
			id, err = uuidOf(of)
		}
		return err
	})
	return id, err
}

// Current implements device.Launcher.
func (d *Driver) Current(f func() error) error {
	return device.Within(d.do, f)
}

// Vendor implements device.Launcher.
func (d *Driver) Vendor() string { return "cuda" }

// Handle implements device.Launcher.
func (d *Driver) Handle(s device.Stream) (uintptr, error) { return s.Handle, nil }

type memory struct {
	d  *Driver
	at cu.DevicePtr
}

func (m memory) Address() uintptr { return uintptr(m.at) }

// Release implements device.Memory. It may wait for the device. Memory that the driver does not take back stays allocated.
func (m memory) Release() {
	m.d.giveBack(func() error { return cu.MemFree(m.at) })
}

// Allocate implements device.Launcher.
func (d *Driver) Allocate(bytes uint64, reachable bool) (device.Memory, error) {
	m, err := d.allocateMapped(bytes, reachable)
	if errors.Is(err, errNoMaps) {
		return d.allocate(bytes)
	}
	return m, err
}

// allocate allocates memory that has handles of legacy IPC.
func (d *Driver) allocate(bytes uint64) (device.Memory, error) {
	m := memory{d: d.alone()}
	err := d.doRelaxed("cannot allocate memory of the device", func() (err error) {
		m.at, err = cu.MemAlloc(int64(bytes))
		return err
	})
	if err != nil {
		return nil, err
	}
	return m, nil
}

// CopyWithin implements device.Launcher.
func (d *Driver) CopyWithin(s device.Stream, to, from uintptr, bytes uint64) error {
	return d.do("cannot queue a copy within the device", func() error {
		return cu.MemcpyDtoDAsync(cu.DevicePtr(to), cu.DevicePtr(from), int64(bytes), streamOf(s.Handle))
	})
}

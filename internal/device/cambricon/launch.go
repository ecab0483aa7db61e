package cambricon

// #include "cnrt.h"
import "C"

import (
	"runtime"

	"sagecomm/internal/device"
)

// Identity implements device.Launcher.
func (d *Driver) Identity() (string, error) {
	var id [64]C.char
	err := d.do("cannot ask for the place of the device", func() error {
		return failed("cnrtDeviceGetPCIBusId", C.call_cnrtDeviceGetPCIBusId(&id[0], C.int(len(id)), C.int(d.index)))
	})
	if err != nil {
		return "", err
	}
	id[len(id)-1] = 0
	return device.OfMachine("mlu " + C.GoString(&id[0]))
}

// Vendor implements device.Launcher.
func (d *Driver) Vendor() string { return "mlu" }

// Handle implements device.Launcher.
func (d *Driver) Handle(s device.Stream) (uintptr, error) { return s.Handle, nil }

// Current implements device.Launcher.
func (d *Driver) Current(f func() error) error {
	return device.Within(d.do, f)
}

type memory struct {
	d  *Driver
	at C.uintptr_t
}

func (m memory) Address() uintptr { return uintptr(m.at) }

// Release implements device.Memory. Memory that the runtime does not take back stays allocated.
func (m memory) Release() {
	_ = m.d.do("", func() error { return failed("cnrtFree", C.call_cnrtFree(m.at)) })
}

// Allocate implements device.Launcher.
func (d *Driver) Allocate(bytes uint64, _ bool) (device.Memory, error) {
	m := memory{d: d}
	err := d.do("cannot allocate memory of the device", func() error {
		return failed("cnrtMalloc", C.call_cnrtMalloc(&m.at, C.size_t(bytes)))
	})
	if err != nil {
		return nil, err
	}
	return m, nil
}

// CopyWithin implements device.Launcher.
func (d *Driver) CopyWithin(s device.Stream, to, from uintptr, bytes uint64) error {
	return d.do("cannot queue a copy within the device", func() error { return CopyWithin(s.Handle, to, from, bytes) })
}

// CopyWithin queues a copy on the device that is current.
func CopyWithin(queue, to, from uintptr, bytes uint64) error {
	return failed("cnrtMemcpyAsync_V2", C.call_cnrtMemcpyAsync_V2(C.uintptr_t(to), C.uintptr_t(from), C.size_t(bytes), C.uintptr_t(queue),
		C.cnrt_memcpy_dev_to_dev))
}

// CurrentDevice returns the number of the device that is current.
func CurrentDevice() (int, error) {
	var index C.int
	err := failed("cnrtGetDevice", C.call_cnrtGetDevice(&index))
	return int(index), err
}

// Use makes a device the current one of a thread, to which the calling goroutine is locked then.
func Use(index int) error {
	runtime.LockOSThread()
	return failed("cnrtSetDevice", C.call_cnrtSetDevice(C.int(index)))
}

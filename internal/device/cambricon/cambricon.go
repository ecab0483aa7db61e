// Package cambricon implements device.Launcher on CNRT, the runtime of Cambricon's MLUs. The library is opened at the first operation
// on a device and is never linked (cnrt.h).
//
// A queue of CNRT cannot wait for a word that the CPU stores. The driver below it has cnQueueAtomicOperation(), but its words may be
// written by calls of the driver only, and this library ends waits without one (cn_api.h, Atomic Operation Management). So there is
// no device.Waiter here, and operations need a caller with a bridge.
package cambricon

// #include "cnrt.h"
import "C"

import (
	"errors"
	"fmt"
	"unsafe"

	"sagecomm/internal/device"
)

// Driver gives an operation access to its device.
type Driver struct{ index int }

var _ device.Launcher = (*Driver)(nil)

// ErrCannotWait is why an operation needs a caller with a bridge.
var ErrCannotWait = errors.New("queues of Cambricon's runtime cannot wait for a word of host memory, so an operation needs a caller that brings a bridge (sagecomm_op.bridge)")

// Open returns the runtime of a device, or why there is none: no library, or no such device.
func Open(index int) (*Driver, error) {
	n, err := Devices()
	if err != nil {
		return nil, err
	}
	if index < 0 || index >= n {
		return nil, fmt.Errorf("no Cambricon device %d: there are %d", index, n)
	}
	return &Driver{index}, nil
}

// Name implements device.Runtime. Pinned memory belongs to a device.
func (d *Driver) Name() string { return fmt.Sprintf("cambricon, device %d", d.index) }

// NewStream implements device.Runtime.
func (d *Driver) NewStream(device.Role) (device.Stream, error) {
	var s C.uintptr_t
	err := d.do("cannot make a queue", func() error { return failed("cnrtQueueCreate", C.call_cnrtQueueCreate(&s)) })
	return device.Stream{Handle: uintptr(s)}, err
}

const alignment = 256 // of device.Pinned; CNRT promises none

type pinned struct{ memory unsafe.Pointer }

func (p pinned) Address() unsafe.Pointer { return p.memory }

// Pin implements device.Runtime.
func (d *Driver) Pin(bytes uint64) (device.Pinned, error) {
	var allocated unsafe.Pointer
	err := d.do(fmt.Sprintf("cannot allocate %d bytes of pinned memory", bytes), func() error {
		return failed("cnrtHostMalloc", C.call_cnrtHostMalloc(&allocated, C.size_t(bytes+alignment)))
	})
	if err != nil {
		return nil, err
	}
	return pinned{unsafe.Add(allocated, -uintptr(allocated)%alignment)}, nil
}

// Order implements device.Launcher. A wait refers to the newest place of a notifier, which may be destroyed
// while one is pending.
func (d *Driver) Order(first, then device.Stream) error {
	return d.do("cannot order two queues", func() error {
		var notifier C.uintptr_t
		err := failed("cnrtNotifierCreateWithFlags", C.call_cnrtNotifierCreateWithFlags(&notifier, C.cnrt_notifier_disable_timing_all))
		if err != nil {
			return err
		}
		if err = failed("cnrtPlaceNotifier", C.call_cnrtPlaceNotifier(notifier, C.uintptr_t(first.Handle))); err == nil {
			err = failed("cnrtQueueWaitNotifier", C.call_cnrtQueueWaitNotifier(notifier, C.uintptr_t(then.Handle), 0))
		}
		if destroyed := failed("cnrtNotifierDestroy", C.call_cnrtNotifierDestroy(notifier)); err == nil {
			err = destroyed
		}
		return err
	})
}

// CopyIn implements device.Runtime.
func (d *Driver) CopyIn(s device.Stream, c device.Copy) error {
	return d.copy("cannot queue a copy from the device", s, uintptr(c.Host), c.Device, c.Bytes, C.cnrt_memcpy_dev_to_host)
}

// CopyOut queues a copy from pinned memory into the device.
func (d *Driver) CopyOut(s device.Stream, c device.Copy) error {
	return d.copy("cannot queue a copy into the device", s, c.Device, uintptr(c.Host), c.Bytes, C.cnrt_memcpy_host_to_dev)
}

func (d *Driver) copy(what string, s device.Stream, to, from uintptr, bytes uint64, direction C.int) error {
	return d.do(what, func() error {
		return failed("cnrtMemcpyAsync_V2", C.call_cnrtMemcpyAsync_V2(C.uintptr_t(to), C.uintptr_t(from), C.size_t(bytes), C.uintptr_t(s.Handle), direction))
	})
}

// WriteValue implements device.Runtime. A host function stores the value, so the word may be in any memory of the host.
func (d *Driver) WriteValue(s device.Stream, word *uint32, value uint32) error {
	return d.do("cannot queue the write of a flag", func() error {
		return failed("cnrtInvokeHostFunc", C.cnrt_store(C.uintptr_t(s.Handle), (*C.uint32_t)(unsafe.Pointer(word)), C.uint32_t(value)))
	})
}

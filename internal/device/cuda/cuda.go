//go:build cuda

// Package cuda implements the seams of package device on the driver API of CUDA: the runtime for all callers, and the ordering for
// callers of the C ABI who bring no bridge. Its streams can wait for a word of pinned memory, so an operation needs no thread
// after it was issued.
//
// The driver is called through gorgonia.org/cu and, for what cu lacks, as cuda.h declares it. Package lazylink binds both when the
// first operation on a device needs them. Without the build tag cuda, which `make core` sets, the package needs no cuda.h and
// offers nothing.
package cuda

// #cgo CFLAGS: -std=c11 -Wall -Wextra
// #include <cuda.h>
import "C"

import (
	"fmt"
	"unsafe"

	"gorgonia.org/cu"

	"sagecomm/internal/coll"
	"sagecomm/internal/device"
)

// Driver gives an operation access to its device and to its caller's stream.
type Driver struct {
	index   int
	context cu.CUContext
	caller  cu.Stream
}

var (
	_ device.Ordering = (*Driver)(nil)
	_ device.Waiter   = (*Driver)(nil)

	_ device.QueueSharer = (*Driver)(nil)
)

var probes device.Probes

// Open returns the runtime of a device, or why there is none: no driver, or one whose streams cannot wait for a word.
func Open(index int) (*Driver, error) {
	d, err := of(index)
	if err != nil {
		return nil, err
	}
	return d, probes.Check(index, d)
}

// of returns the runtime of a device whose streams were not tried.
func of(index int) (*Driver, error) {
	if err := load(); err != nil {
		return nil, err
	}
	context, err := contextOf(index)
	if err != nil {
		return nil, err
	}
	return &Driver{index: index, context: context}, nil
}

// Captured returns device.ErrCaptured if a stream is being captured, or why the driver does not tell. It allocates nothing, which
// would break a capture. Where Open returns an error, there is nothing to ask.
func Captured(index int, stream uintptr) error {
	d, err := of(index)
	if err != nil {
		return nil
	}
	s := streamOf(stream)
	var status C.CUstreamCaptureStatus
	if err := d.do(askingForCapture, func() error {
		return failed(C.cuStreamIsCapturing((C.CUstream)(unsafe.Pointer(s.C())), &status))
	}); err != nil {
		return err
	}
	if status != C.CU_STREAM_CAPTURE_STATUS_NONE {
		return device.ErrCaptured
	}
	return nil
}

const askingForCapture = "cannot ask whether a stream is being captured"

// New returns the access of an operation whose caller brings no bridge, or why there is none: those of Open, a stream that is
// being captured, or an ordering for which the caller has no way to wait.
func New(op coll.Op) (*Driver, error) {
	if op.Ordering != coll.InStream {
		return nil, device.ErrBeside
	}
	if err := Captured(op.Device.Index, op.Stream); err != nil {
		return nil, err
	}
	d, err := Open(op.Device.Index)
	if err != nil {
		return nil, err
	}
	d.caller = streamOf(op.Stream)
	return d, nil
}

// Name implements device.Runtime.
func (d *Driver) Name() string { return "cuda" }

// NewStream implements device.Runtime.
func (d *Driver) NewStream(role device.Role) (device.Stream, error) {
	if role == device.Inputs {
		if s, ok := probes.Take(d.index); ok {
			return s, nil
		}
	}
	return reserved.stream(d, role)
}

// makeStream makes a stream of the greatest priority for inputs, of the next one for outputs, of the third one for recvs. Streams of different
// priorities do not share a queue of the hardware. The least priority is that of other streams, so a device with few of them has one for
// several roles.
func (d *Driver) makeStream(role device.Role) (device.Stream, error) {
	var s cu.Stream
	err := d.doRelaxed("cannot make a stream", func() error {
		least, greatest, err := cu.StreamPriorityRange() // the greatest priority is the smallest number
		if err != nil {
			return err
		}
		s, err = cu.MakeStreamWithPriority(max(greatest, min(greatest+int(role), least-1)), cu.NonBlocking)
		return err
	})
	return device.Stream{Handle: handleOf(s)}, err
}

type pinned struct{ memory unsafe.Pointer }

func (p pinned) Address() unsafe.Pointer { return p.memory }

// Pin implements device.Runtime.
func (d *Driver) Pin(bytes uint64) (device.Pinned, error) {
	var p pinned
	err := d.doRelaxed(fmt.Sprintf("cannot allocate %d bytes of pinned memory", bytes), func() error {
		return failed(C.cuMemHostAlloc(&p.memory, C.size_t(bytes), C.CU_MEMHOSTALLOC_PORTABLE))
	})
	if err != nil {
		return nil, err
	}
	return p, nil
}

// Fork implements device.Ordering.
func (d *Driver) Fork(s device.Stream) error {
	return d.do("cannot order a stream behind the caller's", func() error { return order(d.caller, streamOf(s.Handle)) })
}

// Join implements device.Ordering.
func (d *Driver) Join(s device.Stream) error {
	return d.do("cannot order the caller's stream behind the operation", func() error { return order(streamOf(s.Handle), d.caller) })
}

// Order implements device.Waiter.
func (d *Driver) Order(first, then device.Stream) error {
	return d.do("cannot order two streams", func() error { return order(streamOf(first.Handle), streamOf(then.Handle)) })
}

// order makes a stream wait for what another one holds now. A wait refers to the record that is the newest when it is queued, and
// an event may be destroyed while one is pending.
func order(first, then cu.Stream) error {
	event, err := cu.MakeEvent(cu.DisableTiming)
	if err != nil {
		return err
	}
	if err = event.Record(first); err == nil {
		err = then.Wait(event, 0)
	}
	if destroyed := cu.DestroyEvent(&event); err == nil {
		err = destroyed
	}
	return err
}

// CopyIn implements device.Runtime.
func (d *Driver) CopyIn(s device.Stream, c device.Copy) error {
	return d.do("cannot queue a copy from the device", func() error {
		return cu.MemcpyDtoHAsync(c.Host, cu.DevicePtr(c.Device), int64(c.Bytes), streamOf(s.Handle))
	})
}

// CopyOut implements device.Waiter.
func (d *Driver) CopyOut(s device.Stream, c device.Copy) error {
	return d.do("cannot queue a copy into the device", func() error {
		return cu.MemcpyHtoDAsync(cu.DevicePtr(c.Device), c.Host, int64(c.Bytes), streamOf(s.Handle))
	})
}

// WriteValue implements device.Runtime. Pinned memory has the same address on the device: all of it is portable, in a unified
// address space.
func (d *Driver) WriteValue(s device.Stream, word *uint32, value uint32) error {
	return d.do("cannot queue the write of a flag", func() error {
		return streamOf(s.Handle).WriteValue32(cu.DevicePtr(unsafe.Pointer(word)), value, C.CU_STREAM_WRITE_VALUE_DEFAULT)
	})
}

// WaitValue implements device.Waiter.
func (d *Driver) WaitValue(s device.Stream, word *uint32, value uint32) error {
	return d.do("cannot queue a wait for a flag", func() error {
		return streamOf(s.Handle).WaitOnValue32(cu.DevicePtr(unsafe.Pointer(word)), value, C.CU_STREAM_WAIT_VALUE_GEQ)
	})
}

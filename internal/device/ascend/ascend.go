// Package ascend implements the seams of package device on AscendCL, the runtime of Huawei's NPUs: the runtime for all callers, and
// the ordering for callers of the C ABI who bring no bridge. Its streams can wait for a word of pinned memory, so an operation
// needs no thread after it was issued.
//
// The library is opened at the first operation on a device and is never linked (acl.h). Devices without waits for values have
// no runtime here, and a framework's bridge serves them: those of the series A2, A3 and 950 have such waits.
package ascend

// #include "acl.h"
import "C"

import (
	"errors"
	"fmt"
	"time"
	"unsafe"

	"sagecomm/internal/coll"
	"sagecomm/internal/device"
)

// Driver gives an operation access to its device and to its caller's stream.
type Driver struct {
	index   int
	context C.uintptr_t
	caller  C.uintptr_t
}

var (
	_ device.Ordering = (*Driver)(nil)
	_ device.Waiter   = (*Driver)(nil)
	_ device.Launcher = (*Driver)(nil)
	_ device.Settler  = (*Driver)(nil)
)

var probes device.Probes

// Open returns the runtime of a device, or why there is none: no library, no device, or one whose streams cannot wait for a word.
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

// Captured returns device.ErrCaptured if a stream is being captured, or why the runtime does not tell. It allocates nothing, which
// may break a capture. Where Open returns an error, there is nothing to ask. A runtime that has no captures lacks the function.
func Captured(index int, stream uintptr) error {
	d, err := of(index)
	if err != nil || C.acl.aclmdlRICaptureGetInfo == nil {
		return nil
	}
	var status C.int32_t
	var model C.uintptr_t
	if err := d.do("cannot ask whether a stream is being captured", func() error {
		return failed("aclmdlRICaptureGetInfo", C.call_aclmdlRICaptureGetInfo(C.uintptr_t(stream), &status, &model))
	}); err != nil {
		return err
	}
	if status != C.acl_model_ri_capture_status_none {
		return device.ErrCaptured
	}
	return nil
}

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
	d.caller = C.uintptr_t(op.Stream)
	return d, nil
}

// Name implements device.Runtime. Pinned memory is mapped into the memory of one device.
func (d *Driver) Name() string { return fmt.Sprintf("ascend, device %d", d.index) }

// NewStream implements device.Runtime. Each stream has a queue of its own. The flags are those with which torch_npu makes streams.
func (d *Driver) NewStream(role device.Role) (device.Stream, error) {
	if role == device.Inputs {
		if s, ok := probes.Take(d.index); ok {
			return s, nil
		}
	}
	var s C.uintptr_t
	err := d.do("cannot make a stream", func() error {
		return failed("aclrtCreateStreamWithConfig", C.call_aclrtCreateStreamWithConfig(&s, 0, C.acl_stream_fast_launch|C.acl_stream_fast_sync))
	})
	return device.Stream{Handle: uintptr(s)}, err
}

// page is what memory must be aligned to before a device maps it. aclrtMallocHost aligns to 64 bytes.
const page = 4096

type pinned struct{ memory unsafe.Pointer }

func (p pinned) Address() unsafe.Pointer { return p.memory }

// Pin implements device.Runtime. The device gets an address of its own for the memory, by which it writes words and waits for them;
// copies take the address of the host.
func (d *Driver) Pin(bytes uint64) (device.Pinned, error) {
	var p pinned
	bytes = (bytes + page - 1) / page * page
	err := d.do(fmt.Sprintf("cannot allocate %d bytes of pinned memory", bytes), func() error {
		var allocated unsafe.Pointer
		if err := failed("aclrtMallocHost", C.call_aclrtMallocHost(&allocated, C.size_t(bytes+page))); err != nil {
			return err
		}
		p.memory = unsafe.Add(allocated, -uintptr(allocated)%page)
		var address C.uintptr_t
		err := failed("aclrtHostRegister", C.call_aclrtHostRegister(p.memory, C.uint64_t(bytes), C.acl_host_register_mapped, &address))
		if err != nil {
			C.call_aclrtFreeHost(allocated)
			return err
		}
		mapped.add(d.index, mapping{uintptr(p.memory), uintptr(bytes), uintptr(address)})
		return nil
	})
	if err != nil {
		return nil, err
	}
	return p, nil
}

// Fork implements device.Ordering.
func (d *Driver) Fork(s device.Stream) error {
	return d.do("cannot order a stream behind the caller's", func() error { return order(d.caller, C.uintptr_t(s.Handle)) })
}

// Join implements device.Ordering.
func (d *Driver) Join(s device.Stream) error {
	return d.do("cannot order the caller's stream behind the operation", func() error { return order(C.uintptr_t(s.Handle), d.caller) })
}

// Order implements device.Waiter.
func (d *Driver) Order(first, then device.Stream) error {
	return d.do("cannot order two streams", func() error { return order(C.uintptr_t(first.Handle), C.uintptr_t(then.Handle)) })
}

// order makes a stream wait for what another one holds now. An event of this kind takes its place on the device when it is recorded,
// which may make this thread wait for one; a wait refers to the newest record, and an event may be destroyed while one is pending.
func order(first, then C.uintptr_t) error {
	var event C.uintptr_t
	if err := failed("aclrtCreateEventExWithFlag", C.call_aclrtCreateEventExWithFlag(&event, C.acl_event_sync)); err != nil {
		return err
	}
	err := failed("aclrtRecordEvent", C.call_aclrtRecordEvent(event, first))
	if err == nil {
		err = failed("aclrtStreamWaitEvent", C.call_aclrtStreamWaitEvent(then, event))
	}
	if destroyed := failed("aclrtDestroyEvent", C.call_aclrtDestroyEvent(event)); err == nil {
		err = destroyed
	}
	return err
}

// CopyIn implements device.Runtime.
func (d *Driver) CopyIn(s device.Stream, c device.Copy) error {
	return d.copy("cannot queue a copy from the device", s, uintptr(c.Host), c.Device, c.Bytes, C.acl_memcpy_device_to_host)
}

// CopyOut implements device.Waiter.
func (d *Driver) CopyOut(s device.Stream, c device.Copy) error {
	return d.copy("cannot queue a copy into the device", s, c.Device, uintptr(c.Host), c.Bytes, C.acl_memcpy_host_to_device)
}

func (d *Driver) copy(what string, s device.Stream, to, from uintptr, bytes uint64, kind C.int32_t) error {
	return d.do(what, func() error {
		return failed("aclrtMemcpyAsync", C.call_aclrtMemcpyAsync(C.uintptr_t(to), C.size_t(bytes), C.uintptr_t(from), C.size_t(bytes), kind,
			C.uintptr_t(s.Handle)))
	})
}

var errNotPinned = errors.New("the word is not in memory that the runtime has pinned for this device")

// WriteValue implements device.Runtime. The device writes 64 bits.
func (d *Driver) WriteValue(s device.Stream, word *uint32, value uint32) error {
	return d.do("cannot queue the write of a flag", func() error {
		at, ok := mapped.find(d.index, uintptr(unsafe.Pointer(word)))
		if !ok {
			return errNotPinned
		}
		return failed("aclrtValueWrite", C.call_aclrtValueWrite(C.uintptr_t(at), C.uint64_t(value), 0, C.uintptr_t(s.Handle)))
	})
}

// WaitValue implements device.Waiter. The device compares 64 bits.
func (d *Driver) WaitValue(s device.Stream, word *uint32, value uint32) error {
	return d.do("cannot queue a wait for a flag", func() error {
		at, ok := mapped.find(d.index, uintptr(unsafe.Pointer(word)))
		if !ok {
			return errNotPinned
		}
		return failed("aclrtValueWait", C.call_aclrtValueWait(C.uintptr_t(at), C.uint64_t(value), C.acl_stream_wait_value_geq, C.uintptr_t(s.Handle)))
	})
}

// Settled implements device.Settler: the documentation of AscendCL speaks of words in memory of the device.
func (d *Driver) Settled(s device.Stream, within time.Duration) bool {
	return d.do("", func() error {
		return failed("aclrtSynchronizeStreamWithTimeout", C.call_aclrtSynchronizeStreamWithTimeout(C.uintptr_t(s.Handle), C.int32_t(within.Milliseconds())))
	}) == nil
}

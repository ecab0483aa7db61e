// Package cuda implements the seams of package device on the driver API of CUDA: the runtime for all callers, and the ordering for
// callers of the C ABI who bring no bridge. Its streams can wait for a word of pinned memory, so an operation needs no thread
// after it was issued.
package cuda

/*
#cgo CFLAGS: -std=c11 -Wall -Wextra
#include <stdlib.h>
#include "driver.h"

// Addresses of devices and streams are numbers in Go, because its garbage collector may take a pointer for one into its heap.
static CUresult make_stream(int device, int role, uintptr_t *stream, const char **why) {
  CUstream made = NULL;
  CUresult rc = cuda_make_stream(device, role, &made, why);
  *stream = (uintptr_t)made;
  return rc;
}
static CUresult order_streams(int device, uintptr_t first, uintptr_t then, const char **why) {
  return cuda_order(device, (CUstream)first, (CUstream)then, why);
}
static CUresult capturing(int device, uintptr_t stream, int *status, const char **why) {
  return cuda_capturing(device, (CUstream)stream, status, why);
}
static CUresult copy_in(int device, uintptr_t stream, void *to, uintptr_t from, size_t bytes, const char **why) {
  return cuda_copy_in(device, (CUstream)stream, to, from, bytes, why);
}
static CUresult copy_out(int device, uintptr_t stream, uintptr_t to, const void *from, size_t bytes, const char **why) {
  return cuda_copy_out(device, (CUstream)stream, to, from, bytes, why);
}
static CUresult write_value(int device, uintptr_t stream, uint32_t *word, uint32_t value, const char **why) {
  return cuda_write_value(device, (CUstream)stream, word, value, why);
}
static CUresult wait_value(int device, uintptr_t stream, uint32_t *word, uint32_t value, const char **why) {
  return cuda_wait_value(device, (CUstream)stream, word, value, why);
}
*/
import "C"

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"unsafe"

	"sagecomm/internal/coll"
	"sagecomm/internal/device"
)

// Driver gives an operation access to its device and to its caller's stream.
type Driver struct {
	device C.int
	caller C.uintptr_t
	why    *C.char
}

var (
	_ device.Ordering = (*Driver)(nil)
	_ device.Waiter   = (*Driver)(nil)
)

// probe is whether streams of a device can wait for a word, and the stream in which that was tried, which is for inputs.
type probe struct {
	stream atomic.Pointer[device.Stream] // nil: an operation uses it
	err    error
}

var (
	probes  sync.Map // of *probe, by index of the device
	probing sync.Mutex
)

// Open returns the runtime of a device, or why there is none: no driver, or one whose streams cannot wait for a word.
func Open(index int) (*Driver, error) {
	if why := C.cuda_load(); why != nil {
		return nil, errors.New(C.GoString(why))
	}
	d := &Driver{device: C.int(index)}
	known, ok := probes.Load(index)
	if !ok {
		probing.Lock()
		defer probing.Unlock()
		if known, ok = probes.Load(index); !ok {
			p, err := d.probe()
			if err != nil {
				return nil, err
			}
			probes.Store(index, p)
			known = p
		}
	}
	return d, known.(*probe).err
}

// probe queues a write of a word and a wait for it. An error is of the device, which the next operation tries again. The word
// stays allocated, because to free it would wait for the device.
func (d *Driver) probe() (*probe, error) {
	memory, err := d.Pin(256)
	if err != nil {
		return nil, err
	}
	s, err := d.makeStream(device.Inputs)
	if err != nil {
		memory.Release()
		return nil, err
	}
	p := new(probe)
	if p.err = d.WriteValue(s, (*uint32)(memory.Address()), 1); p.err == nil {
		p.err = d.WaitValue(s, (*uint32)(memory.Address()), 1)
	}
	p.stream.Store(&s)
	return p, nil
}

// New returns the access of an operation whose caller brings no bridge, or why there is none: those of Open, a stream that is
// being captured, or an ordering for which the caller has no way to wait.
func New(op coll.Op) (*Driver, error) {
	if op.Ordering != coll.InStream {
		return nil, errors.New("without sagecomm_op.bridge an operation ends in its caller's stream; set ordering to SAGECOMM_IN_STREAM")
	}
	d, err := Open(op.Device.Index)
	if err != nil {
		return nil, err
	}
	d.caller = C.uintptr_t(op.Stream)
	status := C.int(C.CU_STREAM_CAPTURE_STATUS_NONE)
	if err := d.result("cannot ask whether a stream is being captured", C.capturing(d.device, d.caller, &status, &d.why)); err != nil {
		return nil, err
	}
	if status != C.CU_STREAM_CAPTURE_STATUS_NONE {
		return nil, errors.New("the stream is being captured into a graph, and this engine copies through the host, which a graph cannot hold; call it outside of the capture")
	}
	return d, nil
}

func (d *Driver) result(what string, rc C.CUresult) error {
	if rc == 0 {
		return nil
	}
	return fmt.Errorf("%s: %s", what, C.GoString(d.why))
}

// Name implements device.Runtime.
func (d *Driver) Name() string { return "cuda" }

// NewStream implements device.Runtime.
func (d *Driver) NewStream(role device.Role) (device.Stream, error) {
	if known, ok := probes.Load(int(d.device)); ok && role == device.Inputs {
		if s := known.(*probe).stream.Swap(nil); s != nil {
			return *s, nil
		}
	}
	return d.makeStream(role)
}

func (d *Driver) makeStream(role device.Role) (device.Stream, error) {
	var s C.uintptr_t
	rc := C.make_stream(d.device, C.int(role), &s, &d.why)
	return device.Stream{Handle: uintptr(s)}, d.result("cannot make a stream", rc)
}

type pinned struct {
	device C.int
	memory unsafe.Pointer
}

func (p pinned) Address() unsafe.Pointer { return p.memory }

// Release implements device.Pinned. Memory that the driver does not take back stays allocated.
func (p pinned) Release() {
	var why *C.char
	C.cuda_unpin(p.device, p.memory, &why)
}

// Pin implements device.Runtime.
func (d *Driver) Pin(bytes uint64) (device.Pinned, error) {
	p := pinned{device: d.device}
	rc := C.cuda_pin(d.device, C.size_t(bytes), &p.memory, &d.why)
	if err := d.result(fmt.Sprintf("cannot allocate %d bytes of pinned memory", bytes), rc); err != nil {
		return nil, err
	}
	return p, nil
}

// Fork implements device.Ordering.
func (d *Driver) Fork(s device.Stream) error {
	return d.result("cannot order a stream behind the caller's", C.order_streams(d.device, d.caller, C.uintptr_t(s.Handle), &d.why))
}

// CopyIn implements device.Runtime.
func (d *Driver) CopyIn(s device.Stream, c device.Copy) error {
	return d.result("cannot queue a copy from the device", C.copy_in(d.device, C.uintptr_t(s.Handle), c.Host, C.uintptr_t(c.Device), C.size_t(c.Bytes), &d.why))
}

// WriteValue implements device.Runtime.
func (d *Driver) WriteValue(s device.Stream, word *uint32, value uint32) error {
	return d.result("cannot queue the write of a flag", C.write_value(d.device, C.uintptr_t(s.Handle), (*C.uint32_t)(word), C.uint32_t(value), &d.why))
}

// WaitValue implements device.Waiter.
func (d *Driver) WaitValue(s device.Stream, word *uint32, value uint32) error {
	return d.result("cannot queue a wait for a flag", C.wait_value(d.device, C.uintptr_t(s.Handle), (*C.uint32_t)(word), C.uint32_t(value), &d.why))
}

// CopyOut implements device.Waiter.
func (d *Driver) CopyOut(s device.Stream, c device.Copy) error {
	return d.result("cannot queue a copy into the device", C.copy_out(d.device, C.uintptr_t(s.Handle), C.uintptr_t(c.Device), c.Host, C.size_t(c.Bytes), &d.why))
}

// Order implements device.Waiter.
func (d *Driver) Order(first, then device.Stream) error {
	return d.result("cannot order two streams", C.order_streams(d.device, C.uintptr_t(first.Handle), C.uintptr_t(then.Handle), &d.why))
}

// Join implements device.Ordering.
func (d *Driver) Join(s device.Stream) error {
	return d.result("cannot order the caller's stream behind the operation", C.order_streams(d.device, C.uintptr_t(s.Handle), d.caller, &d.why))
}

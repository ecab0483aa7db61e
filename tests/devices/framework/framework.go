// Package framework is a framework with a launch queue that brings a bridge: framework.h.
package framework

// #cgo CFLAGS: -std=c11 -D_GNU_SOURCE -Wall -Wextra
// #cgo LDFLAGS: -ldl
// #include "framework.h"
import "C"

import (
	"unsafe"

	"sagecomm/internal/device"
)

// Framework is one on the thread's current device.
type Framework struct{ c *C.framework }

// New returns a framework whose operations come from a stream of the vendor's runtime. Its library is open and started.
func New(library, deviceName string, caller uintptr) (Framework, bool) {
	f := C.framework_new(C.CString(library), C.CString(deviceName), C.uintptr_t(caller))
	return Framework{f}, f != nil
}

// Bridge returns sagecomm_op.bridge.
func (f Framework) Bridge() unsafe.Pointer { return unsafe.Pointer(C.framework_bridge(f.c)) }

// KeepsHandles makes the framework leave its queue as it is when it is asked for a handle.
func (f Framework) KeepsHandles() { C.framework_keeps_handles(f.c, true) }

// MayBeCaptured makes the framework say that it cannot tell whether the caller's stream is being captured.
func (f Framework) MayBeCaptured() { C.framework_may_be_captured(f.c) }

// Kept reports whether the buffers of an operation are to be kept until the process ends.
func (f Framework) Kept() bool { return bool(C.framework_kept(f.c)) }

// Asked returns how often the library has asked whether a signal has come. Any goroutine may call it.
func (f Framework) Asked() int { return int(C.framework_asked(f.c)) }

// RefusesToKeep makes the framework keep no buffers.
func (f Framework) RefusesToKeep() { C.framework_refuses_to_keep(f.c) }

// IsOlder makes the framework one that knows of no buffers to keep.
func (f Framework) IsOlder() { C.framework_is_older(f.c) }

// ScalesNot makes the framework one that has no kernels which multiply and divide.
func (f Framework) ScalesNot() { C.framework_scales_not(f.c) }

// Copy launches a copy in the caller's stream.
func (f Framework) Copy(to, from uintptr, bytes int, toDevice bool) {
	C.framework_copy(f.c, C.uintptr_t(to), C.uintptr_t(from), C.uintptr_t(bytes), C.bool(toDevice))
}

// Wait makes the caller's stream wait for the operation.
func (f Framework) Wait() { C.framework_wait(f.c) }

// Finish ends an operation that is complete, before its caller's stream goes on.
func (f Framework) Finish() { C.framework_finish(f.c) }

// Drain does what was launched.
func (f Framework) Drain() { C.framework_drain(f.c) }

// Queued returns how much was launched and not done.
func (f Framework) Queued() int { return int(C.framework_queued(f.c)) }

// End returns what the library has left to the framework, and in which stream; false if it has left nothing.
func (f Framework) End() (e device.End, stream uintptr, ok bool) {
	var first C.sagecomm_copy
	var on C.uintptr_t
	var word *C.uint32_t
	var value C.uint32_t
	n := C.framework_end(f.c, &first, &on, &word, &value)
	if n != 1 {
		return e, 0, false
	}
	e.Copies = []device.Copy{{Host: unsafe.Pointer(first.from), Device: uintptr(unsafe.Pointer(first.to)), Bytes: uint64(first.bytes)}}
	e.Taken, e.Value = (*uint32)(unsafe.Pointer(word)), uint32(value)
	return e, uintptr(on), true
}

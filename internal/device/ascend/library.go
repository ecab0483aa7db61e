package ascend

// #cgo CFLAGS: -std=c11 -Wall -Wextra -fvisibility=hidden
// #include "acl.h"
import "C"

import (
	"errors"
	"fmt"
	"runtime"
	"sync"
	"unsafe"

	"sagecomm/internal/lazylink"
)

// Present opens AscendCL at its first call, and returns why there is none. It does not start it.
var Present = sync.OnceValue(func() error {
	table, names := unsafe.Slice((*unsafe.Pointer)(unsafe.Pointer(&C.acl)), int(C.acl_functions)), (*unsafe.Pointer)(unsafe.Pointer(&C.acl_names))
	if err := lazylink.Open("libascendcl.so", names, table); err != nil {
		return fmt.Errorf("no Ascend runtime: %w", err)
	}
	if name := lazylink.Lacking(names, table[:int(C.acl_needed)]); name != "" {
		return fmt.Errorf("the Ascend runtime has no %s: it is too old", name)
	}
	return nil
})

// load also starts AscendCL. A framework in this process has often started it already, and nobody in this library ever ends it.
var load = sync.OnceValue(func() error {
	if err := Present(); err != nil {
		return err
	}
	if rc := C.call_aclInit(nil); rc != 0 && rc != C.acl_repeat_initialize {
		return fmt.Errorf("the Ascend runtime does not start: %w", failed("aclInit", rc))
	}
	return nil
})

// Devices returns how many devices this process may use, or why there is none.
func Devices() (int, error) {
	if err := load(); err != nil {
		return 0, err
	}
	var n C.uint32_t
	if err := failed("aclrtGetDeviceCount", C.call_aclrtGetDeviceCount(&n)); err != nil {
		return 0, fmt.Errorf("the Ascend runtime finds no device: %w", err)
	}
	if n == 0 {
		return 0, errors.New("the Ascend runtime finds no device")
	}
	return int(n), nil
}

// contexts holds the default context of each device, by index. The process keeps a reference to each, which aclrtSetDevice counts.
var contexts sync.Map // of C.uintptr_t

// contextOf returns the default context of a device. The calling thread keeps the context that it has.
func contextOf(index int) (C.uintptr_t, error) {
	if known, ok := contexts.Load(index); ok {
		return known.(C.uintptr_t), nil
	}
	if n, err := Devices(); err != nil {
		return 0, err
	} else if index < 0 || index >= n {
		return 0, fmt.Errorf("no Ascend device %d: there are %d", index, n)
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	defer restore(current())
	err := failed("aclrtSetDevice", C.call_aclrtSetDevice(C.int32_t(index)))
	var context C.uintptr_t
	if err == nil {
		err = failed("aclrtGetCurrentContext", C.call_aclrtGetCurrentContext(&context))
	}
	if err != nil {
		return 0, fmt.Errorf("cannot use Ascend device %d: %w", index, err)
	}
	contexts.Store(index, context)
	return context, nil
}

// current returns the context of the calling thread, 0 if it has none.
func current() (context C.uintptr_t) {
	if C.call_aclrtGetCurrentContext(&context) != 0 {
		return 0
	}
	return context
}

// restore gives the calling thread the context that it had. A thread that had none keeps the one that it has now, because no call
// takes it away.
func restore(context C.uintptr_t) error {
	if context == 0 {
		return nil
	}
	return failed("aclrtSetCurrentContext", C.call_aclrtSetCurrentContext(context))
}

// do calls f while the context of the device is the current one of this thread. It gives the thread's own context back.
func (d *Driver) do(what string, f func() error) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	before := current()
	var err error
	if before != d.context {
		err = failed("aclrtSetCurrentContext", C.call_aclrtSetCurrentContext(d.context))
	}
	if err == nil {
		err = d.restores(before, f)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	return nil
}

// restores calls f, then gives the thread the context that it had, after a panic too.
func (d *Driver) restores(before C.uintptr_t, f func() error) (err error) {
	defer func() {
		if before == d.context {
			return
		}
		if restored := restore(before); err == nil {
			err = restored
		}
	}()
	return f()
}

// errorNames holds the codes that a user can do something about, as acl_base_rt.h and rt_error_codes.h name them.
var errorNames = map[C.int32_t]string{
	100000: "ACL_ERROR_INVALID_PARAM",
	100001: "ACL_ERROR_UNINITIALIZE",
	107000: "ACL_ERROR_RT_PARAM_INVALID",
	107001: "ACL_ERROR_RT_INVALID_DEVICEID",
	107002: "ACL_ERROR_RT_CONTEXT_NULL",
	107003: "ACL_ERROR_RT_STREAM_CONTEXT",
	107008: "ACL_ERROR_RT_ADDR_UNALIGNED",
	107019: "ACL_ERROR_RT_WAIT_TIMEOUT",
	107020: "ACL_ERROR_RT_TASK_TIMEOUT",
	107022: "ACL_ERROR_RT_DEVICE_TASK_ABORT",
	107027: "ACL_ERROR_RT_STREAM_CAPTURED",
	200000: "ACL_ERROR_BAD_ALLOC",
	207000: "ACL_ERROR_RT_FEATURE_NOT_SUPPORT",
	207001: "ACL_ERROR_RT_MEMORY_ALLOCATION",
	207004: "ACL_ERROR_RT_NO_DEVICE",
	207007: "ACL_ERROR_RT_NO_EVENT_RESOURCE",
	207008: "ACL_ERROR_RT_NO_STREAM_RESOURCE",
	207018: "ACL_ERROR_RT_DEVICE_OOM",
	500000: "ACL_ERROR_INTERNAL_ERROR",
	500003: "ACL_ERROR_RT_FAILURE",
	507000: "ACL_ERROR_RT_INTERNAL_ERROR",
}

// failed returns the error for a result of a function: any code but 0 is one, whether it has a name here or not.
func failed(function string, rc C.int32_t) error {
	switch name, known := errorNames[rc]; {
	case rc == 0:
		return nil
	case known:
		return fmt.Errorf("%s: %s (%d)", function, name, int(rc))
	default:
		return fmt.Errorf("%s: error %d of ACL", function, int(rc))
	}
}

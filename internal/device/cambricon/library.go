package cambricon

// #cgo CFLAGS: -std=c11 -Wall -Wextra -fvisibility=hidden
// #include "cnrt.h"
import "C"

import (
	"errors"
	"fmt"
	"runtime"
	"sync"
	"unsafe"

	"sagecomm/internal/lazylink"
)

// Present opens CNRT at its first call, and returns why there is none. CNRT starts itself when a device is used.
var Present = sync.OnceValue(func() error {
	table, names := unsafe.Slice((*unsafe.Pointer)(unsafe.Pointer(&C.cnrt)), int(C.cnrt_functions)), (*unsafe.Pointer)(unsafe.Pointer(&C.cnrt_names))
	if err := lazylink.Open("libcnrt.so", names, table); err != nil {
		return fmt.Errorf("no Cambricon runtime: %w", err)
	}
	if name := lazylink.Lacking(names, table); name != "" {
		return fmt.Errorf("the Cambricon runtime has no %s: it is too old", name)
	}
	return nil
})

// Devices returns how many devices this process may use, or why there is none.
func Devices() (int, error) {
	if err := Present(); err != nil {
		return 0, err
	}
	var n C.uint
	if err := failed("cnrtGetDeviceCount", C.call_cnrtGetDeviceCount(&n)); err != nil {
		return 0, fmt.Errorf("the Cambricon runtime finds no device: %w", err)
	}
	if n == 0 {
		return 0, errors.New("the Cambricon runtime finds no device")
	}
	return int(n), nil
}

// do calls f while the device is the current one of this thread. It gives the thread its own one back.
func (d *Driver) do(what string, f func() error) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var before C.int
	err := failed("cnrtGetDevice", C.call_cnrtGetDevice(&before))
	if err == nil && int(before) != d.index {
		err = failed("cnrtSetDevice", C.call_cnrtSetDevice(C.int(d.index)))
	}
	if err == nil {
		err = d.restores(before, f)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	return nil
}

// restores calls f, then makes the device current again that was, after a panic too.
func (d *Driver) restores(before C.int, f func() error) (err error) {
	defer func() {
		if int(before) == d.index {
			return
		}
		if restored := failed("cnrtSetDevice", C.call_cnrtSetDevice(before)); err == nil {
			err = restored
		}
	}()
	return f()
}

// errorNames holds the codes that a user can do something about, as cnrtRet_t names them.
var errorNames = map[C.int32_t]string{
	1:      "cnrtErrorNotReady",
	100002: "cnrtErrorInit",
	100004: "cnrtErrorNoDevice",
	100005: "cnrtErrorDeviceInvalid",
	100006: "cnrtErrorArgsInvalid",
	100010: "cnrtErrorSysNoMem",
	100014: "cnrtErrorInvalidResourceHandle",
	100050: "cnrtErrorNotSupport",
	100051: "cnrtErrorOpsNotPermitted",
	100060: "cnrtErrorQueue",
	100100: "cnrtErrorNoMem",
	100360: "cnrtErrorQueueCaptureUnsupported",
	632006: "cnrtErrorDevice",
	632013: "cnrtErrorMemcpyDirectionInvalid",
	632014: "cnrtErrorBusy",
	632015: "cnrtErrorCndrvFuncCall",
	632019: "cnrtErrorNoCnrtContext",
	999991: "cnrtErrorUnknown",
}

// failed returns the error for a result of a function: any code but 0 is one, whether it has a name here or not.
func failed(function string, rc C.int32_t) error {
	switch name, known := errorNames[rc]; {
	case rc == 0:
		return nil
	case known:
		return fmt.Errorf("%s: %s (%d)", function, name, int(rc))
	default:
		return fmt.Errorf("%s: error %d of CNRT", function, int(rc))
	}
}

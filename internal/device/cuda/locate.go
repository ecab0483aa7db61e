//go:build cuda

package cuda

/*
#include <cuda.h>

// Unlike cuPointerGetAttribute(), this one succeeds for memory that the driver does not know, and gives zeros.
static CUresult whereabouts(CUdeviceptr at, CUmemorytype *kind, int *ordinal) {
  CUpointer_attribute attributes[2] = {CU_POINTER_ATTRIBUTE_MEMORY_TYPE, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL};
  void *values[2] = {kind, ordinal};
  return cuPointerGetAttributes(2, attributes, values, at);
}
*/
import "C"

// Locate returns the device on which memory is. Memory that the driver does not know, and pinned memory of the host, is on none. It
// starts no driver, and works with one that lacks what operations need, so that no memory of a device is taken for the host's. It makes
// no context: a context on device 0 costs hundreds of megabytes there, in processes that use another device.
func Locate(pointer uintptr) (index int, found bool, err error) {
	if err := Present(); err != nil {
		return 0, false, nil // no memory is the driver's
	}
	var kind C.CUmemorytype
	var ordinal C.int
	ask := func() C.CUresult { return C.whereabouts(C.CUdeviceptr(pointer), &kind, &ordinal) }
	result := ask()
	if result == C.CUDA_ERROR_INVALID_CONTEXT { // the driver wants a context, and the thread has none
		if result, err = inActiveContext(ask); err != nil {
			return 0, false, err
		}
	}
	switch {
	case result == C.CUDA_ERROR_INVALID_VALUE, result == C.CUDA_ERROR_NOT_INITIALIZED: // nobody has started the driver
		return 0, false, nil
	case result != C.CUDA_SUCCESS:
		return 0, false, failed(result)
	}
	return int(ordinal), kind != 0 && kind != C.CU_MEMORYTYPE_HOST, nil
}

// inActiveContext asks in a context that the process has: the first primary one. Where there is none, no memory is a device's, and the
// result is CUDA_ERROR_INVALID_VALUE.
func inActiveContext(ask func() C.CUresult) (C.CUresult, error) {
	var n C.int
	if rc := C.cuDeviceGetCount(&n); rc != C.CUDA_SUCCESS {
		return rc, nil
	}
	for i := C.int(0); i < n; i++ {
		var on C.CUdevice
		var flags C.uint
		var active C.int
		rc := C.cuDeviceGet(&on, i)
		if rc == C.CUDA_SUCCESS {
			rc = C.cuDevicePrimaryCtxGetState(on, &flags, &active)
		}
		if rc != C.CUDA_SUCCESS {
			return rc, nil
		}
		if active == 0 {
			continue
		}
		d, err := of(int(i))
		if err != nil {
			return rc, err
		}
		err = d.do("cannot make the device current", func() error { rc = ask(); return nil })
		return rc, err
	}
	return C.CUDA_ERROR_INVALID_VALUE, nil
}

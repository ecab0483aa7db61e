//go:build cuda

package cuda

// #include <cuda.h>
import "C"

import "unsafe"

// Locate returns the device on which memory is. Memory that the driver does not know, and pinned memory of the host, is on none. It
// starts no driver, and works with one that lacks what operations need, so that no memory of a device is taken for the host's.
func Locate(pointer uintptr) (index int, found bool, err error) {
	if err := Present(); err != nil {
		return 0, false, nil // no memory is the driver's
	}
	var kind C.CUmemorytype
	var ordinal C.int
	ask := func() C.CUresult {
		result := C.cuPointerGetAttribute(unsafe.Pointer(&kind), C.CU_POINTER_ATTRIBUTE_MEMORY_TYPE, C.CUdeviceptr(pointer))
		if result == C.CUDA_SUCCESS && kind != C.CU_MEMORYTYPE_HOST {
			result = C.cuPointerGetAttribute(unsafe.Pointer(&ordinal), C.CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, C.CUdeviceptr(pointer))
		}
		return result
	}
	result := ask()
	if result == C.CUDA_ERROR_INVALID_CONTEXT { // the thread has none
		d, e := of(0)
		if e != nil {
			return 0, false, e
		}
		if e := d.do("cannot make the device current", func() error { result = ask(); return nil }); e != nil {
			return 0, false, e
		}
	}
	switch {
	case result == C.CUDA_ERROR_INVALID_VALUE, result == C.CUDA_ERROR_NOT_INITIALIZED: // nobody has started the driver
		return 0, false, nil
	case result != C.CUDA_SUCCESS:
		return 0, false, failed(result)
	}
	return int(ordinal), kind != C.CU_MEMORYTYPE_HOST, nil
}

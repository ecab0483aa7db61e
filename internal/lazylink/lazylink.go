// Package lazylink lets this library contain Go packages that call a vendor's library, and be loaded on a machine without that
// library. Such a package leaves the vendor's functions to the dynamic linker. Here each of them is a hidden function of that
// name, which jumps through a table. The table reports that the library is not loaded until a Bind function has opened it.
//
// The functions are listed in nvml_symbols.h. A test fails if a package calls one that is not there, since libsagecomm.so would
// then need the vendor's library to be loaded.
//
// Packages with declarations of their own call a library through a table of addresses, which [Open] fills.
package lazylink

//go:generate go run ./gen -prefix nvml -header nvml_symbols.h -texts nvmlErrorString github.com/NVIDIA/go-nvml/pkg/nvml
//go:generate go run ./gen -prefix cu -header cu_symbols.h -texts cuGetErrorName -starts cuInit -also cuDeviceGetUuid,cuDeviceGetUuid_v2,cuEventElapsedTime,cuEventElapsedTime_v2,cuGraphAddKernelNode,cuGraphAddKernelNode_v2,cuStreamWaitValue32,cuStreamWaitValue32_v2,cuStreamWriteValue32,cuStreamWriteValue32_v2 gorgonia.org/cu sagecomm/internal/device/cuda

// #cgo CFLAGS: -std=c11 -Wall -Wextra -fvisibility=hidden
// #cgo LDFLAGS: -L${SRCDIR}/lib -Wl,--as-needed
// #include <stdlib.h>
// #include "lazylink.h"
import "C"

import (
	"errors"
	"sync"
	"unsafe"
)

var binding sync.Mutex

// BindNVML opens NVML, NVIDIA's management library, for the package go-nvml. It returns why the library cannot be opened. Once
// it was opened, a call does nothing.
func BindNVML(path string) error { return bind(&C.lazylink_nvml, path) }

// BindCUDA opens the CUDA driver for the package cu, which does not start the driver. The rest is as for [BindNVML].
func BindCUDA(path string) error { return bind(&C.lazylink_cu, path) }

// CUDAHas reports whether the driver was opened and has a function.
func CUDAHas(name string) bool {
	binding.Lock()
	defer binding.Unlock()
	text := C.CString(name)
	defer C.free(unsafe.Pointer(text))
	return bool(C.lazylink_has(&C.lazylink_cu, text))
}

// lacking has, for each library that the process had not loaded when it was last asked for, how many it had loaded by then.
var lacking sync.Map

// Loaded reports whether this process has loaded a library, by whomever. It opens none. Asked again, it looks for the library only if the
// process has loaded one since: the dynamic linker looks through folders for a library that is not loaded, and callers ask at each
// operation.
func Loaded(path string) bool {
	adds := uint64(C.lazylink_adds())
	if then, known := lacking.Load(path); known && then == adds {
		return false
	}
	name := C.CString(path)
	defer C.free(unsafe.Pointer(name))
	if C.lazylink_loaded(name) {
		return true
	}
	lacking.Store(path, adds)
	return false
}

// Open opens a library for good and stores the addresses of its functions, nil for those that it does not have. names is a list
// of C strings, as long as addresses. It returns why the library cannot be opened.
func Open(path string, names *unsafe.Pointer, addresses []unsafe.Pointer) error {
	binding.Lock()
	defer binding.Unlock()
	name := C.CString(path)
	defer C.free(unsafe.Pointer(name))
	if why := C.lazylink_open(name, (**C.char)(unsafe.Pointer(names)), &addresses[0], C.size_t(len(addresses))); why != nil {
		return errors.New(C.GoString(why))
	}
	return nil
}

// Lacking returns the name of the first function whose address [Open] has not found, "" if it has found all of them.
func Lacking(names *unsafe.Pointer, addresses []unsafe.Pointer) string {
	list := unsafe.Slice((**C.char)(unsafe.Pointer(names)), len(addresses))
	for i, address := range addresses {
		if address == nil {
			return C.GoString(list[i])
		}
	}
	return ""
}

func bind(library *C.lazylink_library, path string) error {
	binding.Lock()
	defer binding.Unlock()
	name := C.CString(path)
	defer C.free(unsafe.Pointer(name))
	if why := C.lazylink_bind(library, name); why != nil {
		return errors.New(C.GoString(why))
	}
	return nil
}

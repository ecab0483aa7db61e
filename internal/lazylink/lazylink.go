// Package lazylink lets this library contain Go packages that call a vendor's library, and be loaded on a machine without that
// library. Such a package leaves the vendor's functions to the dynamic linker. Here each of them is a hidden function of that
// name, which jumps through a table. The table reports that the library is not loaded until a Bind function has opened it.
//
// The functions are listed in nvml_symbols.h. A test fails if a package calls one that is not there, since libsagecomm.so would
// then need the vendor's library to be loaded.
package lazylink

//go:generate go run ./gen github.com/NVIDIA/go-nvml/pkg/nvml nvml nvml_symbols.h nvmlErrorString

// #cgo CFLAGS: -std=c11 -Wall -Wextra -fvisibility=hidden
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

// Package raw calls functions of a shared library by name, as a program that uses a vendor's runtime beside this library does. It
// knows no declarations: each argument is a number.
package raw

/*
#cgo LDFLAGS: -ldl
#include <dlfcn.h>
#include <stdint.h>
#include <stdlib.h>

typedef int (*function)(uintptr_t, uintptr_t, uintptr_t, uintptr_t, uintptr_t, uintptr_t, uintptr_t, uintptr_t);

static int call(void *f, const uintptr_t *a) { return ((function)f)(a[0], a[1], a[2], a[3], a[4], a[5], a[6], a[7]); }
static void *find(void *library, const char *name) { return dlsym(library, name); }
*/
import "C"

import (
	"fmt"
	"unsafe"
)

// Library is a library that stays open.
type Library struct{ handle unsafe.Pointer }

// Open opens a library by its name.
func Open(name string) (Library, error) {
	c := C.CString(name)
	defer C.free(unsafe.Pointer(c))
	handle := C.dlopen(c, C.RTLD_NOW)
	if handle == nil {
		return Library{}, fmt.Errorf("%s", C.GoString(C.dlerror()))
	}
	return Library{handle}, nil
}

// Call calls a function of the library, or of one that it needs, which takes at most eight integers or pointers and returns an int.
// Numbers that are addresses are not of Go's memory.
func (l Library) Call(name string, arguments ...uintptr) int {
	c := C.CString(name)
	defer C.free(unsafe.Pointer(c))
	f := C.find(l.handle, c)
	if f == nil {
		panic("there is no function " + name)
	}
	var numbers [8]C.uintptr_t
	for i, a := range arguments {
		numbers[i] = C.uintptr_t(a)
	}
	return int(C.call(f, &numbers[0]))
}

// Memory returns zeroed memory of C, which is never freed.
func Memory(n int) uintptr { return uintptr(C.calloc(1, C.size_t(n))) }

// Bytes returns memory of the host at an address.
func Bytes(address uintptr, n int) []byte {
	return unsafe.Slice((*byte)(*(*unsafe.Pointer)(unsafe.Pointer(&address))), n)
}

// Load returns the number at an address.
func Load(address uintptr) uintptr {
	return **(**uintptr)(unsafe.Pointer(&address))
}

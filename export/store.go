// store.go: lets Go use the key-value store of the caller of group_create.
package main

/*
#include <stdlib.h>
#include "sagecomm.h"

int32_t sagecomm_store_set(const sagecomm_store *s, const char *key, const void *data, size_t n, char *why, size_t why_n);
int32_t sagecomm_store_get(const sagecomm_store *s, const char *key, int64_t timeout_ns, uintptr_t sink, char *why,
                           size_t why_n);
*/
import "C"

import (
	"fmt"
	"runtime/cgo"
	"time"
	"unsafe"

	"sagecomm/internal/bootstrap"
)

// cStore is the store of the caller. Its functions run on any goroutine's thread, without Python's GIL.
type cStore struct{ c *C.sagecomm_store }

const reasonBytes = 1024

func (s cStore) Set(key string, value []byte) error {
	k, why := C.CString(key), (*C.char)(C.calloc(1, reasonBytes))
	defer C.free(unsafe.Pointer(k))
	defer C.free(unsafe.Pointer(why))
	if C.sagecomm_store_set(s.c, k, unsafe.Pointer(unsafe.SliceData(value)), C.size_t(len(value)), why, reasonBytes) != 0 {
		return fmt.Errorf("store: set %s: %s", key, C.GoString(why))
	}
	return nil
}

func (s cStore) Get(key string, timeout time.Duration) ([]byte, error) {
	k, why := C.CString(key), (*C.char)(C.calloc(1, reasonBytes))
	defer C.free(unsafe.Pointer(k))
	defer C.free(unsafe.Pointer(why))
	var value []byte
	sink := cgo.NewHandle(&value)
	defer sink.Delete()
	switch C.sagecomm_store_get(s.c, k, C.int64_t(timeout), C.uintptr_t(sink), why, reasonBytes) {
	case C.SAGECOMM_OK:
		return value, nil
	case C.SAGECOMM_TIMEOUT:
		return nil, fmt.Errorf("store: get %s: %w", key, bootstrap.ErrTimeout)
	default:
		return nil, fmt.Errorf("store: get %s: %s", key, C.GoString(why))
	}
}

//export sagecommSink
func sagecommSink(ctx unsafe.Pointer, data unsafe.Pointer, n C.size_t) {
	var status C.int32_t
	defer guard(&status, nil)
	*cgo.Handle(uintptr(ctx)).Value().(*[]byte) = append([]byte(nil), unsafe.Slice((*byte)(data), n)...)
}

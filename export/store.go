// store.go: lets Go use the key-value store of the caller of group_create.
package main

/*
#include <stdlib.h>
#include "sagecomm.h"

int32_t sagecomm_store_set(const sagecomm_store *s, const char *key, const void *data, size_t n, char *why, size_t why_n);
int32_t sagecomm_store_get(const sagecomm_store *s, const char *key, int64_t timeout_ns, uintptr_t sink, char *why,
                           size_t why_n);
int32_t sagecomm_store_get_many(const sagecomm_store *s, const char *const *keys, size_t n, int64_t timeout_ns,
                                uintptr_t sink, char *why, size_t why_n);
int32_t sagecomm_store_prepare(const sagecomm_lasting_store *s, void **claimer, char *why, size_t why_n);
int32_t sagecomm_store_claim(const sagecomm_lasting_store *s, void *claimer, const char *key, const void *data, size_t n,
                             uintptr_t sink, char *why, size_t why_n);
void sagecomm_store_release(const sagecomm_lasting_store *s, void *claimer);
*/
import "C"

import (
	"cmp"
	"errors"
	"fmt"
	"runtime/cgo"
	"time"
	"unsafe"

	"sagecomm/internal/bootstrap"
)

// cStore is the store of the C caller. Its functions are called on any thread, without Python's GIL.
type cStore struct{ c *C.sagecomm_store }

// cManyStore is a cStore whose get_many is not NULL.
type cManyStore struct{ cStore }

const reasonBytes = 1024

// newStore returns the store of a configuration.
func newStore(c *C.sagecomm_store) bootstrap.Store {
	if c.get_many == nil {
		return cStore{c}
	}
	return cManyStore{cStore{c}}
}

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
	values, err := receive(1, func(sink C.uintptr_t) C.int32_t {
		return C.sagecomm_store_get(s.c, k, C.int64_t(timeout), sink, why, reasonBytes)
	})
	if err == nil {
		return values[0], nil
	}
	return nil, explainGet(key, err, why)
}

func (s cManyStore) GetMany(keys []string, timeout time.Duration) ([][]byte, error) {
	k, why := (**C.char)(C.calloc(C.size_t(len(keys)), C.size_t(unsafe.Sizeof((*C.char)(nil))))), (*C.char)(C.calloc(1, reasonBytes))
	defer C.free(unsafe.Pointer(k))
	defer C.free(unsafe.Pointer(why))
	for i, key := range keys {
		text := C.CString(key)
		defer C.free(unsafe.Pointer(text))
		unsafe.Slice(k, len(keys))[i] = text
	}
	values, err := receive(len(keys), func(sink C.uintptr_t) C.int32_t {
		return C.sagecomm_store_get_many(s.c, k, C.size_t(len(keys)), C.int64_t(timeout), sink, why, reasonBytes)
	})
	if err == nil {
		return values, nil
	}
	return nil, explainGet(fmt.Sprintf("%s and %d more", keys[0], len(keys)-1), err, why)
}

// cLasting makes the store of the C caller last. It is valid during group_create() only.
type cLasting struct{ c *C.sagecomm_lasting_store }

// newLasting returns what a configuration has, nil for nothing.
func newLasting(config *C.sagecomm_group_config) bootstrap.Lasting {
	if uintptr(config.struct_size) < unsafe.Offsetof(config.lasting)+unsafe.Sizeof(config.lasting) || config.lasting == nil {
		return nil
	}
	return cLasting{config.lasting}
}

// Last calls prepare. The caller's structure ends before what Last returns, so its functions are copied.
func (s cLasting) Last() (bootstrap.Claimer, error) {
	if s.c.prepare == nil || s.c.claim == nil || s.c.release == nil {
		return nil, errors.New("store: a function of sagecomm_lasting_store is NULL")
	}
	functions := (*C.sagecomm_lasting_store)(C.calloc(1, C.sizeof_sagecomm_lasting_store))
	*functions = *s.c
	why := (*C.char)(C.calloc(1, reasonBytes))
	defer C.free(unsafe.Pointer(why))
	claimer := (*unsafe.Pointer)(C.calloc(1, C.size_t(unsafe.Sizeof(unsafe.Pointer(nil)))))
	defer C.free(unsafe.Pointer(claimer))
	if C.sagecomm_store_prepare(functions, claimer, why, reasonBytes) != 0 {
		C.free(unsafe.Pointer(functions))
		return nil, fmt.Errorf("store: %s", C.GoString(why))
	}
	c := *claimer
	claim := func(key string, value []byte) ([]byte, error) { return claimIn(functions, c, key, value) }
	return bootstrap.Counted(claim, func() {
		C.sagecomm_store_release(functions, c)
		C.free(unsafe.Pointer(functions))
	}), nil
}

// claimIn calls claim.
func claimIn(functions *C.sagecomm_lasting_store, claimer unsafe.Pointer, key string, value []byte) ([]byte, error) {
	k, why := C.CString(key), (*C.char)(C.calloc(1, reasonBytes))
	defer C.free(unsafe.Pointer(k))
	defer C.free(unsafe.Pointer(why))
	values, err := receive(1, func(sink C.uintptr_t) C.int32_t {
		return C.sagecomm_store_claim(functions, claimer, k, unsafe.Pointer(unsafe.SliceData(value)), C.size_t(len(value)), sink, why, reasonBytes)
	})
	if err == nil {
		return values[0], nil
	}
	return nil, fmt.Errorf("store: claim %s: %s", key, cmp.Or(C.GoString(why), err.Error()))
}

// errStore is the error that receive returns if the store failed. The store's text is in `why`.
var errStore = errors.New("the store failed")

// receive calls get with a sink and returns the n values that get has handed to it.
func receive(n int, get func(sink C.uintptr_t) C.int32_t) ([][]byte, error) {
	values := make([][]byte, 0, n)
	sink := cgo.NewHandle(&values)
	defer sink.Delete()
	switch status := get(C.uintptr_t(sink)); {
	case status == C.SAGECOMM_TIMEOUT:
		return nil, bootstrap.ErrTimeout
	case status != C.SAGECOMM_OK:
		return nil, errStore
	case len(values) != n:
		return nil, fmt.Errorf("the store returned %d values for %d keys", len(values), n)
	}
	return values, nil
}

// explainGet adds the key, and the store's own text, to an error of receive.
func explainGet(key string, err error, why *C.char) error {
	if err == errStore {
		return fmt.Errorf("store: get %s: %s", key, C.GoString(why))
	}
	return fmt.Errorf("store: get %s: %w", key, err)
}

//export sagecommSink
func sagecommSink(ctx unsafe.Pointer, data unsafe.Pointer, n C.size_t) {
	var status C.int32_t
	defer guard(&status, nil)
	values := cgo.Handle(uintptr(ctx)).Value().(*[][]byte)
	*values = append(*values, append([]byte(nil), unsafe.Slice((*byte)(data), n)...))
}

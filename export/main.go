// Package main is libsagecomm.so: the functions of sagecomm.h, each a few lines over pgbackend, with a recover that
// turns a panic into an error. Operations (issue, wait, ...) are the runner's C functions and are not seen here.
package main

/*
#cgo CFLAGS: -std=c11 -Wall -Wextra -Wno-unused-parameter
#include <stdlib.h>
#include "sagecomm.h"

int32_t sagecomm_store_set(const sagecomm_store *s, const char *key, const void *data, size_t n, char *why, size_t why_n);
int32_t sagecomm_store_get(const sagecomm_store *s, const char *key, int64_t timeout_ns, uintptr_t sink, char *why,
                           size_t why_n);
*/
import "C"

import (
	"encoding/json"
	"fmt"
	"os"
	"runtime/cgo"
	"runtime/debug"
	"time"
	"unsafe"

	"sagecomm/internal/bootstrap"
	"sagecomm/internal/coll"
	"sagecomm/internal/env"
	"sagecomm/internal/runner"
	"sagecomm/pgbackend"
)

func main() {}

// answer fills *err and returns the status.
func answer(err *C.sagecomm_error, f *coll.Failure) C.int32_t {
	if f == nil {
		return C.SAGECOMM_OK
	}
	return C.int32_t(runner.FillError(unsafe.Pointer(err), f))
}

func invalid(format string, args ...any) *coll.Failure {
	return &coll.Failure{Status: coll.Invalid, Rank: -1, Message: fmt.Sprintf("sagecomm: "+format, args...)}
}

// guard is deferred by every export: a panic becomes *out and its stack is printed.
func guard(out *C.int32_t, err *C.sagecomm_error) {
	if r := recover(); r != nil {
		fmt.Fprintf(os.Stderr, "sagecomm WARN [%d] panic: %v\n%s", os.Getpid(), r, debug.Stack())
		*out = answer(err, &coll.Failure{Status: coll.Internal, Rank: -1, Message: fmt.Sprintf("sagecomm: a fault of the library: %v; its stack is on standard error", r)})
	}
}

// guardGroup is deferred by what is done with a group: it takes the group down, too.
func guardGroup(g *pgbackend.Group, out *C.int32_t, err *C.sagecomm_error) {
	if r := recover(); r != nil {
		*out = answer(err, g.Panicked(r))
	}
}

// cStore is the caller's store.
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

//export sagecommGroupCreate
func sagecommGroupCreate(config *C.sagecomm_group_config, out *C.sagecomm_group, err *C.sagecomm_error) (status C.int32_t) {
	defer guard(&status, err)
	if config == nil || out == nil || config.struct_size < C.sizeof_sagecomm_group_config || config.store == nil {
		return answer(err, invalid("group_create: incomplete configuration"))
	}
	options := map[string]string{}
	for _, o := range unsafe.Slice(config.options, int(config.n_options)) {
		options[C.GoString(o.name)] = C.GoString(o.value)
	}
	g, e := pgbackend.Get().Create(pgbackend.Config{
		Rank: int(config.rank), Size: int(config.size), Name: C.GoString(config.name),
		Timeout: time.Duration(config.timeout_ns), Store: cStore{config.store}, Options: options, GlobalRanks: globalRanks(config),
	})
	if e != nil {
		return answer(err, pgbackend.CreateFailure(C.GoString(config.name), e))
	}
	*out = C.sagecomm_group(g.Handle())
	return C.SAGECOMM_OK
}

func globalRanks(config *C.sagecomm_group_config) []int {
	if config.global_ranks == nil || config.size <= 0 {
		return nil
	}
	list := make([]int, config.size)
	for i, rank := range unsafe.Slice(config.global_ranks, int(config.size)) {
		list[i] = int(rank)
	}
	return list
}

// find answers for a handle that is not valid.
func find(group C.sagecomm_group, call string) (*pgbackend.Group, *coll.Failure) {
	if g := pgbackend.Get().Group(uint64(group)); g != nil {
		return g, nil
	}
	return nil, invalid("%s: the group was destroyed", call)
}

//export sagecommGroupDestroy
func sagecommGroupDestroy(group C.sagecomm_group, err *C.sagecomm_error) (status C.int32_t) {
	defer guard(&status, err)
	g, f := find(group, "group_destroy")
	if f != nil {
		return answer(err, f)
	}
	defer guardGroup(g, &status, err)
	if e := g.Destroy(); e != nil {
		return answer(err, invalid("%v", e))
	}
	return C.SAGECOMM_OK
}

//export sagecommGroupAbort
func sagecommGroupAbort(group C.sagecomm_group, reason *C.char, err *C.sagecomm_error) (status C.int32_t) {
	defer guard(&status, err)
	g, f := find(group, "group_abort")
	if f != nil {
		return answer(err, f)
	}
	defer guardGroup(g, &status, err)
	g.Abort(C.GoString(reason))
	return C.SAGECOMM_OK
}

//export sagecommGroupFail
func sagecommGroupFail(group C.sagecomm_group, cause, err *C.sagecomm_error) (status C.int32_t) {
	defer guard(&status, err)
	g, f := find(group, "group_fail")
	if f != nil {
		return answer(err, f)
	}
	defer guardGroup(g, &status, err)
	if cause == nil {
		return answer(err, invalid("group_fail: no cause is given"))
	}
	if e := g.Fail(runner.FailureOf(unsafe.Pointer(cause))); e != nil {
		return answer(err, invalid("%v", e))
	}
	return C.SAGECOMM_OK
}

//export sagecommGroupHold
func sagecommGroupHold(group C.sagecomm_group, by C.int32_t, err *C.sagecomm_error) (status C.int32_t) {
	defer guard(&status, err)
	g, f := find(group, "group_hold")
	if f != nil {
		return answer(err, f)
	}
	defer guardGroup(g, &status, err)
	g.Hold(int(by))
	return C.SAGECOMM_OK
}

//export sagecommGroupSetTimeout
func sagecommGroupSetTimeout(group C.sagecomm_group, ns C.int64_t, err *C.sagecomm_error) (status C.int32_t) {
	defer guard(&status, err)
	g, f := find(group, "group_set_timeout")
	if f != nil {
		return answer(err, f)
	}
	defer guardGroup(g, &status, err)
	if e := g.SetTimeout(time.Duration(ns)); e != nil {
		return answer(err, invalid("%v", e))
	}
	return C.SAGECOMM_OK
}

//export sagecommMonitoredError
func sagecommMonitoredError(group C.sagecomm_group, ns C.int64_t, all C.int32_t, err *C.sagecomm_error) (status C.int32_t) {
	defer guard(&status, err)
	g, f := find(group, "monitored_error")
	if f != nil {
		return answer(err, f)
	}
	defer guardGroup(g, &status, err)
	return answer(err, g.MonitoredCause(time.Duration(ns), all != 0))
}

// give copies text with a closing NUL into the caller's buffer and returns the bytes needed.
func give(text []byte, to *C.char, n C.size_t) C.int64_t {
	if need := len(text) + 1; to != nil && n >= C.size_t(need) {
		buffer := unsafe.Slice((*byte)(unsafe.Pointer(to)), need)
		copy(buffer, text)
		buffer[need-1] = 0
	}
	return C.int64_t(len(text) + 1)
}

//export sagecommGroupStats
func sagecommGroupStats(group C.sagecomm_group, to *C.char, n C.size_t) (bytes C.int64_t) {
	var status C.int32_t
	defer func() {
		if status != 0 {
			bytes = C.int64_t(status)
		}
	}()
	defer guard(&status, nil)
	g, f := find(group, "group_stats")
	if f != nil {
		return C.SAGECOMM_INVALID
	}
	defer guardGroup(g, &status, nil)
	stats, e := g.Stats()
	if e != nil {
		return C.SAGECOMM_INTERNAL
	}
	text, e := json.Marshal(stats)
	if e != nil {
		return C.SAGECOMM_INTERNAL
	}
	return give(text, to, n)
}

//export sagecommDescribeEnvironment
func sagecommDescribeEnvironment(to *C.char, n C.size_t) (bytes C.int64_t) {
	var status C.int32_t
	defer func() {
		if status != 0 {
			bytes = C.int64_t(status)
		}
	}()
	defer guard(&status, nil)
	return give(env.DescribeJSON(runner.Environ()), to, n)
}

//export sagecommShutdown
func sagecommShutdown() {
	var status C.int32_t
	defer guard(&status, nil)
	pgbackend.Get().Shutdown()
}

// Package main is built as libsagecomm.so. It implements those functions of sagecomm.h that enter Go, each in a few lines over
// pgbackend, and owns no state. C callers may call them on any thread; a panic becomes an error. Operations (issue, wait, ...)
// are C functions of the runner and do not pass through this package. api.c puts both into the function table: start reading
// there.
package main

/*
#cgo CFLAGS: -std=c11 -Wall -Wextra -Wno-unused-parameter
#include "sagecomm.h"
*/
import "C"

import (
	"fmt"
	"os"
	"runtime/debug"
	"unsafe"

	"sagecomm/internal/coll"
	"sagecomm/internal/runner"
	"sagecomm/pgbackend"
)

func main() {}

// answer fills in *err and returns the status.
func answer(err *C.sagecomm_error, f *coll.Failure) C.int32_t {
	if f == nil {
		return C.SAGECOMM_OK
	}
	return C.int32_t(runner.FillError(unsafe.Pointer(err), f))
}

func invalid(format string, args ...any) *coll.Failure {
	return &coll.Failure{Status: coll.Invalid, Rank: -1, Message: fmt.Sprintf("sagecomm: "+format, args...)}
}

// guard turns a panic into an error in *out and *err and prints its stack. Every exported function defers it.
func guard(out *C.int32_t, err *C.sagecomm_error) {
	if r := recover(); r != nil {
		fmt.Fprintf(os.Stderr, "sagecomm WARN [%d] panic: %v\n%s", os.Getpid(), r, debug.Stack())
		*out = answer(err, &coll.Failure{Status: coll.Internal, Rank: -1, Message: fmt.Sprintf("sagecomm: internal error: %v; its stack is on standard error; please report both", r)})
	}
}

// guardGroup turns a panic into an error in *out and *err and fails the group. Every exported function defers it once it has
// found its group.
func guardGroup(g *pgbackend.Group, out *C.int32_t, err *C.sagecomm_error) {
	if r := recover(); r != nil {
		*out = answer(err, g.Panicked(r))
	}
}

//export sagecommWaits
func sagecommWaits(out *C.sagecomm_waits) {
	out.slice_ns, out.hooks_ns = C.int64_t(pgbackend.ShimWaits.Slice), C.int64_t(pgbackend.ShimWaits.Hooks)
}

//export sagecommShutdown
func sagecommShutdown() {
	var status C.int32_t
	defer guard(&status, nil)
	pgbackend.Get().Shutdown()
}

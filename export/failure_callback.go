// failure_callback.go: registers failure callbacks of C callers.
package main

/*
#include "sagecomm.h"

void sagecomm_call_failed(sagecomm_failed_fn failed, void *ctx, const sagecomm_error *cause);
*/
import "C"

import (
	"unsafe"

	"sagecomm/internal/coll"
	"sagecomm/internal/runner"
)

//export sagecommGroupOnFailure
func sagecommGroupOnFailure(group C.sagecomm_group, failed C.sagecomm_failed_fn, ctx unsafe.Pointer, err *C.sagecomm_error) (status C.int32_t) {
	defer guard(&status, err)
	g, f := find(group, "group_on_failure")
	if f != nil {
		return answer(err, f)
	}
	defer guardGroup(g, &status, err)
	if failed == nil {
		return answer(err, invalid("group_on_failure: no function is given"))
	}
	return answer(err, g.OnFailure(func(cause *coll.Failure) {
		if cause == nil {
			C.sagecomm_call_failed(failed, ctx, nil)
			return
		}
		var e C.sagecomm_error
		runner.FillError(unsafe.Pointer(&e), cause)
		C.sagecomm_call_failed(failed, ctx, &e)
	}))
}

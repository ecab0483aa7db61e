// recorder.go: the flight recorder for C callers: its records, its dumps, and the descriptions and stacks that callers add.
package main

/*
#include "sagecomm.h"
*/
import "C"

import (
	"sagecomm/internal/coll"
	"sagecomm/pgbackend"
)

//export sagecommFlightRecords
func sagecommFlightRecords(to *C.char, n C.size_t) C.int64_t {
	return writeText(to, n, pgbackend.Get().Observers().FlightRecords)
}

//export sagecommFlightDump
func sagecommFlightDump(prefix *C.char, err *C.sagecomm_error) (status C.int32_t) {
	defer guard(&status, err)
	if e := pgbackend.Get().Observers().Dump(C.GoString(prefix)); e != nil {
		return answer(err, &coll.Failure{Status: coll.System, Rank: -1, Message: e.Error()})
	}
	return C.SAGECOMM_OK
}

//export sagecommGroupDescribe
func sagecommGroupDescribe(group C.sagecomm_group, text *C.char, err *C.sagecomm_error) (status C.int32_t) {
	defer guard(&status, err)
	g, f := find(group, "group_describe")
	if f != nil {
		return answer(err, f)
	}
	defer guardGroup(g, &status, err)
	g.Describe(C.GoString(text))
	return C.SAGECOMM_OK
}

//export sagecommGroupBlockingWait
func sagecommGroupBlockingWait(group C.sagecomm_group) (blocks C.int32_t) {
	var status C.int32_t
	defer guard(&status, nil)
	if g, f := find(group, "group_blocking_wait"); f == nil && g.WaitsOnHost() {
		return 1
	}
	return 0
}

//export sagecommGroupStack
func sagecommGroupStack(group C.sagecomm_group, frames *C.char) (number C.uint64_t) {
	var status C.int32_t
	defer guard(&status, nil)
	g, f := find(group, "group_stack")
	switch {
	case f != nil || !g.RecordsStacks():
		return 0
	case frames == nil:
		return 1
	}
	defer guardGroup(g, &status, nil)
	return C.uint64_t(g.Stack(C.GoString(frames)))
}
